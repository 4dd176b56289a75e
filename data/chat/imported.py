"""Import conversations from files or hub data sets, normalized for every chat phase.

From a `TalkSpec`, `make` writes `conversations.jsonl`: one `{"messages": [...]}` per line in source order, with `tools`
and `chat_template_kwargs` if present, and the row number. `foreign_rows` parses the known formats. Rows unusable for
all chat phases are listed in `refused.jsonl` with a reason.
"""

import gzip
import io
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

from data import references
from data.chat.foreign_rows import COLUMNS, READ, dialogue_row, is_alpaca, parse_row, read_dialogue, unread_fields
from data.chat.unread_fields import RowRefused, may_have_meaning
from data.config import ConfigError, TalkSpec, form_of, is_of_datasets, source_files
from data.errors import InputError
from data.events import emit
from data.references import HUB
from data.text import fineweb
from data.text.remote import open_remote
from data.tokens.chat_template import Dialogue
from store import packs, untrusted_input

FILE = "conversations.jsonl"
REFUSED = "refused.jsonl"
TOLD = 3  # number of rejected rows quoted in a message
NAMED, MOST_NOT_READ = 8, 100  # maximum number of unread fields in a message, and in the summary
TURN = ("system", "user", "assistant")
TELL_EVERY = 5000


class RowReader:
    """The reading of foreign rows as conversations; packs extend the class for other kinds of rows."""

    columns: tuple[str, ...] = COLUMNS
    """Columns with the content; a row has at least one."""
    known: tuple[str, ...] = READ
    """Columns that `read` uses."""

    def is_readable(self, row: Any) -> bool:
        """Return whether a row has the columns of this kind, even null."""
        return not isinstance(row, Mapping) or any(name in row for name in COLUMNS) or is_alpaca(row)

    def has_columns(self, names: Collection[str]) -> bool:
        """Return whether a table with these columns can have rows of this kind."""
        return self.is_readable(dict.fromkeys(names))

    def read(self, row: Any) -> dict[str, Any]:
        """Return a row of conversations.jsonl. Raises RowRefused."""
        if not self.is_readable(row):
            raise RowRefused(self.no_columns(row))
        return dialogue_row(parse_row(row))

    def unread_fields(self, row: Any) -> Iterator[str]:
        """Yield the names of fields with content that `read` does not use."""
        return unread_fields(row)

    def no_columns(self, row: Mapping[str, Any]) -> str:
        return f"it has no {', '.join(self.columns)}; available: {', '.join(row) or 'none'}"


CONVERSATIONS = RowReader()


def reader_of(spec: TalkSpec) -> RowReader:
    """Return the reader of the rows of `spec`. Raises ConfigError for an unknown kind of rows."""
    if not spec.reader:
        return CONVERSATIONS
    known = packs.entries("row_readers")
    if spec.reader not in known:
        raise ConfigError(f"reader is {spec.reader!r}; known: {', '.join(known) or 'none'}")
    found: RowReader = packs.load(known[spec.reader])()
    return found


def make(spec: TalkSpec, folder: Path) -> dict[str, Any]:
    """Write the conversations of `spec`, and the rejected rows with reasons to REFUSED; return a summary.

    Raises InputError if the source has no usable conversation, DataError if the hub is unreachable.
    """
    kept, reasons, not_read, reader = 0, dict[int, str](), dict[str, None](), reader_of(spec)
    found, about = source_rows(spec, not_read, reader)
    # Half a surrogate pair has no UTF-8 form, and JSON may hold one in any text and in any name.
    with open(folder / FILE, "w", encoding="utf-8", errors="replace") as out:
        for number, row in enumerate(islice(found, spec.take), 1):
            if number == 1 and not reader.is_readable(row):
                raise InputError(f"{spec.source}: {reader.no_columns(row)}")
            try:
                made = reader.read(row)
            except RowRefused as error:
                reasons[number] = str(error)
                continue
            not_read.update(dict.fromkeys(reader.unread_fields(row)))
            out.write(json.dumps({**made, "row": number}, ensure_ascii=False) + "\n")
            kept += 1
            if kept % TELL_EVERY == 0:
                emit("progress", done=kept, unit="conversations")
    first = "; ".join(f"row {number}: {why}" for number, why in islice(reasons.items(), TOLD))
    if not kept:
        raise InputError(f"{spec.source}: none of its {len(reasons)} rows is a conversation to learn from: {first}")
    if reasons:
        lines = (json.dumps({"row": number, "reason": why}) for number, why in reasons.items())
        (folder / REFUSED).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        share = f"{len(reasons):,} of {kept + len(reasons):,} rows"
        emit("note", text=f"{spec.source}: {share} are left out ({REFUSED} lists them): {first}", alarm=True)
    if not_read:
        emit("note", text=f"{spec.source}: not read: {shortened(not_read)}")
        about = {**about, "not_read": list(not_read)[:MOST_NOT_READ]}
    return {"conversations": kept, "skipped": len(reasons), "source": spec.source, **about}


def shortened(names: Collection[str]) -> str:
    """Return the first names, and the number of the others."""
    more = f" and {len(names) - NAMED} more" if len(names) > NAMED else ""
    return ", ".join(list(names)[:NAMED]) + more


