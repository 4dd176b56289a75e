"""Figures of trials -> arms in the order of their scores, and how sure their differences are. Pure.

A score is the mean over the last steps of a figure, or a figure of what was made; an arm's is the mean over its seeds.
Differences are taken seed by seed, where both arms have it; their interval is Student's of 95 %.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.errors import UsageError

T_95 = (  # Student's distribution, by degrees of freedom from 1
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
MODES = ("min", "max")
Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """The figure by which arms are ranked."""

    by: str = "loss"
    """A figure of `metrics.jsonl`, or of the artifact that the last phase makes, such as `bits_per_byte`."""
    mode: str = "min"
    """`min` or `max`: which is better."""
    last: float = 0.1
    """A figure of the steps is the mean over this share of them, the last ones."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UsageError(f"mode is {self.mode!r}; known: {', '.join(MODES)}")
        if not 0 < self.last <= 1:
            raise UsageError(f"last is {self.last}; it must lie in (0, 1]")

    @property
    def sign(self) -> float:
        """Return the factor by which a score is multiplied so that less is better."""
        return 1.0 if self.mode == "min" else -1.0


def figure_at(lines: Lines, ranking: Ranking, steps: int, at: int) -> float | None:
    """Return the mean of a figure over the last steps up to step `at` of `steps`; None while it has not come there."""
    if not lines or lines[-1]["step"] < at:
        return None
    first = at - max(1, round(steps * ranking.last))
    found = [float(one[ranking.by]) for one in lines if first < one["step"] <= at and one.get(ranking.by) is not None]
    return statistics.fmean(found) if found else None


def score(lines: Lines, ranking: Ranking, steps: int, made: Mapping[str, Any]) -> float | None:
    """Return the score of a trial that has ended: what `made` says of its artifact, else the mean of its last steps."""
    if isinstance(made.get(ranking.by), (int, float)):
        return float(made[ranking.by])
    return figure_at(lines, ranking, steps, steps)


def beside(lines: Lines, names: Sequence[str], steps: int, made: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return other figures of a trial that has ended, by name: of what was made, else the mean of the last half.

    Of a figure that has a number for each layer, there are as many; a figure that it has not is left out.
    """
    found: dict[str, list[float]] = {}
    for name in names:
        several = made.get(name)
        if isinstance(several, list) and several and all(isinstance(one, (int, float)) for one in several):
            found[name] = [float(one) for one in several]
        elif (one := score(lines, Ranking(by=name, last=0.5), steps, made)) is not None:
            found[name] = [one]
    return found


def student(values: Sequence[float]) -> tuple[float, float]:
    """Return the mean, and half of the width of Student's interval of 95 %; nan for a single value."""
    middle = statistics.fmean(values)
    if len(values) < 2:
        return middle, math.nan
    return middle, T_95[min(len(values) - 1, len(T_95)) - 1] * statistics.stdev(values) / len(values) ** 0.5


@dataclass(frozen=True, kw_only=True)
class ArmDifference:
    """The difference between an arm and another one."""

    mean: float
    half: float
    """Half of the interval; nan where there is one pair only."""
    pairs: int

    @property
    def verdict(self) -> str:
        """Return the conclusion; `better` and `worse` are for the caller, who knows which way is better."""
        if math.isnan(self.half):
            return "one seed"
        return "no difference" if abs(self.mean) <= self.half else "different"


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    """An arm, as far as its trials have come."""

    name: str
    scores: Mapping[int | None, float]
    """Scores by seed of the trials that have run to their end."""
    wanted: int
    """Number of trials of the arm."""

    @property
    def mean(self) -> float | None:
        """Return the mean over its seeds; None when no trial has run to its end."""
        return statistics.fmean(self.scores.values()) if self.scores else None

    @property
    def half(self) -> float:
        """Return half of the interval of the mean."""
        return student(list(self.scores.values()))[1] if self.scores else math.nan


def ranked(arms: Sequence[ArmResult], ranking: Ranking) -> list[ArmResult]:
    """Return the arms, the best first; those that lack seeds come after those that do not."""

    def key(one: ArmResult) -> tuple[float, float]:
        mean = math.inf if one.mean is None or math.isnan(one.mean) else ranking.sign * one.mean
        return 1 - len(one.scores) / one.wanted, mean

    return sorted(arms, key=key)


def difference(one: ArmResult, other: ArmResult) -> ArmDifference | None:
    """Return `one` - `other`, seed by seed; None where they have no seed in common."""
    both = [seed for seed in one.scores if seed in other.scores]
    if not both:
        return None
    middle, half = student([one.scores[seed] - other.scores[seed] for seed in both])
    return ArmDifference(mean=middle, half=half, pairs=len(both))
