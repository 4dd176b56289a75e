"""Explanation of the state of a run, pod or service in at most ten lines: `inv why`. Read-only.

`why` reads journal rows and events, looks at a live pod or reads the downloaded reports, and reads logs. The `WhyStory`
has the cause first, then the events in order, the cost, and the advice. An ended pod is not contacted.
"""

import contextlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flows.history import causes
from flows.history.causes import Cause, RunEvidence
from flows.reading import spending, status
from infra.agent.execution.steps import read_log_end
from infra.errors import SlipwayError, UsageError
from infra.ledger import service_rows
from infra.ledger.journal import Journal
from infra.ledger.leases import keeper_lease
from infra.ledger.op import FAILED, JournalEvent, Op
from infra.records import PodView
from infra.runs import observation
from infra.runs.lookup import find_run
from infra.runs.observation import folder_of
from infra.runs.run_home import RunHome
from infra.runs.sync import reports
from infra.settings import Settings
from infra.transport.protocol import ThisMachine
from infra.units import count, duration, in_usd, moment, per_hour
from serve.policy import service_state
from serve.policy.replica_states import ILL, State
from serve.policy.service_state import Member, ServiceRecord

MOST_LINES = 10
SHOWN_PODS = 3


@dataclass(frozen=True)
class WhyStory:
    subject: str
    cause: Cause
    lines: tuple[str, ...]
    """The events, oldest first, then the cost."""

    @property
    def text(self) -> list[str]:
        """Return all lines: the cause, the events, the advice."""
        first = f"{self.subject}: {self.cause.name}: {self.cause.says}"
        return [first, *self.lines[: MOST_LINES - 2], f"to do: {self.cause.then}"]


def why(name: str, journal: Journal, settings: Settings) -> WhyStory:
    """Return the story of a run, pod, replica or service; by default of the last run.

    Raises UsageError for an unknown name.
    """
    row = service_rows.find(journal, name) if name else None
    if row is not None:
        return _of_service(name, service_state.parse_observed(row.seen), journal, settings)
    return of_run(find_run(journal, name), journal, settings)


def of_run(op: Op, journal: Journal, settings: Settings, said: str = "") -> WhyStory:
    """Return the story of a run from the newest row. `said` is an external explanation of the end."""
    view = next(one for one in status.status(journal, settings, op.run) if one.run == op.run)
    cost = spending.of_run(op, view, journal, settings)
    view = replace(view, spent_micro_usd=cost.micro_usd, limit_micro_usd=view.run_limit_micro_usd)
    events, rows = journal.events(op.run), journal.ops(run=op.run)
    verdict = _verdict(op, view, settings)
    step = str(verdict.get("step") or view.step)
    evidence = RunEvidence(
        run=op.run,
        state=view.state,
        rows=rows,
        armed=frozenset(one.token for one in events if one.event == "armed"),
        stops=_stops(rows, events),
        verdict=verdict,
        progress=view.progress,
        words=_tail(op, step, settings),
        why=said or ("" if verdict else view.note),
        is_engine=bool(op.service),
        has_service=bool(op.service) and service_rows.find(journal, op.service) is not None,
        is_kept=journal.leases.holder(keeper_lease(op.run)) is not None,
        recoveries=view.recoveries,
        money=view.limit_micro_usd and f"{in_usd(view.spent_micro_usd)} of {in_usd(view.limit_micro_usd)}" or "",
    )
    return WhyStory(op.run, causes.cause_of(evidence), tuple(_lines(evidence, events, view)))


def _stops(rows: Sequence[Op], events: Sequence[JournalEvent]) -> list[str]:
    """Return display texts for the stops of the work before resumptions, oldest first, without lost pods."""
    found = [(op.ended_at or 0, op.reason) for op in rows[:-1] if not op.is_live and op.outcome]
    found += [
        (event.at, "neither the guard nor the agent was running") for event in events if event.event == "unreachable"
    ]
    return [words for _, words in sorted(found)]


def _of_service(name: str, seen: ServiceRecord, journal: Journal, settings: Settings) -> WhyStory:
    """Return the story of a service: of the newest unhealthy replica, otherwise of the present state."""
    ill = [one for one in seen.members if one.state in ILL or one.state == State.SHUTTING_DOWN]
    lines = [f"replica {one.number}: {_member(one)}" for one in seen.members[-MOST_LINES + 3 :]]
    if seen.problem:
        return WhyStory(name, Cause("controller", seen.problem, f"inv serve.status {name}"), tuple(lines))
    for one in reversed(ill):
        with contextlib.suppress(UsageError, StopIteration):  # The journal has no record of the replica.
            story = of_run(find_run(journal, one.run), journal, settings, one.why)
            cause = story.cause
            if one.state == State.SHUTTING_DOWN and cause.name != "killed engine":
                continue  # The replica is no longer wanted.
            now = f"; {_answering(len(seen.serving))} now" if seen.serving else ""
            says = f"replica {one.number}: {cause.says}{now}"
            then = (
                cause.then
                if cause.name != "killed engine"
                else f"last log lines: inv serve.logs {name}; other replicas: inv serve.status {name}"
            )
            return WhyStory(name, Cause(cause.name, says, then), (*lines, *story.lines[-1:]))
    if seen.held:
        return WhyStory(
            name, Cause("held", f"fewer replicas than wanted: {seen.held}", f"inv serve.status {name}"), tuple(lines)
        )
    says = _answering(len(seen.serving), f" of {len(seen.members)}")
    return WhyStory(
        name, Cause("serving" if seen.serving else "starting", says, f"inv serve.status {name}"), tuple(lines)
    )


