"""Conversations from files or from a data set of the hub, normalized for every chat phase.

In: a `TalkSpec`. Out: `conversations.jsonl`, one `{"messages": [...]}` a line, in the order of the source. A row has
`messages` (role and content), `conversations` (from and value, as ShareGPT has them), or is the list itself. What no
chat phase could learn from (roles out of turn, no answer, content that is no text) is left out and counted.
"""

import gzip
import io
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from data import references
from data.config import TalkSpec, form_of, is_of_datasets, source_files
from data.errors import InputError
from data.events import emit
from data.references import HUB
from data.text import fineweb
from data.text.remote import open_remote
from store import outside

FILE = "conversations.jsonl"
COLUMNS = ("messages", "conversations", "conversation")
ROLES = {"human": "user", "user": "user", "gpt": "assistant", "assistant": "assistant", "system": "system"}
TURN = ("system", "user", "assistant")
TELL_EVERY = 5000


def make(spec: TalkSpec, folder: Path) -> dict[str, Any]:
    """Write the conversations of `spec`; return their summary.

    Raises InputError when there is no conversation in it, DataError when the hub cannot be reached.
    """
    kept = skipped = 0
    found, about = source_rows(spec)
    with open(folder / FILE, "w", encoding="utf-8") as out:
        for row in found:
            if spec.take is not None and kept + skipped >= spec.take:
                break
            messages = normal(row)
            if messages is None:
                skipped += 1
                continue
            out.write(json.dumps({"messages": messages}, ensure_ascii=False) + "\n")
            kept += 1
            if kept % TELL_EVERY == 0:
                emit("progress", done=kept, unit="conversations")
    if not kept:
        raise InputError(f"{spec.source}: none of its {skipped} rows is a conversation of user and assistant in turn")
    if skipped:
        emit("note", text=f"{spec.source}: {skipped:,} of {kept + skipped:,} rows are no conversation and are left out")
    return {"conversations": kept, "skipped": skipped, "source": spec.source, **about}


def source_rows(spec: TalkSpec) -> tuple[Iterator[Any], dict[str, Any]]:
    """Return the rows in their order, and what is known of their origin. Raises InputError, DataError."""
    reference = references.parse(spec.source)
    if reference.is_hub:
        reference = replace(reference, config=spec.config, split=spec.split, revision=spec.revision)
        commit, uris = hub_files(reference)
        if uris and not reference.columns:
            return (row for uri in uris for row in rows(uri)), {"revision": commit}
        from data.text import sets  # the library takes seconds to import

        return rows_of_datasets(reference), {"revision": sets.revision(reference)}
    if is_of_datasets(reference) or reference.columns:
        return rows_of_datasets(reference), {}
    return (row for path in source_files(spec.source) for row in rows(str(path))), {}


def hub_files(reference: references.SetReference) -> tuple[str, list[str]]:
    """Return the commit, and the files of a whole split if we read them ourselves; none where `datasets` has to.

    Raises InputError for a data set, revision or split that is not there, DataError when the hub cannot be reached.
    """
    is_whole = re.fullmatch(references.NAME, reference.split)
    try:
        commit, uris = fineweb.files(*asked(reference)) if is_whole else ("", [])
    except fineweb.Unlisted as error:
        commit, uris = error.commit, []
    except InputError as error:
        raise InputError(str(error).replace("source fineweb: ", f"{HUB}{reference.place}: ")) from None
    return commit, uris if all(form_of(uri)[0] in (".jsonl", ".parquet") for uri in uris) else []


def asked(reference: references.SetReference) -> tuple[str, str, str, str]:
    return reference.place, reference.config, reference.split, reference.revision


def rows_of_datasets(reference: references.SetReference) -> Iterator[dict[str, Any]]:
    """Yield the rows as the library `datasets` gives them, with columns by our names beside its own.

    Columns that are named `user` and `assistant` (and `system`) make a conversation of one question.
    """
    from data.text import sets  # the library takes seconds to import

    names = dict(reference.columns)
    for row in sets.rows_of(reference):
        if missing := [theirs for theirs in names.values() if theirs not in row]:
            raise InputError(f"{reference.words}: no column {', '.join(missing)}; available: {', '.join(row)}")
        row = {**row, **{ours: row[theirs] for ours, theirs in names.items()}}
        if names.keys() >= {"user", "assistant"}:
            row["messages"] = [{"role": role, "content": row[role]} for role in TURN if role in names]
        yield row


def rows(uri: str) -> Iterator[Any]:
    """Yield the rows of a file. Raises InputError for a file that holds nothing of the kind."""
    suffix, packed = form_of(uri)
    if suffix == ".parquet":
        yield from _of_parquet(uri)
        return
    if suffix != ".jsonl":
        raise InputError(f"{uri}: conversations are read from .jsonl and .parquet")
    for number, line in enumerate(_lines(uri, packed), 1):
        if line.isspace():
            continue
        try:
            yield outside.row(line)
        except outside.Unreadable as error:
            raise InputError(f"{uri}:{number}: not JSON: {error}") from None


def _of_parquet(uri: str) -> Iterator[Any]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(open_remote(uri) if "://" in uri else uri, pre_buffer=False)
        column = next((name for name in COLUMNS if name in file.schema_arrow.names), "")
        if not column:
            there = ", ".join(file.schema_arrow.names)
            raise InputError(f"{uri}: no column {', '.join(COLUMNS)}; available: {there}")
        for batch in file.iter_batches(256, columns=[column]):
            yield from batch.column(0).to_pylist()
    except (pyarrow.ArrowException, OSError) as error:
        raise InputError(f"{uri}: damaged or no parquet file: {str(error).splitlines()[0]}") from None


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


def normal(row: Any) -> list[dict[str, Any]] | None:
    """Return messages with role and content; None for what is no conversation.

    Raises InputError for a row of another kind.
    """
    messages = row
    if isinstance(row, Mapping):
        column = next((name for name in COLUMNS if name in row), "")
        if not column:
            raise InputError(f"a row has no {', '.join(COLUMNS)}; available: {', '.join(row)}")
        messages = row[column]
    if not isinstance(messages, list):
        return None
    found = [one for message in messages if (one := _message(message))]
    talk = found[1:] if found and found[0]["role"] == "system" else found
    in_turn = all(one["role"] == ("user", "assistant")[turn % 2] for turn, one in enumerate(talk))
    return found if len(found) == len(messages) and len(talk) > 1 and in_turn else None


def _message(message: Any) -> dict[str, Any] | None:
    if not isinstance(message, Mapping):
        return None
    role = ROLES.get(str(message.get("role") or message.get("from")))
    content = message.get("content", message.get("value"))
    parts = isinstance(content, list) and all(
        isinstance(part, Mapping) and isinstance(part.get("text"), str) and isinstance(part.get("type"), str)
        for part in content
    )
    is_known = role and (isinstance(content, str) or parts)
    return {"role": role, "content": _whole(content)} if is_known else None


def _whole(content: Any) -> Any:
    """Return the content with half surrogate pairs replaced: they have no UTF-8."""
    if isinstance(content, str):
        return content.encode("utf-8", "replace").decode()
    return [{**part, "text": _whole(part["text"]), "type": _whole(part["type"])} for part in content]
