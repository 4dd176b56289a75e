"""Convert a batch of documents to lines of shards: filter, hold out, escape. Pure; most of the time is spent here."""

import hashlib
import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from data import filters
from data.config import TextSpec
from data.errors import InputError
from data.text.document_batch import BLOCK, Texts
from data.text.documents import COLUMNS, Batch
from data.text.escapes import escape_all, held_out
from data.text.invalid_lines import SkippedLine
from data.text.long_documents import GIANT, Text, json_line

SCORES = ("score", "language_score")
NEWLINE = ord("\n")


@dataclass(frozen=True)
class Part:
    """Complete lines for a part, such as `train`."""

    name: str
    blocks: Iterable[Text]
    """Blocks to iterate once: they are created lazily, or are valid only until the next batch is requested."""
    lines: int


@dataclass(frozen=True)
class PreparedBatch:
    """The lines and counts of a batch."""

    rows: int
    parts: tuple[Part, ...]
    order: bytes = b""
    """Index into `parts` of each line, in document order; empty for a single part."""
    digests: tuple[bytes, ...] = ()
    """Digests of all lines in document order, for deduplication; empty without `dedup`."""
    counts: dict[str, int] = field(default_factory=dict)
    skipped: tuple[SkippedLine, ...] = ()
    """The first invalid lines of the batch; `counts` has the total."""
    file_done: float = 0.0
    """Share of the file before the piece of this batch, from 0 to 1."""


def wanted_columns(spec: TextSpec) -> tuple[str, ...]:
    """Return the columns to read if a file has them."""
    filtered = filter_columns(spec)
    if spec.format != "txt":
        return (*COLUMNS, *filtered)
    return (*filtered, *(SCORES if spec.min_score is not None else ()), *(("language",) if spec.language else ()))


def filter_columns(spec: TextSpec) -> tuple[str, ...]:
    """Return the columns used by the filter, except the text."""
    return tuple(name for name in filters.parse(spec.filter).columns if name != "text") if spec.filter else ()


def required_columns(spec: TextSpec) -> tuple[str, ...]:
    """Return the columns that a file must have."""
    return ("language",) if spec.language else ()


def prepare(batch: Batch, spec: TextSpec, part: str, main: str) -> PreparedBatch:
    """Return the lines of `batch`: all for `part` if set, otherwise split by hash and seed between `main` and `val`."""
    chosen, filtered = _choose(batch, spec)
    blank = set(batch.texts.blank_rows())
    kept = [at for at in chosen if at not in blank] if blank else chosen
    texts = batch.texts if len(kept) == len(batch.texts) else batch.texts.select(kept)
    empty = len(chosen) - len(kept)
    counts = {"read": len(batch.texts), "empty": empty, "filtered": filtered, "invalid_utf8": batch.invalid_utf8}
    counts |= {"carriage_returns": batch.carriage_returns} if batch.carriage_returns else {}
    counts |= {"null": len({*chosen} & {*batch.null_rows})} if batch.null_rows else {}
    skipped = tuple(batch.skips.listed) if batch.skips else ()
    counts |= {"invalid": batch.skips.count} if batch.skips else {}
    digests = tuple(map(_digest, texts[:])) if spec.dedup else ()
    if part or not spec.val_ratio:
        parts = (Part(part or main, _lines(batch, spec, kept, texts), len(kept)),) if kept else ()
        return PreparedBatch(batch.rows, parts, b"", digests, counts, skipped)
    order = held_out(texts, spec.val_ratio, spec.seed)
    both = []
    for which, name in enumerate((main, "val")):
        mine = [at for at, one in enumerate(order) if one == which]
        both.append(Part(name, _lines(batch, spec, [kept[at] for at in mine], texts.select(mine)), len(mine)))
    return PreparedBatch(batch.rows, tuple(both), order, digests, counts, skipped)


