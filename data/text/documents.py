"""The document, and its sources: Python's own docs, files, or the hub.

`batches.documents(source)` is the one entry point for who wants them one by one. Files are read as they stand, never
all at once:

    .txt      one document per line, empty lines skipped. Where the file is a shard of ours (the manifest beside
              it lists it) the escapes are undone; in any other file a line is taken as it stands
    .jsonl    one object per line with a `text`
    .parquet  the column `text`, row group by row group

.txt and .jsonl may be packed as .gz or .zst.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Document:
    """One text, in FineWeb's columns; None where a source does not say."""

    text: str
    id: str = ""
    url: str | None = None
    language: str | None = None
    language_score: float | None = None
    score: float | None = None
    """FineWeb-Edu's: how much can be learned from it, 0 to 5."""
    token_count: int | None = None
    dump: str | None = None
    date: str | None = None
    file_path: str | None = None


COLUMNS = tuple(name for name in Document.__dataclass_fields__ if name != "text")
