"""The measured times of finished steps, as input for later estimates.

    plan -> launch: save_forecast -> active run: `beyond_limit.estimate_time_left` -> ended run: save_measured_times
        -> Timings -> the next plan

The input is plans, journal rows and the progress reports of pods; the result is files of `infra.ledger.timings`, from
which `flows.planning.estimates` knows this machine or a kind of GPU. The key of a time is the work of the step (program
and version, settings, amount) and the machine. Errors never fail a command: without records, estimates use the table.
"""

import contextlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from flows.planning.estimates import around_kind, machine_of, overhead_work, works_of
from infra.agent.job import Job
from infra.errors import SlipwayError
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.ledger.timings import RunTimes, Timings
from infra.market import gpus
from infra.market.step_times import AROUND, StepTime, elapsed_s
from infra.records import Offer, Plan, StepWork
from infra.runs import observation, run_rows
from infra.runs.lookup import transport_to
from infra.runs.run_home import RunHome
from infra.runs.sync import reports
from infra.selection import registry
from infra.selection.preflight import forecast_of
from infra.settings import Settings

BUILT_S = 5.0  # a longer set-up counts as a build of the environment
LOOKED_AT = 200  # number of newest rows to check
STEADY_S, STEADY = 5.0, 0.05  # a larger difference between two clocks, or share of the time, is no work
START_S = 15.0  # a longer time between the hand-over and the start of the agent is a difference of the clocks


# Before a run: the forecast.


def save_forecast(op: Op, plan: Plan, asked_at: float, settings: Settings, offer: Offer | None = None) -> None:
    """Save the forecast of a starting run; `offer`: the offer of a rented machine."""
    money = forecast_of(plan, offer, settings).micro_usd if offer and plan.job and plan.forecast else None
    timings = Timings.for_journal(settings.state_file)
    one = RunTimes(token=op.token, run=op.run, vendor=op.vendor, asked_at=asked_at)
    with contextlib.suppress(OSError):  # full disk: the run continues without a saved forecast
        timings.save(replace(one, works=plan.works, expected=plan.forecast, micro_usd=money))
        timings.prune()


# After a run: the measured times.


def save_measured_times(journal: Journal, settings: Settings) -> None:
    """Save the times of finished runs not processed yet."""
    timings = Timings.for_journal(settings.state_file)
    known, damaged = {one.token: one for one in timings.all()}, timings.tokens()
    rows = [op for op in journal.ops() if op.is_head and not (op.is_live or op.service or op.outlives_run) and op.job]
    for op in rows[-LOOKED_AT:]:
        before = known.get(op.token)
        if (before and before.state) or (before is None and op.token in damaged):
            continue
        try:
            progress, verdict = last_report(op, settings)
            if progress:
                armed = {one.token: one.at for one in journal.events(op.run) if one.event == "armed"}
                asked_at = max(float(row.intent_at) for row in run_rows.nodes_of(op, journal))
                timings.save(measured_times(op, progress, verdict, before, asked_at, armed, settings))
        except (SlipwayError, OSError, ValueError, KeyError, TypeError):  # no readable records, or a full disk
            continue


def last_report(op: Op, settings: Settings) -> observation.Seen:
    """Return progress and verdict of a finished pod, from its folder or from the local copy."""
    if registry.provider(settings, op.vendor).is_here:
        return observation.read_progress_and_verdict(op, transport_to(settings, op)) if op.address else ({}, {})
    said = observation.own_reports(op, reports.read_local(op, RunHome.for_run(op.run, settings.homes)))
    return said["progress"], said["verdict"]


