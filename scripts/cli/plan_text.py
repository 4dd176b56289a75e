"""A plan as text for people, and as a JSON document."""

from dataclasses import asdict
from typing import Any

from infra.market.expected import AROUND, total, words
from infra.money import dollars as usd
from infra.records import Plan
from infra.settings import is_rented as costs
from infra.units import count, duration, size
from scripts.cli.render import clean, console, new_table

MOST_REFUSED = 5  # files that are named for each mount
LONG_S = 3600.0  # of this machine: more is too long to practise with


def plan_json(plan: Plan) -> dict[str, Any]:
    low, estimate, high = total(plan.forecast)
    return {
        "target": plan.target,
        "provider": plan.request.provider,
        "artifacts": [asdict(one) for one in plan.artifacts],
        "steps": [step.name for step in plan.job.steps] if plan.job else [],
        "estimate_s": round(estimate, 1) if plan.forecast or not plan.job else None,
        "estimate_range_s": [round(low, 1), round(high, 1)] if plan.forecast else None,
        "estimate_from": words(plan.forecast) if plan.forecast else None,
        "estimate_usd": usd(0) if plan.request.provider == "local" else None,
        "mounts": [asdict(one) | {"asks": one.asks} for one in plan.mounts],
        "notes": list(plan.notes),
        "doubtful": [one.name for one in plan.doubtful],
    }


def mount_lines(plan: Plan) -> list[str]:
    """Return a line for each file or folder that leaves this machine, and for what stays of it."""
    lines = []
    for one in plan.mounts:
        where = f"to {one.at}" if one.at else "as the folder of the job"
        asks = f"; {one.hidden} is a hidden folder of your home: it is asked about" if one.asks else ""
        what = f"{count(one.files, 'file')}, {size(one.bytes)}" if one.files else "no file"
        lines.append(f"sends {one.source} {where}: {what}{asks}")
        lines += [f"  not sent: {refused}" for refused in one.refused[:MOST_REFUSED]]
        more = len(one.refused) - MOST_REFUSED
        lines += [f"  not sent: {count(more, 'more file')}"] if more > 0 else []
    return lines


def show_plan(plan: Plan, stderr: bool = True) -> None:
    """Show every artifact with its state, every step that is due with an estimate, and the sum."""
    from rich.text import Text

    styles = {"here": "green", "missing": "yellow", "stale": "yellow", "damaged": "red"}
    table = new_table("artifact", "state", "step", "about", "why")
    is_rented = costs(plan.request.provider)
    scale = plan.job.clock_scale if plan.job and is_rented else 1.0  # speed of the clock that counts the cost
    for one in plan.artifacts:
        about = "" if not one.step else "?" if one.estimate_s is None else duration(one.estimate_s * scale)
        table.add_row(one.name, f"[{styles[one.state]}]{one.state}[/]", one.step, about, Text(clean(one.reason)))
    out = console(stderr)
    if plan.artifacts:
        out.print(table)
    steps = len(plan.job.steps) if plan.job else 0
    for line in (*plan.notes, *mount_lines(plan)):
        out.print(clean(line), markup=False)
    for one in plan.doubtful:
        said = f"{one.name} was made by different code: {', '.join(one.differs)} (--keep-made or --remake)"
        out.print(said, markup=False)
    if steps and plan.forecast:
        shown = [
            one for one in plan.forecast if one.step != AROUND or not is_rented
        ]  # offers show what rented ones take
        low, expected, high = (duration(one * scale) for one in total(shown))
        where = "on this machine, 0.00 USD" if plan.request.provider == "local" else "of work"
        out.print(f"{count(steps, 'step')}, about {expected} {where} ({low} to {high}; {words(shown)})", markup=False)
        if scale != 1 and total(shown)[1] > LONG_S:
            out.print("a rehearsed pod has the CPUs of this machine; to practise take a small recipe: --profile tiny")
