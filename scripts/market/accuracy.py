"""The command `inv cost --accuracy`: the forecasts of runs against their actual times and costs."""

from typing import Any

from flows.planning import forecast_errors
from infra.ledger.accuracy import ANEW, REPEATED, ForecastError, Medians, medians
from infra.ledger.journal import Journal
from infra.settings import Settings
from infra.units import between, cents, estimated
from scripts.cli import render
from scripts.cli.render import columns, count, duration, print_json


def show(journal: Journal, settings: Settings, run: str, as_json: bool) -> None:
    """Print each run with a forecast and without interruption, and the median errors."""
    found = forecast_errors.errors(journal, settings, run)
    middle = medians(found)
    if as_json:
        print_json({"runs": [error_json(one) for one in found], "medians": medians_json(middle)})
        return
    if not found:
        render.say(
            "no run with a forecast has completed without an interruption yet. Make a run: ./inv launch --phase sft"
        )
        return
    print(render.clean(table(found)))
    for line in summary(middle):
        render.say(line)


def table(found: list[ForecastError]) -> str:
    has_money = any(one.micro_usd for one in found)
    money = ("USD forecast", "USD came") if has_money else ()
    rows = [("run", "machine", "forecast", "range", "came", "off", "at 1/10", *money, "from")]
    for one in found:
        low, seconds, high = one.forecast_s
        spent = "" if one.spent_micro_usd is None else cents(one.spent_micro_usd)
        amounts = (cents(one.micro_usd[1]) if one.micro_usd else "", spent) if has_money else ()
        busy = f"; other programs used {100 * one.others:.0f} % of the CPUs" if one.is_crowded else ""
        rows.append(
            (
                one.run,
                one.machine,
                estimated(seconds),
                between(low, high),
                duration(one.came_s),
                percent(one.error),
                percent(one.early_error),
                *amounts,
                f"{one.source}{busy}",
            )
        )
    return columns(rows)


def percent(share: float) -> str:
    return f"{100 * share:+.0f} %"


def summary(middle: Medians) -> list[str]:
    """Return the medians as text."""
    lines = []
    for what, error, runs, wanted in (
        ("work that had run before", middle.repeated, middle.repeated_runs, REPEATED),
        ("work that had not run before", middle.first, middle.first_runs, None),
        ("all, by the remaining time shown at a tenth of the run", middle.early, middle.early_runs, ANEW),
    ):
        if error is not None:
            aim = f" (target: at most {100 * wanted:.0f} %)" if wanted is not None else ""
            lines.append(f"{what}: median error {100 * error:.0f} % of {count(runs, 'run')}{aim}")
    if middle.early_runs:
        lines.append(f"{middle.inside} of {count(middle.early_runs, 'run')} ended within the forecast range")
    if middle.crowded_runs:
        lines.append(f"{count(middle.crowded_runs, 'run')} not in the medians, because other programs used the machine")
    return lines


def error_json(one: ForecastError) -> dict[str, Any]:
    low, seconds, high = (round(each, 1) for each in one.forecast_s)
    return {
        "run": one.run,
        "machine": one.machine,
        "asked_at": render.iso(one.asked_at),
        "forecast_s": seconds,
        "forecast_range_s": [low, high],
        "came_s": round(one.came_s, 1),
        "error": round(one.error, 4),
        "error_at_a_tenth": round(one.early_error, 4),
        "from": one.source,
        "is_repeated": one.is_repeated,
        "others_share": round(one.others, 3),
        "forecast_usd": render.usd(one.micro_usd[1]) if one.micro_usd else None,
        "came_usd": None if one.spent_micro_usd is None else render.usd(one.spent_micro_usd),
    }


def medians_json(middle: Medians) -> dict[str, Any]:
    return {
        "repeated": middle.repeated,
        "repeated_runs": middle.repeated_runs,
        "first": middle.first,
        "first_runs": middle.first_runs,
        "at_a_tenth": middle.early,
        "at_a_tenth_runs": middle.early_runs,
        "inside_range": middle.inside,
        "left_out_busy": middle.crowded_runs,
    }