def source_rows(
    spec: TalkSpec, not_read: dict[str, None], reader: RowReader = CONVERSATIONS
) -> tuple[Iterator[Any], dict[str, Any]]:
    """Return the rows in order, and a description of the origin; add unread columns of Parquet files to `not_read`.

    Raises InputError, DataError.
    """
    reference = references.parse(spec.source)
    if reference.is_hub:
        reference = replace(reference, config=spec.config, split=spec.split, revision=spec.revision)
        commit, uris = hub_files(reference)
        if uris and not reference.columns:
            return (row for uri in uris for row in rows(uri, not_read, reader)), {"revision": commit}
        from data.text import hub_datasets  # the import takes seconds

        return rows_of_datasets(reference), {"revision": hub_datasets.revision(reference)}
    if is_of_datasets(reference) or reference.columns:
        return rows_of_datasets(reference), {}
    return (row for path in source_files(spec.source) for row in rows(str(path), not_read, reader)), {}


def hub_files(reference: references.SetReference) -> tuple[str, list[str]]:
    """Return the commit, and the files of a whole split; no files if `datasets` must read the split.

    Raises InputError for an unknown data set, revision or split, DataError if the hub is unreachable.
    """
    is_whole = re.fullmatch(references.NAME, reference.split)
    try:
        commit, uris = fineweb.files(*asked(reference)) if is_whole else ("", [])
    except fineweb.NoReadableFiles as error:
        commit, uris = error.commit, []
    except InputError as error:
        raise InputError(str(error).replace("source fineweb: ", f"{HUB}{reference.place}: ")) from None
    return commit, uris if all(form_of(uri)[0] in (".jsonl", ".parquet") for uri in uris) else []


def asked(reference: references.SetReference) -> tuple[str, str, str, str]:
    return reference.place, reference.config, reference.split, reference.revision


def rows_of_datasets(reference: references.SetReference) -> Iterator[dict[str, Any]]:
    """Yield the rows read with `datasets`, with renamed columns added.

    Columns mapped to `user` and `assistant` (and `system`) become a conversation with a single question.
    """
    from data.text import hub_datasets  # the import takes seconds

    names = dict(reference.columns)
    for row in hub_datasets.rows_of(reference):
        if missing := [theirs for theirs in names.values() if theirs not in row]:
            raise InputError(f"{reference.words}: no column {', '.join(missing)}; available: {', '.join(row)}")
        row = _row_without_nulls({**row, **{ours: row[theirs] for ours, theirs in names.items()}})
        if names.keys() >= {"user", "assistant"}:
            said = {role: row[role] for role in TURN if role in names and row[role] is not None}
            if names["user"] == "instruction" and "user" in said and str(row.get("input") or "").strip():
                said["user"] += f"\n\n{row['input']}"
            row["messages"] = [{"role": role, "content": one} for role, one in said.items()]
        yield row


def rows(uri: str, not_read: dict[str, None] | None = None, reader: RowReader = CONVERSATIONS) -> Iterator[Any]:
    """Yield the rows of a file; add unread columns of a Parquet file to `not_read`.

    Raises InputError for a damaged file or an unsupported format.
    """
    suffix, packed = form_of(uri)
    if suffix == ".parquet":
        yield from _of_parquet(uri, {} if not_read is None else not_read, reader)
        return
    if suffix != ".jsonl":
        raise InputError(f"{uri}: conversations are read from .jsonl and .parquet")
    for number, line in enumerate(_lines(uri, packed), 1):
        if line.isspace():
            continue
        try:
            yield untrusted_input.row(line)
        except untrusted_input.UnusableDocument as error:
            raise InputError(f"{uri}:{number}: not JSON: {error}") from None


def _of_parquet(uri: str, not_read: dict[str, None], reader: RowReader) -> Iterator[Any]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(open_remote(uri) if "://" in uri else uri, pre_buffer=False)
        names = set(file.schema_arrow.names)
        if not reader.has_columns(names):
            there = ", ".join(file.schema_arrow.names)
            raise InputError(f"{uri}: no column {', '.join(reader.columns)}; available: {there}")
        not_read.update(dict.fromkeys(name for name in file.schema_arrow.names if name not in reader.known))
        wanted = [name for name in file.schema_arrow.names if name in reader.known or may_have_meaning(name)]
        for batch in file.iter_batches(256, columns=wanted):
            yield from map(_row_without_nulls, batch.to_pylist())
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{uri}: damaged or no parquet file: {str(error).splitlines()[0]}") from None


def _row_without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row without nulls inside the values; the names of null columns stay."""
    return {name: without_nulls(one) for name, one in row.items()}


def without_nulls(value: Any) -> Any:
    """Return a value without nulls; in a table, every object has the keys of all other objects."""
    if isinstance(value, dict):
        return {name: without_nulls(one) for name, one in value.items() if one is not None}
    return [without_nulls(one) for one in value] if isinstance(value, list) else value


def _lines(uri: str, packed: str) -> Iterator[bytes]:
    raw: Any = open_remote(uri) if "://" in uri else open(uri, "rb")  # noqa: SIM115 closed below
    with raw:
        try:
            if packed == "gzip":
                yield from gzip.GzipFile(fileobj=raw)
            elif packed:
                import pyarrow

                yield from io.BufferedReader(pyarrow.CompressedInputStream(raw, "zstd"))
            else:
                yield from io.BufferedReader(raw) if isinstance(raw, io.RawIOBase) else raw
        except (EOFError, OSError) as error:
            raise InputError(f"{uri}: damaged or cut short: {error}") from None


def read(row: Any) -> Dialogue:
    """Return the conversation of a row. Raises RowRefused."""
    return read_dialogue(CONVERSATIONS.read(row))
