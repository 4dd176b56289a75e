"""The story of a run for a report or page: the phases with their metrics.

The input is the name of a run or artifact, or a folder; the result is a `Story`. Metrics of a run are searched on the
pod, in the artifacts of the phases, in the store files of the courier, and in the local copy of a finished pod; the
first source with the file wins.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.models.find_model import find_model
from flows.reading import measures, spending, status, timeline
from flows.reading.run_figures import gpu_memory, metric_readers, read
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.records import PodView
from infra.runs.lookup import find_run, names_of_runs
from infra.runs.timing import Say
from infra.settings import Settings
from infra.units import count, duration, in_usd, moment, per_hour
from store import untrusted_input
from trainer.records.phase_registry import PHASES
from trainer.reporting.jsonl_log import FIGURES, SAID, parse
from trainer.reporting.run_report import PhaseStory, Story

FOREGROUND = "foreground"  # name for `inv train`, which creates no run
HERE = ROOT / "var" / "work" / "runs"  # folder of `inv train`


def story_of(word: str, journal: Journal, settings: Settings, tell: Say) -> Story:
    """Return the story of the run, folder or artifact named by `word`; "" = the last run.

    Unreadable sources are reported to `tell`. Raise UsageError for an unknown name.
    """
    if word == FOREGROUND:
        return of_folder(HERE, FOREGROUND)
    if word and (found := folders(Path(word).expanduser())):
        return of_folder(Path(word).expanduser(), word, found)
    runs = names_of_runs(journal)
    if "/" in word or word and not any(one.startswith(word) for one in runs):
        artifact, folder = find_model(settings, word, "", tell)
        story = of_folder(folder, word)
        if artifact:
            known = measured(settings, artifact.name, artifact.fingerprint)
            story = replace(story, phases=[replace(one, measured=known) for one in story.phases])
        return story
    if not word and not runs and folders(HERE):
        return of_folder(HERE, FOREGROUND)
    op = find_run(journal, word)
    view = next(one for one in status.status(journal, settings, op.run) if one.run == op.run)
    return of_run(op, view, journal, settings, tell)


def folders(folder: Path) -> dict[str, Path]:
    """Return the folders with metrics by phase below an artifact, a run folder or a parent folder."""
    if (folder / "metrics.jsonl").is_file():
        return {str(manifest_of(folder).get("phase") or folder.name): folder}
    found = {
        path.parent.name: path.parent
        for up in ("", "runs", "work/runs")
        for path in (folder / up).glob("*/metrics.jsonl")
    }
    return {name: found[name] for name in (*PHASES, *sorted(found)) if name in found}


def of_folder(folder: Path, name: str, found: Mapping[str, Path] | None = None) -> Story:
    """Return the story of a folder. Raise UsageError for a folder without metrics."""
    found = found or folders(folder)
    if not found:
        raise UsageError(
            f"{folder} holds no metrics.jsonl; name a run, an artifact of the store, or a folder with metrics.jsonl"
        )
    phases = [
        PhaseStory(
            phase,
            config=manifest_of(path).get("config", {}),
            lines=lines_of(read(path / "metrics.jsonl")),
            samples=lines_of(read(path / "samples.jsonl"), SAID),
            result=about_of(path),
        )
        for phase, path in found.items()
    ]
    return Story(name, (), phases, now())


def of_run(op: Op, view: PodView, journal: Journal, settings: Settings, tell: Say) -> Story:
    """Return the story of a run: the phases in the job, with all available metrics."""
    steps = {one["name"]: one for one in view.progress.get("steps", ())}
    job = op.read_job()
    spoken = list(metric_readers(op, settings, tell))

    def lines(phase: str, file: str, kinds: Mapping[str, type] = FIGURES) -> list[dict[str, Any]]:
        return next((lines_of(found, kinds) for place in spoken if (found := place(phase, file))), [])

    phases = [
        PhaseStory(
            one.name,
            steps.get(one.name, {}).get("state", ""),
            one.config["spec"],
            lines(one.name, "metrics.jsonl"),
            lines(one.name, "samples.jsonl", SAID),
            steps.get(one.name, {}).get("result") or {},
            measured(settings, one.config["making"]["name"], one.config["making"]["fingerprint"]),
        )
        for one in job.steps
        if "keeping" in one.config  # a built-in phase or a phase of an extension
    ]
    marks = [(at, words) for at, _, words in timeline.marks_of(op, view, journal)]
    cost = spending.of_run(op, view, journal, settings)
    about, memory = list(facts(view, cost.micro_usd)), gpu_memory(spoken, view.clock_scale)
    return Story(op.run, about, phases, now(), view.note, marks, cost.curve, memory)


def measured(settings: Settings, name: str, fingerprint: str) -> list[tuple[str, str, str]]:
    """Return the results of `inv eval` for exactly this model."""
    found = measures.load_results(settings, name, fingerprint).get("measures", {})
    return [
        (
            key,
            f"{measures.of_unit(one, one['value'])}{'' if one['unit'] == 'share' else ' ' + one['unit']}",
            measures.format_interval(one, one),
        )
        for key, one in found.items()
    ]


def facts(view: PodView, micro_usd: int) -> Iterator[tuple[str, str]]:
    """Yield (label, text) pairs of facts about a run; `micro_usd` is the cost of the run."""
    yield "state", view.state
    yield "provider", view.provider
    yield "cost", in_usd(micro_usd)
    if view.micro_usd_per_hour:
        yield "price", per_hour(view.micro_usd_per_hour)
    yield "time", duration(view.elapsed_s)
    if view.ended_at:
        yield "ended", moment(view.ended_at)
    if view.recoveries:
        yield "recovered", count(view.recoveries, "time")


def lines_of(content: bytes | None, kinds: Mapping[str, type] = FIGURES) -> list[dict[str, Any]]:
    return parse((content or b"").decode("utf-8", "replace"), kinds)


def manifest_of(folder: Path) -> dict[str, Any]:
    """Return the manifest of the final checkpoint in an artifact.

    Return {} for other folders and for a damaged manifest, so that metrics are still shown.
    """
    found = sorted(folder.glob("step-*/MANIFEST.json"))
    with contextlib.suppress(OSError, untrusted_input.UnusableDocument):
        return untrusted_input.load(found[-1]) if found else {}
    return {}


def about_of(folder: Path) -> dict[str, Any]:
    """Return the facts recorded in the manifest of an artifact; {} for a damaged manifest."""
    with contextlib.suppress(OSError, untrusted_input.UnusableDocument):
        return untrusted_input.typed(untrusted_input.load(folder / "ARTIFACT.json"), "about", dict, {})
    return {}


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
