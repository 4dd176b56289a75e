"""Detect lines that are not text documents, and locate them in their file.

From the lines of a batch, `no_texts` returns the lines to leave out; a `SkippedLine` describes such a line for the
manifest. A file is opened only to compute a line number.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from data.text.long_documents import GIANT

Line = bytes | bytearray
MOST_LISTED = 20
REPLACED = "\ufffd".encode()  # replacement for bytes that are not UTF-8
CONTROL = bytes(one for one in (*range(32), 127) if one not in b"\t\n\v\f\r\b\x1b")
# A line with at least LEAST odd bytes, and a share above SHARE, is not text. Text in an old encoding has fewer;
# compressed or random bytes have half.
LEAST, SHARE = 4, 0.3
SHORT = 24  # random bytes up to this length may look like text
HOW = "the file may be packed, or in a different encoding (iconv -t utf-8). To leave out such lines: --skip-invalid"


@dataclass(frozen=True)
class SkippedLine:
    """A line left out, with the reason; the line has index `line` among lines that begin at byte `start` or later."""

    uri: str
    start: int
    line: int
    why: str

    def describe(self) -> str:
        """Return `FILE:LINE: why`; counts the earlier lines of the file only now."""
        return f"{place_of(self.uri, self.start, self.line)}: {self.why}"


@dataclass
class Skips:
    """Lines left out of a batch: the number, and the first MOST_LISTED lines."""

    uri: str
    start: int
    count: int = 0
    is_noise: bool = False
    """True if the batch as a whole is not text; the next batch is then also noise, unless clearly text."""
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
    """Return True for a batch with null bytes or invalid UTF-8, which needs a closer check."""
    return bool(invalid) or any(b"\0" in line for line in lines)


def no_texts(lines: Sequence[Line], after_noise: bool = False) -> tuple[list[int], bool]:
    """Return the indices of lines that are not text, and True if the batch as a whole is not text.

    `lines` are UTF-8, with U+FFFD for invalid bytes. In a noisy batch, and directly after one, lines with an odd byte
    or shorter than SHORT are not text either.
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