def keep(prepared: PreparedBatch, wanted: list[bool]) -> PreparedBatch:
    """Return the lines with a true flag in `wanted`, which is in document order."""
    order = prepared.order or bytes(len(wanted))
    parts = []
    for which, part in enumerate(prepared.parts):
        mine = [want for want, one in zip(wanted, order, strict=True) if one == which]
        parts.append(Part(part.name, _chosen(part.blocks, mine), mine.count(True)))
    left = bytes(one for want, one in zip(wanted, order, strict=True) if want)
    return PreparedBatch(
        prepared.rows, tuple(parts), left if prepared.order else b"", (), prepared.counts, prepared.skipped
    )


def _chosen(blocks: Iterable[Text], wanted: Sequence[bool]) -> Iterator[bytes]:
    """Yield the wanted lines of the blocks."""
    line = 0
    for block in map(bytes, blocks):
        some, start = [], 0
        while start < len(block):
            end = block.find(b"\n", start) + 1 or len(block)
            if wanted[line]:
                some.append(block[start:end])
            line += block[end - 1] == NEWLINE
            start = end
        yield b"".join(some)


def _choose(batch: Batch, spec: TextSpec) -> tuple[Sequence[int], int]:
    chosen: Sequence[int] = range(len(batch.texts))
    if not chosen or (spec.min_score is None and not spec.language and not spec.filter):
        return chosen, 0
    if spec.language:
        (languages,) = _columns(batch, ("language",))
        chosen = [at for at in chosen if languages[at] == spec.language]
    if spec.min_score is not None:
        scores, *others = _columns(batch, SCORES)
        for other in others:
            scores = [two if one is None else one for one, two in zip(scores, other, strict=True)]
        least = spec.min_score
        chosen = [at for at in chosen if (one if isinstance(one := scores[at], float) else _number(one)) >= least]
    if spec.filter:
        chosen = _filtered(batch, spec, chosen)
    return chosen, len(batch.texts) - len(chosen)


def _filtered(batch: Batch, spec: TextSpec, chosen: Sequence[int]) -> list[int]:
    wanted = filters.parse(spec.filter)
    names = filter_columns(spec)
    for name in names:
        _columns(batch, (name,))
    columns = [batch.columns[name] for name in names]
    rows = ({name: values[at] for name, values in zip(names, columns, strict=True)} for at in chosen)
    if "text" not in wanted.columns:
        return [at for at, row in zip(chosen, rows, strict=True) if wanted.keeps(row)]
    both = zip(chosen, rows, strict=True)
    return [at for at, row in both if wanted.keeps({**row, "text": str(batch.texts[at], "utf-8")})]


def _columns(batch: Batch, names: tuple[str, ...]) -> list[list[Any]]:
    """Return the existing columns among `names`. Raises InputError if all are missing."""
    if found := [batch.columns[name] for name in names if name in batch.columns]:
        return found
    there = ", ".join(batch.available or ["text", *batch.columns])
    raise InputError(f"the choice by {' or '.join(names)} needs such a column; available: {there}")


def _number(value: Any) -> float:
    """Return a score as a float, parsed from text if needed; NaN, which fails every minimum, for other values."""
    try:
        return float(value)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _digest(text: Text) -> bytes:
    return hashlib.blake2b(text, digest_size=16).digest()


def _lines(batch: Batch, spec: TextSpec, rows: Sequence[int], texts: Texts) -> Iterable[bytes]:
    if spec.format == "txt":
        return escape_all(texts)
    return _objects(batch, rows, texts)


def _objects(batch: Batch, rows: Sequence[int], texts: Texts) -> Iterator[bytes]:
    lines: list[bytes] = []
    size = 0
    for at, text in zip(rows, texts[:], strict=True):
        row = {name: values[at] for name, values in batch.columns.items() if name in COLUMNS and values[at] is not None}
        if len(text) > GIANT:
            yield b"".join(lines)
            yield from json_line(text, row)
            lines, size = [], 0
            continue
        line = json.dumps({"text": str(text, "utf-8"), **row}, ensure_ascii=False, default=str)
        lines.append(line.encode("utf-8", "replace") + b"\n")  # an unpaired surrogate has no UTF-8 form
        size += len(lines[-1])
        if size > BLOCK:
            yield b"".join(lines)
            lines, size = [], 0
    yield b"".join(lines)
