"""Preparation of a sweep: adopts the results of an earlier attempt, and opens the budget."""

import math
import subprocess
from dataclasses import asdict, replace

from flows.limits import shared_resources
from infra.ledger.journal import Journal
from infra.runs.timing import Say
from infra.settings import Settings
from packs.sweeps.control.halving import Halving, rungs
from packs.sweeps.control.plan import SweepPlan
from packs.sweeps.control.pods import WorkingPods
from packs.sweeps.control.trials import ranking
from packs.sweeps.control.trials import results as kept
from packs.sweeps.control.trials.results import SweepResult, TrialResult
from packs.sweeps.control.trials.resume_sweep import inv
from packs.sweeps.control.work import SweepWork
from trainer.records.phase_registry import PHASES


def prepare_sweep(
    planned: SweepPlan, journal: Journal, settings: Settings, tell: Say, renting: Settings | None = None
) -> SweepWork:
    """Return the sweep ready to run, with the results of an earlier attempt.

    renting: settings for the shared pods, when `settings` are for the runs on the pods.
    """
    spec = planned.spec
    trials = {run: _waiting(planned, run) for run in spec.trials}
    result = SweepResult(
        name=spec.name,
        folder=kept.folder_of(spec.name, settings),
        about=spec.about,
        rank=asdict(spec.rank),
        against=spec.against,
        provider=(renting or settings).provider,
        limit_micro_usd=limit_of(planned),
        trials=trials,
        beside=spec.beside,
    )
    lost = [run for run, one in planned.trials.items() if one.plan.job is not None]
    result = kept.adopt(result, settings, lost)
    if spec.early_stop is None:  # earlier early stops no longer count
        for run, one in result.trials.items():
            if one.state in (kept.STOPPED, kept.SKIPPED):
                result.trials[run] = trials[run]
    for run, one in result.trials.items():
        if not one.is_over:  # Delete figures of an earlier sweep with other flags.
            (result.folder / f"{run}.jsonl").unlink(missing_ok=True)
    work = SweepWork(planned, result, journal, settings, tell)
    if planned.limit is not None:
        shared_resources.set_budget(journal, planned.budget, planned.limit, settings)
    if planned.shared is not None:
        if planned.shared.limit:
            planned.shared.limit.open_budget(journal, settings)
        work.pods = WorkingPods(planned.shared, journal, renting or settings, tell, lambda name: end_pod(name, result))
        on_a_lane = {run for lane in planned.lanes for run in lane.runs}
        for run, one in result.trials.items():
            if run not in on_a_lane and not one.is_over:
                result.trials[run] = replace(one, state=kept.SKIPPED, reason=f"no pod {spec.trials[run].pod} is held")
    if spec.early_stop is not None:
        longest = max(one.steps for one in trials.values())
        work.halving = Halving(spec.early_stop.factor, rungs(longest, spec.early_stop))
        for arm in spec.arms.values():
            _remember(work, arm[0].run)
    return work


def limit_of(planned: SweepPlan) -> int | None:
    """Return the spend limit of the whole sweep in micro-dollars, or None."""
    limit = planned.shared.limit if planned.shared else None
    return limit.amount if limit else planned.limit


def end_pod(name: str, result: SweepResult) -> "subprocess.Popen[bytes]":
    """Start a process that ends a pod rented by the sweep."""
    result.folder.mkdir(parents=True, exist_ok=True)
    with (result.folder / "pods.log").open("ab") as log:
        return subprocess.Popen(
            inv(["down", name]), stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def _remember(work: SweepWork, run: str) -> None:
    """Enter the figures of a finished trial into the rungs."""
    assert work.halving is not None
    one, rank = work.result.trials[run], work.planned.spec.rank
    for rung in work.halving.rungs if one.is_over else ():
        value = ranking.figure_at(work.result.load_figures(run), rank, one.steps, rung)
        if value is not None and not math.isnan(value):
            work.halving.values.setdefault(rung, {})[run] = rank.sign * value


def _waiting(planned: SweepPlan, run: str) -> TrialResult:
    one = planned.trials[run]
    last = one.plan.artifacts[-1]
    phase = last.step or next((name for name, each in PHASES.items() if last.name.startswith(f"{each.folder}/")), "")
    steps = [
        step.config["spec"].get("steps", 0)
        for step in (one.plan.job.steps if one.plan.job else ())
        if step.name == phase
    ]
    return TrialResult(
        run=run,
        arm=one.trial.arm,
        seed=one.trial.seed,
        asked=dict(one.trial.asked),
        flags=kept.flags_of(one.trial.spec),
        env=dict(one.trial.env),
        phase=phase,
        steps=steps[0] if steps else 0,
        made=(last.name, last.fingerprint),
    )