def _answering(number: int, more: str = "") -> str:
    return f"{count(number, 'replica')}{more} {'answers' if number == 1 else 'answer'}"


def _member(one: Member) -> str:
    when = f", since {moment(one.ended_at or one.ready_at or one.began_at)}" if one.began_at else ""
    where = f" on {one.vendor}" if one.vendor else ""
    return f"{one.state.value.lower().replace('_', ' ')}{where}{when}{f': {one.why}' if one.why else ''}"


def _verdict(op: Op, view: PodView, settings: Settings) -> Mapping[str, Any]:
    """Return the verdict of the newest pod, from the pod or the mirror; {} without a verdict."""
    from infra.runs.lookup import last_verdict

    with contextlib.suppress(SlipwayError, OSError, ValueError):
        if found := last_verdict(op, settings):
            return found
    with contextlib.suppress(SlipwayError, OSError, ValueError):
        found = reports.read_local(op, RunHome.for_run(op.run, settings.homes)).get("verdict", {})
        return found if found.get("token") == op.token else {}
    return {}


def _tail(op: Op, step: str, settings: Settings) -> str:
    """Return the last lines of a step's log from the local machine; "" without a local log."""
    from infra.runs.sync import log_mask

    found = b""
    with contextlib.suppress(OSError):  # The user may lack read permission for the folder.
        found = read_log_end(RunHome.for_run(op.run, settings.homes).pod.log(step)) if step else b""
    if not found and step and op.address and not op.address.startswith("ssh://"):  # A pod of this machine.
        with contextlib.suppress(SlipwayError, OSError):
            found = b"".join(log_mask.mask_for(op, ThisMachine())([read_log_end(folder_of(op).log(step))]))
    return found.decode(errors="replace")


def _lines(one: RunEvidence, events: Sequence[JournalEvent], view: PodView) -> list[str]:
    """Return the story in at most eight lines: request, pods, steps, stored checkpoints, money."""
    found = []
    refused = [op for op in one.rows if op.state == FAILED]
    if refused:
        found.append(
            f"{count(len(refused), 'offer')} could not be rented: {refused[-1].reason or 'no record says why'}"
        )
    tried = [op for op in one.rows if op.state != FAILED]
    left_out = tried[1 : 1 - SHOWN_PODS] if len(tried) > SHOWN_PODS + 1 else []
    for number, op in enumerate(tried, 1):
        if op not in left_out:
            found.append(_pod(number, op, [event for event in events if event.token == op.token], view.clock_scale))
        elif op is left_out[0]:
            ends = Counter(map(_end_of_pod, left_out)).most_common()
            found.append(f"pods 2 to {1 + len(left_out)}: {', '.join(f'{end} ({times})' for end, times in ends)}")
    steps = [step for step in one.progress.get("steps", ()) if step["state"] != "waiting" or step.get("attempts")]
    if steps:
        found.append("steps: " + ", ".join(map(_step, steps)))
    if view.in_store and view.state != "succeeded":
        name, at = max(view.in_store.items(), key=lambda item: item[1])
        found.append(f"safe in the store: {name}, {moment(at)}")
    if view.upload_problem:
        found.append(f"uploads: {view.upload_problem}")
    found.append(_money(one, view))
    return found


def _pod(number: int, op: Op, events: Sequence[JournalEvent], scale: float) -> str:
    """Return the life of a pod in a line. `scale` is the speed of the clock for the cost."""
    at = {event.event: event.at for event in reversed(events)}
    parts = [f"{moment(op.intent_at)} pod {number} on {op.vendor}{f' ({op.place})' if op.place else ''}"]
    if op.rate:
        parts.append(per_hour(op.rate))
    if "armed" in at:
        parts.append(f"at work after {duration((at['armed'] - at.get('sending', op.intent_at)) * scale)}")
    elif not op.is_live:
        parts.append("never at work")
    if "unreachable" in at:
        parts.append(f"silent at {moment(at['unreachable'])}")
    if "reachable" in at:
        parts.append(f"at work again from {moment(at['reachable'])}")
    if not op.is_live:
        ended = op.ended_at or op.del_requested_at
        parts.append(_end_of_pod(op, f" after {duration((ended - op.intent_at) * scale)}" if ended else ""))
    return ", ".join(parts)


def _end_of_pod(op: Op, lived: str = "") -> str:
    return f"gone{lived}" if op.reason in ("", observation.GONE) else f"gone{lived}: {op.reason}"


def _step(step: Mapping[str, Any]) -> str:
    tries = step.get("attempts") or 0
    more = f" at the {tries}. attempt" if tries > 1 else ""
    state, record = step["state"], step.get("record") or {}
    if state == "waiting":  # The step has begun and can be resumed.
        state = "stopped"
    if state in ("stopped", "running") and record.get("done") and record.get("total"):
        more += f" after {record['done']:,} of {record['total']:,} {record.get('unit', '')}".rstrip()
    return f"{step['name']} {state}{more}"


def _money(one: RunEvidence, view: PodView) -> str:
    limit = f" of {in_usd(view.limit_micro_usd)}" if view.limit_micro_usd else ""
    live = [op for op in one.rows if op.is_live and op.rate]
    now = f"; bills {per_hour(sum(op.rate for op in live))}" if live else "; nothing of it bills"
    took = f" in {duration(view.elapsed_s)}" if view.elapsed_s is not None else ""
    return f"cost: {in_usd(view.spent_micro_usd)}{limit}{took}{now}"
