"""The wait of a command until a service is as it was asked to be, or cannot become so."""

import time

from infra.errors import SlipwayError
from infra.ledger.journal import Journal
from infra.runs.run_home import RunHome
from infra.runs.timing import Say
from infra.settings import Settings
from infra.units import duration
from serve import revision
from serve.policy.replica_states import LIVE, State
from serve.policy.service_state import Member, ServiceRecord, WantedService
from serve.processes import controller_client, controller_process
from serve.replicas.replica_pod import ENVIRONMENT
from serve.service import Service

SLACK_S = 120.0  # time for what a launch does before and after, on a machine that is busy
TELL_EVERY_S = 30.0  # interval between reports of a phase that lasts


def await_ready(
    name: str, wanted: WantedService, settings: Settings, journal: Journal, is_new: bool, tell: Say
) -> None:
    """Wait until as many new replicas are ready as there must be at least, and the older ones are gone.

    Another size that another command gives it meanwhile is waited for. Raises SlipwayError when it does not come about,
    or another command has put another version in its place; of a new service nothing is left then, but for the latter.
    """
    newest, told = wanted.newest.number, dict[str, str]()
    probe = wanted.newest.service.probe
    patience_s = SLACK_S + 2 * probe.initial_delay_seconds
    deadline = time.monotonic() + patience_s
    while True:
        seen, now = controller_client.looked(name, settings, journal, tell)
        if now.newest.number != newest:
            raise SlipwayError(f"{name}: another command has put version {now.newest.number} in the place of version "
                               f"{newest} meanwhile; see: inv serve.status {name} --all")  # fmt: skip
        service = now.newest.service
        tell_changes(seen, told, tell)
        alive = [one for one in seen.members if one.state in LIVE]
        if any(one.version == newest and awaits_engine(one) for one in alive):
            deadline = time.monotonic() + patience_s  # it counts from an engine's start, as initial_delay_seconds does
        are_there = revision.ready_of(seen, newest) >= service.policy.min_replicas
        if are_there and all(one.version == newest for one in alive) and not is_on_its_way(seen, service):
            return
        if seen.held and not any(one.version == newest for one in alive):
            why = f"{name}: version {newest} does not come up: {seen.held}"
            break
        if time.monotonic() > deadline:
            why = f"{name}: not ready after {duration(patience_s)}"
            break
        time.sleep(controller_client.POLL_S)
    if is_new:
        controller_client.finish(name, settings, journal, tell)
    failed = [one for one in seen.members if one.version == newest and one.why and (is_new or one.ended_at)]
    last = (
        f"\n  {failed[-1].run}: {failed[-1].why}\n  its log ends: {last_words(failed[-1], settings)}" if failed else ""
    )
    hints = f"raise initial_delay_seconds ({probe.initial_delay_seconds:g}), or mend what its log says"
    if is_new:
        raise SlipwayError(f"{why}{last}\n  {hints}; all of it was ended")
    raise SlipwayError(
        f"{why}{last}\n  the older replicas go on serving; {hints}, then the same again; "
        f"see: inv serve.status {name} --all"
    )


def is_on_its_way(seen: ServiceRecord, service: Service) -> bool:
    """Return whether more replicas are there than there will be, or fewer."""
    return sum(one.state in LIVE for one in seen.members) > service.policy.most


def last_words(one: Member, settings: Settings) -> str:
    log = RunHome.of(one.run, settings.homes).pod.log("engine")
    return controller_process.tail(log, 4)


def awaits_engine(one: Member) -> bool:
    """Return whether its machine and its environment are still being made, before its engine is started."""
    if one.state is State.STARTING:
        return all(phase == ENVIRONMENT for phase, _ in one.phases)
    return one.state in (State.PENDING, State.PROVISIONING)


def tell_changes(seen: ServiceRecord, told: dict[str, str], tell: Say) -> None:
    """Report what has changed since `told`; and now and then how far a long phase is."""
    for one in seen.members:
        spent = one.phase_s(time.time()) if one.state is State.STARTING else {}
        key = " ".join([one.state.value, *(f"{phase} {spent_s // TELL_EVERY_S:g}" for phase, spent_s in spent.items())])
        if told.get(one.run) != key:
            told[one.run] = key
            why = one.why if one.state is not State.READY else ""
            tell(": ".join(filter(None, (f"{one.run} {one.state.value}", why or phases(one)))))


def phases(one: Member) -> str:
    """Return the phases on its way to its first answer, and how long each took; "" = nothing is known."""
    if one.state not in (State.STARTING, State.READY):
        return ""
    spent = ", ".join(f"{phase} {duration(spent_s)}" for phase, spent_s in one.phase_s(time.time()).items())
    return f"{spent} so far" if spent and one.state is State.STARTING else spent
