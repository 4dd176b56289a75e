"""The UTF-8 documents of a batch: a list, or offsets into a buffer, copied only on access.

Texts are joined in blocks of BLOCK bytes. Memory of this size is reused; for larger blocks the system allocates new
pages each time, and page faults cost more than the processing.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from data.text.long_documents import GIANT, characters

BETWEEN = b"\xff"  # never part of UTF-8
BLOCK = 64 << 10


class TextList(list[Any]):
    """Texts as separate objects."""

    def select(self, rows: Sequence[int]) -> "TextList":
        """Return the texts at the given rows."""
        return TextList(self[at] for at in rows)

    def blank_rows(self) -> list[int]:
        """Return the rows with only white space, as defined by `str.strip`."""
        return [at for at, text in enumerate(self) if is_blank(text)]

    def joined_blocks(self) -> Iterator[bytes]:
        """Yield all texts joined in blocks, with BETWEEN after each text."""
        return _joined(self, sum(map(len, self)))


class Column(Sequence[bytes]):
    """Texts in a shared buffer, by offsets."""

    def __init__(self, view: memoryview, places: list[tuple[int, int]]):
        self.view, self.places = view, places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, at: Any) -> Any:
        """Return a text as bytes, or a slice as a list of views."""
        if isinstance(at, slice):
            return [self.view[start:end] for start, end in self.places[at]]
        start, end = self.places[at]
        return bytes(self.view[start:end])

    def __iter__(self) -> Iterator[bytes]:
        return map(bytes, self[:])

    def select(self, rows: Sequence[int]) -> "Column":
        return Column(self.view, [self.places[at] for at in rows])

    def blank_rows(self) -> list[int]:
        view = self.view
        odd = [at for at, (start, end) in enumerate(self.places) if start == end or not 0x20 < view[start] < 0x80]
        return [at for at in odd if is_blank(self[at])]

    def joined_blocks(self) -> Iterator[bytes]:
        return _joined(self, sum(end - start for start, end in self.places))


Texts = TextList | Column


def of_arrow(column: Any) -> tuple[Texts, int]:
    """Return the texts of an Arrow array of strings or bytes, null as empty, and the number of invalid UTF-8 texts."""
    import pyarrow

    if pyarrow.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    is_large = pyarrow.types.is_large_string(column.type) or pyarrow.types.is_large_binary(column.type)
    if column.null_count or pyarrow.types.is_string_view(column.type):
        column = column.cast(pyarrow.large_binary() if is_large else pyarrow.binary()).fill_null(b"")
    _, offsets, data = column.buffers()
    ends = memoryview(offsets).cast("q" if is_large else "i")[column.offset : column.offset + len(column) + 1].tolist()
    texts = Column(memoryview(data or b""), list(zip(ends, ends[1:], strict=False)))
    try:
        column.view(pyarrow.large_string() if is_large else pyarrow.string()).validate(full=True)
        return texts, 0
    except pyarrow.ArrowInvalid:
        listed = TextList(texts)
        return listed, replace_invalid_utf8(listed)


def replace_invalid_utf8(texts: list[Any]) -> int:
    """Replace invalid UTF-8 in texts by U+FFFD, in place; return the number of changed texts."""
    invalid = 0
    with suppress(UnicodeDecodeError):
        if sum(map(len, texts)) <= GIANT:
            b"\n".join(texts).decode()
            return 0
    for at, text in enumerate(texts):
        try:
            for _ in characters(text):
                pass
        except UnicodeDecodeError:
            texts[at] = bytearray()
            for some in characters(text, "replace"):
                texts[at] += some.encode()
            invalid += 1
    return invalid


def is_blank(text: bytes | bytearray) -> bool:
    """Return True for a text with only white space, as defined by `str.strip`."""
    if len(text) > GIANT:
        return not any(some.strip() for some in characters(text))
    rest = text.lstrip()
    return not rest or (not 0x20 < rest[0] < 0x80 and not rest.decode().strip())


def _joined(texts: Texts, num_bytes: int) -> Iterator[bytes]:
    rows = max(1, BLOCK * len(texts) // max(1, num_bytes))
    for at in range(0, len(texts), rows):
        some = texts[at : at + rows]
        if sum(map(len, some)) <= GIANT:
            yield BETWEEN.join([*some, b""])
            continue
        for text in some:  # slices avoid a copy of a giant text
            view = memoryview(text)
            for start in range(0, len(view), BLOCK):
                yield bytes(view[start : start + BLOCK])
            yield BETWEEN
