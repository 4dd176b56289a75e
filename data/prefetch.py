"""Prefetch the results of a pure function in a thread.

The function is called with consecutive steps; results are returned in step order.
"""

import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from types import TracebackType
from typing import Generic, TypeVar

T = TypeVar("T")


class PrefetchIterator(Generic[T]):
    """Results of `make` for steps `first` to `last` - 1, with up to `depth` results prefetched."""

    def __init__(self, make: Callable[[int], T], first: int, last: int, depth: int = 3):
        self.make, self.next, self.last = make, first, last
        self.pool = ThreadPoolExecutor(1, "ahead")
        self.waiting: deque[Future[T]] = deque()
        for _ in range(depth):
            self._begin()

    def next_batch(self) -> tuple[T, float]:
        """Return the next result and the wait in seconds. Raises the error of `make` for the step."""
        asked = time.perf_counter()
        made = self.waiting.popleft().result()
        waited_s = time.perf_counter() - asked
        self._begin()
        return made, waited_s

    def close(self) -> None:
        """Stop the thread; return after the running call ends."""
        self.pool.shutdown(cancel_futures=True)

    def __enter__(self) -> "PrefetchIterator[T]":
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.close()

    def _begin(self) -> None:
        if self.next < self.last:
            self.waiting.append(self.pool.submit(self.make, self.next))
            self.next += 1
