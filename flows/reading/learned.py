"""Learning from runs: the times of steps that are over, forecasts of those to come, what is left of a run.

    plan -> learn -> (launch) remember -> (it works) left -> (it is over) gather -> Timings -> the next plan

In: plans, rows of the journal, what pods have said of their progress. Out: plans whose estimates are of this machine,
or of this kind of GPU, where there is a record; files of `infra.ledger.timings`. A step's time is known by what it did
(its program and the version of that, its settings, its amount of work) and by what it ran on. Nothing here fails a
command: without records, plans are by formulas, as on the first day.
"""

import contextlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from data.config import ConfigError
from flows.jobs.memory_check import phases_of
from infra.agent import host
from infra.agent.environments import environment
from infra.agent.job import Job, Step
from infra.agent.limits import read_clocks
from infra.checkout import ROOT
from infra.errors import SlipwayError
from infra.ledger import cost
from infra.ledger.accuracy import ForecastError, compared
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.ledger.timings import RunTimes, Timings
from infra.market import gpus
from infra.market.expected import AROUND, StepTime, elapsed_s, expect, left, words
from infra.market.forecast import SETUP_S
from infra.providers import Provider, registry
from infra.records import Offer, Plan, Request, StepWork
from infra.runs import sight
from infra.runs.lookup import find_run, way
from infra.runs.run_home import RunHome
from infra.runs.sync import mirror
from infra.runs.sync.sync_step import FETCH
from infra.selection.preflight import forecast_of
from infra.settings import Settings
from trainer.fingerprints import VERSIONS, digest
from trainer.plan.estimates import PHASE_START_S, operations, shape

# seconds around the steps: of pods on this machine; on own machines; to build environments, and with a full cache
HERE_S, ELSEWHERE_S, BUILD_S, CACHED_S = 3.0, 15.0, 60.0, 10.0
BUILT_S = 5.0  # an environment that took longer than this to be had was built
LOOKED_AT = 200  # newest rows that are read when times are gathered


# Before a run: what to expect.


def learn(plan: Plan, settings: Settings, vendor: Provider, offer: Offer | None = None) -> Plan:
    """Return the plan with what is expected of each step and of all the rest, by records where there are any."""
    if plan.job is None:
        return plan
    guesses = {one.step: one.estimate_s for one in plan.artifacts if one.step}
    machine = machine_of(plan.request, settings, vendor, offer)
    is_found = _is_found(plan.job, settings, vendor)
    is_cached = is_found is False and environment.is_cached("train", ROOT, plan.job.torch)
    rest = around(machine, settings, vendor, is_found, is_cached)
    works = (*works_of(plan.job, plan.target, machine, guesses), rest)
    past = Timings.beside(settings.state_file).past()
    found = {work.step: one for work in works if (one := expect(past, work)) is not None}
    artifacts = [replace(one, estimate_s=found[one.step].seconds) if one.step in found else one
                 for one in plan.artifacts]  # fmt: skip
    if not found.keys() - {AROUND}:  # a job of one's own that has never run: its time is not known
        found = {}
    return replace(plan, artifacts=tuple(artifacts), works=works, forecast=tuple(found.values()))


def works_of(job: Job, target: str, machine: str, guesses: Mapping[str, float | None]) -> list[StepWork]:
    """Return the work of a job's steps, as far as their time depends on it. `guesses`: seconds by formulas."""
    return [_work_of(step, target, machine, guesses.get(step.name)) for step in job.steps]


def _work_of(step: Step, target: str, machine: str, guess_s: float | None) -> StepWork:
    making = step.config.get("making")
    if not making:  # a job of one's own: the same command is the same work
        return StepWork(step=step.name, kind=f"job {target}", machine=machine, shape=step.name, guess_s=guess_s)
    kind = f"{step.words[-1]} v{VERSIONS.get(step.words[-1], 1)}"
    try:
        phase = next(iter(phases_of([step])), None)
    except ConfigError:  # the config of an older Slipway, whose settings had other names
        phase = None
    if phase is None:
        read = {role: one["fingerprint"] for role, one in sorted(making["inputs"].items())}
        form = digest([making.get("spec"), read])
        return StepWork(step=step.name, kind=kind, machine=machine, shape=form, guess_s=guess_s)
    return StepWork(
        step=step.name, kind=kind, machine=machine, shape=shape(phase), size=float(phase.model.num_params),
        amount=operations(phase), guess_s=guess_s, fixed_s=PHASE_START_S,
    )  # fmt: skip


def around(
    machine: str, settings: Settings, vendor: Provider, is_found: bool | None, is_cached: bool = False
) -> StepWork:
    """Return the work of a run besides its steps.

    `is_found`: whether its environment exists; None = nobody knows. `is_cached`: it can be built without a download.
    """
    usual_s = SETUP_S[1] if vendor.is_rented and not settings.rehearsal else HERE_S if vendor.is_here else ELSEWHERE_S
    guess_s = usual_s + (0.0 if is_found is not False else CACHED_S if is_cached else BUILD_S)
    kind = around_kind(vendor.name, is_found)
    return StepWork(step=AROUND, kind=kind, machine=machine, shape="", guess_s=guess_s, fixed_s=guess_s)


