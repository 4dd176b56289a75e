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
from typing import Any

from data.references import SetReference
from data.text.invalid_lines import Skips


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


@dataclass(frozen=True)
class RowStream:
    """Rows that the library `datasets` reads: one of the shards that it has of a split, or some rows of the split."""

    reference: SetReference
    """Reference with the commit, so that every process reads the same."""
    split: str
    shard: int | None = None
    """Index of the shard; None = the rows from `start` on, counted through all shards."""
    start: int = 0
    stop: int | None = None
    is_kept: bool = False
    """True if the library's copy on this machine is read, not the published data set."""


@dataclass(frozen=True)
class InputFile:
    """One file of a source. `uri` is a path, a URL, or `pydocs`, `stdin`, `stdin.jsonl`; of a stream, its name."""

    uri: str
    part: str = ""
    """`val` for a file that is held out entirely."""
    packages: tuple[str, ...] = ()
    """pydocs only."""
    rows: tuple[int, int] | None = None
    """parquet only: the first row, and the row after the last."""
    names: tuple[tuple[str, str], ...] = ()
    """Pairs of our name of a column, such as `text`, and the file's, where they differ."""
    stream: RowStream | None = None
    """A stream to read instead of a file."""
    source: int = 0
    """Index of the source, where several are mixed."""
    code: str = ""
    """The text of the extension that yields the documents, instead of a file; `uri` is its name."""
    skips_invalid: bool = False
    """True if lines that are no document are left out and counted; otherwise the first one ends the reading."""

    def theirs(self, name: str) -> str:
        """Return the file's name of a column of ours."""
        return dict(self.names).get(name, name)


@dataclass(frozen=True)
class Batch:
    """Some documents in their order: texts in UTF-8, and the requested columns where a file has them."""

    rows: int
    """Number of rows of the file that this batch was made of."""
    texts: Any
    """`Texts` of document_batch.py."""
    columns: dict[str, list[Any]]
    invalid_utf8: int = 0
    """Number of texts that were not UTF-8; invalid bytes in them are replaced by U+FFFD."""
    state: dict[str, Any] | None = None
    """State of the stream after these documents, from which reading resumes."""
    skips: Skips | None = None
    """The lines among its rows that were left out; None where there are none."""
    available: tuple[str, ...] = ()
    """All columns of the source's rows; () where it has texts only."""
