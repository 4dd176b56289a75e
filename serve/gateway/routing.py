"""Choice of the replica for the next request. Pure: time is an argument, single thread, no input or output.

    replicas of the controller, requests that begin and end -> assignments

An assignment counts a request at a replica until the single release, however the request ends. The count belongs to a
started engine and not to an address: an engine on a dead engine's port starts from zero.
"""

import hashlib
import math
import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from operator import attrgetter

from serve.gateway.http.limits import GatewayLimits
from serve.gateway.window import Window

LEAST_WEIGHT = 0.1
STALLED, OUT = 1e6, 1e9  # added to the load, in requests: more than any replica has
_turn = attrgetter("turn")
_URL = re.compile(r"http://[A-Za-z0-9._\[\]:-]+")


class RequestOutcome(Enum):
    SERVED = "served"
    LOST = "lost"  # no connection, so the request cannot be the cause
    FAILED = "failed"  # 5xx, a timeout or a broken answer: the request may be the cause
    NEITHER = "neither"  # the client left or sent nonsense, or the engine was full: no sign of bad health


SERVED, LOST, FAILED, NEITHER = RequestOutcome  # before Python 3.12 access to an Enum is slow


@dataclass(frozen=True, kw_only=True)
class Target:
    """A started engine. A restarted engine has a new id."""

    replica_id: str
    url: str  # http://127.0.0.1:8101
    version: int = 1
    key: str = field(default="", repr=False)  # API key of the engine

    def __post_init__(self) -> None:
        if not _URL.fullmatch(self.url):
            raise ValueError(f"{self.url!r} is not the address of an engine; expected http://host:port")


class ReplicaSlot:
    """Record of a replica in the gateway."""

    __slots__ = (
        "replica",
        "in_flight",
        "failures",
        "lost",
        "errors",
        "ejections",
        "ejected_until",
        "admitted_at",
        "heard_at",
        "started",
        "turn",
    )

    def __init__(self, replica: Target, now: float) -> None:
        self.replica = replica
        self.in_flight = 0
        self.failures = 0  # consecutive lost connections, and failed requests served by a different replica
        self.lost = 0  # consecutive lost connections
        self.errors = 0  # consecutive failed requests of any cause
        self.ejections = 0  # consecutive ejections
        self.ejected_until: float | None = None  # after this time a trial request is allowed
        self.admitted_at = now
        self.heard_at = now  # time of the last byte, or of the first request after an idle time
        self.started = Window()
        self.turn = 0  # number of the last choice

    def load(self, now: float, limits: GatewayLimits) -> float:
        """Return the requests in flight divided by the weight.

        A stalled replica sorts after all healthy replicas, and an ejected replica sorts last.
        """
        in_flight, out_until = self.in_flight, self.ejected_until
        load = float(in_flight)
        if in_flight:
            if now - self.admitted_at < limits.slow_start_s:
                load /= self.weight(now, limits)
            if now - self.heard_at > limits.stall_s:
                load += STALLED
        if out_until is not None and (in_flight or now < out_until):  # a trial is a single request
            load += OUT
        return load

    def weight(self, now: float, limits: GatewayLimits) -> float:
        """Return the share of the load, 0.1 to 1: a new engine has cold caches and kernels yet to compile."""
        age_s = now - self.admitted_at
        return 1.0 if age_s >= limits.slow_start_s else max(LEAST_WEIGHT, age_s / limits.slow_start_s)


class Assignment:
    """Request in flight at a replica."""

    __slots__ = ("slot", "is_trial", "is_open")

    def __init__(self, slot: ReplicaSlot, is_trial: bool) -> None:
        self.slot = slot
        self.is_trial = is_trial
        self.is_open = True

    @property
    def replica(self) -> Target:
        return self.slot.replica