def around_kind(vendor: str, is_found: bool | None) -> str:
    """Return the kind of that: with an environment that is built, it is another one."""
    built = "" if is_found is None else f", environment {'found' if is_found else 'built'}"
    return f"around the steps, {vendor}{built}"


def _is_found(job: Job, settings: Settings, vendor: Provider) -> bool | None:
    """Return whether the environment is there; None where only the machine knows."""
    if not (vendor.is_here or settings.rehearsal) or not any(step.environment for step in job.steps):
        return None
    return environment.find("train", ROOT, settings.environments, job.torch) is not None


def machine_of(request: Request, settings: Settings, vendor: Provider, offer: Offer | None = None) -> str:
    """Return the name of the machine in records: the same for machines that are equally fast."""
    if vendor.is_here or settings.rehearsal:  # a rehearsal's pods are processes of this machine
        found = here(0 if settings.rehearsal else request.num_gpus)
    elif request.num_gpus or (offer and offer.num_gpus):
        gpu = offer.gpu if offer and offer.gpu else request.gpu
        count = offer.num_gpus if offer and offer.num_gpus else request.num_gpus
        found = f"{count} x {gpus.meant(gpu) if gpu else 'GPU'}"
    else:
        kind = (offer.instance_type or offer.place) if offer else request.host or request.pool or request.instance_type
        found = " ".join(filter(None, (vendor.name, kind, f"{offer.cpus} CPUs" if offer and offer.cpus else "")))
    return found if request.nodes == 1 else f"{request.nodes} nodes of {found}"


def here(num_gpus: int = 0) -> str:
    """Return the name of this machine: its GPUs, of which `num_gpus` work, or its CPUs."""
    found = [] if environment.torch_build() == "cpu" else [one["name"] for one in host.nvidia()[0]]
    if found:
        return f"{max(1, num_gpus)} x {gpus.meant(found[0])}"
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    info = Path("/proc/cpuinfo")
    lines = info.read_text(errors="replace").splitlines() if info.exists() else []
    name = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), os.uname().machine)
    return f"{cpus} x {' '.join(name.split())}"


def remember(op: Op, plan: Plan, asked_at: float, settings: Settings, offer: Offer | None = None) -> None:
    """Write down what was forecast of a run that begins; `offer`: where it costs money."""
    money = forecast_of(plan, offer, settings).micro_usd if offer and plan.job and plan.forecast else None
    timings = Timings.beside(settings.state_file)
    with contextlib.suppress(OSError):  # a full disk: the run goes on, and its forecast is forgotten
        timings.save(
            RunTimes(token=op.token, run=op.run, vendor=op.vendor, asked_at=asked_at, works=plan.works,
                     expected=plan.forecast, micro_usd=money)
        )  # fmt: skip
        timings.prune()


# During a run: what is left.


def left_of(
    rows: Sequence[Op], progress: Mapping[str, Any], settings: Settings
) -> tuple[tuple[float, float, float], str] | None:
    """Return low, expected and high of the seconds left of a run at work, and their basis; None where nobody knows.

    `rows`: of the run, oldest first.
    """
    steps, now = progress.get("steps") or (), progress.get("updated_at")
    if not steps or not now:
        return None
    timings = Timings.beside(settings.state_file)
    # a step that was started again takes as long as was forecast
    pods = [op for op in rows if op.slot >= 0]
    told = next((one for op in reversed(pods) if (one := timings.of(op.token)) and one.expected), None)
    if told is None:
        return None
    since_s = max(0.0, now - told.asked_at) if told.token == pods[-1].token else 0.0
    return left(told.expected, steps, now, since_s), words(told.expected)


# After a run: what it really took.


def gather(journal: Journal, settings: Settings) -> None:
    """Write down the times of runs that are over and were not looked at yet."""
    timings = Timings.beside(settings.state_file)
    known, damaged = {one.token: one for one in timings.all()}, timings.known()
    rows = [op for op in journal.ops() if not (op.is_live or op.slot or op.service or op.stays) and op.job]
    for op in rows[-LOOKED_AT:]:
        before = known.get(op.token)
        if (before and before.state) or (before is None and op.token in damaged):
            continue
        try:
            progress, verdict = last_words(op, settings)
            if progress:
                is_alone = len([one for one in journal.ops(run=op.run) if one.slot >= 0]) == 1
                timings.save(came(op, progress, verdict, before, is_alone, settings))
        except (
            SlipwayError,
            OSError,
            ValueError,
            KeyError,
            TypeError,
        ):  # it has left nothing that can be read, or the disk is full
            continue


