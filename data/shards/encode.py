"""The encoding of a whole draft of lines: gzip and zstd in blocks of a megabyte by several threads, or parquet.

The bytes do not depend on how many threads there are: every block is a member (a frame) of its own.
"""

import hashlib
import os
import struct
import zlib
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from data.errors import DataError, InputError
from data.manifest import sync
from data.text.batches import lines_between
from data.text.document_batch import Listed
from data.text.documents import COLUMNS
from data.text.long_documents import mapped, take_text
from store import outside

BLOCK = 1 << 20
GZIP_LEVEL, ZSTD_LEVEL = 5, 3  # half the time of gzip's level 9, 1.5 % more bytes
ROWS = 1000  # rows of a row group of parquet, as FineWeb has it
ROW_BYTES = 16 << 20  # bytes of the lines in a row group


def pack(draft: Path, target: Path, format: str, compression: str, threads: int) -> dict[str, Any]:
    """Write `target` from the lines of `draft`; its bytes and sha256."""
    if format == "parquet":
        _to_parquet(draft, target)
    else:
        with open(draft, "rb") as lines, open(target, "wb") as file:
            blocks = iter(lambda: lines.read(BLOCK), b"")
            for packed in _in_order(_gzip if compression == "gzip" else _zstd, blocks, threads):
                file.write(packed)
            sync(file)
    digest = hashlib.sha256()
    with open(target, "rb") as file:
        os.fsync(file.fileno())
        while block := file.read(BLOCK):
            digest.update(block)
    return {"bytes": target.stat().st_size, "sha256": digest.hexdigest()}


def _in_order(work: Any, blocks: Iterator[bytes], threads: int) -> Iterator[bytes]:
    """Yield what `map` by threads yields, holding no more than a few blocks."""
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[bytes]] = deque()
        for block in blocks:
            waiting.append(pool.submit(work, block))
            if len(waiting) > 2 * threads:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()


def _gzip(block: bytes) -> bytes:
    packer = zlib.compressobj(GZIP_LEVEL, zlib.DEFLATED, 31)
    return packer.compress(block) + packer.flush()


def _zstd(block: bytes) -> bytes:
    import pyarrow

    return pyarrow.Codec("zstd", ZSTD_LEVEL).compress(block, asbytes=True)


def _to_parquet(draft: Path, target: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    kinds = {"language_score": pyarrow.float64(), "score": pyarrow.float64(), "token_count": pyarrow.int64()}
    names = ("text", *COLUMNS)
    schema = pyarrow.schema([(name, kinds.get(name, pyarrow.string())) for name in names])
    with open(draft, "rb") as lines:
        how = {}
        if any(b"\n" not in block for block in iter(lambda: lines.read(BLOCK), b"")):
            # a dictionary, statistics and pages of the first version each hold another copy of a giant
            how = {"use_dictionary": COLUMNS, "write_statistics": COLUMNS, "data_page_version": "2.0"}
        size = lines.seek(0, os.SEEK_END)
        lines.seek(0)
        with pyarrow.parquet.ParquetWriter(target, schema, compression="zstd", **how) as file:
            for group in _groups(lines_between(lines, 0, size)):
                rows = [take_text(line) if isinstance(line, bytearray) else outside.row(line) for line in group]
                del group[:]
                columns = {name: [row.get(name) for row in rows] for name in names if name != "text"}
                others = [_values(columns[field.name], field) for field in list(schema)[1:]]
                with _strings([row.pop("text") for row in rows], draft.parent) as texts:
                    file.write_table(pyarrow.table([texts, *others], schema=schema))
                del texts, rows  # a large document is freed before the next one is read


def _values(values: list[Any], field: Any) -> Any:
    """Return one column.

    Raises InputError for a value of another kind, such as a number where there is text in other rows.
    """
    import pyarrow

    try:
        return pyarrow.array(values, field.type)
    except (pyarrow.ArrowException, OverflowError) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"column {field.name} is {field.type} in parquet: {why}; choose --format jsonl") from None


def _groups(batches: Iterator[Listed]) -> Iterator[list[bytes | bytearray]]:
    """Yield the lines of one row group each: at most ROWS, and no more than ROW_BYTES unless that is one line alone."""
    group: list[bytes | bytearray] = []
    size = 0
    for lines in batches:
        lines.reverse()
        while lines:
            if group and (len(group) == ROWS or size + len(lines[-1]) > ROW_BYTES):
                yield group
                group, size = [], 0
            size += len(lines[-1])
            group.append(lines.pop())
    if group:
        yield group


@contextmanager
def _strings(texts: list[Any], folder: Path) -> Iterator[Any]:
    """Yield an Arrow array of these; of a giant, which is alone, one that takes no memory.

    Raises DataError above 2 GB. To write a giant, Arrow makes a page of it and then packs that, with the text at hand
    until it is done.
    """
    import pyarrow

    if not isinstance(texts[0], bytearray):
        yield pyarrow.array(texts, pyarrow.string())
        return
    (text,) = texts
    if len(text) >= 1 << 31:
        raise DataError(f"a document of {len(text):,} bytes does not fit into parquet; choose --format jsonl")
    places = pyarrow.py_buffer(struct.pack("=ii", 0, len(text)))
    with mapped(text, folder) as pages:
        yield pyarrow.Array.from_buffers(pyarrow.string(), 1, [None, places, pyarrow.py_buffer(pages)])
