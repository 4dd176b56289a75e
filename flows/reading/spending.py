"""The spending report: lines and monthly sums of the ledger, with current bills of vendors on request."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from flows.reading import timeline
from infra.agent.limits import read_clocks
from infra.errors import SlipwayError
from infra.ledger import spend as costs
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.ledger.spend import PodCost
from infra.machines.host_memory import map_parallel
from infra.providers import Market, offers
from infra.records import PodView
from infra.runs import run_rows
from infra.settings import Settings

ASK_S = 60.0
LATE_S = 48 * 3600  # period after the end of a pod in which a vendor may still correct the bill
DAY_S = 86400


@dataclass(frozen=True)
class Spending:
    """The spending in micro-USD."""

    lines: list[PodCost]
    months: dict[str, int]
    """Sum by month, such as `2026-11`; {} for a report of a single month."""
    problems: list[str]
    """Vendors that did not answer, with reasons."""


@dataclass(frozen=True)
class RunCost:
    """The cost of a run across all pods and nodes."""

    micro_usd: int
    curve: list[tuple[float, float]]
    """Points (minutes, US dollars) from `timeline.cost_curve`; the last point equals `micro_usd`."""


def of_run(op: Op, view: PodView, journal: Journal, settings: Settings) -> RunCost:
    """Return the cost of the run of this row; `view` is the current view of the newest pod."""
    run, now, scale = run_rows.run_of(op), read_clocks(), settings.clock_scale
    rows = [one for one in journal.ops() if run in (one.run, run_rows.run_of(one))]
    told = journal.reported_costs("vendor")
    if view.told_micro_usd is not None:
        told = {**told, op.token: (int(now.wall_s), view.told_micro_usd)}
    total = costs.total(rows, told, now, clock_scale=scale)
    return RunCost(total, timeline.cost_curve(rows, told, now, scale))


def spent(journal: Journal, settings: Settings, *, run: str = "", month: str = "", asks: bool = False) -> Spending:
    """Return the spending of a run or all runs, in a month or in total; `asks`: query the bills of vendors first.

    The pods of all nodes count toward their run.
    """
    rows = [
        replace(op, run=run_rows.run_of(op)) for op in journal.ops() if not run or run in (op.run, run_rows.run_of(op))
    ]
    problems = ask_bills(rows, journal, settings) if asks else []
    now, told, scale = read_clocks(), journal.reported_costs("vendor"), settings.clock_scale
    lines = costs.ledger(rows, told, now, clock_scale=scale, month=month)
    months = {}
    if lines and not month:
        for one in costs.months(min(line.began_at for line in lines), int(now.wall_s)):
            of_it = costs.ledger(rows, told, now, clock_scale=scale, month=one)
            if of_it:
                months[one] = sum(line.micro_usd for line in of_it)
    return Spending(lines, months, problems)


def by_day(lines: Sequence[PodCost], now: float) -> dict[str, int]:
    """Return micro-USD by UTC day, oldest first; the cost of each pod is spread evenly over its lifetime.

    Days without spending between the first and the last day are included as 0.
    """
    sums: dict[int, float] = {}
    for one in lines:
        until = max(float(one.ended_at or now), one.began_at + 1.0)
        for day in range(int(one.began_at // DAY_S), int(until // DAY_S) + 1):
            inside_s = min(until, (day + 1) * DAY_S) - max(one.began_at, day * DAY_S)
            sums[day] = sums.get(day, 0.0) + one.micro_usd * max(0.0, inside_s) / (until - one.began_at)
    days = range(min(sums), max(sums) + 1) if sums else ()
    return {f"{datetime.fromtimestamp(day * DAY_S, timezone.utc):%Y-%m-%d}": round(sums.get(day, 0.0)) for day in days}


def by_run(lines: Sequence[PodCost]) -> dict[str, int]:
    sums: dict[str, int] = {}
    for one in lines:
        sums[one.run] = sums.get(one.run, 0) + one.micro_usd
    return sums


def ask_bills(rows: Sequence[Op], journal: Journal, settings: Settings) -> list[str]:
    """Query vendors for bills that may have changed and record them; return unanswered queries with reasons."""
    markets, problems = offers.accounts(settings)
    told = journal.reported_costs("vendor")
    for market in markets:
        due = [row for row in rows if row.vendor == market.name and row.remote_id and is_open(row, told)]
        bills = map_parallel(lambda row, market=market: bill_of(market, row), due, ASK_S)  # type: ignore[misc]
        for row, bill in zip(due, bills, strict=True):
            if isinstance(bill, SlipwayError):
                problems.append(f"{row.run}: {bill}")
            # A pod that has ended meanwhile: the bill may be from before the end, so the next query decides.
            elif bill is not None and row.is_live is journal.op(row.token).is_live and is_news(row, bill, told):
                journal.record_cost(row.token, "vendor", bill)
    return problems


def is_news(row: Op, bill: int, told: dict[str, tuple[int, int]]) -> bool:
    """Return whether a bill changes the ledger: a new amount, or the first final report, or the last report."""
    at, before = told.get(row.token, (0, None))
    late = costs.FINAL_S.get(row.vendor, 0), LATE_S
    ends = [] if row.ended_at is None else [row.ended_at + late_s for late_s in late]
    return bill != before or any(at < one <= time.time() for one in ends)


def bill_of(market: Market, row: Op) -> int | None:
    return market.billed(row.remote_id or "")


def is_open(row: Op, told: dict[str, tuple[int, int]]) -> bool:
    """Return whether the vendor may still report a new bill for the pod."""
    return row.is_live or row.token not in told or told[row.token][0] < (row.ended_at or 0) + LATE_S
