"""Views of runs: the list of runs, and the overlaid metric curves of selected runs."""

import math
import shlex
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from flows.reading import timeline
from flows.reading.status import current_record
from infra.errors import SlipwayError
from infra.ledger.journal import Journal
from infra.records import PodView
from infra.runs.lookup import find_run
from infra.units import dollars
from packs.page.views.figures import BY, FigureTable, thin
from packs.page.views.page_context import PageContext
from packs.page.views.phase_facts import facts_of
from packs.page.views.run_sources import (
    FOREGROUND,
    HERE,
    FigureSource,
    figures_of,
    folders,
    marks_of,
    measured,
    over_time,
    result_of,
    said_by,
    source_of,
)
from packs.page.views.sections.ask import View, ViewQuery
from trainer.records.phase_registry import PHASES
from trainer.reporting.config_differences import differences, flattened

MOST_RUNS = 50  # maximum number of overlaid runs
# Maximum points per metric over all runs, more than any screen resolves.
MOST_POINTS = 6000
LEAST_EACH, MOST_EACH = 120, 600
# Time budget for unread runs per look of a stream; 100,000 steps take half a second.
READ_S = 1.0
FIRST = (  # metrics in the order of the charts; others follow
    *("loss", "reward_chosen", "reward_rejected", "margin", "accuracy"),
    *("reward", "right", "greedy", "pass_at_1", "length", "truncated", "silent_groups", "entropy", "clipped"),
    *("mismatch", "moved", "kl", "tokens_per_s", "mfu", "memory_bytes", "gpu_percent", "lr", "grad_norm", "data_share"),
    *("rollout_tokens_per_s", "update_tokens_per_s", "rollout_s", "weights_s", "weights_mb"),
)
GPU_EVERY_S = 1.0
ROUNDED_S = 1.0  # resolution of journal times in seconds


def listed(context: PageContext, asked: ViewQuery) -> dict[str, Any]:
    """Return all runs, newest first, with the data of `inv status`."""
    now, views = time.time(), context.runs()
    with context.journal() as journal:
        services = {op.run: op.service for op in journal.ops() if op.service}
    rows = [{**row(view, now), "service": services.get(view.run, "")} for view in views]
    if folders(HERE):
        rows.append({"run": FOREGROUND, "state": "", "provider": "local", "note": "made by inv train on this machine"})
    return {"runs": rows, "command": "inv status --watch", "notes": list(context.notes)}


def row(view: PodView, now: float) -> dict[str, Any]:
    """Return the fields of a run for the page.

    Amounts are US dollars as text, times are UTC epoch seconds, and None marks an unknown value.
    """
    record, machine = _told(view.progress), view.progress.get("machine") or {}
    is_training = record.get("kind") == "progress"
    steps = [
        {"name": one["name"], "state": one["state"], "share": _share(one), "elapsed_s": one.get("elapsed_s")}
        for one in view.progress.get("steps", ())
    ]
    return {
        "run": view.run,
        "provider": view.provider,
        "state": view.state,
        "step": view.step,
        "steps": steps,
        "train_step": record.get("step") if is_training else record.get("steps"),
        "loss": record.get("loss", record.get("train_loss")),
        "tokens_per_s": record.get("tokens_per_s"),
        "mfu": record.get("mfu"),
        "eta_s": _scaled(record.get("eta_s"), view) if is_training else None,
        "curve": record.get("curve") or [],
        "tracking": record.get("tracking"),
        "gpus": machine.get("gpus") or [],
        "disk_free_bytes": machine.get("disk_free_bytes"),
        "usd_per_hour": dollars(view.micro_usd_per_hour) if view.micro_usd_per_hour else None,
        "spent_usd": dollars(view.spent_micro_usd),
        "limit_usd": None if view.limit_micro_usd is None else dollars(view.limit_micro_usd),
        "limit_in_s": view.limit_in_s,
        "over_limit_usd": dollars(view.over_limit_micro_usd) if view.over_limit_micro_usd else None,
        "over_limit_s": view.over_limit_s or None,
        "heard_s": view.heard_s,
        "elapsed_s": view.elapsed_s,
        "started_at": view.started_at,
        "ended_at": view.ended_at,
        "seen_at": None if view.age_s is None else round(now - view.age_s),
        "recoveries": view.recoveries,
        "ends": list(view.ends),
        "ssh": view.ssh,
        "note": view.note,
        "in_store": dict(view.in_store),
        "pending": list(view.pending),
        "upload_problem": view.upload_problem,
        "is_live": view.ended_at is None and view.state in ("planned", "running", "lost", "idle", "ending"),
        "clock_scale": view.clock_scale,
    }


def _scaled(seconds: float | None, view: PodView) -> float | None:
    """Convert seconds of the machine's clock to the clock that measures cost; the two differ in a rehearsal."""
    return None if seconds is None else seconds * view.clock_scale


