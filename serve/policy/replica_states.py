"""The state of a replica, derived from a few facts, never stored by hand; and what a probe changes in them. Pure.

    PENDING -> PROVISIONING -> STARTING -> READY <-> NOT_READY      SHUTTING_DOWN, then gone
    at an end: FAILED FAILED_INITIAL_DELAY FAILED_PROBING FAILED_PROVISION FAILED_CLEANUP PREEMPTED UNKNOWN

In: what the controller did (launch, end) and saw (probes, its process). Out: a State. Source: SkyServe,
sky/serve/replica_managers.py, ReplicaStatusProperty.to_replica_status.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from serve.policy.doubt import Failures
from serve.service import Probe

PASSES = 2  # probes in a row until it is ready: /health and one generated token, each time
MISSES = 3  # failed probes in a row after which it is not ready
FAILED_REQUESTS = 5  # in a row, likewise
LONGEST_MAKING_S = 3600.0  # longest time for an environment: gigabytes through a slow network; beyond that it hangs


class ProcessStatus(Enum):
    """The progress of a launch or an end."""

    SCHEDULED = "scheduled"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    INTERRUPTED = "interrupted"


class State(Enum):
    PENDING = "PENDING"
    PROVISIONING = "PROVISIONING"
    STARTING = "STARTING"
    NOT_READY = "NOT_READY"
    READY = "READY"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    FAILED = "FAILED"
    FAILED_INITIAL_DELAY = "FAILED_INITIAL_DELAY"
    FAILED_PROBING = "FAILED_PROBING"
    FAILED_PROVISION = "FAILED_PROVISION"
    FAILED_CLEANUP = "FAILED_CLEANUP"  # it may still cost
    PREEMPTED = "PREEMPTED"
    UNKNOWN = "UNKNOWN"

    @property
    def is_alive(self) -> bool:
        """Return whether it serves, or may come to it. Others are replaced."""
        return self in LIVE

    @property
    def is_failed(self) -> bool:
        return self.value.startswith("FAILED") or self is State.UNKNOWN


ILL = tuple(one for one in State if one.value.startswith("FAILED")) + (State.NOT_READY, State.PREEMPTED)


# Also the order in which replicas are given up.
LIVE = (State.PENDING, State.PROVISIONING, State.STARTING, State.NOT_READY, State.READY)


class ServiceState(Enum):
    CONTROLLER_INIT = "CONTROLLER_INIT"
    REPLICA_INIT = "REPLICA_INIT"
    REPLACING = "REPLACING"  # none is ready; one has ended or is ending, and another one is on its way
    CONTROLLER_FAILED = "CONTROLLER_FAILED"
    READY = "READY"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    FAILED = "FAILED"
    FAILED_CLEANUP = "FAILED_CLEANUP"
    NO_REPLICA = "NO_REPLICA"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All that is remembered of a replica. Times are those of its controller's clock."""

    launch: ProcessStatus = ProcessStatus.SCHEDULED
    down: ProcessStatus | None = None  # state of its end; None = nobody has asked for it
    preempted: bool = False
    app_failed: bool = False  # setup or run ended with another code than 0
    is_late: bool = False  # it was not ready within the initial delay
    waits_since: float | None = None
    """Start of its initial delay: that of its engine, or the last time at which this was known to be still to come.
    None = its pod has reported nothing."""
    first_ready_at: float | None = None
    is_ready: bool = False
    passes: int = 0  # probes in a row
    misses: int = 0
    first_miss_at: float | None = None  # time of the first of these misses


def state_of(facts: Facts) -> State:
    if facts.launch is ProcessStatus.SCHEDULED:
        return State.PENDING
    if facts.launch is ProcessStatus.RUNNING:
        ended = {ProcessStatus.FAILED: State.FAILED_CLEANUP, ProcessStatus.SUCCEEDED: State.UNKNOWN}
        return State.PROVISIONING if facts.down is None else ended.get(facts.down, State.PROVISIONING)
    if facts.launch is ProcessStatus.INTERRUPTED:  # its end has interrupted it
        return State.SHUTTING_DOWN
    if facts.down is not None:
        return _ended(facts)
    if (
        facts.launch is ProcessStatus.FAILED or facts.app_failed
    ):  # an end should be under way: something may be left running
        return State.FAILED_CLEANUP
    if facts.is_ready:
        return State.READY
    return State.STARTING if facts.first_ready_at is None else State.NOT_READY


