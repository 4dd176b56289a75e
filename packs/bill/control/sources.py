"""The records behind a bill: events of the journal, timelines of pods, and bills of vendors.

run name -> rows and events of the journal, logs on this machine, on the pod or in the store -> Bill
"""

import contextlib
import itertools
import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.reading import logs
from infra.agent.job import Job, PodFolder, Step, earlier_part
from infra.agent.limits import read_clocks
from infra.errors import SlipwayError
from infra.ledger import spend
from infra.ledger.journal import Journal
from infra.ledger.op import PLANNED, Op
from infra.runs import run_rows
from infra.runs.observation import folder_of
from infra.runs.run_home import RunHome
from infra.runs.sync import fetched_files
from infra.runs.timing import Say
from infra.settings import Settings
from packs.bill.control.bill import Bill, PodBill, bill_of
from packs.bill.control.pod_time import (
    DATA,
    ENVIRONMENT,
    ENVIRONMENT_STEP,
    EVALUATION,
    STEPS,
    UNEXPLAINED,
    Moment,
    PodRecords,
    Span,
    has_machine,
    has_verdict,
    of_first_node,
    read_lines,
    spans_of,
)
from store import untrusted_input

ENDS = ("gone", "absent", "refused", "unsent")  # events after which a row has ended
TIMELINE = "timeline"  # `infra.agent.execution.timeline`
MOST_BYTES = 32 << 20  # a larger file is no timeline: an agent writes about 0.9 MB in a day
PROGRAMS = {  # by the first words of a step; the first match counts
    ("-m", "data"): DATA,
    ("-m", "store.uploader"): DATA,
    ("-m", "trainer", "import"): DATA,
    ("-m", "trainer", "eval"): EVALUATION,
    ("-m", "trainer"): ENVIRONMENT,  # until the trainer reports parts
}


def bill_of_run(run: str, journal: Journal, settings: Settings, tell: Say, asks: bool = True) -> Bill:
    """Return the bill of a run. `asks`: query live pods and stores for timelines that are missing on this machine."""
    rows = [op for op in journal.ops() if run in (op.run, run_rows.run_of(op)) and op.state != PLANNED]
    pods = pods_of(rows, journal, settings, tell, asks)
    return bill_of(run, pods, settings.clock_scale, not any(op.is_live for op in rows))


def pods_of(rows: Sequence[Op], journal: Journal, settings: Settings, tell: Say, asks: bool) -> list[PodBill]:
    """Return the spans and the cost of each pod of a run, node 0 first."""
    now, scale, problems = read_clocks(), settings.clock_scale, list[str]()
    costs = {one.token: one for one in spend.ledger(rows, journal.reported_costs("vendor"), now, clock_scale=scale)}
    moments, found, first_nodes = moments_of(rows, journal), list[PodBill](), list[Sequence[Span]]()
    for op in sorted(rows, key=lambda row: row.rank):
        events, cost = moments.get(op.token), costs.get(op.token)
        if not events:
            problems.append(f"{op.run}: a row of the journal has no events, so the bill lacks a pod")
            continue
        if events[-1].event == "unsent":
            continue
        lines, is_partial = lines_of(op, journal, settings, problems.append, asks)
        until = max(now.wall_s, events[-1].at) if op.is_live else _ended_at(events)
        events = _adopted(op, events, lines, until)
        billed_from = events[0].at + spend.billed_from(op) - (op.intent_at if op.sent_at is None else op.sent_at)
        billed = cost.billed_micro_usd if cost and cost.is_final else None
        records = PodRecords(
            moments=events,
            # A silent machine of the user is not proven gone for days, and costs nothing.
            until=until if op.rate or not op.detached else _at_detach(events, until),
            billed_from=billed_from,
            billed_until=math.inf if billed is None or not op.rate else billed_from + billed * 3600 / op.rate / scale,
            lines=lines,
            kinds=_kinds_in(lines) | kinds_of(op, events) if events[0].event == "claim" else kinds_of(op, events),
            is_held=_kind_of(op) == "hold",
            is_partial=is_partial,
        )
        spans = spans_of(records)
        if op.rank and spans:  # A pod that ended within its first second has no spans.
            beside = (each for each in first_nodes if each[0].begin < spans[-1].end and spans[0].begin < each[-1].end)
            spans = of_first_node(spans, itertools.chain.from_iterable(beside))
        pod = PodBill(
            pod_id=op.remote_id or "",
            vendor=op.vendor,
            host=op.place or " ".join(filter(None, (op.vendor, _gpu_of(op)))),
            spans=spans,
            micro_usd=cost.micro_usd if cost else 0,
            micro_usd_per_hour=op.rate,
            billed_from=billed_from,
            has_machine=has_machine(events),
            is_last=run_rows.is_over(op),
            recoveries=op.recoveries,
        )
        found.append(pod)
        first_nodes += [spans] if not op.rank and spans else []
    for words in dict.fromkeys(problems):
        tell(words)
    return found


def moments_of(rows: Sequence[Op], journal: Journal) -> dict[str, list[Moment]]:
    """Return the events of each row. Intervals come from the clock of the boot, which a user cannot set."""
    tokens = {op.token for op in rows}
    sql = "SELECT token, event, facts, at, boot_id, boottime_ms FROM events ORDER BY id"
    found = [one for one in journal.read(sql) if one[0] in tokens]
    clocks: dict[str, list[tuple[int, float]]] = {}
    for *_, at, boot, ms in found:
        clocks.setdefault(boot, []).append((at, ms / 1000))
    offsets = {boot: _offset(each) for boot, each in clocks.items()}
    moments: dict[str, list[Moment]] = {}
    for token, event, facts, _, boot, ms in found:
        moments.setdefault(token, []).append(Moment(ms / 1000 + offsets[boot], event, json.loads(facts)))
    return {token: _from_request(events) for token, events in moments.items()}


