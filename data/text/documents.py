"""Documents and their sources: Python's own docs, files, or the hub.

`batches.documents(source)` yields the documents of a source. Files are streamed, never loaded whole:

    .txt      one document per line, empty lines skipped, or one document per file (`TextSpec.text_unit`). In a Slipway
              shard (listed in the manifest of the folder) lines are unescaped; any other text is used unchanged
    .jsonl    one object per line with a `text`
    .parquet  the column `text`, row group by row group

.txt and .jsonl may be compressed as .gz or .zst.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from data.references import SetReference
from data.text.invalid_lines import Skips


@dataclass(frozen=True)
class Document:
    """A text with FineWeb's columns; None for columns missing in the source."""

    text: str
    id: str = ""
    url: str | None = None
    language: str | None = None
    language_score: float | None = None
    score: float | None = None
    """Educational score of FineWeb-Edu, 0 to 5."""
    token_count: int | None = None
    dump: str | None = None
    date: str | None = None
    file_path: str | None = None


COLUMNS = tuple(name for name in Document.__dataclass_fields__ if name != "text")


@dataclass(frozen=True)
class RowStream:
    """Rows read with `datasets`: a shard of a split, or a row range of the split."""

    reference: SetReference
    """Reference with a pinned commit, so that every process reads the same data."""
    split: str
    shard: int | None = None
    """Index of the shard; None = the rows from `start` on, counted across shards."""
    start: int = 0
    stop: int | None = None
    is_kept: bool = False
    """True to read a local copy made by `datasets` instead of the published data set."""


@dataclass(frozen=True)
class InputFile:
    """A file of a source. `uri` is a path, a URL, `pydocs`, `stdin`, `stdin.jsonl`, or the name of a stream."""

    uri: str
    part: str = ""
    """`val` for a file that is held out entirely."""
    packages: tuple[str, ...] = ()
    """pydocs only: packages to document."""
    rows: tuple[int, int] | None = None
    """parquet only: the first row, and the row after the last."""
    names: tuple[tuple[str, str], ...] = ()
    """Pairs of a Slipway column name, such as `text`, and the file's column name, if different."""
    stream: RowStream | None = None
    """A stream to read instead of a file."""
    source: int = 0
    """Index of the source in a mixture."""
    code: str = ""
    """Source code of the extension that yields the documents instead of a file; `uri` is the extension's name."""
    is_document: bool = False
    """.txt only: the file is a single document."""
    skips_invalid: bool = False
    """True to leave out and count invalid lines; otherwise an invalid line raises an error."""

    def source_column(self, name: str) -> str:
        """Return the file's column name for a Slipway column name."""
        return dict(self.names).get(name, name)


@dataclass(frozen=True)
class Batch:
    """Documents in order: texts in UTF-8, and the requested columns if present in the file."""

    rows: int
    """Number of file rows in this batch."""
    texts: Any
    """`Texts` of document_batch.py."""
    columns: dict[str, list[Any]]
    invalid_utf8: int = 0
    """Number of texts with invalid UTF-8; invalid bytes are replaced by U+FFFD."""
    carriage_returns: int = 0
    """Number of texts from lines with a carriage return inside, where Python's text files and `datasets` split."""
    null_rows: Sequence[int] = ()
    """Rows of `texts` whose value in the file is null; their texts are empty."""
    state: dict[str, Any] | None = None
    """State of the stream after this batch, for resuming."""
    skips: Skips | None = None
    """The lines left out of this batch; None if all lines are used."""
    available: tuple[str, ...] = ()
    """All columns of the source's rows; () for a source of plain texts."""
