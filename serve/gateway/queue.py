"""The queue of requests until a replica has room: first come, first served, so many and so long.

In: requests that want an assignment. Out: assignments, at once or when one is released or a replica comes. While there
is no replica at all a service that sleeps holds its requests (`hold_s`); any other refuses them. Raises RequestRefused,
with what a client may do.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable

from serve.gateway.http.limits import GatewayLimits
from serve.gateway.request_body import RequestRefused
from serve.gateway.routing import Assignment, Fleet, RequestOutcome, Seat, Target


class Turns:
    """The fleet, and a queue before it. One event loop."""

    def __init__(self, limits: GatewayLimits, clock: Callable[[], float]) -> None:
        self.limits, self.clock = limits, clock
        self.fleet = Fleet(limits)
        self._line: dict[asyncio.Future[Assignment], bytes] = {}  # in the order of arrival

    @property
    def waiting(self) -> int:
        return len(self._line)

    def replace(self, replicas: Iterable[Target]) -> None:
        """Replace all replicas at once: no request sees half of the change."""
        self.fleet.replace(replicas, self.clock())
        self._serve_line()

    def take(self, affinity: bytes) -> Assignment | None:
        """Return an assignment, unless one has to `wait` for it."""
        return None if self._line else self.fleet.take(self.clock(), (), affinity)

    async def wait(self, affinity: bytes) -> Assignment:
        """Return an assignment after a wait in line, as `take` gave none. Raises RequestRefused."""
        wait_s = self.limits.queue_s if self.fleet.seats else self.limits.hold_s
        if wait_s <= 0:
            raise RequestRefused(503, "Service Unavailable", "no replica is ready; try again soon", 5)
        if self.waiting >= self.limits.max_queued:
            raise RequestRefused(429, "Too Many Requests", "too many requests are waiting; try again soon", 1)
        turn: asyncio.Future[Assignment] = asyncio.get_running_loop().create_future()
        late = RequestRefused(503, "Service Unavailable", f"no replica had room within {wait_s:g} s", 5)
        timer = turn.get_loop().call_later(wait_s, _expire, turn, late)
        self._line[turn] = affinity
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.release(turn.result(), RequestOutcome.NEITHER)  # it had its turn as it left
            raise
        finally:
            timer.cancel()
            self._line.pop(turn, None)

    def take_other(self, tried: Collection[Seat], affinity: bytes) -> Assignment | None:
        """Return a replica not yet tried for another try of a request that has waited already, or None."""
        return self.fleet.take(self.clock(), tried, affinity)

    def release(self, assignment: Assignment, outcome: RequestOutcome) -> None:
        self.fleet.release(assignment, outcome, self.clock())
        if self._line:
            self._serve_line()

    def blame(self, seats: Iterable[Seat]) -> None:
        """Hold a request that was served against the replicas that had failed with it."""
        self.fleet.blame(seats, self.clock())

    def _serve_line(self) -> None:
        for turn in list(self._line):
            if turn.done():
                continue  # its waiter is about to take it off
            assignment = self.fleet.take(self.clock(), (), self._line[turn])
            if assignment is None:
                return
            del self._line[turn]
            turn.set_result(assignment)


def _expire(turn: "asyncio.Future[Assignment]", late: RequestRefused) -> None:
    if not turn.done():
        turn.set_exception(late)
