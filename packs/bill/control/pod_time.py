"""The time of one pod, divided into parts: each moment from the request to the proven end has exactly one part. Pure.

    events of the journal row, lines of the pod's timeline -> PodRecords -> spans_of -> spans without gaps or overlaps

The control side and the pod have separate clocks, and a user can set both. `infra.ledger` and the agent therefore
record the boot clock and the wall clock: the boot clock gives the lengths of intervals, and the wall clock gives the
start. If the first line of a pod is not at the hand-over, all lines of the pod move by the same time.
"""

import math
import statistics
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

WAIT, BOOT, CHECKS, SYNC, ENVIRONMENT, DATA = "wait", "boot", "checks", "sync", "environment", "data"
COMPILE, STEPS, EVALUATION, SAVES, IDLE = "compile", "steps", "evaluation", "saves", "idle"
UPLOAD, DELETION, UNEXPLAINED = "upload", "deletion", "unexplained"
PARTS = (
    *(WAIT, BOOT, CHECKS, SYNC, ENVIRONMENT, DATA, COMPILE, STEPS, EVALUATION, SAVES, IDLE, UPLOAD, DELETION),
    UNEXPLAINED,
)
TOLD_BY_STEPS = (ENVIRONMENT, DATA, COMPILE, STEPS, EVALUATION, SAVES, UPLOAD)
SILENT_S = 30.0  # an agent writes a line every 10 s: see `infra.agent.execution.timeline`
SIGN_S = 10.0
MACHINE = ("created", "found", "claim", "resurfaced")  # events of a row with a machine
LATEST_START_S = 10.0  # the hand-over waits for the guard, and the guard starts the agent
BETWEEN = (IDLE, UNEXPLAINED)  # parts without a step, in the time of the work
REQUEUED = "waiting"  # state of an agent whose cluster or engine starts the work again
ENVIRONMENT_STEP = "environment"  # name of step 0, in `infra.agent.step_zero`


@dataclass(frozen=True)
class Span:
    """An interval of a pod in UTC epoch seconds. `step`: the running step, "" for none."""

    begin: float
    end: float
    part: str
    step: str = ""

    @property
    def seconds(self) -> float:
        return self.end - self.begin


@dataclass(frozen=True)
class Moment:
    """An event of the journal row on the clock of the control side."""

    at: float
    event: str
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PodRecords:
    """All records about the time of a pod."""

    moments: Sequence[Moment]
    """Events of the row, oldest first. The first event is the request or the intent."""
    until: float
    """The proven end, or now for a live pod."""
    billed_from: float = 0.0
    billed_until: float = math.inf
    """End of the time in the bill of the vendor; infinite without a bill."""
    lines: Sequence[Mapping[str, Any]] = ()
    """Lines of the timeline of this pod, as read by `read_lines`."""
    kinds: Mapping[str, str] = field(default_factory=dict)
    """Part of each step of the job until the step reports parts. A step outside of the job is a wait in a queue."""
    is_held: bool = False
    """True for a pod without work, which has no agent."""
    is_partial: bool = False
    """True if the lines may end before the work, as the copy of a timeline that the pod still writes."""


def has_machine(moments: Sequence[Moment]) -> bool:
    """Return whether a machine existed for the row; a refused request and a request without an answer have none."""
    return any(one.event in MACHINE for one in moments)


