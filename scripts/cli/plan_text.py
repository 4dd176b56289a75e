"""Renderers for a plan: text for people, and a JSON document."""

import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from infra.market.step_times import AROUND, evidence, total
from infra.records import Plan, PlannedMount
from infra.settings import is_rented as costs
from infra.units import MOST_S, about, between, count, estimated, size
from infra.units import dollars as usd
from scripts.cli import context
from scripts.cli.render import clean, columns, console, is_plain, new_table
from trainer.records.phase_registry import PHASES, USUAL

MOST_REFUSED = 5  # listed files per mount
NOT_OF_THE_PLAN = ("json", "dry_run", "yes", "detach", "file", "run")  # flags affecting only the output of a plan
LONG_S = 3600.0  # on this machine: a longer simulation is unsuitable for practice


def plan_json(plan: Plan) -> dict[str, Any]:
    found = plan.displayed_estimate if plan.displayed_estimate and plan.displayed_estimate.steps else None
    low, estimate, high = map(whole_s, found.range_s) if found else (None, None, None)
    return {
        "target": plan.target,
        "provider": plan.request.provider,
        "artifacts": [asdict(one) | {"estimate_s": whole_s(one.estimate_s)} for one in plan.artifacts],
        "steps": [step.name for step in plan.job.steps] if plan.job else [],
        "machine": found.machine.name if found else None,
        "estimate_s": estimate if plan.job else 0.0,
        "estimate_range_s": [low, high] if found else None,
        "estimate_from": evidence(found) if found else None,
        "simulation_s": whole_s(total(plan.forecast)[1]) if plan.imitated and plan.forecast else None,
        "estimate_usd": usd(0) if plan.request.provider == "local" else None,
        "mounts": [asdict(one) | {"asks": one.needs_confirmation} for one in plan.mounts],
        "notes": list(plan.notes),
        "doubtful": [one.name for one in plan.doubtful],
    }


def mount_lines(mounts: Sequence[PlannedMount], user: str = "job") -> list[str]:
    """Return a line for each uploaded file or folder, and a line for each file left out."""
    lines = []
    for one in mounts:
        where = f"to {one.at}" if one.at else f"as the working folder of the {user}"
        asks = (
            f"; {one.hidden} is a hidden folder of your home: the launch asks before the upload"
            if one.needs_confirmation
            else ""
        )
        what = f"{count(one.files, 'file')}, {size(one.bytes)}" if one.files else "no file"
        lines.append(f"sends {one.source} {where}: {what}{asks}")
        lines += [f"  not sent: {refused}" for refused in one.refused[:MOST_REFUSED]]
        more = len(one.refused) - MOST_REFUSED
        lines += [f"  not sent: {count(more, 'more file')}"] if more > 0 else []
        lines += [f"  {line}" for line in pointer_lines(one.pointers)]
    return lines


def pointer_lines(pointers: Sequence[str]) -> list[str]:
    """Return a line about the pointers of Git LFS to send; no line without pointers."""
    names = ", ".join(pointers[:3]) + (", ..." if len(pointers) > 3 else "")
    what = f"{count(len(pointers), 'pointer')} of Git LFS instead of content: {names}"
    return [f"sends {what}. To fetch the content: git lfs pull"] if pointers else []


def whole_s(seconds: float | None) -> float | None:
    """Round estimated seconds for a document; None if the estimate is unknown or exceeds ten years."""
    return None if seconds is None or seconds > MOST_S else round(seconds, 2)


def show_plan(plan: Plan, stderr: bool = True) -> None:
    """Print every artifact with state, every due step with an estimate, notes, mounts, and the total time."""
    has_reasons = any(one.reason for one in plan.artifacts)
    headings = ("artifact", "state", "step", "about", *["why"] * has_reasons)
    times = [estimated(one.estimate_s) if one.step else "" for one in plan.artifacts]
    lines = [clean(line) for line in (*plan.notes, *mount_lines(plan.mounts))]
    for one in plan.doubtful:
        differs = ", ".join(one.differs)
        lines.append(f"{one.name} was made by different code: {differs} (--keep-made or --remake)")
    lines += time_lines(plan)
    if is_plain(stderr):  # Without rich, the import of which takes a fifth of the time of `inv launch --dry-run`.
        width = max(map(len, (*times, "about")))
        rows = [(*headings[:3], "about".rjust(width), *headings[4:])]
        for one, time in zip(plan.artifacts, times, strict=True):
            rows.append((one.name, one.state, one.step, time.rjust(width), *[clean(one.reason)] * has_reasons))
        lines = [clean(columns(rows)), "", *lines] if plan.artifacts else lines
        print(*lines, sep="\n", end="\n" if lines else "", file=sys.stderr if stderr else sys.stdout, flush=True)
        return
    from rich.text import Text

    styles = {"here": "green", "missing": "yellow", "stale": "yellow", "damaged": "red"}
    table = new_table(*headings)
    for one, time in zip(plan.artifacts, times, strict=True):
        why = [Text(clean(one.reason))] * has_reasons
        table.add_row(one.name, f"[{styles[one.state]}]{one.state}[/]", one.step, time, *why)
    out = console(stderr)
    if plan.artifacts:
        out.print(table, "")
    for line in lines:
        out.print(line, markup=False)


def time_lines(plan: Plan) -> list[str]:
    """Return lines with the estimated duration of the plan; in a rehearsal, also the duration of the simulation."""
    if plan.job is None or not plan.job.steps or not plan.forecast:
        return []
    steps, lines = count(len(plan.job.steps), "step"), []
    is_rented = costs(plan.request.provider)
    found = plan.displayed_estimate
    if found and found.steps:
        # For rented machines the offers table shows the time around the steps.
        shown = replace(found, steps=tuple(one for one in found.steps if one.step != AROUND or not is_rented))
        low, middle, high = shown.range_s
        where = "this machine, 0.00 USD" if found.machine.is_here and not is_rented else found.machine.name
        lines.append(f"{steps}, {about(middle)} on {where} ({between(low, high)}; {evidence(shown)})")
    if plan.imitated is not None:
        low, middle, high = total(plan.forecast)
        said = (
            f"simulation: this machine does the work of the rented machine, in {about(middle)} ({between(low, high)})"
        )
        said += (
            f"; the simulated clock runs {plan.job.clock_scale:g} times as fast" if plan.job.clock_scale != 1 else ""
        )
        lines.append(said)
        if middle > LONG_S:
            lines.append(
                "This simulation takes too long for practice. See the plan: --dry-run. Use a small recipe: "
                "--profile tiny"
            )
    return lines


def chat_hint(artifact: str, store: str) -> str:
    """Return a hint with the command to chat with a new model, including the store and name if not the defaults."""
    usual = context.settings()
    where = "" if store == usual.store else f"SLIPWAY_STORE={shlex.quote(store)} "
    model = "" if artifact == f"{PHASES[USUAL].folder}/{usual.profile}" else f" {artifact}"
    return f"Talk to it: {where}./inv chat{model}"
