"""Sources of figures: runs of the journal, foreground training, artifacts and folders.

Figures of a run are searched on the pod, in the artifacts of the phases, in the store files of the uploader, and in the
local copy of a finished pod; the first place with the file wins.
"""

import contextlib
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from flows.models.find_model import find_model
from flows.reading import cost_views, measures, run_figures, spending, timeline
from infra.agent.execution.timeline import NAME as TIMELINE
from infra.checkout import ROOT
from infra.errors import SlipwayError, UsageError
from infra.ledger.journal import Journal, JournalVersion
from infra.ledger.op import Op
from infra.records import PodView
from infra.runs.lookup import find_run, names_of_runs, transport_to
from infra.runs.observation import folder_of
from infra.runs.run_home import RunHome
from infra.units import dollars
from packs.page.views.figures import FigureTable, GrowingFigures, buckets
from packs.page.views.page_context import ELSEWHERE_S, CachedValue, PageContext
from store import untrusted_input
from store.manifest import StoreError
from trainer.records.phase_registry import PHASES
from trainer.reporting.jsonl_log import SAID, parse

FOREGROUND = "foreground"  # name for `inv train`, which creates no run
HERE = ROOT / "var" / "work" / "runs"  # folder of `inv train`
MOST_MOMENTS = 12  # maximum number of sampled steps to show per phase
MOST_POINTS = 400  # maximum points of a curve over time
TIMED_HERE_S, TIMED_ELSEWHERE_S = 2.0, 30.0  # maximum age of the curves over time of a live run in seconds


@dataclass
class FigureSource:
    """Metrics and samples of a run, an artifact or a folder, with cached readers per phase."""

    run: str
    token: str
    is_live: bool
    phases: dict[str, Mapping[str, Any]]
    """Configuration by phase, in order."""
    folders: Mapping[str, Path] = field(default_factory=dict)
    """Local folder by phase, of a source that is no run of the journal."""
    artifacts: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    """Name and fingerprint of the artifact by phase."""
    figures: dict[str, CachedValue[tuple[FigureTable, int]]] = field(default_factory=dict)
    samples: dict[str, CachedValue[list[dict[str, Any]]]] = field(default_factory=dict)


def name_of(context: PageContext, word: str, journal: Journal) -> str:
    """Return the name by which the views know the run, artifact or folder of a typed word; "" = the last run.

    An artifact and a folder become a source of the context. Raise UsageError for an unknown word.
    """
    runs = names_of_runs(journal)
    if word == FOREGROUND or not word and not runs and folders(HERE):
        return _given(context, FOREGROUND, HERE)
    if word and folders(Path(word).expanduser()):
        return _given(context, folder_name(word), Path(word).expanduser())
    if "/" in word or word and not any(one.startswith(word) for one in runs):
        artifact, folder = find_model(context.settings, word, "", context.add_note)
        return _given(context, word, folder, (artifact.name, artifact.fingerprint) if artifact else None)
    run = find_run(journal, word).run
    context.show_run(run)
    return run


def folder_name(word: str) -> str:
    """Return the path of a typed folder, with a last part that names the folder: `.` and `..` are resolved."""
    folder = Path(word).expanduser()
    return str(folder if folder.name and ".." not in folder.parts else folder.resolve())


def _given(context: PageContext, word: str, folder: Path, made: tuple[str, str] | None = None) -> str:
    found, name = folders(folder), word.replace(",", " ")  # a comma separates the runs of a view
    if not found:
        raise UsageError(
            f"{folder} holds no metrics.jsonl; name a run, an artifact of the store, or a folder with metrics.jsonl"
        )
    context.sources[name] = _of_folders(name, found, made)
    return name


def _of_folders(name: str, found: Mapping[str, Path], made: tuple[str, str] | None = None) -> FigureSource:
    configs = {phase: _config_of(path) for phase, path in found.items()}
    return FigureSource(name, name, True, configs, found, dict.fromkeys(found, made) if made else {})


def _config_of(folder: Path) -> Mapping[str, Any]:
    with contextlib.suppress(untrusted_input.UnusableDocument):
        return untrusted_input.typed(manifest_of(folder), "config", dict, {})
    return {}


def source_of(context: PageContext, run: str, journal: Journal, version: JournalVersion) -> FigureSource:
    """Return the metric source of a run, from the cache. Raise UsageError for an unknown run."""
    if run in context.sources:
        return context.sources[run]
    if run == FOREGROUND:
        found = folders(HERE)
        return context.cached(("source", run, *found), lambda: _of_folders(run, found))
    return context.cached_for_version(version, ("found", run), lambda: _found(context, find_run(journal, run)))


def _found(context: PageContext, op: Op) -> FigureSource:
    def read() -> FigureSource:
        steps = [one for one in op.read_job().steps if "keeping" in one.config]  # built-in and extensions' phases
        making = {one.name: one.config["making"] for one in steps if "making" in one.config}
        made = {name: (one["name"], one["fingerprint"]) for name, one in making.items()}
        return FigureSource(
            op.run, op.token, op.is_live, {one.name: one.config.get("spec", {}) for one in steps}, artifacts=made
        )

    return context.cached(("source", op.token, op.is_live), read)


def folders(folder: Path) -> dict[str, Path]:
    """Return the folders with metrics by phase below an artifact, a run folder or a parent folder."""
    if (folder / "metrics.jsonl").is_file():
        return {str(manifest_of(folder).get("phase") or folder.resolve().name): folder}
    found = {
        path.parent.name: path.parent
        for up in ("", "runs", "work/runs")
        for path in (folder / up).glob("*/metrics.jsonl")
        if path.is_file()
    }
    return {name: found[name] for name in (*PHASES, *sorted(found)) if name in found}


def manifest_of(folder: Path) -> dict[str, Any]:
    """Return the manifest of the final checkpoint in an artifact.

    Return {} for other folders and for a damaged manifest, so that metrics are still shown.
    """
    found = sorted(folder.glob("step-*/MANIFEST.json"))
    with contextlib.suppress(OSError, untrusted_input.UnusableDocument):
        return untrusted_input.load(found[-1]) if found else {}
    return {}


def figures_of(context: PageContext, source: FigureSource, phase: str) -> CachedValue[tuple[FigureTable, int]]:
    """Return the cached metrics of a phase, which grow with the file."""
    if phase not in source.figures:
        source.figures[phase] = CachedValue(_reader(context, source, phase))
    return source.figures[phase]


def _reader(context: PageContext, source: FigureSource, phase: str) -> Any:
    read, good_s = _bytes_of(context, source, phase, "metrics.jsonl")
    growing = GrowingFigures(read)

    def make() -> tuple[tuple[FigureTable, int], float]:
        return (growing.refresh(), growing.version), good_s

    return make


def _bytes_of(context: PageContext, source: FigureSource, phase: str, file: str) -> tuple[Any, float]:
    """Return a function that reads a run's file from an offset, and the validity of its result in seconds."""
    if source.folders:
        return (lambda offset: _of_file(source.folders[phase] / file, offset)), 0.5
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
                context.add_note(f"{op.run}: {error}")
                return b""

        return read, 0.5 if op.vendor == "local" else ELSEWHERE_S
    return _of_ended(context, op, phase, file), math.inf


def _of_ended(context: PageContext, op: Op, phase: str, file: str) -> Any:
    def read(offset: int) -> bytes:  # Called once; the columns keep the content at a tenth of the size.
        places = run_figures.metric_readers(op, context.settings, context.add_note)
        return next((found for place in places if (found := place(phase, file))), b"")[offset:]

    return read


def _of_file(path: Path, offset: int) -> bytes:
    try:
        with untrusted_input.opened(path) as stream:
            stream.seek(max(0, offset))
            return stream.read()
    except (FileNotFoundError, IsADirectoryError, untrusted_input.UnusableDocument):
        return b""


def said_by(context: PageContext, source: FigureSource, phase: str) -> list[dict[str, Any]]:
    """Return the model's sampled texts of at most `MOST_MOMENTS` steps, evenly spread, the last step among them."""
    if phase not in source.samples:
        read, good_s = _bytes_of(context, source, phase, "samples.jsonl")

        def make() -> tuple[list[dict[str, Any]], float]:
            return spread(parse(read(0).decode("utf-8", "replace"), SAID)), max(2.0, good_s)

        source.samples[phase] = CachedValue(make)
    return source.samples[phase].get()


def spread(samples: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the samples of at most `MOST_MOMENTS` steps, evenly spread, the last step among them."""
    steps = sorted({one["step"] for one in samples})
    chosen = set(steps[::-1][:: -(-len(steps) // MOST_MOMENTS) or 1])
    return [one for one in samples if one["step"] in chosen]


def marks_of(
    context: PageContext, source: FigureSource, journal: Journal, version: JournalVersion, view: PodView | None
) -> list[timeline.Mark]:
    """Return the events of a run with times; [] for a source that is no run of the journal."""
    if source.folders:
        return []

    def make() -> list[timeline.Mark]:
        return timeline.marks_of(journal.op(source.token), view, journal)

    if source.is_live:  # The journal does not record checkpoints of a live run.
        return make()
    return context.cached_for_version((version, dict(view.in_store) if view else {}), ("marks", source.token), make)


def over_time(
    context: PageContext, source: FigureSource, journal: Journal, version: JournalVersion, view: PodView | None
) -> dict[str, Any]:
    """Return the cost in US dollars and the used GB of the fullest GPU, over minutes, and the parts of the time.

    Cost and limit are those of all nodes.

    Return {} without a pod.
    """
    if source.folders or view is None:
        return {}
    age_s = TIMED_HERE_S if view.provider == "local" else TIMED_ELSEWHERE_S
    at = int(time.monotonic() / age_s) if source.is_live else 0

    def cost() -> spending.RunCost:
        return spending.of_run(journal.op(source.token), view, journal, context.settings)

    def memory() -> list[tuple[float, float]]:
        places = run_figures.metric_readers(journal.op(source.token), context.settings, context.add_note)
        return run_figures.gpu_memory(list(places), view.clock_scale)

    def parts() -> list[dict[str, Any]]:
        found = (one.of_run(source.run, journal, context.settings, False) for one in cost_views.installed().values())
        return [
            {"rows": [(part.name, part.seconds, dollars(part.micro_usd)) for part in one.parts], "caption": one.caption}
            for one in found
            if one
        ]

    # A bill of the vendor, and a timeline copied later, are no events of the journal.
    bills = journal.read("SELECT coalesce(max(rowid), 0) FROM spend")
    copy = RunHome.for_run(source.run, context.settings.homes).pod.log(TIMELINE)
    copied = copy.stat().st_mtime_ns if copy.exists() else 0
    spent = context.cached_for_version((version, at, bills), ("cost", source.token), cost)
    tables = context.cached_for_version((version, at, bills, copied), ("parts", source.token), parts)
    curves = {"cost": spent.curve, "gpu_memory": context.cached_for_version(at, ("memory", source.token), memory)}
    known = {name: _curve(points) for name, points in curves.items() if points}
    limit = None if view.run_limit_micro_usd is None else dollars(view.run_limit_micro_usd)
    return {"cost_usd": dollars(spent.micro_usd), "limit_usd": limit, "curves": known, "parts": tables}


def _curve(points: list[tuple[float, float]]) -> dict[str, list[float]]:
    return buckets(lambda row: points[row][0], [value for _, value in points], MOST_POINTS)


def result_of(source: FigureSource, phase: str, view: PodView | None) -> Mapping[str, Any]:
    """Return the facts about the model of a phase: from the manifest of the artifact, or as reported by the pod."""
    if source.folders:
        with contextlib.suppress(OSError, untrusted_input.UnusableDocument):
            return untrusted_input.typed(
                untrusted_input.load(source.folders[phase] / "ARTIFACT.json"), "about", dict, {}
            )
        return {}
    steps: Any = view.progress.get("steps", ()) if view else ()
    return next((one.get("result") or {} for one in steps if one["name"] == phase), {})


def measured(context: PageContext, source: FigureSource, phase: str) -> list[tuple[str, str]]:
    """Return the results of `inv eval` for exactly this model: measure, and value with interval."""
    found: Mapping[str, Any] = {}
    try:
        if phase in source.artifacts:
            found = measures.load_results(context.settings, *source.artifacts[phase]).get("measures", {})
    except (SlipwayError, StoreError) as error:
        context.add_note(str(error))
    return [
        (key, f"{measures.of_unit(one, one['value'])}{_unit(one)} {measures.format_interval(one, one)}")
        for key, one in found.items()
    ]


def _unit(measure: Mapping[str, Any]) -> str:
    return "" if measure["unit"] == "share" else f" {measure['unit']}"
