"""Ranking of arms by the figures of their trials, with confidence intervals of the differences. Pure.

A trial's score is a figure of the artifact, or the mean of a step figure over the last steps; an arm's score is the
mean over the seeds. Differences are paired by common seeds, with Student's 95 % confidence interval.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.errors import UsageError

T_95 = (  # two-sided 95 % quantiles of Student's t, for 1 to 30 degrees of freedom
    12.706,
    4.303,
    3.182,
    2.776,
    2.571,
    2.447,
    2.365,
    2.306,
    2.262,
    2.228,
    2.201,
    2.179,
    2.160,
    2.145,
    2.131,
    2.120,
    2.110,
    2.101,
    2.093,
    2.086,
    2.080,
    2.074,
    2.069,
    2.064,
    2.060,
    2.056,
    2.052,
    2.048,
    2.045,
    2.042,
)
MODES = ("min", "max")
Lines = Sequence[Mapping[str, Any]]


@dataclass(frozen=True, kw_only=True)
class Ranking:
    """Figure by which arms are ranked."""

    by: str = "loss"
    """Figure of `metrics.jsonl`, or of the artifact of the last phase, such as `bits_per_byte`."""
    mode: str = "min"
    """`min` or `max`: the better direction."""
    last: float = 0.1
    """Share of the steps, counted from the end, over which a step figure is averaged."""

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise UsageError(f"mode is {self.mode!r}; known: {', '.join(MODES)}")
        if not 0 < self.last <= 1:
            raise UsageError(f"last is {self.last}; expected a share in (0, 1]")

    @property
    def sign(self) -> float:
        """Return 1.0, or -1.0 for `max`: after multiplication, lower scores are better."""
        return 1.0 if self.mode == "min" else -1.0


def figure_at(lines: Lines, ranking: Ranking, steps: int, at: int) -> float | None:
    """Return the mean of the ranking figure over the window ending at step `at`; None before step `at`.

    The window has `steps * ranking.last` steps, at least one. Also returns None when the window lacks the figure.
    """
    if not lines or lines[-1]["step"] < at:
        return None
    first = at - max(1, round(steps * ranking.last))
    found = [float(one[ranking.by]) for one in lines if first < one["step"] <= at and one.get(ranking.by) is not None]
    return statistics.fmean(found) if found else None


def score(lines: Lines, ranking: Ranking, steps: int, made: Mapping[str, Any]) -> float | None:
    """Return the score of a finished trial: the artifact's figure in `made`, else the mean over the last steps."""
    if isinstance(made.get(ranking.by), (int, float)):
        return float(made[ranking.by])
    return figure_at(lines, ranking, steps, steps)


def beside(lines: Lines, names: Sequence[str], steps: int, made: Mapping[str, Any]) -> dict[str, list[float]]:
    """Return additional figures of a finished trial by name: from the artifact, else the mean over the last half.

    A per-layer figure has one value per layer. Missing figures are omitted.
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
    """Return the mean and the half-width of Student's 95 % confidence interval; nan for a single value."""
    middle = statistics.fmean(values)
    if len(values) < 2:
        return middle, math.nan
    return middle, T_95[min(len(values) - 1, len(T_95)) - 1] * statistics.stdev(values) / len(values) ** 0.5


@dataclass(frozen=True, kw_only=True)
class ArmDifference:
    """Difference between the scores of two arms."""

    mean: float
    half: float
    """Half-width of the confidence interval; nan for a single pair."""
    pairs: int

    @property
    def verdict(self) -> str:
        """Return "one seed", "no difference" or "different".

        The caller knows the better direction and turns "different" into better or worse.
        """
        if math.isnan(self.half):
            return "one seed"
        return "no difference" if abs(self.mean) <= self.half else "different"


@dataclass(frozen=True, kw_only=True)
class ArmResult:
    """Results of an arm so far."""

    name: str
    scores: Mapping[int | None, float]
    """Scores of the finished trials, by seed."""
    wanted: int
    """Number of trials of the arm."""

    @property
    def mean(self) -> float | None:
        """Return the mean over the finished seeds; None without a finished trial."""
        return statistics.fmean(self.scores.values()) if self.scores else None

    @property
    def half(self) -> float:
        """Return the half-width of the mean's confidence interval; nan for fewer than two seeds."""
        return student(list(self.scores.values()))[1] if self.scores else math.nan


def ranked(arms: Sequence[ArmResult], ranking: Ranking) -> list[ArmResult]:
    """Return the arms from best to worst; arms with a larger share of missing seeds come later."""

    def key(one: ArmResult) -> tuple[float, float]:
        mean = math.inf if one.mean is None or math.isnan(one.mean) else ranking.sign * one.mean
        return 1 - len(one.scores) / one.wanted, mean

    return sorted(arms, key=key)


def difference(one: ArmResult, other: ArmResult) -> ArmDifference | None:
    """Return `one` - `other`, paired by seed; None without a common seed."""
    both = [seed for seed in one.scores if seed in other.scores]
    if not both:
        return None
    middle, half = student([one.scores[seed] - other.scores[seed] for seed in both])
    return ArmDifference(mean=middle, half=half, pairs=len(both))
