"""Column storage for training metrics, read incrementally and downsampled for charts.

Input is the growing content of a `metrics.jsonl`. `thin` returns the mean, minimum and maximum of each bucket of lines,
so spikes survive downsampling. A run of 100,000 steps takes a few megabytes.
"""

import math
from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from operator import truediv
from typing import Any

import msgspec

from trainer.reporting.jsonl_log import LINE_BYTES, MOST

OVERLAP = 256  # overlap of consecutive reads in bytes, to detect a rewritten file
BY = ("step", "time", "tokens")  # possible horizontal axes
NO_FIGURES = ("step", "tokens", "at")
DIGITS = 5
PIECE = 1 << 16  # bytes of lines per decoding batch; a batch fits into the processor's cache
MOST_SHAPES = 8  # shapes per file; further shapes are decoded line by line
PLAIN: dict[type, type] = {int: float, float: float, str: str, bool: bool, type(None): type(None)}


@dataclass
class FigureColumn:
    """A metric: values, and the numbers of the lines with a value."""

    rows: range | array = range(0)  # a range without gaps, which halves the memory; an array after the first gap
    values: array = field(default_factory=lambda: array("f"))  # 32-bit floats hold seven digits; the page shows five

    def add(self, first: int, values: Sequence[float]) -> None:
        """Append the values of consecutive lines, starting at line number `first`."""
        new = range(first, first + len(values))
        if not self.values:
            self.rows = new
        elif isinstance(self.rows, range) and self.rows.stop == first:
            self.rows = range(self.rows.start, new.stop)
        else:
            self.rows = array("i", self.rows) if isinstance(self.rows, range) else self.rows
            self.rows.extend(new)
        self.values.extend(array("f", values))


@dataclass(frozen=True)
class LineShape:
    """The field names of a line, and a decoder that rejects lines with other fields."""

    names: tuple[str, ...]
    numbers: tuple[str, ...]
    decoder: msgspec.json.Decoder


def shape_of(found: dict[str, Any]) -> LineShape | None:
    """Return the shape of a line, or None for nested values or invalid field names."""
    if any(type(value) not in PLAIN for value in found.values()) or not all(map(str.isidentifier, found)):
        return None
    kinds = {name: PLAIN[type(value)] for name, value in found.items()} | {"step": int, "tokens": int}
    try:
        one = msgspec.defstruct("Line", list(kinds.items()), forbid_unknown_fields=True, gc=False)
    except (TypeError, ValueError):  # A field name is a reserved Python keyword.
        return None
    numbers = tuple(name for name, kind in kinds.items() if kind in (int, float))
    return LineShape(tuple(kinds), numbers, msgspec.json.Decoder(one))


@dataclass
class FigureTable:
    """The metrics of a phase of a run."""

    steps: array = field(default_factory=lambda: array("q"))
    tokens: array = field(default_factory=lambda: array("q"))
    at: array = field(default_factory=lambda: array("d"))
    columns: dict[str, FigureColumn] = field(default_factory=dict)
    peaks: dict[str, None] = field(default_factory=dict)
    """Distinct descriptions of the peak performance behind MFU, in order of appearance."""
    conversations: dict[str, Any] = field(default_factory=dict)
    """Counts of conversations lost in the rows, of the first line."""
    newest: dict[str, float] = field(default_factory=dict)
    """Metrics of the last line, with all digits."""
    shapes: dict[tuple[str, ...], "LineShape"] = field(default_factory=dict)
    """Known line shapes of this file by field names."""

    def add(self, text: bytes) -> None:
        """Append complete lines.

        Skip a line that is no JSON object, has no step, tokens or loss, or has a number out of range.
        """
        begin = 0
        while begin < len(text):
            end = text.rfind(b"\n", begin, begin + PIECE) + 1 or text.find(b"\n", begin) + 1 or len(text)
            self._add_some(text[begin:end])
            begin = end

    def _add_some(self, text: bytes) -> None:
        if any(self._add_alike(text, shape) for shape in self.shapes.values()):
            return
        lines = [line for line in text.split(b"\n") if line]
        half = len(lines) // 2
        for some in (lines[:half], lines[half:]) if half else ():
            self._add_some(b"\n".join(some))
        if len(lines) == 1:
            self._add_one(lines[0])

    def _add_alike(self, text: bytes, shape: "LineShape") -> bool:
        """Append lines of the same shape as a batch, which costs a fifth of decoding line by line.

        Return False without changes if any line has a different shape or an invalid value.
        """
        if len(text) > LINE_BYTES:
            return False
        try:
            found = shape.decoder.decode_lines(text)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return False
        if not found:
            return True
        columns = dict(zip(shape.names, zip(*map(msgspec.structs.astuple, found), strict=True), strict=True))
        numbers = {name: columns[name] for name in shape.numbers}
        lows, highs = map(min, numbers.values()), map(max, numbers.values())
        if min(columns["step"]) < 0 or min(lows) <= -MOST or max(highs) >= MOST:
            return False
        if "data_wait_s" in numbers and (step_s := numbers.get("step_s")):
            if not all(step_s):
                return False
            numbers["data_share"] = tuple(map(truediv, numbers["data_wait_s"], step_s))
        first = len(self.steps)
        try:
            steps, tokens = array("q", columns["step"]), array("q", columns["tokens"])
        except OverflowError:
            return False
        self.steps += steps
        self.tokens += tokens
        self.at += array("d", numbers["at"] if "at" in numbers else [0.0] * len(found))
        self.peaks.update(dict.fromkeys(one for one in columns.get("mfu_of", ()) if type(one) is str))
        self.newest = {name: values[-1] for name, values in numbers.items()}
        for name, values in numbers.items():
            if name not in NO_FIGURES:
                column = self.columns.get(name) or self.columns.setdefault(name, FigureColumn())
                column.add(first, values)
        return True

    def _add_one(self, line: bytes) -> None:
        """Append a single line and remember the line's shape for batch decoding."""
        if len(line) > LINE_BYTES:
            return
        try:
            found = msgspec.json.decode(line)
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            return
        if type(found) is not dict:
            return
        numbers = {name: value for name, value in found.items() if type(value) is float or type(value) is int}
        if not _is_step(found, numbers):
            return
        if tuple(found) not in self.shapes and len(self.shapes) < MOST_SHAPES:
            shape = shape_of(found)
            if shape:
                self.shapes[shape.names] = shape
        row = len(self.steps)
        self.steps.append(found["step"])
        self.tokens.append(found["tokens"])
        self.at.append(float(numbers.get("at", 0.0)))
        if type(found.get("mfu_of")) is str:
            self.peaks[found["mfu_of"]] = None
        if numbers.get("step_s") and "data_wait_s" in numbers:
            numbers["data_share"] = numbers["data_wait_s"] / numbers["step_s"]
        if not row and type(found.get("conversations")) is dict:
            self.conversations = found["conversations"]
        self.newest = numbers
        for name, value in numbers.items():
            if name not in NO_FIGURES:
                column = self.columns.get(name) or self.columns.setdefault(name, FigureColumn())
                column.add(row, (value,))

    def axis_position(self, by: str, row: int) -> float:
        """Return the axis position of a line: step, tokens, or hours since the first line."""
        if by == "time":
            return (self.at[row] - self.at[0]) / 3600.0
        return float((self.tokens if by == "tokens" else self.steps)[row])

    def row_at(self, at: float) -> int:
        """Return the last line written at or before a time, or -1 before the first line."""
        return bisect_right(self.at, at) - 1


