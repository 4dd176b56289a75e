"""Mix several sources by weight, document for document like `datasets.interleave_datasets`.

From the files of each source, weights, a seed and a start position, `mix_batches` yields batches of lines with the
position after each batch, as `read_in_order` does for a single source. Each source is read in order by its own
processes; the main process draws the next source. The result therefore does not depend on the number of processes or on
interruptions. Only kept documents count as draws, so weights are shares of the output.
"""

import json
from collections import Counter
from collections.abc import Generator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

from data.config import TextSpec
from data.errors import InputError
from data.shards.workers import Position, Task, read_in_order
from data.text.inputs import Inputs
from data.text.invalid_lines import SkippedLine
from data.text.lines import Part, PreparedBatch

Line = tuple[str, bytes, bytes]  # part, line and digest of a document
NO_LINE: Line = ("", b"", b"")
DRAWS = 1000  # number of draws at once, as in `datasets`
BATCH_BYTES = 1 << 20


@dataclass(frozen=True)
class SourcePlace:
    """Position in a source: `lines` lines into the batch after `position`."""

    position: Position = Position()
    lines: int = 0
    is_open: bool = False
    """True if the batch after `position` was opened and its counts were added."""
    is_exhausted: bool = False
    """True if the source was read to the end at least once."""


@dataclass(frozen=True)
class MixturePosition:
    """Position in a mixture: after `drawn` draws of a generator in state `generator`."""

    places: tuple[SourcePlace, ...]
    generator: str = ""
    """State of the generator as JSON text, because its numbers are too large for a manifest."""
    drawn: int = 0


def position_of(raw: Mapping[str, Any]) -> Position | MixturePosition:
    """Return the position restored from the output of `asdict`."""
    if "places" not in raw:
        return Position(**raw)
    places = tuple(SourcePlace(**{**one, "position": Position(**one["position"])}) for one in raw["places"])
    return MixturePosition(places, raw["generator"], raw["drawn"])


class SourceLines:
    """The documents of a source, repeated endlessly."""

    def __init__(self, task: Task, words: str, place: SourcePlace):
        self.task, self.words, self.place = task, words, place
        self.counts: Counter[str] = Counter()
        self.skipped: list[SkippedLine] = []
        self.lines: list[Line] = []
        """Lines of the open batch."""
        self.batches: Any = None
        self._behind = Position()

    def next_line(self) -> Line:
        """Return the next document, and update `place`. Raises InputError for a source without kept documents."""
        if not self.lines:
            self.batches = read_in_order(replace(self.task, start=self.place.position))
            self._next()
            if not self.lines:
                raise InputError(f"source {self.words}: none of its documents was chosen")
        at = self.place.lines
        found, self.lines[at] = self.lines[at], NO_LINE  # free a large document
        self.place = replace(self.place, lines=at + 1)
        if at + 1 == len(self.lines):
            self.place = replace(self.place, position=self._behind, lines=0, is_open=False)
            self._next()
        return found

    def close(self) -> None:
        if self.batches:
            self.batches.close()

    def _next(self) -> None:
        """Open the next batch with documents; at the end of the source, mark the source as exhausted."""
        for position, made in self.batches:
            if not self.place.is_open:
                self.counts.update(made.counts)
                self.skipped += made.skipped
            self.lines = documents(made)
            if self.lines:
                self._behind, self.place = position, replace(self.place, is_open=True)
                return
            self.place = replace(self.place, position=position, is_open=False)
        self.lines, self.place = [], SourcePlace(is_exhausted=True)


def documents(made: PreparedBatch) -> list[Line]:
    """Return part, line and digest of each document of a batch in order."""
    names = [part.name for part in made.parts]
    split = [iter(b"".join(map(bytes, part.blocks)).split(b"\n")) for part in made.parts]
    order = made.order or bytes(sum(part.lines for part in made.parts))
    digests = made.digests or (b"",) * len(order)
    return [(names[one], next(split[one]) + b"\n", digest) for one, digest in zip(order, digests, strict=True)]


class SourceSampler:
    """Draw source numbers by weight, with the generator of `datasets`, a thousand at a time."""

    def __init__(self, seed: int, weights: Sequence[float], start: MixturePosition):
        import numpy

        self.generator = numpy.random.default_rng(seed)
        self.weights = [weight / sum(weights) for weight in weights]
        if start.generator:
            self.generator.bit_generator.state = json.loads(start.generator)
        self.at = start.drawn
        self._draw()

    def next(self) -> int:
        if self.at == DRAWS:
            self.at = 0
            self._draw()
        self.at += 1
        return self.drawn[self.at - 1]

    def _draw(self) -> None:
        self.state = json.dumps(self.generator.bit_generator.state)
        self.drawn: list[int] = self.generator.choice(len(self.weights), size=DRAWS, p=self.weights).tolist()


def mix_batches(
    spec: TextSpec, inputs: Inputs, start: MixturePosition | None, workers: int
) -> Generator[tuple[MixturePosition, PreparedBatch], None, None]:
    """Yield batches of the mixture with the position after each, until the first source (or all) is exhausted.

    Raises InputError for a source without a document.
    """
    start = start or MixturePosition((SourcePlace(),) * len(inputs.mixture))
    draws = SourceSampler(spec.seed, [weight for _, weight in inputs.mixture], start)
    is_over = all if spec.exhausted == "all" else any
    each = max(1, workers // len(inputs.mixture))
    with ExitStack() as stack:
        sources = []
        for number, ((words, _), place) in enumerate(zip(inputs.mixture, start.places, strict=True)):
            files = tuple(one for one in inputs.files if one.source == number)
            source = SourceLines(Task(spec, files, "train", place.position, each), words, place)
            sources.append(stack.enter_context(closing(source)))
        ended = False
        while not ended:
            batch: list[tuple[int, Line]] = []
            size = 0
            while len(batch) < DRAWS and size < BATCH_BYTES:
                if ended := is_over(one.place.is_exhausted for one in sources):
                    break
                number = draws.next()
                batch.append((number, sources[number].next_line()))
                size += len(batch[-1][1][1])
            where = MixturePosition(tuple(one.place for one in sources), draws.state, draws.at)
            yield where, _made(spec, batch, sources)


def _made(spec: TextSpec, batch: list[tuple[int, Line]], sources: Sequence[SourceLines]) -> PreparedBatch:
    """Return drawn documents as a batch, with the counts added since the last batch."""
    names = ("train", "val") if spec.val_ratio else ("train",)
    skipped: list[SkippedLine] = []
    counts = Counter(f"of source {number}" for number, _ in batch)
    for source in sources:
        counts.update(source.counts)
        skipped += source.skipped
        source.counts, source.skipped = Counter(), []
    lines = [one for _, one in batch]
    parts = []
    for name in names:
        mine = [line for part, line, _ in lines if part == name]
        parts.append(Part(name, [b"".join(mine)], len(mine)))
    order = bytes(names.index(part) for part, _, _ in lines) if len(names) > 1 else b""
    digests = tuple(digest for _, _, digest in lines) if spec.dedup else ()
    return PreparedBatch(len(batch), tuple(parts), order, digests, dict(counts), tuple(skipped))
