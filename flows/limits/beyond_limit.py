"""The remaining time of an active run, and its forecast beyond the limits.

    rows, progress, forecast at launch -> estimate_time_left -> compared with the limits -> BeyondLimit, and the command

The comparison starts at training step `ENOUGH_STEPS`: earlier forecasts rest on other runs or on a table. A training
that changes the number of steps to fit the limit is not compared. Times and money are on the vendor's clock.
"""

import contextlib
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from infra.agent.limits import Clocks
from infra.errors import SlipwayError
from infra.ledger import spend
from infra.ledger.op import Op
from infra.ledger.timings import Timings
from infra.market.step_times import SETUP_S, remaining_s, words
from infra.records import Expected
from infra.runs import run_rows
from infra.settings import Settings
from infra.units import about, duration, in_usd, whole_usd

ENOUGH_STEPS = 20


@dataclass(frozen=True, kw_only=True)
class BeyondLimit:
    """The forecast of a run that a limit ends before the work is done."""

    micro_usd: int
    """Expected cost of the whole run with all pods, in micro-USD."""
    words: str
    """Forecast, limit, and the command that raises the limit."""


def is_comparable(op: Op, progress: Mapping[str, Any]) -> bool:
    """Return whether a training has run ENOUGH_STEPS, and no unfinished training has a changeable `schedule.end`."""
    to_come = {one["name"] for one in progress.get("steps") or () if one.get("state") in ("waiting", "running")}
    specs = [spec for name, spec in _specs_of(op).items() if name in to_come]
    records = [step.get("record") or {} for step in progress.get("steps") or ()]
    numbers = [one.get("step") or 0 for one in records if one.get("kind") == "progress"]
    return max(numbers, default=0) >= ENOUGH_STEPS and not any((one.get("schedule") or {}).get("end") for one in specs)


def forecast_excess(
    op: Op, rows: Sequence[Op], left_s: tuple[float, float, float], now: Clocks, scale: float
) -> BeyondLimit | None:
    """Return the forecast of a live rented run beyond its limits, or None while the limits suffice.

    `rows`: all nodes and earlier pods of the run; `left_s`: low, expected and high seconds on the clock of the machine.
    """
    limit_in_s = spend.left_s(op, now, scale)
    _, expected_s, high_s = (scale * one for one in left_s)
    if not op.rate or limit_in_s is None or expected_s <= limit_in_s:
        return None
    rate, spent = op.rate * run_rows.size_of(op), sum(spend.spent(row, now, scale) for row in rows)
    cost = spent + _cost(expected_s, rate)
    raised = high_s + SETUP_S[1]  # a new pod repeats the set-up
    flags, allowed = [], []
    money_s = spend.left_s(replace(op, ttl_s=None), now, scale)
    if op.cap is not None and money_s is not None and expected_s > money_s:
        flags.append(f"--spend-limit {whole_usd(spent + _cost(raised, rate))}")
        allowed.append(in_usd(spent + _cost(money_s, rate)))
    if op.ttl_s is not None and expected_s > (time_s := op.ttl_s - spend.since_request_s(op, now, scale)):
        flags.append(f"--ttl {math.ceil(raised / 60)}m")
        allowed.append(duration(max(0.0, time_s)))
    words = (
        f"at this pace the run takes {about(expected_s)} more and costs {in_usd(cost)}; the limit ends the run in "
        f"{duration(limit_in_s)} ({' and '.join(allowed)}). To raise the limit: inv down {op.run}, then inv resume "
        f"{op.run} {' '.join(flags)}"
    )
    return BeyondLimit(micro_usd=cost, words=words)


def _cost(seconds: float, rate: int) -> int:
    return math.ceil(seconds * rate / 3600)


def estimate_time_left(
    rows: Sequence[Op], progress: Mapping[str, Any], settings: Settings
) -> tuple[tuple[float, float, float], str] | None:
    """Return low, expected and high seconds left and their basis, or None without a forecast or progress.

    `rows`: journal rows of the run, oldest first.
    """
    steps, now = progress.get("steps") or (), progress.get("updated_at")
    if not steps or not now:
        return None
    timings = Timings.for_journal(settings.state_file)
    # A restarted step takes as long as the original forecast.
    pods = [op for op in rows if not op.detached]
    told = next((one for op in reversed(pods) if (one := timings.get(op.token)) and one.expected), None)
    if told is None:
        return None
    since_s = max(0.0, now - told.asked_at) if told.token == pods[-1].token else 0.0
    lengths = {name: spec.get("steps") for name, spec in _specs_of(pods[-1]).items()}
    reports = {one["name"]: one for one in steps}
    expected = [_of_new_length(one, reports.get(one.step, {}), lengths.get(one.step)) for one in told.expected]
    return remaining_s(expected, steps, now, since_s), words(expected)


def _specs_of(op: Op) -> dict[str, Mapping[str, Any]]:
    """Return the configuration of each training of a row by the name of the step; {} for an unreadable job."""
    with contextlib.suppress(SlipwayError):
        return {one.name: one.config["spec"] for one in op.read_job().steps if one.together and "spec" in one.config}
    return {}


def _of_new_length(expected: Expected, step: Mapping[str, Any], length: Any) -> Expected:
    """Return the forecast of a training for the number of steps in the newest report. `length`: the planned number."""
    # The newest record may be about an evaluation; a result has values of any type.
    said: Any = step.get("result") or step.get("training") or step.get("record") or {}
    steps, number = said.get("steps"), said.get("step")
    if type(number) in (int, float) and said.get("total") and said.get("done"):
        steps = number * said["total"] / said["done"]  # the unit of the amounts may be tokens
    if not (type(steps) in (int, float) and type(length) is int and 0.5 < steps < length - 0.5 and expected.seconds):
        return expected
    by = (expected.fixed_s + (expected.seconds - expected.fixed_s) * steps / length) / expected.seconds
    return replace(expected, seconds=expected.seconds * by, low=expected.low * by, high=expected.high * by)
