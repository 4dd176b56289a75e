"""Sources of batches.

In: the step, and the model for a source that learns from what it says. Out: a `Batch`. Most sources are pure functions
of the step, and a thread makes their batches ahead of it; one that sees the model is asked between two steps.
"""

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from torch import Tensor

from data.chat.talk_counts import TalkCounts
from trainer.model.decoder import Decoder
from trainer.objectives import Batch


class Source:
    """Batches, step by step; `batch` is called as batch(step), or as batch(step, model) if it sees the model."""

    sees_model = False
    """True if `batch` is given the model as it is after `step` steps, on the main thread of every process."""
    is_dealt = False
    """True if `batch` returns this process's rows only, as many on each; else it returns all rows, the same on each."""

    def batch(self, step: int, *model: Decoder) -> Batch:
        raise NotImplementedError

    def figures(self) -> dict[str, float]:
        """Return figures of the last batch by name, for metrics.jsonl; the first process's counts."""
        return {}

    def conversations(self) -> TalkCounts | None:
        """Return the counts of the conversations that it draws from, None where it draws from none."""
        return None

    def cursor(self, step: int) -> dict[str, Any]:
        """Return the position in the data where `step` begins, for a checkpoint, as plain values."""
        return {}

    def resume(self, cursor: Mapping[str, Any]) -> None:
        """Go on from there. Raises DataError for a place in other data."""

    def state(self) -> dict[str, Tensor]:
        """Return the state for a checkpoint: for sources that see the model, all that does not follow from the step.

        The first process's counts for all.
        """
        return {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Take over what `state()` gave; not called where a checkpoint has none."""


class Made(Source):
    """A source whose batches are a pure function of the step."""

    def __init__(self, make: Callable[[int], Batch], counts: TalkCounts | None = None) -> None:
        self.make, self.counts = make, counts

    def conversations(self) -> TalkCounts | None:
        return self.counts

    def batch(self, step: int, *model: Decoder) -> Batch:
        return self.make(step)


class Asked:
    """The batches of a source that sees the model, as `data.prefetch.Ahead` gives those of others."""

    def __init__(self, source: Source, model: Decoder, first: int) -> None:
        self.source, self.model, self.next = source, model, first

    def take(self) -> tuple[Batch, float]:
        """Return the next batch, and how many seconds it took."""
        began = time.perf_counter()
        made = self.source.batch(self.next, self.model)
        self.next += 1
        return made, time.perf_counter() - began

    def __enter__(self) -> "Asked":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass
