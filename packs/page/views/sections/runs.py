"""Views of runs: the list of runs, and the overlaid metric curves of selected runs."""

import math
import shlex
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from flows.reading import run_figures, story, timeline
from flows.reading.status import current_record
from infra.errors import SlipwayError
from infra.ledger.journal import Journal, JournalVersion
from infra.ledger.op import Op
from infra.records import PodView
from infra.runs.lookup import find_run, transport_to
from infra.runs.observation import folder_of
from infra.units import dollars
from packs.page.views.figures import BY, FigureTable, GrowingFigures, thin
from packs.page.views.page_context import ELSEWHERE_S, CachedValue, PageContext
from packs.page.views.sections.ask import View, ViewQuery
from trainer.records.phase_registry import PHASES
from trainer.reporting.config_differences import differences, flattened
from trainer.reporting.jsonl_log import SAID, parse

MOST_RUNS = 50  # maximum number of overlaid runs
# Maximum points per metric over all runs, more than any screen resolves.
MOST_POINTS = 6000
LEAST_EACH, MOST_EACH = 120, 600
SHOWN_SAMPLES = 200
# Time budget for unread runs per look of a stream; 100,000 steps take half a second.
READ_S = 1.0
FIRST = (
    "loss",
    "reward",
    "right",
    "greedy",
    "tokens_per_s",
    "mfu",
    "memory_bytes",
    "gpu_percent",
    "lr",
    "grad_norm",
    "data_share",
)
GPU_EVERY_S = 1.0
ROUNDED_S = 1.0  # resolution of journal times in seconds


def listed(context: PageContext, asked: ViewQuery) -> dict[str, Any]:
    """Return all runs, newest first, with the data of `inv status`."""
    now, views = time.time(), context.runs()
    with context.journal() as journal:
        services = {op.run: op.service for op in journal.ops() if op.service}
    rows = [{**row(view, now), "service": services.get(view.run, "")} for view in views]
    if any((folder / "metrics.jsonl").is_file() for folder in story.folders(story.HERE).values()):
        rows.append(
            {"run": story.FOREGROUND, "state": "", "provider": "local", "note": "made by inv train on this machine"}
        )
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


@dataclass
class FigureSource:
    """Metrics and samples of a run, with cached readers per phase."""

    run: str
    token: str
    is_live: bool
    phases: dict[str, Mapping[str, Any]]
    """Configuration by phase, in order."""
    growing: dict[str, CachedValue[tuple[FigureTable, int]]] = field(default_factory=dict)
    said: dict[str, CachedValue[list[dict[str, Any]]]] = field(default_factory=dict)


