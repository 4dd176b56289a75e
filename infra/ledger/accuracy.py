"""Forecasts of runs against what came. Pure.

In: the times of runs (`infra.ledger.timings`). Out: of each that went through in one go how far its forecast was off,
and what was left of it by our word once a tenth of it was over, replayed from the marks of its steps; the
medians of both.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from infra.ledger.timings import RunTimes
from infra.market.expected import AROUND, CROWDED, SAME, StepTime, left, total, words

EARLY = 0.1  # share of a run after which the rest is forecast again
REPEATED, ANEW = 0.25, 0.15  # targets for the medians: of runs whose steps ran before; of all at a tenth


@dataclass(frozen=True, kw_only=True)
class ForecastError:
    """The forecast of one run beside its actual time. Errors are relative to that: +0.2 = 20 % too long a forecast."""

    run: str
    machine: str
    asked_at: float
    forecast_s: tuple[float, float, float]
    came_s: float
    source: str
    """The source of the forecast, in words."""
    is_repeated: bool
    """True if all long steps had run before with these settings on such a machine."""
    error: float
    early_error: float
    """Error of the total as it was predicted after a tenth of the run."""
    others: float
    """Share of the machine's CPUs that other programs used."""
    micro_usd: tuple[int, int, int] | None = None
    spent_micro_usd: int | None = None

    @property
    def is_crowded(self) -> bool:
        return self.others > CROWDED

    @property
    def is_inside(self) -> bool:
        """Return whether what came lies in the range that was forecast."""
        return self.forecast_s[0] <= self.came_s <= self.forecast_s[2]


@dataclass(frozen=True, kw_only=True)
class Medians:
    """Median absolute errors, None where there is no run; of machines that had nothing else to do."""

    repeated: float | None
    repeated_runs: int
    first: float | None
    first_runs: int
    early: float | None
    early_runs: int
    inside: int
    crowded_runs: int
    """Number of runs left out because the machine was busy."""


def compared(one: RunTimes, spent_micro_usd: int | None = None) -> ForecastError | None:
    """Return the error of a run's forecast; None where there was no forecast, or the run was interrupted."""
    if not one.wall_s or not one.expected:
        return None
    low, seconds, high = total(one.expected)
    early_s = EARLY * one.wall_s
    said_s = early_s + left(one.expected, replayed(one, early_s), one.asked_at + early_s, early_s)[1]
    steps = [each for each in one.expected if each.step != AROUND]
    long_s = 0.05 * sum(each.seconds for each in steps)  # not of the total: a long AROUND would leave no step
    repeated = bool(steps) and all(each.source == SAME for each in steps if each.seconds >= long_s)
    return ForecastError(
        run=one.run, machine=one.works[0].machine, asked_at=one.asked_at, forecast_s=(low, seconds, high),
        came_s=one.wall_s, source=words(one.expected), is_repeated=repeated,
        error=seconds / one.wall_s - 1, early_error=said_s / one.wall_s - 1, others=one.others,
        micro_usd=one.micro_usd, spent_micro_usd=spent_micro_usd,
    )  # fmt: skip


def medians(found: Iterable[ForecastError]) -> Medians:
    """Return the median errors of forecasts."""
    every = list(found)
    calm = [one for one in every if not one.is_crowded]
    repeated, first = [one for one in calm if one.is_repeated], [one for one in calm if not one.is_repeated]
    return Medians(
        repeated=_median([one.error for one in repeated]), repeated_runs=len(repeated),
        first=_median([one.error for one in first]), first_runs=len(first),
        early=_median([one.early_error for one in calm]), early_runs=len(calm),
        inside=sum(one.is_inside for one in calm), crowded_runs=len(every) - len(calm),
    )  # fmt: skip


def _median(errors: Sequence[float]) -> float | None:
    return statistics.median(map(abs, errors)) if errors else None


def replayed(one: RunTimes, at_s: float) -> list[dict[str, Any]]:
    """Return the steps of a run's progress as they were so many seconds after it was asked for."""
    times = {each.work.step: each for each in one.times if each.work.step != AROUND}
    return [_step_at(name, times.get(name), one.asked_at, at_s) for name in _names(one)]


def _names(one: RunTimes) -> list[str]:
    return [work.step for work in one.works if work.step != AROUND]


def _step_at(name: str, time: StepTime | None, asked_at: float, at_s: float) -> dict[str, Any]:
    if time is None:  # it was not made by this run after all
        return {"name": name, "state": "reused"}
    began_at, spent_s = asked_at + time.began_s, at_s - time.began_s
    if spent_s < 0:
        return {"name": name, "state": "waiting"}
    if spent_s >= time.seconds:
        return {"name": name, "state": "done", "started_at": began_at, "ended_at": began_at + time.seconds}
    seen = [mark for mark in time.marks if mark[0] <= spent_s]
    record = {"at": began_at + seen[-1][0], "done": seen[-1][1], "total": 1.0} if seen else None
    return {"name": name, "state": "running", "started_at": began_at, "ended_at": None, "marks": seen, "record": record}