def has_verdict(lines: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the timeline has the end of the work; a resumed pod continues the same timeline."""
    return next((is_verdict(one) for one in reversed(lines) if "agent" in one), False)


def is_verdict(line: Mapping[str, Any]) -> bool:
    """Return whether a line of the timeline is the end of the work."""
    return line.get("agent", "starting") not in ("starting", REQUEUED)


def spans_of(pod: PodRecords) -> list[Span]:
    """Return the spans of a pod in order, from the request to the end; of a request without a machine, the wait."""
    until = max(pod.moments[0].at, pod.until)
    if not has_machine(pod.moments):
        answered_at = _at(pod, "refused", "unclear", "detach", "end", "absent", "gone")
        return [Span(pod.moments[0].at, until if answered_at is None else min(answered_at, until), WAIT)]
    start = _start(pod, until)
    armed_at, over_at = _at(pod, "armed"), _at(pod, "end", "detach", "gone")
    over_at = until if over_at is None else min(over_at, until)
    work = list[Span]()
    if armed_at is not None:
        lines = _placed(pod.lines, start[-1].begin, armed_at, until)
        verdicts = [one.at for one in lines if is_verdict(one.said)]
        if lines and lines[-1].at not in verdicts:  # lost pod: the bill of the vendor ends earlier
            over_at = min(over_at, max(lines[-1].at, pod.billed_until))
        over_at = max([over_at, *verdicts])  # after `inv down`, steps save first
        work = [*_cut(overlay(*_states(pod, lines, over_at)), start[0].begin, over_at)] if lines else []
        if not work:  # the agent starts within some seconds, and the pod may have been lost before the first copy
            started_at = min(over_at, armed_at + LATEST_START_S)
            rest = SYNC if lines else IDLE if pod.is_held else UNEXPLAINED
            work = [Span(armed_at, started_at, SYNC), Span(started_at, over_at, rest)]
        armed_at = work[0].begin  # the agent starts shortly before the journal says so
    before = _cut(start, start[0].begin, min(over_at, until if armed_at is None else armed_at))
    return [*before, *_cut([*work, Span(over_at, until, DELETION)], start[0].begin, until)]


def _at(pod: PodRecords, *events: str) -> float | None:
    return next((one.at for one in pod.moments if one.event in events), None)


def _start(pod: PodRecords, until: float) -> list[Span]:
    """Return the spans from the request to the hand-over of the job; the last one lasts until the end."""
    began, created = pod.moments[0].at, _at(pod, *MACHINE)
    assert created is not None, "the caller has checked"
    places = [one for one in pod.moments if one.facts.get("address")]
    booted = next((one.at for one in places if one.event == "note"), places[0].at if places else until)
    # A vendor that bills from a later moment has provided no machine before.
    provided = max(created, min(pod.billed_from, booted))
    found = [Span(began, provided, WAIT), Span(provided, booted, BOOT)]
    if places:
        checks = [one.at for one in pod.moments if one.event == "note" and set(one.facts) == {"last_seen_at"}]
        checked = next((at for at in checks if booted <= at <= (_at(pod, "armed") or until)), booted)
        found += [Span(booted, checked, CHECKS), Span(checked, until, SYNC)]
    return found


@dataclass(frozen=True)
class _Line:
    at: float
    said: Mapping[str, Any]


def _placed(lines: Sequence[Mapping[str, Any]], least: float, armed_at: float, until: float) -> list[_Line]:
    """Return the lines in order on the clock of the control side, between two moments.

    The agent starts during the hand-over. If the clocks disagree, the hand-over gives the difference.
    """
    agents: list[list[Mapping[str, Any]]] = []
    for line in lines:
        if line.get("agent") == "starting" or not agents:  # another agent, possibly after a reboot
            agents.append([])
        agents[-1].append(line)
    found = []
    for one in agents:
        offset = statistics.median(line["at"] - line["clock_s"] for line in one)
        found += [_Line(line["clock_s"] + offset, line) for line in one]
    found.sort(key=lambda line: line.at)
    if not found:
        return []
    first, last = found[0], found[-1].at
    is_wrong = not least <= first.at <= armed_at + LATEST_START_S or last > until
    shift = 0.0 if not is_wrong else armed_at - first.at if "agent" in first.said else min(0.0, until - last)
    return [_Line(line.at + shift, line.said) for line in found if least <= line.at + shift <= until]


def _states(pod: PodRecords, lines: Sequence[_Line], over_at: float) -> tuple[list[Span], list[Span]]:
    """Return the spans of the states, and the spans of work that steps report afterwards."""
    base, extra = list[Span](), list[Span]()
    part, step, is_closed = ENVIRONMENT, "", False
    for one, following in zip(lines, [*lines[1:], None], strict=True):
        said = one.said
        if "part" in said and "took_s" in said:
            extra.append(Span(one.at - said["took_s"], one.at, said["part"], said["step"]))
        elif "part" in said:
            part, step = said["part"], said["step"]
        elif "step" in said and said["state"] == "running":
            step, is_closed = said["step"], False
            part = pod.kinds.get(step, WAIT)
        elif "step" in said and said["state"] != "reused":
            part, step = IDLE, ""
        elif said.get("agent") == "starting":
            part, step, is_closed = ENVIRONMENT, "", False
        elif said.get("agent") == REQUEUED:
            part, step = WAIT, ""
        elif "agent" in said:
            base = _closing(base)
            part, step, is_closed = IDLE, "", True
        end = over_at if following is None else following.at
        silent = not is_closed and part != WAIT and end - one.at > SILENT_S
        last = min(end, one.at + SIGN_S) if silent else end
        base.append(Span(one.at, last, part, step))
        if last < end:
            base.append(Span(last, end, UNEXPLAINED if pod.is_partial and following is None else IDLE))
    return [one for one in base if one.seconds > 0], extra


def _closing(base: list[Span]) -> list[Span]:
    """Return the spans with the time between the last step and the verdict as the last uploads."""
    at = len(base)
    while at and base[at - 1].part == IDLE and not base[at - 1].step:
        at -= 1
    return base[:at] + [replace(one, part=UPLOAD) for one in base[at:]]


def overlay(base: Iterable[Span], extra: Iterable[Span]) -> list[Span]:
    """Return the spans of `base`, with parts replaced by the spans of `extra`.

    An extra span replaces the newest time of the same step before the end of the span; no second is replaced twice.
    """
    todo, free, painted = deque(base), list[Span](), list[Span]()
    for one in sorted(extra, key=lambda span: span.end):
        while todo and todo[0].begin < one.end:
            first = todo.popleft()
            if first.end > one.end:
                todo.appendleft(replace(first, begin=one.end))
                first = replace(first, end=one.end)
            free.append(first)
        left_s = one.seconds
        while left_s > 0 and free and free[-1].step == one.step and free[-1].part in TOLD_BY_STEPS:
            top = free.pop()
            cut = max(top.begin, top.end - left_s)
            painted.append(Span(cut, top.end, one.part, one.step))
            left_s -= top.end - cut
            if cut > top.begin:
                free.append(replace(top, end=cut))
    return sorted([*painted, *free, *todo], key=lambda span: span.begin)


def _cut(spans: Iterable[Span], begin: float, end: float) -> Iterator[Span]:
    """Yield the parts of the spans between two moments."""
    for one in spans:
        found = replace(one, begin=max(begin, one.begin), end=min(end, one.end))
        if found.seconds > 0:
            yield found


def of_first_node(spans: Sequence[Span], first: Iterable[Span]) -> list[Span]:
    """Return the spans of a further node, with the parts that node 0 reported at the same time.

    first: the spans of all pods of node 0. Only node 0 reports parts, and often only node 0 has a timeline. Time of a
    step without node 0 is a wait for node 0.
    """
    found = list[Span]()
    told = deque(sorted((one for one in first if one.step or one.part in BETWEEN), key=lambda one: one.begin))
    steps = {one.step for one in told if one.step}
    for one in spans:
        if one.step not in steps - {ENVIRONMENT_STEP} and not (one.part == UNEXPLAINED and steps):
            found.append(one)
            continue
        while told and told[0].end <= one.begin:
            told.popleft()
        at = one.begin
        for each in told:
            if each.begin >= one.end:
                break
            if one.part == UNEXPLAINED or each.step == one.step or each.part == UNEXPLAINED:
                for theirs in _cut([each], at, one.end):
                    found += [Span(at, theirs.begin, IDLE), theirs] if theirs.begin > at else [theirs]
                    at = theirs.end
        if at < one.end:
            found.append(Span(at, one.end, IDLE))
    return found


def read_lines(lines: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the usable lines of a timeline. Pods are untrusted input: a line of a wrong form is skipped."""
    return [one for one in lines if _is_usable(one)]


def _is_usable(line: Mapping[str, Any]) -> bool:
    numbers = [line.get("at"), line.get("clock_s"), *([line["took_s"]] if "took_s" in line else [])]
    if not all(type(one) in (int, float) and 0 <= one < 1e11 for one in numbers):
        return False
    texts = [line[name] for name in ("step", "state", "agent", "part") if name in line]
    if not all(type(one) is str for one in texts) or "part" in line and line["part"] not in TOLD_BY_STEPS:
        return False
    return "part" in line or "state" in line if "step" in line else "part" not in line
