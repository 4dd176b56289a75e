"""Where text comes from: documents, one after another, from Python's own docs, from files, or from FineWeb.

`documents(source)` is the one door. Files are read as they stand on the disk, never all at once:

    .txt      one document per line, empty lines skipped. Where the file is a shard of ours (the manifest beside
              it lists it) the escapes are undone; in any other file a line is taken as it stands
    .jsonl    one object per line with a `text`
    .parquet  the column `text`, row group by row group
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from data.config import source_files
from data.errors import InputError
from data.shards import MANIFEST, is_shard, unescape


@dataclass(frozen=True)
class Document:
    """One text, in FineWeb's columns; None where a source does not say."""

    text: str
    id: str = ""
    url: str | None = None
    language: str | None = None
    language_score: float | None = None
    token_count: int | None = None
    dump: str | None = None
    date: str | None = None
    file_path: str | None = None


def documents(source: str, packages: tuple[str, ...] = ()) -> Iterator[Document]:
    """The documents of `source`: `pydocs`, `fineweb`, a file, a folder or a glob.

    Raises ConfigError when there is no such file, InputError for a package, a row or a column that is not there,
    DataError when FineWeb cannot be reached.
    """
    if source == "pydocs":
        from data import pydocs

        return pydocs.documents(packages)
    if packages:
        raise InputError(f"packages are read with the source pydocs, not with {source!r}")
    if source == "fineweb":
        from data import fineweb

        return fineweb.documents()
    return from_files(source_files(source))


def from_files(paths: list[Path]) -> Iterator[Document]:
    """The documents of these files, in this order; the empty ones are left out."""
    readers = {".txt": _from_txt, ".jsonl": _from_jsonl, ".parquet": _from_parquet}
    for path in paths:
        for number, text in enumerate(readers[path.suffix](path)):
            if text.strip():
                yield Document(text, id=f"{path.name}:{number}", file_path=str(path))


def _from_txt(path: Path) -> Iterator[str]:
    ours = is_shard(path)
    with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, 1):
            text = line.removesuffix("\n")
            try:
                yield unescape(text) if ours else text.removesuffix("\r")
            except ValueError as error:
                raise InputError(f"{path}:{number}: {error}; {MANIFEST} beside it says it is a shard") from None


def _from_jsonl(path: Path) -> Iterator[str]:
    with open(path, encoding="utf-8", errors="replace", newline="\n") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                raise InputError(f"{path}:{number}: not JSON: {error}") from None
            if not isinstance(row, dict) or not isinstance(row.get("text"), str):
                keys = ", ".join(row) if isinstance(row, dict) else type(row).__name__
                raise InputError(f"{path}:{number}: no string under 'text'; there is: {keys}")
            yield row["text"]


def _from_parquet(path: Path) -> Iterator[str]:
    import pyarrow
    import pyarrow.parquet

    try:
        file = pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowInvalid, OSError) as error:
        raise InputError(f"{path}: not a whole parquet file: {str(error).splitlines()[0]}") from None
    with file:
        columns = file.schema_arrow
        if "text" not in columns.names or not _is_text(columns.field("text").type):
            raise InputError(f"{path}: no text column 'text'; there is: {', '.join(columns.names)}")
        for group in range(file.num_row_groups):
            for batch in file.iter_batches(1024, row_groups=[group], columns=["text"]):
                yield from (text or "" for text in batch.column(0).to_pylist())


def _is_text(kind: object) -> bool:
    import pyarrow.types

    return pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind)
