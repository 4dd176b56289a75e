"""The documents of a batch in UTF-8: a list of them, or an Arrow column that makes an object of none until asked to."""

from collections.abc import Iterator, Sequence
from contextlib import suppress
from typing import Any, Protocol

BETWEEN = b"\xff"  # never part of UTF-8
BLOCK = 64 << 10  # what malloc keeps for the next one; to touch new pages costs more than all that is done with them
GIANT = 4 << 20


class Texts(Protocol):
    """What both are."""

    def __len__(self) -> int: ...

    def __getitem__(self, at: Any, /) -> Any: ...

    def __iter__(self) -> Iterator[bytes]: ...

    def pick(self, rows: Sequence[int]) -> "Texts":
        """Only these."""

    def blank(self) -> list[int]:
        """Rows in which there is nothing but white space, as `str.strip` sees it."""

    def joined(self) -> Iterator[bytes]:
        """All of them with BETWEEN behind each, in blocks."""


class Listed(list[bytes]):
    def pick(self, rows: Sequence[int]) -> "Listed":
        return Listed(self[at] for at in rows)

    def blank(self) -> list[int]:
        return [at for at, text in enumerate(self) if is_blank(text)]

    def joined(self) -> Iterator[bytes]:
        if sum(map(len, self)) <= GIANT:
            yield from _blocks(BETWEEN.join([*self, b""]))
            return
        for text in self:  # one by one, so that a giant is there once
            yield from _blocks(text)
            yield BETWEEN


class Column:
    """A column of strings or bytes; null counts as empty. Only good where `is_utf8`, but for who goes through it."""

    def __init__(self, column: Any):
        import numpy
        import pyarrow
        import pyarrow.compute

        column = column.cast(pyarrow.binary())
        if column.null_count:
            column = column.fill_null(b"")
        _, offsets, data = column.buffers()
        self.column, self.data = column, data or b""
        self.ends = numpy.frombuffer(offsets, numpy.int32)[column.offset : column.offset + len(column) + 1]

    def is_utf8(self) -> bool:
        import pyarrow

        _, offsets, data = self.column.buffers()
        try:
            strings = pyarrow.StringArray.from_buffers(len(self), offsets, data, None, 0, self.column.offset)
            strings.validate(full=True)
        except pyarrow.ArrowInvalid:
            return False
        return True

    def __len__(self) -> int:
        return len(self.column)

    def __getitem__(self, at: int) -> bytes:
        return bytes(memoryview(self.data)[self.ends[at] : self.ends[at + 1]])

    def __iter__(self) -> Iterator[bytes]:
        ends, view = self.ends.tolist(), memoryview(self.data)
        for start, end in zip(ends, ends[1:], strict=False):
            yield bytes(view[start:end])

    def pick(self, rows: Sequence[int]) -> "Column":
        import pyarrow

        return Column(self.column.take(pyarrow.array(rows, pyarrow.int32())))

    def blank(self) -> list[int]:
        import numpy

        starts, ends = self.ends[:-1], self.ends[1:]
        maybe = starts == ends
        first = numpy.frombuffer(self.data, numpy.uint8)[starts[~maybe]]
        maybe[~maybe] = (first <= 0x20) | (first >= 0x80)
        return [at for at in numpy.flatnonzero(maybe).tolist() if is_blank(self[at])]

    def joined(self) -> Iterator[bytes]:
        import pyarrow.compute

        if self.ends[-1] - self.ends[0] > GIANT:
            yield from Listed(self).joined()
        elif len(self):
            yield from _blocks(pyarrow.compute.binary_join_element_wise(self.column, b"", BETWEEN).buffers()[2])


def is_blank(text: bytes) -> bool:
    rest = text.lstrip()
    return not rest or (not 0x20 < rest[0] < 0x80 and not rest.decode().strip())


def mend(texts: list[bytes]) -> int:
    """Make texts UTF-8 by putting U+FFFD where they were not; in how many."""
    invalid = 0
    with suppress(UnicodeDecodeError):
        if sum(map(len, texts)) <= GIANT:
            b"\n".join(texts).decode()
            return 0
    for at, text in enumerate(texts):
        try:
            text.decode()
        except UnicodeDecodeError:
            texts[at] = text.decode("utf-8", "replace").encode()
            invalid += 1
    return invalid


def _blocks(joined: Any) -> Iterator[bytes]:
    view = memoryview(joined)
    for start in range(0, len(view), BLOCK):
        yield bytes(view[start : start + BLOCK])
