"""State of a replica, always derived from a few facts, and the effect of a probe on the facts. Pure.

    PENDING -> PROVISIONING -> STARTING -> READY <-> NOT_READY      SHUTTING_DOWN, then gone
    at an end: FAILED FAILED_INITIAL_DELAY FAILED_PROBING FAILED_PROVISION FAILED_CLEANUP PREEMPTED UNKNOWN

The facts record the controller's actions (launch, end) and observations (probes, the process). Source: SkyServe,
sky/serve/replica_managers.py, ReplicaStatusProperty.to_replica_status.
"""

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum

from serve.policy.suspicion import Failures
from serve.service import Probe

PASSES = 2  # consecutive passed probes until ready; each is /health and a generated token
MISSES = 3  # consecutive failed probes until not ready
FAILED_REQUESTS = 5  # consecutive failed requests until not ready
LONGEST_MAKING_S = 3600.0  # limit for making an environment: gigabytes over a slow network; beyond this the pod hangs


class ProcessStatus(Enum):
    """Progress of a launch or an end."""

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
    FAILED_CLEANUP = "FAILED_CLEANUP"  # may still cost money
    PREEMPTED = "PREEMPTED"
    UNKNOWN = "UNKNOWN"

    @property
    def is_alive(self) -> bool:
        """Return whether the replica serves or may become ready. Other replicas are replaced."""
        return self in LIVE

    @property
    def is_failed(self) -> bool:
        return self.value.startswith("FAILED") or self is State.UNKNOWN


ILL = tuple(one for one in State if one.value.startswith("FAILED")) + (State.NOT_READY, State.PREEMPTED)


# Also the order in which replicas are stopped.
LIVE = (State.PENDING, State.PROVISIONING, State.STARTING, State.NOT_READY, State.READY)


class ServiceState(Enum):
    CONTROLLER_INIT = "CONTROLLER_INIT"
    REPLICA_INIT = "REPLICA_INIT"
    REPLACING = "REPLACING"  # none ready: a replica has ended or is ending, and a replacement is on the way
    CONTROLLER_FAILED = "CONTROLLER_FAILED"
    READY = "READY"
    SHUTTING_DOWN = "SHUTTING_DOWN"
    FAILED = "FAILED"
    FAILED_CLEANUP = "FAILED_CLEANUP"
    NO_REPLICA = "NO_REPLICA"


@dataclass(frozen=True, kw_only=True)
class Facts:
    """All remembered facts of a replica. Times are by the clock of the replica's controller."""

    launch: ProcessStatus = ProcessStatus.SCHEDULED
    down: ProcessStatus | None = None  # progress of the end; None = no end was requested
    preempted: bool = False
    app_failed: bool = False  # setup or run ended with a code other than 0
    is_late: bool = False  # not ready within the initial delay
    waits_since: float | None = None
    """Start of the initial delay: the engine's start, or the last time at which the engine was known not to have
    started. None = no report from the pod."""
    first_ready_at: float | None = None
    is_ready: bool = False
    passes: int = 0  # consecutive passed probes
    misses: int = 0
    first_miss_at: float | None = None  # time of the first of the current misses


def state_of(facts: Facts) -> State:
    if facts.launch is ProcessStatus.SCHEDULED:
        return State.PENDING
    if facts.launch is ProcessStatus.RUNNING:
        ended = {ProcessStatus.FAILED: State.FAILED_CLEANUP, ProcessStatus.SUCCEEDED: State.UNKNOWN}
        return State.PROVISIONING if facts.down is None else ended.get(facts.down, State.PROVISIONING)
    if facts.launch is ProcessStatus.INTERRUPTED:  # the end interrupted the launch
        return State.SHUTTING_DOWN
    if facts.down is not None:
        return _ended(facts)
    # Processes may be left running, so an end should be under way.
    if facts.launch is ProcessStatus.FAILED or facts.app_failed:
        return State.FAILED_CLEANUP
    if facts.is_ready:
        return State.READY
    return State.STARTING if facts.first_ready_at is None else State.NOT_READY


def _ended(facts: Facts) -> State:
    """Return the state of a replica with a requested end: shutting down, or the cause of the end."""
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


def after_probe(facts: Facts, passed: bool, now: float) -> Facts:
    """Return the facts after a probe of a launched replica.

    Stricter than SkyServe in both directions: ready after two passes, not ready after three misses.
    """
    if passed:
        passes = facts.passes + 1
        is_ready = facts.is_ready or passes >= PASSES
        first = facts.first_ready_at if facts.first_ready_at is not None or not is_ready else now
        return replace(facts, passes=passes, misses=0, first_miss_at=None, is_ready=is_ready, first_ready_at=first)
    misses = facts.misses + 1
    since = now if facts.first_miss_at is None else facts.first_miss_at
    return replace(facts, passes=0, misses=misses, first_miss_at=since, is_ready=facts.is_ready and misses < MISSES)


def after_engine_report(facts: Facts, engine_s: float | None, now: float) -> Facts:
    """Return the facts after the pod has reported the engine's age in seconds; None = not started yet."""
    return replace(facts, waits_since=now - (engine_s or 0.0))


def failed_requests(facts: Facts, failures: Failures, now: float) -> Facts:
    """Return the facts after consecutive failed requests; errors count only once a probe has failed as well."""
    is_ill = failures.errors >= FAILED_REQUESTS and facts.misses > 0
    if not facts.is_ready or not (is_ill or failures.lost >= FAILED_REQUESTS):
        return facts
    since = now if facts.first_miss_at is None else facts.first_miss_at
    return replace(facts, passes=0, misses=MISSES, first_miss_at=since, is_ready=False)


def with_end_reason(facts: Facts, probe: Probe, now: float) -> tuple[Facts, str]:
    """Return the facts and the reason to end a replica that has failed for too long; "" = no reason."""
    if facts.first_miss_at is None or facts.down is not None:
        return facts, ""
    missing_s = now - facts.first_miss_at
    if facts.first_ready_at is None:
        late_s = missing_s if facts.waits_since is None else now - facts.waits_since
        if late_s > probe.initial_delay_seconds or missing_s > LONGEST_MAKING_S + probe.initial_delay_seconds:
            what = (
                f"not ready within initial_delay_seconds ({probe.initial_delay_seconds:g}) of the engine's start; "
                "raise the value, or see the log of the replica"
            )
            return replace(facts, is_late=True), what
        return facts, ""
    limit_s = probe.consecutive_failure_threshold_timeout
    if missing_s >= limit_s:
        return replace(facts, is_ready=False), f"no probe has passed for {limit_s:g} s; see the log of the replica"
    return facts, ""


def service_state(replicas: Iterable[State], is_ending: bool = False) -> ServiceState:
    """Return the state of a service with a running controller."""
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
