"""Readiness wait of the commands that start, update or scale a service.

`await_ready` polls the controller's record, reports every change of a replica, and raises SlipwayError on failure.
"""

import time
from collections.abc import Iterator, Sequence

from infra.errors import SlipwayError
from infra.ledger.journal import Journal
from infra.runs.timing import Say
from infra.settings import Settings
from infra.units import duration
from serve import revision
from serve.policy.replica_states import LIVE, State
from serve.policy.service_state import Member, ServiceRecord, WantedService
from serve.processes import controller_client
from serve.replicas.replica_pod import ENVIRONMENT, SETUP
from serve.service import Service

SLACK_S = 120.0  # allowance on a busy machine for launch work before and after the engine's start
TELL_EVERY_S = 30.0  # interval between reports of a long phase


def await_ready(
    name: str, wanted: WantedService, settings: Settings, journal: Journal, is_new: bool, tell: Say
) -> None:
    """Wait until `min_replicas` replicas of the newest version are ready and no older replica is live.

    A change of size by a concurrent command is followed. Raises SlipwayError on a timeout, when the newest version
    cannot start, or when a concurrent command sets a newer version. A new service that does not become ready is ended,
    unless a newer version has replaced the awaited version.
    """
    newest, told = wanted.newest.number, dict[str, str]()
    probe = wanted.newest.service.probe
    patience_s = SLACK_S + 2 * probe.initial_delay_seconds
    deadline = time.monotonic() + patience_s
    while True:
        seen, now = controller_client.read_states(name, settings, journal, tell)
        if now.newest.number != newest:
            raise SlipwayError(
                f"{name}: a different command has replaced version {newest} with version {now.newest.number}; see: "
                f"inv serve.status {name} --all"
            )
        service = now.newest.service
        report_changes(seen, told, tell)
        alive = [one for one in seen.members if one.state in LIVE]
        if any(one.version == newest and awaits_engine(one) for one in alive):
            deadline = time.monotonic() + patience_s  # like initial_delay_seconds, the timeout starts with the engine
        are_there = revision.ready_of(seen, newest) >= service.policy.min_replicas
        if are_there and all(one.version == newest for one in alive) and not is_on_its_way(seen, service):
            return
        if seen.held and not any(one.version == newest for one in alive):
            why = f"{name}: version {newest} does not start: {seen.held}"
            break
        if time.monotonic() > deadline:
            why = f"{name}: not ready after {duration(patience_s)}"
            break
        time.sleep(controller_client.POLL_S)
    if is_new:
        controller_client.end_service(name, settings, journal, tell)
    failed = [one for one in seen.members if one.version == newest and one.why and (is_new or one.ended_at)]
    raise SlipwayError("\n  ".join([why, *advice(name, now, seen, failed, is_new)]))


def advice(
    name: str, wanted: WantedService, seen: ServiceRecord, failed: Sequence[Member], is_new: bool
) -> Iterator[str]:
    """Yield the cause of the last failed replica, the next command, and the fate of the service."""
    newest = wanted.newest
    if failed:  # only the record of an ended replica has the last error of the log
        last = max(failed, key=lambda one: (one.ended_at is not None, one.number))
        yield f"{last.run}: {last.why}"
        yield f"the whole log: inv serve.logs {name} --replica-id {last.number}"
    if any(one.facts.is_late for one in failed) or not (failed or seen.held):
        yield f"raise initial_delay_seconds ({newest.service.probe.initial_delay_seconds:g}) in the service file"
    if is_new:
        yield "all replicas were ended"
        return
    yield "the older replicas continue to serve"
    if seen.held:
        tries = "looks for a machine again every 30 s" if not failed else "starts no more replicas of this version"
        yield f"the controller {tries}; see: inv serve.status {name} --all"
    if len(wanted.versions) > 1 and (old := wanted.versions[-2]).model != newest.model:
        engine = f" --engine {old.engine}" if old.engine != newest.engine else ""
        yield f"to serve the earlier model again: inv serve.up {name} --model {old.model}{engine}"


def is_on_its_way(seen: ServiceRecord, service: Service) -> bool:
    """Return whether more replicas are live than the policy's maximum."""
    return sum(one.state in LIVE for one in seen.members) > service.policy.most


def awaits_engine(one: Member) -> bool:
    """Return whether the replica has no engine process yet: pending, provisioning, or building the environment."""
    if one.state is State.STARTING:
        return all(phase in (ENVIRONMENT, SETUP) for phase, _ in one.phases)
    return one.state in (State.PENDING, State.PROVISIONING)


def report_changes(seen: ServiceRecord, told: dict[str, str], tell: Say) -> None:
    """Report each change of state since the last report, and a long phase every TELL_EVERY_S seconds."""
    for one in seen.members:
        spent = one.phase_s(time.time()) if one.state is State.STARTING else {}
        key = " ".join([one.state.value, *(f"{phase} {spent_s // TELL_EVERY_S:g}" for phase, spent_s in spent.items())])
        if told.get(one.run) != key:
            told[one.run] = key
            why = one.why if one.state is not State.READY else ""
            tell(": ".join(filter(None, (f"{one.run} {one.state.value}", why or phases(one)))))


def phases(one: Member) -> str:
    """Return the startup phases with durations as text; "" without phases, or outside STARTING and READY."""
    if one.state not in (State.STARTING, State.READY):
        return ""
    spent = ", ".join(f"{phase} {duration(spent_s)}" for phase, spent_s in one.phase_s(time.time()).items())
    return f"{spent} so far" if spent and one.state is State.STARTING else spent
