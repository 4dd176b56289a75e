"""Sweeps as groups of runs, for `status`, `down`, the supervisor and the page.

The modules of sweeps are imported once a sweep is known: every `inv status` asks for sweeps, and most users have none.
"""

from collections.abc import Collection, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from flows.runs.run_groups import GroupedRun, RunGroup, RunGroups
from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.runs.timing import Say
from infra.settings import Settings
from packs.sweeps.control.place import LEASE, folder_of

if TYPE_CHECKING:
    from packs.sweeps.control.trials.results import SweepResult, TrialResult

WAITS = "waits for a pod of its sweep"


class Sweeps(RunGroups):
    lease = LEASE

    def recorded_groups(self, settings: Settings) -> list[RunGroup]:
        if not any(folder_of("", settings).glob("*/sweep.json")):
            return []
        from packs.sweeps.control.trials import results

        return [_group(one) for one in results.kept(settings)]

    def started_groups(self, journal: Journal, settings: Settings) -> list[str]:
        from packs.sweeps.control.trials import resume_sweep

        return resume_sweep.known(journal, settings)

    def stop(self, name: str, journal: Journal, settings: Settings, tell: Say) -> list[Op]:
        from packs.sweeps.control.trials import resume_sweep

        return resume_sweep.stop(name, journal, settings, tell)

    def is_any_active(self, journal: Journal) -> bool:
        return any(one.startswith(LEASE) for one in journal.leases.held_names())

    def groups_to_restart(self, journal: Journal, settings: Settings) -> Collection[str]:
        if not any(one.startswith(LEASE) for one in journal.leases.abandoned_names()):
            return ()
        from packs.sweeps.control.trials import resume_sweep

        return resume_sweep.due(journal, settings).keys()

    def restart(self, name: str, journal: Journal, settings: Settings, tell: Say) -> None:
        from packs.sweeps.control.trials import resume_sweep

        resume_sweep.restart_sweep(name, journal, settings, tell)

    def commands(self, journal: Journal, settings: Settings, names: Sequence[str]) -> Mapping[str, str]:
        if not names:
            return {}
        from packs.sweeps.control.trials import resume_sweep

        return resume_sweep.how_to_go_on(journal, settings, names)


def _group(one: "SweepResult") -> RunGroup:
    from packs.sweeps.control.trials import results

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


def _evaluate(result: "SweepResult") -> Mapping[str, Any]:
    from packs.sweeps.control import evaluation, summary  # imported here, because `status` evaluates no sweep

    try:
        return summary.summary_of(result, evaluation.evaluate(result))
    except (ArithmeticError, AttributeError, LookupError, StopIteration, TypeError, ValueError) as error:
        why = f"{type(error).__name__}: {error}"
        raise UsageError(f"{result.folder / 'sweep.json'} cannot be evaluated: {why}") from None


def _run(trial: "TrialResult") -> GroupedRun:
    from packs.sweeps.control.trials import results

    reason = trial.reason or (WAITS if trial.state == results.WAITING else "")
    details = {
        "arm": trial.arm,
        "pod": trial.pod,
        "score": trial.score,
        "seconds": trial.seconds,
        "settings": trial.asked,
    }
    return GroupedRun(run=trial.run, state=trial.state, micro_usd=trial.micro_usd, reason=reason, details=details)
