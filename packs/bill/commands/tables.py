"""The tables of `inv cost`: the parts of a run's time and cost, and the comparison of runs, vendors and hosts."""

import sys
from collections.abc import Mapping, Sequence
from typing import Any

from flows.reading.cost_views import CostPart, CostTable, CostView
from infra.errors import UsageError
from infra.flags import Typed, nondefault_flags
from infra.ledger.journal import Journal
from infra.ledger.op import PLANNED
from infra.records import Offer, Plan
from infra.runs import run_rows
from infra.settings import Settings
from infra.units import cents, count, estimated
from packs.bill.control.bill import Bill, add_bills, round_to_sum
from packs.bill.control.flags import COMPARISONS, BillFlags
from packs.bill.control.pod_time import PARTS, STEPS
from packs.bill.control.projection import ExpectedPart, earlier_bills, parts_of_plan
from packs.bill.control.sources import bill_of_run
from scripts.cli import render
from scripts.cli.render import columns
from store import terminal

NAMES = {
    "wait": "waiting for the vendor",
    "boot": "boot",
    "checks": "checks",
    "sync": "sending code and inputs",
    "environment": "environment",
    "data": "data",
    "compile": "compilation",
    "steps": "training steps",
    "evaluation": "evaluation",
    "saves": "saves",
    "idle": "idle",
    "upload": "uploads",
    "deletion": "deletion",
    "unexplained": "without a record",
}
BEFORE = "waiting, boot, checks, sending, environment"
MOST_RUNS = 30  # newest runs in a comparison
LARGEST = 3  # parts besides the steps, in a comparison
MOST_UNEXPLAINED = 0.03  # a larger share of the time without a record is named
BAR = 20
SMALL = 10_000_000  # micro-USD; smaller costs are shown with more digits


class BillView(CostView):
    """The parts of the time and the cost."""

    def of_flags(self, spec: Typed, journal: Journal, settings: Settings) -> CostTable | None:
        """Return the comparison requested by --compare. Raises UsageError."""
        by = spec.added_record(BillFlags).compare
        if not by:
            return None
        if by not in COMPARISONS:
            raise UsageError(f"--compare {by}: expected one of {', '.join(COMPARISONS)}")
        if others := [one for one in nondefault_flags(spec) if one not in ("compare", "json", "offline")]:
            raise UsageError(
                f"--compare is about all runs. Leave out {'the run' if others[0] == 'run' else f'--{others[0]}'}"
            )
        rows = [op for op in journal.ops() if op.state != PLANNED and not op.service]
        runs = list(dict.fromkeys(run_rows.run_of(op) for op in reversed(rows)))[:MOST_RUNS]
        with terminal.show_while("reading the records of runs"):
            bills = [
                bill_of_run(run, journal, settings, render.tell, asks=not nondefault_flags(spec).get("offline"))
                for run in runs
            ]
        return compared(by, [one for one in bills if one.total_s])

    def of_run(self, run: str, journal: Journal, settings: Settings, asks: bool) -> CostTable | None:
        """Return the table of a run; None for a run without a request."""
        bill = bill_of_run(run, journal, settings, render.tell, asks)
        if not bill.total_s:
            return None
        return CostTable(
            text=text_of(bill), document=document_of(bill), parts=parts_of(bill), caption=overhead_of(bill)
        )

    def of_plan(self, plan: Plan, offer: Offer, settings: Settings) -> CostTable | None:
        """Return the expected parts of a plan on an offer; None for a plan of unknown length."""
        with Journal.open(settings.state_file) as journal:
            parts = parts_of_plan(plan, offer, settings, earlier_bills(offer.provider, journal, settings))
        return projected(parts) if parts else None


def projected(parts: Sequence[ExpectedPart]) -> CostTable:
    """Return the table of the expected parts of a plan."""
    seconds, (*amounts, cost) = sum(one.seconds for one in parts), _amounts([one.micro_usd for one in parts])
    shown = [CostPart(_name_of(one), one.seconds, one.micro_usd) for one in parts]
    rows = [("expected part", "time", "USD", "")]
    for one, part, amount in zip(shown, parts, amounts, strict=True):
        rows.append((one.name, estimated(one.seconds), amount, f"({part.evidence})"))
    rows.append(("in all, without deletion", estimated(seconds), cost, ""))
    document = [
        {
            "part": one.part or "start",
            "step": one.step or None,
            "seconds": round(one.seconds, 1),
            "usd": render.usd(one.micro_usd),
            "evidence": one.evidence,
        }
        for one in parts
    ]
    return CostTable(text=columns(rows), document={"parts": document}, parts=shown)


def _name_of(one: ExpectedPart) -> str:
    """Return the name of an expected part in the table; the steps of a training have the name of the phase alone."""
    name = NAMES.get(one.part, BEFORE)
    return name if not one.step else one.step if one.part == STEPS else f"{one.step}: {name}"