def _told(progress: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the record of the running step. For an ended run, return the last record with a loss curve."""
    record = current_record(progress)
    if record.get("kind") == "progress":
        return record
    said = [one.get("record") or {} for one in progress.get("steps", ())]
    is_over = all(one["state"] != "running" for one in progress.get("steps", ()))
    return next((one for one in said[::-1] if one.get("curve")), record) if is_over else record


def _share(step: Mapping[str, Any]) -> float | None:
    record = step.get("record") or {}
    if step["state"] in ("done", "reused"):
        return 1.0
    return record["done"] / record["total"] if record.get("total") and "done" in record else record.get("share")


def curves(context: PageContext, asked: ViewQuery) -> dict[str, Any]:
    """Return the curves of the selected runs: a part per run, the configuration differences and the marks."""
    with context.journal() as journal:
        chosen = asked.words("runs")[:MOST_RUNS] or [_usual(journal)]
        version = journal.version()  # an unchanged version lets cached sources and marks stay valid
        sources = [source_of(context, one, journal, version) for one in chosen if one]
        views = {one.run: one for one in context.runs()} if sources else {}
        told = {one.run: marks_of(context, one, journal, version, views.get(one.run)) for one in sources}
        timed = {one.run: over_time(context, one, journal, version, views.get(one.run)) for one in sources}
    known = dict.fromkeys((*PHASES, *(name for one in sources for name in one.phases)))
    phases = [name for name in known if any(name in one.phases for one in sources)]
    by = asked.choice("by", BY)
    phase = asked.choice("phase", [*phases, ""]) if asked.word("phase") else _busiest(context, sources, phases)
    since, until = asked.number("since"), asked.number("until")
    among = max(1, len(sources), asked.count("among", 1, MOST_RUNS))
    each = max(LEAST_EACH, min(MOST_EACH, MOST_POINTS // among))
    parts: dict[str, Any] = {f"over {run}": one for run, one in timed.items()}
    news, unread, enough = 0, 0, time.monotonic() + READ_S if asked.word("live") else math.inf
    for one in sources:
        if phase not in one.phases:
            continue
        growing = figures_of(context, one, phase)
        if news and not growing.has_value and time.monotonic() > enough:
            unread += 1  # The next look continues.
            continue
        news += not growing.has_value
        table, grown = growing.get()
        key = ("thinned", one.token, phase, by, since, until, each)
        figures = context.cached_for_version(grown, key, partial(_thinned, table, each, by, since, until))
        config, result = one.phases[phase], result_of(one, phase, views.get(one.run))
        facts = context.cached_for_version(
            (grown, dict(result)), ("facts", one.token, phase), partial(facts_of, table, config, result)
        )
        parts[f"run {one.run}"] = {
            "run": one.run,
            "figures": figures,
            "last": _last(table),
            "facts": [*facts, *measured(context, one, phase)],
            "marks": [mark for mark in (_placed(table, by, *found) for found in told[one.run]) if mark],
            "mfu_of": list(table.peaks),
            "clock_scale": views[one.run].clock_scale if one.run in views else 1.0,
        }
    configs = {one.run: one.phases[phase] for one in sources if phase in one.phases}
    recipe = configs.get(sources[0].run, {}) if len(sources) == 1 else {}
    parts["about"] = {
        "phase": phase,
        "phases": phases,
        "by": by,
        "chosen": [one.run for one in sources],
        "runs_of": {name: [one.run for one in sources if name in one.phases] for name in phases},
        "unread": unread,
        "differences": differences(configs) if len(configs) > 1 else [],
        "config": [(name, str(value)) for name, value in flattened(recipe)],
    }
    parts["samples"] = said_by(context, sources[0], phase) if len(sources) == 1 and phase else []
    parts["command"] = f"inv report {shlex.join(one.run for one in sources)}".strip()
    return parts


CURVES = View(curves)
LIST = View(listed)


def _thinned(table: FigureTable, most: int, by: str, since: float, until: float) -> dict[str, Any]:
    names = sorted(table.columns, key=_place)
    return {name: thin(table, name, most=most, by=by, since=since, until=until) for name in names}


def _usual(journal: Journal) -> str:
    try:
        return find_run(journal).run
    except SlipwayError:
        return ""


def _placed(table: FigureTable, by: str, at: float, kind: str, words: str) -> dict[str, Any] | None:
    """Return a mark with a position on the axis; `x` is None outside of the table's time range.

    Return None for a checkpoint outside of the range, which belongs to a different phase.
    """
    is_within = bool(table.at) and table.at[0] - ROUNDED_S <= at <= table.at[-1] + 60.0
    if not is_within and kind == timeline.SAVED:
        return None
    x = table.axis_position(by, max(0, table.row_at(at))) if is_within else None
    return {"x": x, "kind": kind, "words": words, "at": at}


def _busiest(context: PageContext, sources: Sequence[FigureSource], phases: Sequence[str]) -> str:
    """Return the last phase with metrics of the first run, as the default phase to show.

    Without metrics, return the last known phase, or "".
    """
    for name in phases[::-1]:
        if sources and name in sources[0].phases and figures_of(context, sources[0], name).get()[0].steps:
            return name
    return phases[-1] if phases else ""


def _last(table: FigureTable) -> dict[str, float]:
    if not table.steps:
        return {}
    last = {name: one.values[-1] for name, one in table.columns.items()}
    return {"step": table.steps[-1], "tokens": table.tokens[-1], **last}


def _place(name: str) -> tuple[int, str]:
    return (FIRST.index(name), name) if name in FIRST else (len(FIRST), name)
