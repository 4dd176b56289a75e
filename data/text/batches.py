"""Read files as batches of documents: about a megabyte of text each, in a fixed order, from any start position.

A file consists of pieces that are read independently: the row groups of a Parquet file, or byte ranges of an
uncompressed local text file; any other file is a single piece. A piece consists of batches.
"""

import gzip
import io
import os
import sys
import zlib
from codecs import BOM_UTF8
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from data.config import TextSpec, form_of
from data.errors import InputError
from data.manifest import MANIFEST, is_shard
from data.text.document_batch import TextList, is_blank, replace_invalid_utf8
from data.text.documents import COLUMNS, Batch, Document, InputFile
from data.text.escapes import unescape, unescape_giant
from data.text.inputs import STDIN, list_inputs
from data.text.invalid_lines import HOW, REPLACED, Skips, may_be_no_text, no_texts, place_of
from data.text.long_documents import GIANT, take_text
from data.text.remote import BLOCK, open_remote
from data.text.streams import Streamed
from data.text.text_column import is_null, texts_of, type_problem, value_at
from store import untrusted_input

BATCH_BYTES = 1 << 20
RANGE_BYTES = 16 << 20
MOST_ROWS = 4096
NAME_COLUMN = "; to name the text column: --text-column"
MOST_DOCUMENT_BYTES = 64 << 20  # of a .txt file read as a single document


class Pieces(Protocol):
    """An opened file, split into pieces."""

    count: int

    def read(self, piece: int, state: dict[str, Any] | None = None) -> Iterator[Batch]:
        """Yield the batches of a piece; a stream resumes from the `state` of an earlier batch."""
        ...


def open_pieces(file: InputFile, columns: Sequence[str] = (), required: Sequence[str] = ()) -> Pieces:
    """Open `file` for reading, with optional `columns` read if present and `required` columns.

    Raises InputError for an invalid file or a missing required column, DataError if the file is unreachable.
    """
    if file.uri == "pydocs":
        from data.text import pydocs

        return YieldedDocuments(pydocs.documents(file.packages), columns)
    if file.code:
        from data.text import extension_source

        return YieldedDocuments(extension_source.documents(file.uri.rpartition("/")[2], file.code), columns)
    try:
        return _opened(file, columns, required)
    except DamagedFile as error:
        if not file.skips_invalid:
            raise
        return SkippedFile(file.uri, error.why)


def _opened(file: InputFile, columns: Sequence[str], required: Sequence[str]) -> Pieces:
    named = [file.source_column(name) for name in columns], [file.source_column(name) for name in required]
    pieces: Pieces
    if file.stream:
        pieces = Streamed(file, *named)
    else:
        suffix, packed = (STDIN[file.uri], "") if file.uri in STDIN else form_of(file.uri)
        if suffix == ".parquet":
            pieces = parquet = Parquet(file.uri, *named, file.source_column("text"), file.skips_invalid)
            pieces = Ranged(parquet, *file.rows) if file.rows else parquet
        elif suffix == ".txt" and required:
            raise InputError(f"{file.uri}: no column {', '.join(required)}; available: text")
        else:
            kind = WholeFile if file.is_document else LineFile
            pieces = kind(file.uri, suffix, packed, *named, file.source_column("text"), file.skips_invalid)
    return Renamed(pieces, file) if file.names else pieces


class DamagedFile(InputError):
    """A file with content that does not match the format of its name."""

    def __init__(self, uri: str, why: str) -> None:
        super().__init__(f"{uri}: {why}")
        self.why = why


class SkippedFile:
    """A damaged file that is skipped: yields a single row, marked as left out."""

    count = 1

    def __init__(self, uri: str, why: str) -> None:
        self.uri, self.why = uri, why

    def read(self, piece: int, state: dict[str, Any] | None = None) -> Iterator[Batch]:
        yield left_out(self.uri, 0, 0, f"{self.why}; nothing of this file was read")