class Fleet:
    """Replicas that receive requests, and removed replicas with requests in flight."""

    def __init__(self, limits: GatewayLimits) -> None:
        self.limits = limits
        self.slots: dict[Target, ReplicaSlot] = {}
        self.leaving: dict[Target, ReplicaSlot] = {}
        self.variants: dict[str, tuple[ReplicaSlot, ...]] = {}  # replicas with each variant of the model
        self._holders: Mapping[str, Collection[str]] = {}
        self._turn = 0

    def replace(self, replicas: Iterable[Target], now: float) -> None:
        """Use these replicas from now on; removed replicas finish the requests in flight.

        A remaining replica keeps the record. Raises ValueError for a repeated id.
        """
        wanted = list(dict.fromkeys(replicas))
        ids = [one.replica_id for one in wanted]
        if len(set(ids)) < len(ids):
            raise ValueError(f"two replicas have the same id: {', '.join(sorted(ids))}")
        known = {**self.leaving, **self.slots}
        self.slots = {one: known.pop(one) if one in known else ReplicaSlot(one, now) for one in wanted}
        self.leaving = {one: slot for one, slot in known.items() if slot.in_flight}
        self.set_variants(self._holders)

    def set_variants(self, holders: Mapping[str, Collection[str]]) -> None:
        """Set the ids of the replicas with each variant of the model, by name of the variant."""
        self._holders = holders
        self.variants = {
            name: tuple(slot for one, slot in self.slots.items() if one.replica_id in ids)
            for name, ids in holders.items()
        }

    def in_flight(self, replica: Target) -> int:
        """Return the requests in flight at a replica, even after removal. 0 = the replica may be ended."""
        slot = self.slots.get(replica) or self.leaving.get(replica)
        return slot.in_flight if slot else 0

    def assign(
        self, now: float, tried: Collection[ReplicaSlot] = (), affinity: bytes = b"", variant: str = ""
    ) -> Assignment | None:
        """Return an assignment to the best replica outside `tried`; None when no replica has room.

        variant: name of the variant that the replica must have; "" = the whole model, which every replica has.
        """
        limits, least, fit = self.limits, math.inf, list[ReplicaSlot]()
        most = limits.max_in_flight_per_replica
        slots: Collection[ReplicaSlot] = self.variants.get(variant, ()) if variant else self.slots.values()
        for slot in slots:
            if slot.in_flight < most and slot not in tried:
                load = slot.load(now, limits)
                if load < least:
                    least, fit = load, [slot]
                elif load == least:
                    fit.append(slot)
        if not fit:
            return None
        slot = fit[0] if len(fit) == 1 else min(fit, key=_turn)  # among equals the least recently chosen
        if affinity:
            alike = [one for one in slots if one.in_flight < most and one not in tried]
            alike = [one for one in alike if one.load(now, limits) // STALLED == least // STALLED]
            slot = self._with_affinity(alike, affinity) or slot
        # Do not count retries: the request after a failed request would always try the same replica first.
        if not tried:
            self._turn += 1
            slot.turn = self._turn
        if not slot.in_flight:
            slot.heard_at = now
        slot.in_flight += 1
        slot.started.add(now)
        return Assignment(slot, is_trial=slot.ejected_until is not None and now >= slot.ejected_until)

    def release(self, assignment: Assignment, outcome: RequestOutcome, now: float) -> None:
        """Release an assignment at the end of the request. A second release has no effect."""
        if not assignment.is_open:
            return
        assignment.is_open = False
        slot = assignment.slot
        slot.in_flight -= 1
        if not slot.in_flight and self.leaving:
            self.leaving.pop(slot.replica, None)
        if outcome is SERVED:
            slot.failures = slot.lost = slot.errors = 0
            if assignment.is_trial:
                slot.ejected_until, slot.admitted_at = None, now
            elif slot.ejected_until is None:
                slot.ejections = 0
        elif outcome is LOST:
            slot.lost += 1
            self._record_failure(slot, now)
        elif outcome is FAILED:
            slot.lost = 0
            slot.errors += 1

    def record_failures(self, slots: Iterable[ReplicaSlot], now: float) -> None:
        """Count a request against the replicas that failed it, after a different replica has served the request.

        A request failing everywhere counts against no replica: otherwise a client could take out the whole fleet.
        """
        for slot in slots:
            self._record_failure(slot, now)

    def _record_failure(self, slot: ReplicaSlot, now: float) -> None:
        slot.failures += 1
        is_due = slot.failures >= self.limits.eject_after if slot.ejected_until is None else now >= slot.ejected_until
        if is_due:
            slot.ejections += 1
            out_s = self.limits.eject_s * 2 ** min(slot.ejections - 1, 16)
            slot.ejected_until = now + min(out_s, self.limits.eject_most_s)

    def _with_affinity(self, slots: list[ReplicaSlot], affinity: bytes) -> ReplicaSlot | None:
        """Return the preferred replica of a prefix among replicas below the load bound; None if no replica is below.

        Rendezvous hashing: no growing table, and an added or removed replica moves only its own prefixes.
        """
        bound = self.limits.affinity_bound * (sum(slot.in_flight for slot in slots) + 1) / len(slots)
        below = [slot for slot in slots if slot.in_flight < bound]
        return max(below, key=lambda slot: _score(affinity, slot.replica.replica_id), default=None)


def _score(affinity: bytes, replica_id: str) -> bytes:
    return hashlib.blake2b(affinity, key=replica_id.encode()[:64], digest_size=8).digest()


class RetryBudget:
    """Budget of retries earned by requests, so a failing fleet is not asked several times for every request."""

    def __init__(self, limits: GatewayLimits) -> None:
        self._ratio, self._most = limits.retry_ratio, float(limits.retry_floor)
        self._saved = self._most

    def earn(self) -> None:
        if self._saved < self._most:
            self._saved = min(self._most, self._saved + self._ratio)

    def spend(self) -> bool:
        if self._saved < 1:
            return False
        self._saved -= 1
        return True