def curves(context: PageContext, asked: ViewQuery) -> dict[str, Any]:
    """Return the curves of the selected runs: a part per run, the configuration differences and the marks."""
    with context.journal() as journal:
        chosen = asked.words("runs")[:MOST_RUNS] or [_usual(journal)]
        version = journal.version()  # an unchanged version lets cached sources and marks stay valid
        sources = [source_of(context, one, journal, version) for one in chosen if one]
        views = {one.run: one for one in context.runs()} if sources else {}
        told = {one.run: marks_of(context, one, journal, version, views.get(one.run)) for one in sources}
    known = dict.fromkeys((*PHASES, *(name for one in sources for name in one.phases)))
    phases = [name for name in known if any(name in one.phases for one in sources)]
    by = asked.choice("by", BY)
    phase = asked.choice("phase", [*phases, ""]) if asked.word("phase") else _busiest(context, sources, phases)
    since, until = asked.number("since"), asked.number("until")
    each = max(LEAST_EACH, min(MOST_EACH, MOST_POINTS // max(1, len(sources))))
    parts: dict[str, Any] = {}
    news, unread, enough = 0, 0, time.monotonic() + READ_S if asked.word("live") else math.inf
    for one in sources:
        if phase not in one.phases:
            continue
        growing = figures_of(context, one, phase)
        if news and not growing.is_made and time.monotonic() > enough:
            unread += 1  # The next look continues.
            continue
        news += not growing.is_made
        table, grown = growing.get()
        key = ("thinned", one.token, phase, by, since, until, each)
        figures = context.keep_for(grown, key, partial(_thinned, table, each, by, since, until))
        parts[f"run {one.run}"] = {
            "run": one.run,
            "figures": figures,
            "last": _last(table),
            "marks": [mark for mark in (_placed(table, by, *found) for found in told[one.run]) if mark],
            "mfu_of": list(table.peaks),
            "clock_scale": views[one.run].clock_scale if one.run in views else 1.0,
        }
    configs = {one.run: one.phases.get(phase, {}) for one in sources}
    recipe = configs[sources[0].run] if len(sources) == 1 else {}
    parts["about"] = {
        "phase": phase,
        "phases": phases,
        "by": by,
        "chosen": [one.run for one in sources],
        "unread": unread,
        "differences": differences(configs) if len(sources) > 1 else [],
        "config": [(name, str(value)) for name, value in flattened(recipe)],
    }
    parts["samples"] = sampled_texts(context, sources[0], phase) if len(sources) == 1 and phase else []
    words = shlex.join(one.run for one in sources[:2])
    parts["command"] = f"inv report {words}".strip() if len(sources) < 3 else "inv status"
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


def source_of(context: PageContext, run: str, journal: Journal, version: JournalVersion) -> FigureSource:
    """Return the metric source of a run, from the cache. Raise UsageError for an unknown run."""
    if run == story.FOREGROUND:
        phases = {
            name: story.manifest_of(folder).get("config", {}) for name, folder in story.folders(story.HERE).items()
        }
        return context.keep(("source", run, *phases), lambda: FigureSource(run, run, True, phases))
    return context.keep_for(version, ("found", run), lambda: _found(context, find_run(journal, run)))


def _found(context: PageContext, op: Op) -> FigureSource:
    def read() -> FigureSource:
        steps = {one.name: one.config.get("spec", {}) for one in op.read_job().steps if "keeping" in one.config}
        return FigureSource(op.run, op.token, op.is_live, steps)

    return context.keep(("source", op.token, op.is_live), read)


def figures_of(context: PageContext, source: FigureSource, phase: str) -> CachedValue[tuple[FigureTable, int]]:
    """Return the cached metrics of a phase, which grow with the file."""
    if phase not in source.growing:
        source.growing[phase] = CachedValue(_reader(context, source, phase))
    return source.growing[phase]


def _reader(context: PageContext, source: FigureSource, phase: str) -> Any:
    read, good_s = _bytes_of(context, source, phase, "metrics.jsonl")
    growing = GrowingFigures(read)

    def make() -> tuple[tuple[FigureTable, int], float]:
        return (growing.grow(), growing.version), good_s

    return make


def _bytes_of(context: PageContext, source: FigureSource, phase: str, file: str) -> tuple[Any, float]:
    """Return a function that reads a run's file from an offset, and the validity of its result in seconds."""
    if source.token == story.FOREGROUND:
        return (lambda offset: _of_file(story.HERE / phase / file, offset)), 0.5
    with context.journal() as journal:
        op = journal.op(source.token)
    if source.is_live:
        path, reach = folder_of(op).root / "work" / "runs" / phase / file, transport_to(context.settings, op)

        def read(offset: int) -> bytes:
            try:
                return bytes(reach.read(path, offset))
            except FileNotFoundError:
                return b""
            except SlipwayError as error:
                context.tell(f"{op.run}: {error}")
                return b""

        return read, 0.5 if op.vendor == "local" else ELSEWHERE_S
    return _of_ended(context, op, phase, file), math.inf


def _of_ended(context: PageContext, op: Op, phase: str, file: str) -> Any:
    def read(offset: int) -> bytes:  # Called once; the columns keep the content at a tenth of the size.
        places = run_figures.metric_readers(op, context.settings, context.tell)
        return next((found for place in places if (found := place(phase, file))), b"")[offset:]

    return read


def _of_file(path: Path, offset: int) -> bytes:
    try:
        with path.open("rb") as stream:
            stream.seek(max(0, offset))
            return stream.read()
    except FileNotFoundError:
        return b""


def sampled_texts(context: PageContext, source: FigureSource, phase: str) -> list[dict[str, Any]]:
    """Return the model's sampled texts of the last steps, at most `SHOWN_SAMPLES`."""
    if phase not in source.said:
        read, good_s = _bytes_of(context, source, phase, "samples.jsonl")

        def make() -> tuple[list[dict[str, Any]], float]:
            return parse(read(0).decode("utf-8", "replace"), SAID)[-SHOWN_SAMPLES:], max(2.0, good_s)

        source.said[phase] = CachedValue(make)
    return source.said[phase].get()


def marks_of(
    context: PageContext, source: FigureSource, journal: Journal, version: JournalVersion, view: PodView | None
) -> list[timeline.Mark]:
    """Return the events of a run with times; [] for foreground training."""
    if source.token == story.FOREGROUND:
        return []

    def make() -> list[timeline.Mark]:
        return timeline.marks_of(journal.op(source.token), view, journal)

    if source.is_live:  # The journal does not record checkpoints of a live run.
        return make()
    return context.keep_for((version, dict(view.in_store) if view else {}), ("marks", source.token), make)


def _placed(table: FigureTable, by: str, at: float, kind: str, words: str) -> dict[str, Any] | None:
    """Return a mark with a position on the axis; `x` is None outside of the table's time range.

    Return None for a checkpoint outside of the range, which belongs to a different phase.
    """
    is_within = bool(table.at) and table.at[0] - ROUNDED_S <= at <= table.at[-1] + 60.0
    if not is_within and kind == timeline.SAVED:
        return None
    x = table.along(by, max(0, table.row_at(at))) if is_within else None
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
