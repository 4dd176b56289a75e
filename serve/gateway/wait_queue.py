"""Wait queue of requests for a free replica: first come, first served, with a limited length and wait.

A request gets an assignment at once, or when an assignment is released or a replica is added. Without any replica, a
sleeping service holds requests for `hold_s` seconds; any other service refuses them. Raises RequestRefused with advice
for the client.
"""

import asyncio
from collections.abc import Callable, Collection, Iterable, Mapping

from serve.gateway.http.limits import GatewayLimits
from serve.gateway.request_body import RequestRefused
from serve.gateway.routing import Assignment, Fleet, ReplicaSlot, RequestOutcome, Target


class WaitQueue:
    """Fleet with a wait queue. Use within a single event loop."""

    def __init__(self, limits: GatewayLimits, clock: Callable[[], float]) -> None:
        self.limits, self.clock = limits, clock
        self.fleet = Fleet(limits)
        # Affinity and variant in order of arrival.
        self._line: dict[asyncio.Future[Assignment], tuple[bytes, str]] = {}

    @property
    def waiting(self) -> int:
        return len(self._line)

    def replace(self, replicas: Iterable[Target]) -> None:
        """Replace all replicas at once: no request sees half of the change."""
        self.fleet.replace(replicas, self.clock())
        self._serve_queue()

    def set_variants(self, holders: Mapping[str, Collection[str]]) -> None:
        """Set the ids of the replicas with each variant of the model, by name of the variant."""
        self.fleet.set_variants(holders)
        self._serve_queue()

    def assign(self, affinity: bytes, variant: str = "") -> Assignment | None:
        """Return an assignment, or None if the request must `wait`. variant: "" = the whole model."""
        return None if self._line else self.fleet.assign(self.clock(), (), affinity, variant)

    async def wait(self, affinity: bytes, variant: str = "") -> Assignment:
        """Return an assignment after a wait in the queue, when `assign` returned None. Raises RequestRefused."""
        if variant and self.fleet.slots and not self.fleet.variants.get(variant):
            raise RequestRefused(503, "Service Unavailable", f"no replica has loaded {variant} yet; try again soon", 5)
        wait_s = self.limits.queue_s if self.fleet.slots else self.limits.hold_s
        if wait_s <= 0:
            raise RequestRefused(503, "Service Unavailable", "no replica is ready; try again soon", 5)
        if self.waiting >= self.limits.max_queued:
            raise RequestRefused(429, "Too Many Requests", "too many requests are waiting; try again soon", 1)
        turn: asyncio.Future[Assignment] = asyncio.get_running_loop().create_future()
        late = RequestRefused(503, "Service Unavailable", f"no replica had room within {wait_s:g} s", 5)
        timer = turn.get_loop().call_later(wait_s, _expire, turn, late)
        self._line[turn] = affinity, variant
        if self.fleet.variants:  # the requests before may wait for replicas of other variants
            self._serve_queue()
        try:
            return await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled() and turn.exception() is None:
                self.release(turn.result(), RequestOutcome.NEITHER)  # the turn came with the cancellation
            raise
        finally:
            timer.cancel()
            self._line.pop(turn, None)

    def assign_other(self, tried: Collection[ReplicaSlot], affinity: bytes, variant: str = "") -> Assignment | None:
        """Return an assignment to a replica outside `tried`, for a retry without a second wait; None = no replica."""
        return self.fleet.assign(self.clock(), tried, affinity, variant)

    def release(self, assignment: Assignment, outcome: RequestOutcome) -> None:
        self.fleet.release(assignment, outcome, self.clock())
        if self._line:
            self._serve_queue()

    def record_failures(self, slots: Iterable[ReplicaSlot]) -> None:
        """Count a served request against the replicas that failed it before."""
        self.fleet.record_failures(slots, self.clock())

    def _serve_queue(self) -> None:
        for turn in list(self._line):
            if turn.done():
                continue  # the waiting task is about to remove the turn
            affinity, variant = self._line[turn]
            assignment = self.fleet.assign(self.clock(), (), affinity, variant)
            if assignment is None:
                if variant:  # replicas without the variant may have room for later requests
                    continue
                return
            del self._line[turn]
            turn.set_result(assignment)


def _expire(turn: "asyncio.Future[Assignment]", late: RequestRefused) -> None:
    if not turn.done():
        turn.set_exception(late)
