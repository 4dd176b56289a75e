"""Sweeps as groups of runs, for `status`, `down`, the supervisor and the page."""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import Any

from flows.runs.run_groups import GroupedRun, RunGroup, RunGroups
from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.runs.timing import Say
from infra.settings import Settings
from packs.sweeps.control.trials import results, resume_sweep
from packs.sweeps.control.trials.results import SweepResult, TrialResult

WAITS = "waits for a pod of its sweep"


class Sweeps(RunGroups):
    lease = resume_sweep.LEASE

    def recorded_groups(self, settings: Settings) -> list[RunGroup]:
        return [_group(one) for one in results.kept(settings)]

    def started_groups(self, journal: Journal, settings: Settings) -> list[str]:
        return resume_sweep.known(journal, settings)

    def stop(self, name: str, journal: Journal, settings: Settings, tell: Say) -> list[Op]:
        return resume_sweep.stop(name, journal, settings, tell)

    def is_any_active(self, journal: Journal) -> bool:
        return resume_sweep.is_at_work(journal)

    def groups_to_restart(self, journal: Journal, settings: Settings) -> Collection[str]:
        return resume_sweep.due(journal, settings).keys()

    def restart(self, name: str, journal: Journal, settings: Settings, tell: Say) -> None:
        resume_sweep.restart_sweep(name, journal, settings, tell)

    def commands(self, journal: Journal, settings: Settings, names: Sequence[str]) -> Mapping[str, str]:
        return resume_sweep.how_to_go_on(journal, settings, names)


def _group(one: SweepResult) -> RunGroup:
    trials = one.trials.values()
    return RunGroup(
        name=one.name,
        noun="sweep",
        provider=one.provider,
        runs={trial.run: _run(trial) for trial in trials},
        is_over=not any(trial.state in (results.WAITING, results.RUNNING) for trial in trials),
        details={"about": one.about, "by": one.rank.get("by", ""), "is_least_best": one.rank.get("mode") == "min"},
        evaluate=partial(_evaluate, one),
    )


def _evaluate(result: SweepResult) -> Mapping[str, Any]:
    from packs.sweeps.control import evaluation, summary  # imported here, because `status` evaluates no sweep

    try:
        return summary.summary_of(result, evaluation.evaluate(result))
    except (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise UsageError(f"{result.folder / 'sweep.json'} cannot be evaluated: {why}") from None


def _run(trial: TrialResult) -> GroupedRun:
    reason = trial.reason or (WAITS if trial.state == results.WAITING else "")
    details = {
        "arm": trial.arm,
        "pod": trial.pod,
        "score": trial.score,
        "seconds": trial.seconds,
        "settings": trial.asked,
    }
    return GroupedRun(run=trial.run, state=trial.state, micro_usd=trial.micro_usd, reason=reason, details=details)
