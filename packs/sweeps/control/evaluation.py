"""Evaluation of a sweep: ranked arms, differences with confidence intervals, time and cost. Pure."""

import shlex
import statistics
from collections.abc import Mapping
from dataclasses import dataclass

from packs.sweeps.control.trials import ranking
from packs.sweeps.control.trials import results as kept
from packs.sweeps.control.trials.ranking import ArmDifference, ArmResult, Ranking
from packs.sweeps.control.trials.results import SweepResult, TrialResult

NOT_OF_A_LINE = ("tag",)


@dataclass(frozen=True, kw_only=True)
class ArmRow:
    """Row of the evaluation, for an arm."""

    arm: ArmResult
    trials: list[TrialResult]
    apart: ArmDifference | None
    """Difference from the reference arm; None for the reference arm and without a common seed."""
    verdict: str

    def additional_means(self, name: str) -> list[float]:
        """Return the mean of an additional figure over the trials, per layer for a per-layer figure."""
        some = [one.beside[name] for one in self.trials if name in one.beside]
        return [statistics.fmean(values) for values in zip(*some, strict=False)]

    @property
    def state(self) -> str:
        """Return the states of the trials, in words."""
        states = [one.state for one in self.trials]
        return ", ".join(
            word if states.count(word) == len(states) else f"{states.count(word)} {word}"
            for word in dict.fromkeys(states)
        )


@dataclass(frozen=True, kw_only=True)
class SweepAnswer:
    """Evaluation of the sweep's results so far."""

    rows: list[ArmRow]
    against: str
    seconds: float
    saved_s: float
    micro_usd: int
    saved_micro_usd: int
    limit_micro_usd: int | None

    @property
    def best(self) -> ArmRow | None:
        """Return the best arm; None while no arm has a score."""
        return self.rows[0] if self.rows and self.rows[0].arm.mean is not None else None


def evaluate(result: SweepResult) -> SweepAnswer:
    """Evaluate the results of a sweep."""
    rank = Ranking(**result.rank)
    by_arm: dict[str, list[TrialResult]] = {}
    for one in result.trials.values():
        by_arm.setdefault(one.arm, []).append(one)
    arms = [
        ArmResult(
            name=name,
            wanted=len(some),
            scores={one.seed: one.score for one in some if one.state == kept.SUCCEEDED and one.score is not None},
        )
        for name, some in by_arm.items()
    ]
    ordered = ranking.ranked(arms, rank)
    against = result.against or ordered[0].name
    other = next(arm for arm in ordered if arm.name == against)
    rows = []
    for arm in ordered:
        apart = None if arm is other else ranking.difference(arm, other)
        rows.append(ArmRow(arm=arm, trials=by_arm[arm.name], apart=apart, verdict=verdict(apart, rank)))
    return SweepAnswer(
        rows=rows,
        against=against,
        seconds=sum(one.seconds or 0.0 for one in result.trials.values()),
        saved_s=result.saved_s,
        micro_usd=sum(one.micro_usd for one in result.trials.values()),
        saved_micro_usd=result.saved_micro_usd,
        limit_micro_usd=result.limit_micro_usd,
    )


def at_an_end(answer: SweepAnswer) -> list[str]:
    """Return the best arm's numeric settings at the lowest or highest value tried, as "name value".

    Better values may lie beyond the tried range. Settings with fewer than three values are skipped.
    """
    best, found = answer.best, []
    for name, text in best.trials[0].asked.items() if best else ():
        tried = [one for row in answer.rows if (one := as_number(row.trials[0].asked.get(name, ""))) is not None]
        own = as_number(text)
        if own is not None and len(set(tried)) > 2 and own in (min(tried), max(tried)):
            found.append(f"{name} {text}")
    return found


def as_number(text: str) -> float | None:
    """Parse a number; None if the text is not a number."""
    try:
        return float(text)
    except ValueError:
        return None


def verdict(apart: ArmDifference | None, rank: Ranking) -> str:
    """Return "better", "worse", "no difference" or "one seed"; "" for the reference arm."""
    if apart is None:
        return ""
    if apart.verdict != "different":
        return apart.verdict
    return "better" if rank.sign * apart.mean < 0 else "worse"


def command_line(trial: TrialResult, store: str = "") -> str:
    """Return the `inv launch` command to repeat a trial."""
    words = ["./inv", "launch"]
    flags: Mapping[str, object] = trial.flags
    for name, value in flags.items():
        if name in NOT_OF_A_LINE or value is False:
            continue
        if isinstance(value, Mapping):
            words += [f"--{name}={path}={text}" for path, text in value.items()]
        elif isinstance(value, list):
            words += [f"--{name}={one}" for one in value]
        else:
            words.append(f"--{name}" if value is True else f"--{name}={value}")
    words += [f"--env={name}={value}" for name, value in trial.env.items()]
    return shlex.join([*words, *([f"--store={store}"] if store else [])])