@dataclass
class GrowingFigures:
    """Incremental reader of a growing metrics file.

    `read` returns the bytes from an offset to the end. A resumed run rewrites the file from its checkpoint, so each
    read includes the last `OVERLAP` bytes again; if these bytes have changed, the reader starts over.
    """

    read: Callable[[int], bytes]
    table: FigureTable = field(default_factory=FigureTable)
    offset: int = 0
    last: bytes = b""
    part: bytes = b""
    version: int = 0
    """Version number of the table; increases with every change."""

    def refresh(self) -> FigureTable:
        """Read new bytes and return the table."""
        back = len(self.last)
        new = self.read(self.offset - back)
        if new[:back] != self.last:
            self.table, self.offset, self.last, self.part = FigureTable(), 0, b"", b""
            self.version += 1
            new, back = self.read(0), 0
        new = new[back:]
        if not new:
            return self.table
        self.offset += len(new)
        self.last = (self.last + new)[-OVERLAP:]
        text = self.part + new
        end = text.rfind(b"\n") + 1
        self.part = text[end:]
        self.table.add(text[:end])
        self.version += 1
        return self.table


def thin(
    table: FigureTable, name: str, *, most: int, by: str = "step", since: float = -math.inf, until: float = math.inf
) -> dict[str, list[float]]:
    """Downsample a metric to at most `most` points.

    Split the lines between `since` and `until` (positions on the axis `by`) into buckets. The lists are empty for an
    unknown metric.
    """
    column = table.columns.get(name)
    if column is None:
        return buckets(float, (), most)
    rows, values = column.rows, column.values

    def place(row: int) -> float:
        return table.axis_position(by, row)

    first = 0 if since == -math.inf else bisect_left(rows, since, key=place)
    last = len(rows) if until == math.inf else bisect_right(rows, until, key=place)
    return buckets(lambda at: place(rows[first + at]), values[first:last].tolist(), most)


def buckets(place: Callable[[int], float], values: Sequence[float], most: int) -> dict[str, list[float]]:
    """Return `x` (end), `mean`, `low` and `high` of at most `most` buckets of equal size; place(row) -> x."""
    found: dict[str, list[float]] = {"x": [], "mean": [], "low": [], "high": []}
    each = max(1, -(-len(values) // most))
    for begin in range(0, len(values), each):
        stretch = values[begin : begin + each]
        found["x"].append(_short(place(begin + len(stretch) - 1), 9))
        found["mean"].append(_short(sum(stretch) / len(stretch)))
        found["low"].append(_short(min(stretch)))
        found["high"].append(_short(max(stretch)))
    return found


def _short(value: float, digits: int = DIGITS) -> float:
    return float(f"{value:.{digits}g}")


def _is_step(found: dict[str, Any], numbers: dict[str, float]) -> bool:
    if type(found.get("step")) is not int or type(found.get("tokens")) is not int:
        return False
    if "loss" not in numbers or not 0 <= found["step"] < 1 << 62 or abs(found["tokens"]) >= 1 << 62:
        return False
    return min(numbers.values()) > -MOST and max(numbers.values()) < MOST
