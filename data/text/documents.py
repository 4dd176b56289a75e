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
    """The commit is in it, so that every process reads the same."""
    split: str
    shard: int | None = None
    """Which of its shards; None: the rows from `start` on, counted through all of them."""
    start: int = 0
    stop: int | None = None
    is_kept: bool = False
    """Whether it lies on this machine as the library has kept it, and not where it is published."""


@dataclass(frozen=True)
class InputFile:
    """One file of a source. `uri` is a path, a URL, or `pydocs`, `stdin`, `stdin.jsonl`; of a stream, its name."""

    uri: str
    part: str = ""
    """`val` for a file that is held out as a whole."""
    packages: tuple[str, ...] = ()
    """pydocs only."""
    rows: tuple[int, int] | None = None
    """parquet only: from the first of these rows until before the other."""
    names: tuple[tuple[str, str], ...] = ()
    """Our name of a column, such as `text`, and the file's where that is another."""
    stream: RowStream | None = None
    """Instead of a file."""
    source: int = 0
    """Which of several sources that are mixed."""
    code: str = ""
    """The text of the extension that yields the documents, instead of a file; `uri` is its name."""
    skips_invalid: bool = False
    """Whether a line that is no document is left out, and counted; else it ends the reading."""

    def theirs(self, name: str) -> str:
        """Return the file's name of a column of ours."""
        return dict(self.names).get(name, name)


@dataclass(frozen=True)
class Batch:
    """Some documents in their order: texts in UTF-8, and the requested columns where a file has them."""

    rows: int
    """Rows of the file that this is made of."""
    texts: Any
    """`Texts` of document_batch.py."""
    columns: dict[str, list[Any]]
    invalid_utf8: int = 0
    """Texts that were not UTF-8; what was wrong in them is replaced by U+FFFD."""
    state: dict[str, Any] | None = None
    """Where the stream stands behind them, for who goes on from here."""
    skips: Skips | None = None
    """The lines among its rows that were left out, None where there are none."""
    available: tuple[str, ...] = ()
    """All columns that the rows of the source have; () where a text is all that there is."""
