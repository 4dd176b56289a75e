"""The documents of a batch in UTF-8: a list, or offsets into one buffer, copied only when one is asked for.

They are joined in blocks of BLOCK bytes. Memory of that size is used again and again; with larger ones the system
gives new pages each time, and to touch those costs more than all that is done with them.
"""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any

from data.text.long_documents import GIANT, characters

BETWEEN = b"\xff"  # never part of UTF-8
BLOCK = 64 << 10


class Listed(list[Any]):
    """Texts that are objects of their own."""

    def pick(self, rows: Sequence[int]) -> "Listed":
        """Return only these rows."""
        return Listed(self[at] for at in rows)

    def blank(self) -> list[int]:
        """Return the rows in which there is nothing but white space, as `str.strip` sees it."""
        return [at for at, text in enumerate(self) if is_blank(text)]

    def joined(self) -> Iterator[bytes]:
        """Yield all of them with BETWEEN behind each, in blocks."""
        return _joined(self, sum(map(len, self)))


class Column(Sequence[bytes]):
    """Texts that lie in a buffer, by their offsets."""

    def __init__(self, view: memoryview, places: list[tuple[int, int]]):
        self.view, self.places = view, places

    def __len__(self) -> int:
        return len(self.places)

    def __getitem__(self, at: Any) -> Any:
        """Return one as bytes; a slice as views."""
        if isinstance(at, slice):
            return [self.view[start:end] for start, end in self.places[at]]
        start, end = self.places[at]
        return bytes(self.view[start:end])

    def __iter__(self) -> Iterator[bytes]:
        return map(bytes, self[:])

    def pick(self, rows: Sequence[int]) -> "Column":
        return Column(self.view, [self.places[at] for at in rows])

    def blank(self) -> list[int]:
        view = self.view
        odd = [at for at, (start, end) in enumerate(self.places) if start == end or not 0x20 < view[start] < 0x80]
        return [at for at in odd if is_blank(self[at])]

    def joined(self) -> Iterator[bytes]:
        return _joined(self, sum(end - start for start, end in self.places))


Texts = Listed | Column


def of_arrow(column: Any) -> tuple[Texts, int]:
    """Return the texts of an Arrow array of strings or bytes, null as empty, and how many of them were not UTF-8."""
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
        listed = Listed(texts)
        return listed, mend(listed)


def mend(texts: list[Any]) -> int:
    """Make texts UTF-8 by putting U+FFFD where they were not; in how many."""
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
    """Return whether there is nothing but white space, as `str.strip` sees it."""
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
        for text in some:  # in slices, so that a giant is there once
            view = memoryview(text)
            for start in range(0, len(view), BLOCK):
                yield bytes(view[start : start + BLOCK])
            yield BETWEEN