def last_words(op: Op, settings: Settings) -> sight.Seen:
    """Return progress and verdict of a pod that is over, from its folder or as they were brought home."""
    if registry.provider(settings, op.vendor).is_here:
        return sight.words_of(op, way(settings, op)) if op.address else ({}, {})
    said = sight.of(op, mirror.words_at_home(op, RunHome.of(op.run, settings.homes)))
    return said["progress"], said["verdict"]


def came(
    op: Op, progress: Mapping[str, Any], verdict: Mapping[str, Any], before: RunTimes | None, is_alone: bool,
    settings: Settings,
) -> RunTimes:  # fmt: skip
    """Return the times of a run that is over. `is_alone`: no other pod has worked on it."""
    job, vendor = op.read_job(), registry.provider(settings, op.vendor)
    # what a rented pod restores from the store is in no plan, and counts among the time around the steps
    job = replace(job, steps=tuple(step for step in job.steps if step.name != FETCH))
    told = before or RunTimes(token=op.token, run=op.run, vendor=op.vendor, asked_at=float(op.intent_at))
    works = {one.step: one for one in told.works}
    if not works:  # it was begun by a Slipway that kept no forecasts, or by a keeper
        request = Request(**json.loads(op.request)) if op.request else Request(run=op.run, provider=op.vendor)
        machine = machine_of(request, settings, vendor)
        # whether the environment was there shows below
        is_found = True if vendor.is_here or settings.rehearsal else None
        found = [*works_of(job, op.target, machine, {}), around(machine, settings, vendor, is_found)]
        works = {one.step: one for one in found}
    if not (vendor.is_here or settings.rehearsal) and (seen := _gpus_of(progress, job)):
        works = {name: replace(one, machine=seen) for name, one in works.items()}
    is_one_go = is_alone and progress.get("agents", 1) == 1
    steps = progress.get("steps") or ()
    lengths = {step.name: (step.config.get("spec") or {}).get("steps") for step in job.steps}
    times = [_time_of(step, works[step["name"]], told.asked_at, is_one_go, lengths.get(step["name"]))
             for step in steps if step["name"] in works and _is_measured(step)]  # fmt: skip
    state, own = verdict.get("state") or op.outcome or "ended", {step.name for step in job.steps}
    wall_s, whole = None, {one.work.step for one in times if one.is_whole}
    if state == "succeeded" and own <= whole and verdict.get("at", 0.0) > told.asked_at:
        wall_s = verdict["at"] - told.asked_at
        rest_s = wall_s - sum(elapsed_s(step, 0.0) for step in steps if step["name"] in own)
        built_s = sum(elapsed_s(step, 0.0) for step in steps if step["name"] not in (*own, FETCH))
        is_known = works[AROUND].kind != around_kind(op.vendor, None)
        kind = around_kind(op.vendor, built_s <= BUILT_S if is_known else None)
        work = replace(works[AROUND], kind=kind)
        times.append(StepTime(work=work, at=verdict["at"], began_s=0.0, seconds=max(0.0, rest_s)))
    return replace(told, works=tuple(works.values()), state=state, wall_s=wall_s, times=tuple(times))


def _is_measured(step: Mapping[str, Any]) -> bool:
    has_times = bool(step.get("started_at") and step.get("ended_at"))
    return (
        step["state"] == "done" and step.get("attempts") == 1 and has_times and step["ended_at"] >= step["started_at"]
    )


def _time_of(
    step: Mapping[str, Any], work: StepWork, asked_at: float, is_one_go: bool, length: Any
) -> StepTime:  # fmt: skip
    """Return the time of a step that is done. `length`: how many steps of training it has, where it trains."""
    marks = tuple((float(at_s), min(1.0, share)) for at_s, share in step.get("marks") or ())
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


def _gpus_of(progress: Mapping[str, Any], job: Job) -> str:
    """Return the GPUs that a pod has shown, as `machine_of` has them; "" when it has shown none."""
    names = [one["name"] for one in (progress.get("machine") or {}).get("gpus") or () if one.get("name")]
    if not names:
        return ""
    found, nodes = f"{job.num_gpus or len(names)} x {gpus.meant(names[0])}", len(job.group.addresses)
    return found if nodes < 2 else f"{nodes} nodes of {found}"


def errors(journal: Journal, settings: Settings, run: str = "") -> list[ForecastError]:
    """Return the errors of forecasts: of `run`, or of all runs, oldest first. Raises UsageError: no such run."""
    gather(journal, settings)
    name, now = find_run(journal, run).run if run else "", read_clocks()
    told, found = journal.told("vendor"), []
    for one in Timings.beside(settings.state_file).all():
        if name in ("", one.run):
            rows = [op for op in journal.ops(run=one.run) if op.token == one.token and one.micro_usd]
            spent = cost.total(rows, told, now, clock_scale=settings.clock_scale) if rows else None
            found.append(compared(one, spent))
    return [one for one in found if one]
