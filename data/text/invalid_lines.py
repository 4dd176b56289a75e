"""Lines that are no documents: which bytes are no text, and where in its file such a line stands.

In: the lines of a batch, as they are read. Out: for each that is left out, a `SkippedLine`, which a manifest lists.
Nothing here opens a file until somebody wants to know a line's number.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from data.text.long_documents import GIANT

Line = bytes | bytearray
MOST_LISTED = 20
REPLACED = "\ufffd".encode()  # the replacement for bytes that were not UTF-8
CONTROL = bytes(one for one in (*range(32), 127) if one not in b"\t\n\v\f\r\b\x1b")
LEAST, SHARE = 4, 0.3  # of a text's letters that none has: an old encoding has fewer, packed or random bytes have half
SHORT = 24  # letters, among random bytes, that may be plain by chance
HOW = "is it packed, or in another encoding (iconv -t utf-8)? --skip-invalid leaves it out"


@dataclass(frozen=True)
class SkippedLine:
    """A line that was left out, and why; it is the `line`-th, from 0, that begins at the byte `start` or behind."""

    uri: str
    start: int
    line: int
    why: str

    def told(self) -> str:
        """Return `FILE:LINE: why`; the lines before it are counted only now."""
        return f"{place_of(self.uri, self.start, self.line)}: {self.why}"


@dataclass
class Skips:
    """The lines of one batch that are left out: how many, and the first of them."""

    uri: str
    start: int
    count: int = 0
    is_noise: bool = False
    """True if the batch as a whole is no text; then what follows it is not either, unless it is plainly text."""
    listed: list[SkippedLine] = field(default_factory=list)

    def add(self, line: int, why: str) -> None:
        self.count += 1
        if len(self.listed) < MOST_LISTED:
            self.listed.append(SkippedLine(self.uri, self.start, line, why))


def place_of(uri: str, start: int, line: int) -> str:
    """Return `FILE:LINE`, counted from the beginning of the file."""
    if start:
        with open(uri, "rb") as file:
            left = start - 1
            while left > 0 and (block := file.read(min(1 << 20, left))):
                line += block.count(b"\n")
                left -= len(block)
        line += 1
    return f"{uri}:{line + 1}"


def may_be_no_text(lines: Sequence[Line], invalid: int) -> bool:
    """Return whether to look closer: few texts have a null byte, or bytes that are not UTF-8."""
    return bool(invalid) or any(b"\0" in line for line in lines)


def no_texts(lines: Sequence[Line], after_noise: bool = False) -> tuple[list[int], bool]:
    """Return which lines of a batch are no text, and whether the batch as a whole is none.

    `lines` are UTF-8 by now, with U+FFFD where they were not. Among many that are no text, and right behind
    such a batch, a short one is none either.
    """
    odd = [_odd(line) for line in lines]
    sizes = [len(line) - 2 * line.count(REPLACED) for line in lines]
    is_whole = _is_none(sum(odd), sum(sizes)) or after_noise and any(odd)
    found = [
        at
        for at, line in enumerate(lines)
        if _is_none(odd[at], sizes[at]) or (is_whole or after_noise) and line and (odd[at] or len(line) < SHORT)
    ]
    return found, is_whole


def _odd(line: Line) -> int:
    if len(line) > GIANT:
        return line.count(REPLACED) + line.count(b"\0")
    return line.count(REPLACED) + len(line) - len(line.translate(None, CONTROL))


def _is_none(odd: int, size: int) -> bool:
    return odd >= LEAST and odd > SHARE * size
