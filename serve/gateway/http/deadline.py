"""Deadlines of requests. A shared timer checks all deadlines, so moving a deadline costs a single assignment.

An expired deadline cancels the task of the request; `is_over` and `what` then give the reason. A client that
disconnects cancels the same task, and `forgive` distinguishes the two cases.
"""

import asyncio

from serve.gateway.http.eager import EagerTask

LOOK_S = 0.02  # maximum delay of an expiry


class Deadline:
    """Deadline of a request. The owner must call `clear` at the end."""

    __slots__ = ("_all", "_task", "_last_at", "at", "what", "is_over")

    def __init__(self, all: "Deadlines", task: EagerTask, total_s: float) -> None:
        self._all, self._task = all, task
        self._last_at = self.at = all.loop.time() + total_s
        self.what = "total"
        self.is_over = False

    def set(self, what: str, limit_s: float) -> None:
        """Allow `limit_s` seconds for the phase `what` from now on, but no longer than the total limit."""
        at = self._all.loop.time() + limit_s
        self.what, self.at = (what, at) if at < self._last_at else ("total", self._last_at)

    def lift_total(self) -> None:
        """Allow any total time; the limits of the phases apply further on."""
        self._last_at = float("inf")

    def clear(self) -> None:
        self._all.open.discard(self)

    def clear_cancellation(self) -> bool:
        """Return whether this deadline alone cancelled the task, and clear the cancellation after a CancelledError."""
        if not self.is_over:
            return False
        self.is_over = False
        return self._task.uncancel() == 0

    def fire(self) -> None:
        self.at = float("inf")
        self.is_over = True
        self._task.cancel()


class Deadlines:
    """Deadlines of all requests in progress."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self.open: set[Deadline] = set()
        self._timer: asyncio.TimerHandle | None = None

    def start(self, task: EagerTask, total_s: float) -> Deadline:
        """Return a new deadline for the request of `task`, `total_s` seconds from now."""
        one = Deadline(self, task, total_s)
        self.open.add(one)
        if self._timer is None:
            self._timer = self.loop.call_later(LOOK_S, self._check)
        return one

    def _check(self) -> None:
        now = self.loop.time()
        for one in [each for each in self.open if each.at <= now]:
            one.fire()
        self._timer = self.loop.call_later(LOOK_S, self._check) if self.open else None
