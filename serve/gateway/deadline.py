"""One timer for all limits of a request: moving it on costs an assignment, not a timer.

In: the task that serves the request. Out: its cancellation when the limit of the moment is over, which `is_over` and
`what` then explain. A client that leaves cancels the same task; that is told apart here.
"""

import asyncio


class Deadline:
    """Made in the task that it may cancel. `clear` must be called when the request is done."""

    __slots__ = ("_loop", "_task", "_timer", "_fires_at", "_at", "_last_at", "what", "is_over")

    def __init__(self, total_s: float) -> None:
        self._loop = asyncio.get_running_loop()
        task = asyncio.current_task()
        assert task is not None
        self._task = task
        self._last_at = self._at = self._loop.time() + total_s
        self._timer: asyncio.TimerHandle | None = None
        self._fires_at = 0.0
        self.what = "total"
        self.is_over = False

    def set(self, what: str, limit_s: float) -> None:
        """From now on so long for `what`, within the total."""
        at = self._loop.time() + limit_s
        self.what, self._at = (what, at) if at < self._last_at else ("total", self._last_at)
        if self._timer is None or self._at < self._fires_at:
            self._arm()

    def clear(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        self._at = float("inf")

    def forgive(self) -> bool:
        """To be asked when the task was cancelled: was it by this deadline, and by nobody else?"""
        if not self.is_over:
            return False
        self.is_over = False
        uncancel = getattr(self._task, "uncancel", None)  # since Python 3.11
        return uncancel is None or uncancel() == 0

    def _arm(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._fires_at = self._at
        self._timer = self._loop.call_at(self._at, self._fire)

    def _fire(self) -> None:
        self._timer = None
        if self._loop.time() < self._at - 0.001:  # it was moved on meanwhile; clocks of loops are coarse
            if self._at != float("inf"):
                self._arm()
            return
        self.is_over = True
        self._task.cancel()