def parts_of(bill: Bill) -> list[CostPart]:
    """Return each part with time."""
    return [
        CostPart(NAMES[one], bill.seconds[one], bill.micro_usd.get(one, 0)) for one in PARTS if bill.seconds.get(one)
    ]


def text_of(bill: Bill) -> str:
    """Return the table of a run."""
    rows: list[tuple[str, ...]] = [("part of the time", "seconds", "share", "USD", "")]
    longest_s, parts = max(bill.seconds.values()), parts_of(bill)
    *amounts, cost = _amounts([one.micro_usd for one in parts])
    for one, amount in zip(parts, amounts, strict=True):
        bar, share = "#" * round(BAR * one.seconds / longest_s), f"{100 * one.seconds / bill.total_s:.1f} %"
        rows.append((one.name, f"{one.seconds:,.1f}", share, amount, bar))
    rows.append(("in all", f"{bill.total_s:,.1f}", "100 %", cost, ""))
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    shown = [1, 2, 3] if bill.cost else [1, 2]
    aligned = [(row[0], *(row[at].rjust(widths[at]) for at in shown), row[4]) for row in rows]
    return f"{columns(aligned, least=(len(shown) + 1,))}\n{terminal.wrap_text(overhead_of(bill), sys.stdout)}"


def overhead_of(bill: Bill) -> str:
    """Return the overhead of a run in words."""
    pods, parts = count(bill.pods, "pod"), parts_of(bill)
    open_end = "" if bill.is_over else "; the run is not over"
    if bill.unexplained > MOST_UNEXPLAINED:
        open_end += f"; {bill.unexplained:.0%} of the time is without a record"
    if bill.overhead is None:
        return f"no training step has run on {pods}{open_end}"
    *amounts, cost = _amounts([one.micro_usd for one in parts])
    of_steps = next(amount for amount, one in zip(amounts, parts, strict=True) if one.name == NAMES[STEPS])
    paid = f", {cost} USD for {of_steps} USD of steps" if bill.cost else ""
    return f"each second of training steps took {bill.overhead:.2f} seconds on {pods}{paid}{open_end}"


def _amounts(micro_usd: Sequence[int]) -> list[str]:
    """Return the amounts in US dollars, and at the end the sum, rounded up as in the ledger: the amounts add up."""
    digits = 4 if sum(micro_usd) < SMALL else 2
    unit = 10 ** (6 - digits)
    whole = -(-sum(micro_usd) // unit)
    rounded = round_to_sum({str(at): one / unit for at, one in enumerate(micro_usd)}, whole)
    units = [*(rounded.get(str(at), 0) for at in range(len(micro_usd))), whole]
    return [f"{one / 10**digits:,.{digits}f}" for one in units]


def document_of(bill: Bill) -> dict[str, Any]:
    """Return a bill as JSON: seconds by part, and amounts as decimal strings in US dollars."""
    return {
        "run": bill.run,
        "vendors": list(bill.vendors),
        "hosts": list(bill.hosts),
        "pods": bill.pods,
        "seconds": {part: round(bill.seconds.get(part, 0.0), 3) for part in PARTS},
        "usd": {part: render.usd(bill.micro_usd.get(part, 0)) for part in PARTS},
        "total_s": round(bill.total_s, 3),
        "total_usd": render.usd(bill.cost),
        "wall_s": round(bill.wall_s, 3),
        "overhead": None if bill.overhead is None else round(bill.overhead, 4),
        "is_over": bill.is_over,
    }


def compared(by: str, bills: Sequence[Bill]) -> CostTable:
    """Return a row for each run, vendor or set of hosts, the least overhead first."""
    groups: dict[str, list[Bill]] = {}
    for one in bills:
        names: Mapping[str, Sequence[str]] = {"runs": (one.run,), "vendors": one.vendors, "hosts": one.hosts}
        groups.setdefault(" + ".join(names[by]), []).append(one)
    sums = sorted(
        (add_bills(name, each) for name, each in groups.items()), key=lambda one: one.overhead or float("inf")
    )
    rows: list[tuple[str, ...]] = [(by.removesuffix("s"), "runs", "time", "USD", "overhead", "largest other parts")]
    for one in sums:
        others = sorted(
            (part for part in PARTS if part != STEPS and one.seconds.get(part)), key=lambda part: one.seconds[part]
        )
        largest = ", ".join(f"{part} {100 * one.seconds[part] / one.total_s:.0f} %" for part in others[::-1][:LARGEST])
        overhead = "no steps" if one.overhead is None else f"{one.overhead:.2f}"
        time = render.duration(one.total_s)
        rows.append((one.run, str(len(groups[one.run])), time, cents(one.cost), overhead, largest))
    text = columns(rows, least=(1, 3)) if bills else "no run has used a machine yet"
    more = "\noverhead: seconds in all for each second of training steps" if bills else ""
    return CostTable(text=text + more, document={by: [document_of(one) for one in sums]})
