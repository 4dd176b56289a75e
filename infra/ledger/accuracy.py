"""Forecast errors of past runs. Pure.

The input is the times of runs (`infra.ledger.timings`). The output is, for each uninterrupted run, the error of the
first forecast and the error of a second forecast after a tenth of the run, replayed from the marks of the steps, and
the medians of both errors.
"""

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from infra.ledger.timings import RunTimes
from infra.market.step_times import AROUND, CROWDED, SAME, StepTime, remaining_s, total, words

EARLY = 0.1  # fraction of a run after which the rest is forecast again
REPEATED, ANEW = 0.25, 0.15  # target medians: runs with repeated steps; all runs at EARLY


@dataclass(frozen=True, kw_only=True)
class ForecastError:
    """The forecast of a run and the actual duration. Errors are relative: +0.2 = the forecast was 20 % too long."""

    run: str
    machine: str
    asked_at: float
    forecast_s: tuple[float, float, float]
    came_s: float
    source: str
    """Source of the forecast, in words."""
    is_repeated: bool
    """True if all long steps (5 % of the step time or more) ran before with the same settings on such a machine."""
    error: float
    early_error: float
    """Error of the total duration as forecast after a tenth of the run."""
    others: float
    """Fraction of the machine's CPUs used by other programs."""
    micro_usd: tuple[int, int, int] | None = None
    spent_micro_usd: int | None = None

    @property
    def is_crowded(self) -> bool:
        return self.others > CROWDED

    @property
    def is_within_range(self) -> bool:
        """Return whether the actual duration lies in the forecast range."""
        return self.forecast_s[0] <= self.came_s <= self.forecast_s[2]


@dataclass(frozen=True, kw_only=True)
class Medians:
    """Median absolute errors of runs on machines without other load; None without such runs."""

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
    """Return the forecast error of a run, or None for a run without a forecast or with an interruption."""
    if not one.wall_s or not one.expected:
        return None
    low, seconds, high = total(one.expected)
    early_s = EARLY * one.wall_s
    said_s = early_s + remaining_s(one.expected, replayed(one, early_s), one.asked_at + early_s, early_s)[1]
    steps = [each for each in one.expected if each.step != AROUND]
    # A fraction of the step time, not of the total: a long AROUND would leave no step.
    long_s = 0.05 * sum(each.seconds for each in steps)
    repeated = bool(steps) and all(each.source == SAME for each in steps if each.seconds >= long_s)
    return ForecastError(
        run=one.run,
        machine=one.works[0].machine,
        asked_at=one.asked_at,
        forecast_s=(low, seconds, high),
        came_s=one.wall_s,
        source=words(one.expected),
        is_repeated=repeated,
        error=seconds / one.wall_s - 1,
        early_error=said_s / one.wall_s - 1,
        others=one.other_load,
        micro_usd=one.micro_usd,
        spent_micro_usd=spent_micro_usd,
    )


def medians(found: Iterable[ForecastError]) -> Medians:
    """Return the median errors of forecasts, without runs on busy machines."""
    every = list(found)
    calm = [one for one in every if not one.is_crowded]
    repeated, first = [one for one in calm if one.is_repeated], [one for one in calm if not one.is_repeated]
    return Medians(
        repeated=_median([one.error for one in repeated]),
        repeated_runs=len(repeated),
        first=_median([one.error for one in first]),
        first_runs=len(first),
        early=_median([one.early_error for one in calm]),
        early_runs=len(calm),
        inside=sum(one.is_within_range for one in calm),
        crowded_runs=len(every) - len(calm),
    )


def _median(errors: Sequence[float]) -> float | None:
    return statistics.median(map(abs, errors)) if errors else None


def replayed(one: RunTimes, at_s: float) -> list[dict[str, Any]]:
    """Return the progress records of a run's steps as of `at_s` seconds after the request."""
    times = {each.work.step: each for each in one.times if each.work.step != AROUND}
    return [_step_at(name, times.get(name), one.asked_at, at_s) for name in _names(one)]


def _names(one: RunTimes) -> list[str]:
    return [work.step for work in one.works if work.step != AROUND]


def _step_at(name: str, time: StepTime | None, asked_at: float, at_s: float) -> dict[str, Any]:
    if time is None:  # the run did not execute the step
        return {"name": name, "state": "reused"}
    began_at, spent_s = asked_at + time.began_s, at_s - time.began_s
    if spent_s < 0:
        return {"name": name, "state": "waiting"}
    if spent_s >= time.seconds:
        return {"name": name, "state": "done", "started_at": began_at, "ended_at": began_at + time.seconds}
    seen = [mark for mark in time.marks if mark[0] <= spent_s]
    record = {"at": began_at + seen[-1][0], "done": seen[-1][1], "total": 1.0} if seen else None
    return {"name": name, "state": "running", "started_at": began_at, "ended_at": None, "marks": seen, "record": record}