def measured_times(
    op: Op,
    progress: Mapping[str, Any],
    verdict: Mapping[str, Any],
    before: RunTimes | None,
    asked_at: float,
    armed: Mapping[str, int],
    settings: Settings,
) -> RunTimes:
    """Return the times of a finished run. `asked_at`: last request for a pod; `armed`: time of each hand-over."""
    from infra.runs.sync.sync_step import FETCH  # needed only after a run

    job, vendor = op.read_job(), registry.provider(settings, op.vendor)
    # The restore step of a rented pod is in no plan and counts as time around the steps.
    job = replace(job, steps=tuple(step for step in job.steps if step.name != FETCH))
    told = before or RunTimes(token=op.token, run=op.run, vendor=op.vendor, asked_at=asked_at)
    # A launch may wait in a queue, or give a machine back, before the request for this pod.
    told = replace(told, asked_at=max(told.asked_at, asked_at))
    works = {one.step: one for one in told.works}
    if not works:  # started by a version without saved forecasts, or by a keeper
        machine = machine_of(op.read_request(), settings, vendor).name
        # The measured set-up time below shows whether the environment existed.
        is_found = True if vendor.is_here or settings.rehearsal else None
        found = [*works_of(job, op.target, machine), overhead_work(machine, settings, vendor, is_found)]
        works = {one.step: one for one in found}
    if not (vendor.is_here or settings.rehearsal) and (seen := _gpus_of(progress, job)):
        works = {name: replace(one, machine=seen) for name, one in works.items()}
    is_one_go = armed.keys() <= {op.token} and progress.get("agents", 1) == 1
    steps = progress.get("steps") or ()
    lengths = {step.name: (step.config.get("spec") or {}).get("steps") for step in job.steps}
    times = [
        _time_of(step, works[step["name"]], told.asked_at, is_one_go, lengths.get(step["name"]))
        for step in steps
        if step["name"] in works and _is_measured(step)
    ]
    state, own = verdict.get("state") or op.outcome or "ended", {step.name for step in job.steps}
    wall_s, whole = None, {one.work.step for one in times if one.is_whole}
    # The guard starts the agent during the hand-over; an engine takes the job before a machine exists.
    has_started = not (vendor.is_here or vendor.restarts_runs or settings.rehearsal) and progress.get("started_at")
    late_s = abs(progress["started_at"] - armed.get(op.token, progress["started_at"])) if has_started else 0.0
    is_timed = late_s <= START_S and all(map(_is_steady, (dict(progress, ended_at=progress.get("updated_at")), *steps)))
    if state == "succeeded" and own <= whole and is_timed and verdict.get("at", 0.0) > told.asked_at:
        wall_s = verdict["at"] - told.asked_at
        rest_s = wall_s - sum(elapsed_s(step, 0.0) for step in steps if step["name"] in own)
        built_s = sum(elapsed_s(step, 0.0) for step in steps if step["name"] not in (*own, FETCH))
        is_known = works[AROUND].kind != around_kind(op.vendor, None)
        work = replace(works[AROUND], kind=around_kind(op.vendor, built_s <= BUILT_S if is_known else None))
        times.append(StepTime(work=work, at=verdict["at"], began_s=0.0, seconds=max(0.0, rest_s)))
        # The forecast was about all planned steps, so a shortened run says nothing about the error of the forecast.
        if any(is_shortened((step.get("result") or {}).get("steps"), lengths.get(step["name"])) for step in steps):
            wall_s = None
    return replace(told, works=tuple(works.values()), state=state, wall_s=wall_s, times=tuple(times))


def _is_measured(step: Mapping[str, Any]) -> bool:
    is_once = step["state"] == "done" and step.get("attempts") == 1
    return is_once and bool(step.get("started_at") and step.get("ended_at")) and _is_steady(step)


def _is_steady(said: Mapping[str, Any]) -> bool:
    """Return whether the machine did not sleep, and no clock jumped, during a step or a run; True if unknown."""
    wall_s = (said.get("ended_at") or 0.0) - (said.get("started_at") or 0.0)
    return wall_s >= 0 and abs(wall_s - (said.get("awake_s") or wall_s)) <= max(STEADY_S, STEADY * wall_s)


def _time_of(step: Mapping[str, Any], work: StepWork, asked_at: float, is_one_go: bool, length: Any) -> StepTime:
    """Return the time of a finished step. `length`: planned number of training steps, or None for other steps."""
    marks = tuple((float(at_s), min(1.0, share)) for at_s, share in step.get("marks") or ())
    made: Any = (step.get("result") or {}).get("steps")
    if is_shortened(made, length):
        work, length = replace(work, amount=work.amount * made / length), made
    went_on = bool(marks and type(length) is int and marks[0][1] * length > 1.5)  # resumed from a checkpoint
    return StepTime(
        work=work,
        at=step["ended_at"],
        began_s=max(0.0, step["started_at"] - asked_at),
        seconds=elapsed_s(step, 0.0),
        marks=marks,
        is_whole=is_one_go and not went_on,
        others=step.get("others_share"),
    )


def is_shortened(made: Any, length: Any) -> bool:
    """Return whether a training has made fewer steps than planned. Pods are untrusted: `made` has any type."""
    return type(made) is int and type(length) is int and 0 < made < length


def _gpus_of(progress: Mapping[str, Any], job: Job) -> str:
    """Return the GPUs that a pod has reported, in the format of `machine_of`; "" without a report."""
    names = [one["name"] for one in (progress.get("machine") or {}).get("gpus") or () if one.get("name")]
    if not names:
        return ""
    found, nodes = f"{job.num_gpus or len(names)} x {gpus.canonical_name(names[0])}", len(job.group.addresses)
    return found if nodes < 2 else f"{nodes} nodes of {found}"