def _offset(clocks: Sequence[tuple[int, float]]) -> float:
    """Return the seconds between the clock of a boot and UTC, from wall clocks in whole seconds."""
    least, most = max(at - boot_s for at, boot_s in clocks), min(at + 1 - boot_s for at, boot_s in clocks)
    if least <= most:
        return (least + most) / 2
    middle = sorted(at - boot_s for at, boot_s in clocks)[len(clocks) // 2]  # the wall clock was set
    return middle + 0.5


def _from_request(events: list[Moment]) -> list[Moment]:
    begin = next((number for number, one in enumerate(events) if one.event == "sending"), 0)
    return events[begin:]


def _adopted(op: Op, events: list[Moment], lines: Sequence[Mapping[str, Any]], until: float) -> list[Moment]:
    """Return the events of a row; for a pod adopted without a row, begin at the creation of the pod.

    The row has no events from before the adoption, so the timeline tells the start of the agent.
    """
    if events[0].event != "claim":
        return events
    begin = events[0].at - max(0, op.intent_at - (op.sent_at or op.intent_at))
    # One second earlier: the offset of the clocks in the timeline is a median.
    armed_at = min(max(begin, lines[0]["at"] - 1.0), until) if lines else begin
    start = [Moment(begin, "claim"), Moment(armed_at, "note", {"address": op.address}), Moment(armed_at, "armed")]
    asked = [Moment(events[0].at, "end")] if op.del_requested_at == op.intent_at else []
    return [*(start if op.address else start[:1]), *asked, *events[1:]]


def _at_detach(events: Sequence[Moment], until: float) -> float:
    return next((one.at for one in events if one.event == "detach"), until)


def _ended_at(events: Sequence[Moment]) -> float:
    return next((one.at for one in reversed(events) if one.event in ENDS), events[-1].at)


def kinds_of(op: Op, events: Sequence[Moment]) -> dict[str, str]:
    """Return the part of each step of a row; a training counts as ENVIRONMENT until the trainer reports parts.

    A held pod has several jobs: the row has the newest job, and the events have all.
    """
    jobs = [_job_of(replace(op, job=one.facts["job"])) for one in events if one.facts.get("job")]
    steps = [step for job in (*jobs, _job_of(op)) if job for step in job.steps]
    return {ENVIRONMENT_STEP: ENVIRONMENT} | {step.name: program_part(step) for step in steps}


def _kinds_in(lines: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the part of each step in a timeline, for a row without the steps of the job."""
    trained = {one["step"] for one in lines if "part" in one}
    return {one["step"]: ENVIRONMENT if one["step"] in trained else UNEXPLAINED for one in lines if "step" in one}


def program_part(step: Step) -> str:
    """Return the part of a step by the program of the step; a program of the user counts as STEPS."""
    known = (part for words, part in PROGRAMS.items() if tuple(step.words[: len(words)]) == words)
    return next(known, STEPS)


def _job_of(op: Op) -> Job | None:
    with contextlib.suppress(SlipwayError):
        return op.read_job() if op.job else None
    return None


def _gpu_of(op: Op) -> str:
    with contextlib.suppress(SlipwayError):  # a damaged row
        return op.read_request().gpu
    return ""


def _kind_of(op: Op) -> str:
    job = _job_of(op)
    return job.kind if job else ""


def lines_of(
    op: Op, journal: Journal, settings: Settings, tell: Say, asks: bool
) -> tuple[list[Mapping[str, Any]], bool]:
    """Return the timeline of the pod of a row: from this machine, else from the live pod or the store.

    Also return whether the timeline may end before the work. Only node 0 uploads the timeline.
    """
    home = RunHome.for_run(op.run, settings.homes)
    if op.address and "://" not in op.address:  # a folder of this machine
        return _read(folder_of(op), op.token), False
    is_partial = op.is_live or op.rank > 0 or not asks
    if asks and op.is_live and op.address:
        try:
            is_partial = logs.fetch(op, journal, settings, tell)
        except SlipwayError as error:
            tell(f"{op.run}: {error}")
    found = _read(home.pod, op.token)
    # The copy on this machine may end before the work does, if the user stopped following the run.
    if asks and op.address and not (op.is_live and found) and not has_verdict(found):
        logs.fetch_from_store(op, settings, tell)
        found = _read(home.pod, op.token)
    return found, is_partial and not has_verdict(found)


def _read(pod: PodFolder, token: str) -> list[Mapping[str, Any]]:
    path = pod.log(TIMELINE)
    return read_lines(one for file in (earlier_part(path), path) for one in _lines(pod.root, file, token))


def _lines(root: Path, path: Path, token: str) -> Iterator[Mapping[str, Any]]:
    with contextlib.suppress(FileNotFoundError):
        for line in fetched_files.content(root, path.relative_to(root).as_posix(), MOST_BYTES).splitlines():
            with contextlib.suppress(untrusted_input.UnusableDocument):
                if token.encode() in line and (said := untrusted_input.mapping(line)).get("token") == token:
                    yield said
