"""Sources of training batches.

A source returns the `Batch` of a step. Most sources are pure functions of the step, prefetched in a thread. A source
using the model, such as rollouts, is called synchronously between two steps.
"""

import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any

from torch import Tensor

from data.chat.conversation_counts import ConversationCounts
from trainer.model.decoder import Decoder
from trainer.objectives import Batch


class Source:
    """A source of batches. The loop calls `batch(step)`, or `batch(step, model)` if `sees_model`."""

    sees_model = False
    """True if `batch` receives the model after `step` steps, on the main thread of every process."""
    is_dealt = False
    """True if `batch` returns only this process's rows, equally many per process; False if all rows, equal
    everywhere."""

    def prepare(self, model: Decoder) -> None:
        """Compute what batches need from the model, before the first step of every process."""

    def batch(self, step: int, *model: Decoder) -> Batch:
        raise NotImplementedError

    def metrics(self) -> dict[str, float]:
        """Return metrics of the last batch by name, written to metrics.jsonl by the first process."""
        return {}

    def conversation_counts(self) -> ConversationCounts | None:
        """Return the counts of the source's conversations, or None for a source without conversations."""
        return None

    def cursor(self, step: int) -> dict[str, Any]:
        """Return the data position at the start of `step` as plain values, for a checkpoint."""
        return {}

    def resume(self, cursor: Mapping[str, Any]) -> None:
        """Continue from a cursor. Raises DataError for a cursor of different data."""

    def state(self) -> dict[str, Tensor]:
        """Return tensors for a checkpoint: the state of a `sees_model` source beyond the step number.

        The checkpoint holds the state of the first process.
        """
        return {}

    def load(self, state: Mapping[str, Tensor]) -> None:
        """Restore the result of `state()`; not called for a checkpoint without source state."""


class StepSource(Source):
    """A source whose batches are a pure function of the step."""

    def __init__(self, make: Callable[[int], Batch], counts: ConversationCounts | None = None) -> None:
        self.make, self.counts = make, counts

    def conversation_counts(self) -> ConversationCounts | None:
        return self.counts

    def batch(self, step: int, *model: Decoder) -> Batch:
        return self.make(step)


class SynchronousBatches:
    """Synchronous batches of a `sees_model` source, with the interface of `data.prefetch.PrefetchIterator`."""

    def __init__(self, source: Source, model: Decoder, first: int) -> None:
        self.source, self.model, self.next = source, model, first

    def next_batch(self) -> tuple[Batch, float]:
        """Return the next batch and the seconds spent computing the batch."""
        began = time.perf_counter()
        made = self.source.batch(self.next, self.model)
        self.next += 1
        return made, time.perf_counter() - began

    def __enter__(self) -> "SynchronousBatches":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        pass
