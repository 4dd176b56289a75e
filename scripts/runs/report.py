"""What `inv report` does: a run, wherever its figures are, as one page and a picture of each curve.

In: the name of a run, of an artifact, or a folder. Out: `report.html` and PNGs in a folder. The figures of a run are
looked for on its pod, then in the artifacts that its phases have become, then in what the pod's courier has left in
the store, then in what was kept at home of a pod that is gone; the first place that has a file counts.
"""

import contextlib
import time
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from flows.find_model import find_model
from flows.run_figures import places, read
from infra.agent.job import Job
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.ledger.journal import Journal, Op
from infra.money import in_usd, per_hour
from infra.records import PodView
from infra.runs.lookup import find_run, names_of_runs
from infra.settings import Settings
from infra.units import moment
from scripts.cli import context, render
from scripts.cli.invoke_patch import print_json
from scripts.cli.session import open_journal
from scripts.models import scores_text
from scripts.models.eval import Subject, kept
from scripts.runs import status
from scripts.runs.flags import ReportFlags
from store import outside
from trainer.records.phase_registry import PHASES
from trainer.reporting.jsonl_log import FIGURES, SAID, parse
from trainer.reporting.run_report import PhaseStory, Story, charts, page

FOREGROUND = "foreground"  # what `inv train` does here, which is no run of its own


def report(spec: ReportFlags) -> None:
    settings = context.settings()
    story = tell(spec.run, settings)
    if not any(phase.lines for phase in story.phases):
        render.say(f"{story.run} has written no metrics yet")
    folder = Path(spec.out or ROOT / "var" / "reports" / story.run.replace("/", "-")).absolute()
    pictures = write(story, folder)
    target = folder / "report.html"
    if spec.json:
        phases = [{"name": one.name, "state": one.state or None, "steps": len(one.lines)} for one in story.phases]
        print_json({"run": story.run, "page": str(target), "pictures": pictures, "phases": phases})
    else:
        print(target)


def write(story: Story, folder: Path) -> list[str]:
    """Write the page and its pictures into `folder`; return the names of the pictures."""
    from trainer.reporting.chart import png

    folder.mkdir(parents=True, exist_ok=True)
    pictures = {f"{phase.name}-{name}.png": chart for phase in story.phases for name, chart in charts(phase)}
    for name, chart in pictures.items():
        (folder / name).write_bytes(png(chart))
    (folder / "report.html").write_text(page(story), encoding="utf-8")
    return sorted(pictures)


def tell(word: str, settings: Settings) -> Story:
    """Tell the story of the run, the folder or the artifact that `word` means; "" = the last run. Raises UsageError."""
    foreground = ROOT / "var" / "work" / "runs"
    if word == FOREGROUND:
        return of_folder(foreground, FOREGROUND)
    if word and (found := folders(Path(word).expanduser())):
        return of_folder(Path(word).expanduser(), word, found)
    with open_journal(settings) as journal:
        runs = names_of_runs(journal)
        if "/" in word or word and not any(one.startswith(word) for one in runs):
            artifact, folder = find_model(settings, word, "", render.say)
            story = of_folder(folder, word)
            if artifact:
                known = measured(settings, artifact.name, artifact.fingerprint)
                story = replace(story, phases=[replace(one, measured=known) for one in story.phases])
            return story
        if not word and not runs and folders(foreground):
            return of_folder(foreground, FOREGROUND)
        return of_run(find_run(journal, word), journal, settings)


def folders(folder: Path) -> dict[str, Path]:
    """Return, by phase, what holds figures under a folder: an artifact, a run's folder or what is above it."""
    if (folder / "metrics.jsonl").is_file():
        return {str(manifest_of(folder).get("phase") or folder.name): folder}
    found = {
        path.parent.name: path.parent
        for up in ("", "runs", "work/runs")
        for path in (folder / up).glob("*/metrics.jsonl")
    }
    return {name: found[name] for name in (*PHASES, *sorted(found)) if name in found}


def of_folder(folder: Path, name: str, found: Mapping[str, Path] | None = None) -> Story:
    """Return the story of a folder. Raises UsageError when it holds no figures."""
    found = found or folders(folder)
    if not found:
        raise UsageError(f"{folder} holds no metrics.jsonl; name a run, an artifact of the store, or such a folder")
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


def of_run(op: Op, journal: Journal, settings: Settings) -> Story:
    """Return the story of a run: its phases as its job has them, with the figures that can be had."""
    view = next(one for one in status.look(journal, settings, op.run) if one.run == op.run)
    steps = {one["name"]: one for one in view.progress.get("steps", ())}
    job = Job.from_json(op.job)
    spoken = list(places(op, settings, lambda words: render.say(render.clean(words))))

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
        if one.name in PHASES
    ]
    return Story(op.run, list(facts(view)), phases, now(), view.note)


def measured(settings: Settings, name: str, fingerprint: str) -> list[tuple[str, str, str]]:
    """Return what `inv eval` has found of that very model."""
    found = kept(settings, Subject(name, fingerprint, Path())).get("measures", {})
    return [
        (key, f"{scores_text.of_unit(one, one['value'])}{'' if one['unit'] == 'share' else ' ' + one['unit']}",
         scores_text.between(one, one))
        for key, one in found.items()
    ]  # fmt: skip


def facts(view: PodView) -> Iterator[tuple[str, str]]:
    yield "state", view.state
    yield "provider", view.provider
    yield "cost", in_usd(view.spent_micro_usd)
    if view.micro_usd_per_hour:
        yield "price", per_hour(view.micro_usd_per_hour)
    yield "time", render.duration(view.elapsed_s)
    if view.ended_at:
        yield "ended", moment(view.ended_at)
    if view.recoveries:
        yield "recovered", render.count(view.recoveries, "time")


def lines_of(content: bytes | None, kinds: Mapping[str, type] = FIGURES) -> list[dict[str, Any]]:
    return parse((content or b"").decode("utf-8", "replace"), kinds)


def manifest_of(folder: Path) -> dict[str, Any]:
    """Return the manifest of an artifact's final checkpoint.

    {} of any other folder, or where it is damaged: figures are shown yet.
    """
    found = sorted(folder.glob("step-*/MANIFEST.json"))
    with contextlib.suppress(OSError, outside.Unreadable):
        return outside.load(found[-1]) if found else {}
    return {}


def about_of(folder: Path) -> dict[str, Any]:
    """Return what its maker wrote about an artifact; {} where that is damaged."""
    with contextlib.suppress(OSError, outside.Unreadable):
        return outside.typed(outside.load(folder / "ARTIFACT.json"), "about", dict, {})
    return {}


def now() -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime())