def left_out(uri: str, start: int, line: int, why: str) -> Batch:
    """Return a batch with a single row, marked as left out."""
    skips = Skips(uri, start)
    skips.add(line, why)
    return Batch(1, TextList(), {}, skips=skips)


class Renamed:
    """Pieces with columns renamed to Slipway's names."""

    def __init__(self, pieces: Pieces, file: InputFile):
        self.pieces, self.file, self.count = pieces, file, pieces.count

    def read(self, piece: int, state: dict[str, Any] | None = None) -> Iterator[Batch]:
        names = dict(self.file.names)
        for one in self.pieces.read(piece, state):
            mapped = {ours: one.columns[theirs] for ours, theirs in names.items() if theirs in one.columns}
            yield replace(one, columns={**one.columns, **mapped})
            del one  # free a large document before the next read


class YieldedDocuments:
    """Documents from an iterator, as a single piece."""

    count = 1

    def __init__(self, documents: Iterable[Document], columns: Sequence[str]):
        self.documents, self.columns = documents, [name for name in columns if name in COLUMNS]

    def read(self, piece: int, state: dict[str, Any] | None = None) -> Iterator[Batch]:
        documents = iter(self.documents)
        while some := list(islice(documents, 512)):
            columns = {name: [getattr(one, name) for one in some] for name in self.columns}
            texts = TextList(one.text.encode("utf-8", "replace") for one in some)
            yield Batch(len(some), texts, columns, available=("text", *COLUMNS))


class Parquet:
    """A Parquet file; pieces are row groups. Only the requested columns are read."""

    def __init__(
        self, uri: str, columns: Sequence[str], required: Sequence[str], text: str = "text", skips: bool = False
    ):
        import pyarrow
        import pyarrow.parquet

        self.uri, self.text, self.skips = uri, text, skips
        try:
            remote = "://" in uri
            self.file = pyarrow.parquet.ParquetFile(
                open_remote(uri) if remote else uri, buffer_size=BLOCK if remote else 1 << 20, pre_buffer=False
            )
        except (pyarrow.ArrowException, OSError) as error:
            raise DamagedFile(uri, f"not a whole parquet file: {str(error).splitlines()[0]}") from None
        schema = self.file.schema_arrow
        self.available = tuple(schema.names)
        there = ", ".join(schema.names)
        top = text if text in schema.names else text.split(".")[0]
        found = schema.get_all_field_indices(top)
        if len(found) > 1:
            raise InputError(f"{uri}: {len(found)} columns are named {top!r}; available: {there}")
        if not found:
            raise InputError(f"{uri}: no text column {text!r}; available: {there}{NAME_COLUMN}")
        if wrong := type_problem(schema.field(found[0]).type, text.removeprefix(top)):
            raise InputError(f"{uri}: column {text!r} is {wrong}, not text; available: {there}")
        if missing := [name for name in required if name not in schema.names]:
            raise InputError(f"{uri}: no column {', '.join(missing)}; available: {there}")
        self.columns = [name for name in dict.fromkeys([*required, *columns]) if name in schema.names]
        self.count = self.file.num_row_groups

    def read(self, piece: int, state: dict[str, Any] | None = None) -> Iterator[Batch]:
        import pyarrow

        group = self.file.metadata.row_group(piece)
        columns = [group.column(n) for n in range(group.num_columns)]
        size = sum(
            one.total_uncompressed_size for one in columns if f"{one.path_in_schema}.".startswith(f"{self.text}.")
        )
        mean = size / max(1, group.num_rows)
        rows = max(1, min(MOST_ROWS, int(BATCH_BYTES / max(1.0, mean))))
        try:
            for one in self.file.iter_batches(
                rows, row_groups=[piece], columns=[self.text, *self.columns], use_threads=False
            ):
                texts, invalid, nulls = texts_of(one, self.text)
                found = {name: one.column(name).to_pylist() for name in self.columns}
                yield Batch(len(one), texts, found, invalid, null_rows=nulls, available=self.available)
        except (pyarrow.ArrowException, OSError) as error:
            why = f"row group {piece}: damaged: {str(error).splitlines()[0]}"
            if not self.skips:
                raise InputError(f"{self.uri}: {why}") from None
            first = sum(self.file.metadata.row_group(one).num_rows for one in range(piece))
            yield left_out(self.uri, 0, first, f"{why}; the rest of the group was left out")


