"""Deadlines of requests: one timer looks after all of them, so that moving a limit on costs an assignment.

In: the task that serves the request. Out: its cancellation when the limit of the moment is over, which `is_over` and
`what` then explain. A client that leaves cancels the same task; that is told apart here.
"""

import asyncio

from serve.gateway.http.eager import EagerTask

LOOK_S = 0.02  # largest delay of a limit


class Deadline:
    """The deadline of one request. `clear` must be called when it is done."""

    __slots__ = ("_all", "_task", "_last_at", "at", "what", "is_over")

    def __init__(self, all: "Deadlines", task: EagerTask, total_s: float) -> None:
        self._all, self._task = all, task
        self._last_at = self.at = all.loop.time() + total_s
        self.what = "total"
        self.is_over = False

    def set(self, what: str, limit_s: float) -> None:
        """Allow so long for `what` from now on, within the total."""
        at = self._all.loop.time() + limit_s
        self.what, self.at = (what, at) if at < self._last_at else ("total", self._last_at)

    def clear(self) -> None:
        self._all.open.discard(self)

    def forgive(self) -> bool:
        """Return whether the task was cancelled by this deadline, and by nobody else; ask it after a cancellation."""
        if not self.is_over:
            return False
        self.is_over = False
        return self._task.uncancel() == 0

    def fire(self) -> None:
        self.at = float("inf")
        self.is_over = True
        self._task.cancel()


class Deadlines:
    """The deadlines of all requests that are inside."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.open: set[Deadline] = set()
        self._timer: asyncio.TimerHandle | None = None

    def begin(self, task: EagerTask, total_s: float) -> Deadline:
        """Return the deadline of a request that `task` serves."""
        one = Deadline(self, task, total_s)
        self.open.add(one)
        if self._timer is None:
            self._timer = self.loop.call_later(LOOK_S, self._look)
        return one

    def _look(self) -> None:
        now = self.loop.time()
        for one in [each for each in self.open if each.at <= now]:
            one.fire()
        self._timer = self.loop.call_later(LOOK_S, self._look) if self.open else None
