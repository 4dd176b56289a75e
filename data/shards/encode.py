"""Compress complete shard drafts: gzip or zstd in blocks of a megabyte with several threads, or parquet.

The output does not depend on the number of threads, because every block is a separate gzip member or zstd frame.
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
from data.text.document_batch import TextList
from data.text.documents import COLUMNS
from data.text.long_documents import mapped, take_text
from store import untrusted_input

BLOCK = 1 << 20
# gzip level 5 takes half the time of level 9 for 1.5 % more bytes.
GZIP_LEVEL, ZSTD_LEVEL = 5, 3
ROWS = 1000  # rows of a parquet row group, as in FineWeb
ROW_BYTES = 16 << 20  # maximum bytes of lines per row group


def pack(draft: Path, target: Path, format: str, compression: str, threads: int) -> dict[str, Any]:
    """Write the lines of `draft` to `target` in the given format; return size and sha256."""
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
    """Yield the results of `work` for each block in order, with about 2 * threads blocks in flight."""
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
            # Dictionary, statistics and version 1 pages would each hold a copy of a giant text.
            how = {"use_dictionary": COLUMNS, "write_statistics": COLUMNS, "data_page_version": "2.0"}
        size = lines.seek(0, os.SEEK_END)
        lines.seek(0)
        with pyarrow.parquet.ParquetWriter(target, schema, compression="zstd", **how) as file:
            for group in _groups(lines_between(lines, 0, size)):
                rows = [take_text(line) if isinstance(line, bytearray) else untrusted_input.row(line) for line in group]
                del group[:]
                columns = {name: [row.get(name) for row in rows] for name in names if name != "text"}
                others = [_values(columns[field.name], field) for field in list(schema)[1:]]
                with _strings([row.pop("text") for row in rows], draft.parent) as texts:
                    file.write_table(pyarrow.table([texts, *others], schema=schema))
                del texts, rows  # free a large document before the next read


def _values(values: list[Any], field: Any) -> Any:
    """Return a column as an Arrow array.

    Raises InputError for a value of the wrong type, such as a number in a text column.
    """
    import pyarrow

    try:
        return pyarrow.array(values, field.type)
    except (pyarrow.ArrowException, OverflowError) as error:
        why = str(error).splitlines()[0]
        raise InputError(f"column {field.name} is {field.type} in parquet: {why}; choose --format jsonl") from None


def _groups(batches: Iterator[TextList]) -> Iterator[list[bytes | bytearray]]:
    """Yield the lines of each row group: at most ROWS lines and ROW_BYTES bytes, or a single longer line."""
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
    """Yield an Arrow array of the texts; for a single giant text, an array in a memory-mapped file.

    Raises DataError for a text above 2 GB. Arrow copies a giant text into a page and compresses the page while the
    original stays allocated, so the original is moved to disk.
    """
    import pyarrow

    if not isinstance(texts[0], bytearray):
        yield pyarrow.array(texts, pyarrow.string())
        return
    (text,) = texts
    if len(text) >= 1 << 31:
        raise DataError(f"a document of {len(text):,} bytes is too large for parquet; choose --format jsonl")
    places = pyarrow.py_buffer(struct.pack("=ii", 0, len(text)))
    with mapped(text, folder) as pages:
        yield pyarrow.Array.from_buffers(pyarrow.string(), 1, [None, places, pyarrow.py_buffer(pages)])