class Ranged:
    """A row range of a Parquet file; pieces are the row groups in the range."""

    def __init__(self, file: Parquet, start: int, stop: int):
        self.file = file
        self.groups: list[tuple[int, int, int]] = []
        first = 0
        for group in range(file.count):
            rows = file.file.metadata.row_group(group).num_rows
            least, most = max(start - first, 0), min(stop - first, rows)
            if least < most:
                self.groups.append((group, least, most))
            first += rows
        self.count = len(self.groups)

    def read(self, piece: int, state: dict[str, Any] | None = None) -> Iterator[Batch]:
        group, start, stop = self.groups[piece]
        at = 0
        for one in self.file.read(group):
            wanted = range(max(start - at, 0), min(stop - at, one.rows))
            at += one.rows
            if len(wanted) == one.rows:
                yield one
            elif wanted:
                columns = {name: values[wanted.start : wanted.stop] for name, values in one.columns.items()}
                nulls = [at - wanted.start for at in one.null_rows if at in wanted]
                yield replace(one, texts=one.texts.select(wanted), columns=columns, null_rows=nulls)
            if at >= stop:
                return


class LineFile:
    """A file of text lines or JSON objects; pieces are byte ranges of an uncompressed local file."""

    def __init__(
        self,
        uri: str,
        suffix: str,
        packed: str,
        columns: Sequence[str],
        required: Sequence[str],
        text: str = "text",
        skips: bool = False,
    ):
        self.uri, self.packed, self.required, self.text, self.skips = uri, packed, required, text, skips
        self.is_json = suffix == ".jsonl"
        self.columns = dict.fromkeys([*required, *columns])
        self.local = uri not in STDIN and "://" not in uri
        self.ours = self.local and not self.is_json and is_shard(Path(uri))
        self.ranges = self.local and not packed and Path(uri).is_file()
        self.size = os.path.getsize(uri) if self.ranges else sys.maxsize
        self.count = max(1, -(-self.size // RANGE_BYTES)) if self.ranges else 1

    def read(self, piece: int, state: dict[str, Any] | None = None) -> Iterator[Batch]:
        start, stop = (piece * RANGE_BYTES, (piece + 1) * RANGE_BYTES) if self.ranges else (0, sys.maxsize)
        import pyarrow

        number = 0
        with self._open() as file:
            if start:  # a line belongs to the range of its first byte
                file.seek(start - 1)
                while (rest := file.readline(BATCH_BYTES)) and not rest.endswith(b"\n"):
                    pass
            at = file.tell() if self.ranges else 0
            try:
                is_noise = False
                for lines in self._lines(file, at, stop):
                    if lines and not start and not number and lines[0].startswith(BOM_UTF8):
                        lines[0] = lines[0][len(BOM_UTF8) :]
                    number_of_lines = len(lines)
                    batch = self._batch(lines, start, number, is_noise)
                    is_noise = bool(batch.skips and batch.skips.is_noise)
                    del lines
                    yield batch
                    del batch  # free a large document before the next read
                    number += number_of_lines
            except (EOFError, gzip.BadGzipFile, zlib.error, pyarrow.ArrowException, OSError) as error:
                if not self.skips:
                    raise InputError(f"{self.uri}: damaged or cut short: {error}") from None
                why = f"damaged or cut short: {error}; what follows was left out"
                yield left_out(self.uri, start, number, why)

    def _lines(self, file: BinaryIO, at: int, stop: int) -> Iterator[TextList]:
        return lines_between(file, at, stop)

    def _open(self) -> BinaryIO:
        if self.uri in STDIN:
            return sys.stdin.buffer
        # The caller closes the file.
        raw: Any = open(self.uri, "rb", buffering=0) if self.local else open_remote(self.uri)  # noqa: SIM115
        if self.packed == "gzip":
            return io.BufferedReader(gzip.GzipFile(fileobj=io.BufferedReader(raw, 1 << 18)), BATCH_BYTES)  # type: ignore[arg-type,return-value]
        if self.packed:
            import pyarrow

            return io.BufferedReader(pyarrow.CompressedInputStream(io.BufferedReader(raw, 1 << 18), "zstd"))
        return io.BufferedReader(raw, BATCH_BYTES if self.local else BLOCK)

    def _batch(self, lines: TextList, start: int, number: int, after_noise: bool) -> Batch:
        if self.is_json:
            return self._objects(lines, start, number)
        for at, line in enumerate(() if self.ours else lines):
            if line.endswith(b"\r"):
                if isinstance(line, bytearray):
                    del line[-1:]
                else:
                    lines[at] = line[:-1]
        returns = 0 if self.ours else sum(b"\r" in line for line in lines)
        rows, invalid, skips = len(lines), replace_invalid_utf8(lines), Skips(self.uri, start)
        looks = after_noise or may_be_no_text(lines, invalid)
        bad = self._lines_to_skip(lines, number, skips, after_noise) if looks else set()
        for at, line in enumerate(lines if self.ours else ()):
            if b"\\" in line:
                try:
                    if isinstance(line, bytearray):
                        unescape_giant(line)
                    else:
                        lines[at] = unescape(line.decode()).encode()
                except ValueError as error:
                    self._skip_line(skips, number + at, f"{error}; {MANIFEST} beside it says it is a shard")
                    bad.add(at)
        if not bad:
            return Batch(rows, lines, {}, invalid, carriage_returns=returns)
        mended = sum(REPLACED in lines[at] for at in bad)
        for at in sorted(bad, reverse=True):
            del lines[at]
        return Batch(rows, lines, {}, max(0, invalid - mended), carriage_returns=returns, skips=skips)

    def _lines_to_skip(self, lines: TextList, number: int, skips: Skips, after_noise: bool) -> set[int]:
        """Return the indices of the lines to leave out.

        Raises InputError if most of a batch is not text, unless invalid lines are skipped.
        """
        bad, skips.is_noise = no_texts(lines, after_noise)
        if not self.skips and not skips.is_noise:
            return set()  # bytes that are not UTF-8 are replaced
        for at in bad:
            self._skip_line(skips, number + at, f"not text: its bytes are not UTF-8, or control characters; {HOW}")
        return set(bad)

    def _skip_line(self, skips: Skips, line: int, why: str) -> None:
        """Record a line that is not a document. Raises InputError unless invalid lines are skipped."""
        if not self.skips:
            raise InputError(f"{place_of(self.uri, skips.start, line)}: {why}")
        skips.add(line, why.removesuffix(f"; {HOW}").removesuffix(NAME_COLUMN))

    def _objects(self, lines: TextList, start: int, number: int) -> Batch:
        rows, invalid, texts, skips = len(lines), replace_invalid_utf8(lines), TextList(), Skips(self.uri, start)
        nulls = list[int]()
        columns: dict[str, list[Any]] = {name: [] for name in self.columns}
        there = dict[str, None]()
        for at, line in enumerate(lines):
            if not line or line.isspace():
                continue
            row, text, why = self._read(line)
            if why:
                self._skip_line(skips, number + at, why)
                invalid -= bool(invalid) and REPLACED in line
                continue
            if not text and is_null(row, self.text):
                nulls.append(len(texts))
            # An unpaired surrogate has no UTF-8 form.
            texts.append(text.encode("utf-8", "replace") if isinstance(text, str) else text)
            if columns:
                there.update(dict.fromkeys(row))
            for name, values in columns.items():
                values.append(row.get(name))
        found = {name: values for name, values in columns.items() if name in there}
        some = skips if skips.count else None
        return Batch(rows, texts, found, invalid, null_rows=nulls, skips=some, available=tuple(there))

    def _read(self, line: Any) -> tuple[Any, Any, str]:
        """Return the row of a line, the text, and the reason if the line is not a document, otherwise ""."""
        try:
            is_giant = isinstance(line, bytearray) and self.text == "text"
            row = take_text(line) if is_giant else untrusted_input.row(bytes(line))
        except ValueError as error:
            return None, None, f"not JSON: {error}"
        text = value_at(row, self.text) if isinstance(row, dict) else None
        if not isinstance(text, (str, bytearray)):
            keys = ", ".join(row) if isinstance(row, dict) else type(row).__name__
            return row, None, f"no string under {self.text!r}; available: {keys}{NAME_COLUMN}"
        if missing := [name for name in self.required if name not in row]:
            return row, None, f"no {', '.join(missing)}; available: {', '.join(row)}"
        return row, text, ""


class WholeFile(LineFile):
    """A .txt file that is a single document: a single piece, with line breaks as newlines."""

    def __init__(self, uri: str, *more: Any):
        super().__init__(uri, *more)
        self.ranges, self.count = False, 1

    def _lines(self, file: BinaryIO, at: int, stop: int) -> Iterator[TextList]:
        text = file.read(MOST_DOCUMENT_BYTES + 1)
        if len(text) > MOST_DOCUMENT_BYTES:
            raise InputError(
                f"{self.uri}: more than {MOST_DOCUMENT_BYTES >> 20} MiB, too long for a single document; to read each "
                "line as a document: --text-unit line"
            )
        text = text.replace(b"\r\n", b"\n").rstrip(b"\n")
        yield TextList([bytearray(text) if len(text) > GIANT else text])


def lines_between(file: BinaryIO, at: int, stop: int) -> Iterator[TextList]:
    """Yield the lines that begin between `at` and `stop`, without newlines, in batches of about BATCH_BYTES.

    A line longer than GIANT is a bytearray, to hold the line in memory only once.
    """
    tail = bytearray()
    while block := file.read(min(BATCH_BYTES, stop - at)) if at < stop else file.readline(BATCH_BYTES if tail else 0):
        at += len(block)
        end = block.rfind(b"\n")
        if end < 0:
            tail += block
            continue
        lines = TextList(block[:end].split(b"\n"))
        if tail:
            tail += lines[0]
            lines[0] = tail if len(tail) > GIANT else bytes(tail)
        tail = bytearray(block[end + 1 :])
        yield lines
        del lines  # free a large document before the next read
    if tail:
        yield TextList([tail if len(tail) > GIANT else bytes(tail)])


def documents_of(batch: Batch, where: str, first_row: int) -> Iterator[Document]:
    """Yield the documents of a batch read with all COLUMNS, without blank documents."""
    for at, text in enumerate(batch.texts):
        if not is_blank(text):
            values = {name: column[at] for name, column in batch.columns.items() if name in COLUMNS}
            values["id"] = values.get("id") or f"{where}:{first_row + at}"
            values["file_path"] = values.get("file_path") or where
            yield Document(text.decode(), **values)


def documents(source: str, packages: tuple[str, ...] = ()) -> Iterator[Document]:
    """Yield the documents of `source`: `pydocs`, `fineweb`, `stdin`, a file, a folder, a glob or a URL.

    Raises ConfigError for a missing file, InputError for a missing package, row or column, DataError if a remote source
    is unreachable.
    """
    for file in list_inputs(TextSpec(source=source, packages=packages)).files:
        pieces, row = open_pieces(file, COLUMNS), 0
        for piece in range(pieces.count):
            for batch in pieces.read(piece):
                yield from documents_of(batch, file.uri, row)
                row += batch.rows