def _ended(facts: Facts) -> State:
    """Return the state of one whose end was asked for: shutting down, or why it came to that."""
    if facts.preempted:
        return State.PREEMPTED
    if facts.down in (ProcessStatus.SCHEDULED, ProcessStatus.RUNNING):
        return State.SHUTTING_DOWN
    if facts.down is ProcessStatus.FAILED:
        return State.FAILED_CLEANUP
    if facts.app_failed:
        return State.FAILED
    if facts.launch is ProcessStatus.FAILED:
        return State.FAILED_PROVISION
    if facts.is_late:
        return State.FAILED_INITIAL_DELAY
    if facts.first_ready_at is None:
        return State.SHUTTING_DOWN
    return State.UNKNOWN if facts.is_ready else State.FAILED_PROBING


def probed(facts: Facts, passed: bool, now: float) -> Facts:
    """Return the facts after one probe of a replica whose launch has succeeded.

    Stricter than SkyServe both ways: ready after two passes, not ready after three misses.
    """
    if passed:
        passes = facts.passes + 1
        is_ready = facts.is_ready or passes >= PASSES
        first = facts.first_ready_at if facts.first_ready_at is not None or not is_ready else now
        return replace(facts, passes=passes, misses=0, first_miss_at=None, is_ready=is_ready, first_ready_at=first)
    misses = facts.misses + 1
    since = now if facts.first_miss_at is None else facts.first_miss_at
    return replace(facts, passes=0, misses=misses, first_miss_at=since, is_ready=facts.is_ready and misses < MISSES)


def told(facts: Facts, engine_s: float | None, now: float) -> Facts:
    """Return the facts after its pod has reported for how many seconds its engine runs; None = not started yet."""
    return replace(facts, waits_since=now - (engine_s or 0.0))


def failed_requests(facts: Facts, failures: Failures, now: float) -> Facts:
    """Return the facts after requests have failed in a row; errors count only once a probe has failed as well."""
    is_ill = failures.errors >= FAILED_REQUESTS and facts.misses > 0
    if not facts.is_ready or not (is_ill or failures.lost >= FAILED_REQUESTS):
        return facts
    since = now if facts.first_miss_at is None else facts.first_miss_at
    return replace(facts, passes=0, misses=MISSES, first_miss_at=since, is_ready=False)


def must_end(facts: Facts, probe: Probe, now: float) -> tuple[Facts, str]:
    """Return the facts and the reason when it has failed for too long; "" = it may go on."""
    if facts.first_miss_at is None or facts.down is not None:
        return facts, ""
    missing_s = now - facts.first_miss_at
    if facts.first_ready_at is None:
        late_s = missing_s if facts.waits_since is None else now - facts.waits_since
        if late_s > probe.initial_delay_seconds or missing_s > LONGEST_MAKING_S + probe.initial_delay_seconds:
            what = (
                f"not ready within initial_delay_seconds ({probe.initial_delay_seconds:g}) of its engine's start; "
                "raise it, or see its log"
            )
            return replace(facts, is_late=True), what
        return facts, ""
    limit_s = probe.consecutive_failure_threshold_timeout
    if missing_s >= limit_s:
        return replace(facts, is_ready=False), f"no probe has passed for {limit_s:g} s; see its log"
    return facts, ""


def service_state(replicas: Iterable[State], is_ending: bool = False) -> ServiceState:
    """Return the state of a service whose controller runs."""
    states = list(replicas)
    if is_ending:
        return ServiceState.SHUTTING_DOWN
    if State.READY in states:
        return ServiceState.READY
    if any(one.is_alive for one in states):
        return ServiceState.REPLICA_INIT if all(one.is_alive for one in states) else ServiceState.REPLACING
    if any(one.is_failed for one in states):
        return ServiceState.FAILED
    return ServiceState.REPLICA_INIT if states else ServiceState.NO_REPLICA
