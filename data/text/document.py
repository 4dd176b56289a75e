"""One text with what its source says of it, in FineWeb's columns."""

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
