"""The command `inv report`: an HTML page about a run, or a comparison of two runs, with PNG curves.

The input is the name of a run or an artifact, or a folder; or two of these. The output is a folder with `report.html`
and the PNGs.
"""

import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.reading import status as use_case
from flows.reading.story import story_of
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.flags import flag
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import print_json
from scripts.cli.session import open_journal
from scripts.runs import status
from store import terminal
from trainer.reporting import comparison
from trainer.reporting.run_report import Story, charts, cost_chart, memory_chart, page


@dataclass(frozen=True, kw_only=True)
class ReportFlags(Output):
    run: tuple[str, ...] = flag(
        (),
        "a run, an artifact such as base_checkpoints/smoke, a folder, or foreground (the last inv "
        "train); give two to compare",
        word=True,
    )
    out: str = flag("", "folder for the page and the pictures (default: var/reports/RUN)", unit="FOLDER")
    open: bool = flag(False, "open the page in the browser")


@command(record=ReportFlags, example="inv report brave-otter-3")
def report(spec: ReportFlags) -> None:
    """Write an HTML page about a run: curves, cost, samples.

    The page is a single HTML file; each curve is also written as a PNG. For two runs the page shows the curves in
    shared charts, and the differences between the recipes.
    """
    settings = context.settings()
    if len(spec.run) > 2:
        raise UsageError(f"inv report takes at most two runs, not {len(spec.run)}. To compare more runs: inv ui")
    with terminal.show_while("reading metrics and writing the page"):
        with open_journal(settings) as journal:
            status.settle_due(use_case.status(journal, settings, ""), journal, settings)
            stories = [story_of(one, journal, settings, render.tell) for one in spec.run or ("",)]
        for story in stories:
            if not any(phase.lines for phase in story.phases):
                render.say(f"{story.run} has written no metrics yet, so the page has no curves")
        name = "-and-".join(one.run.replace("/", "-") for one in stories)
        folder = Path(spec.out or ROOT / "var" / "reports" / name).absolute()
        pictures = compare(stories[0], stories[1], folder) if len(stories) == 2 else write(stories[0], folder)
    target = folder / "report.html"
    if spec.json:
        print_json({**about(stories), "page": str(target), "pictures": pictures})
    else:
        print(target)
    if spec.open and not webbrowser.open(target.as_uri()):
        render.say(f"this machine has no browser to open; the page is {target}")


def about(stories: Sequence[Story]) -> dict[str, Any]:
    """Return the page contents for JSON: the phases of a single run, or the names and differences of two."""
    if len(stories) == 2:
        return {"runs": [one.run for one in stories], "differences": comparison.all_differences(*stories)}
    phases = [{"name": one.name, "state": one.state or None, "steps": len(one.lines)} for one in stories[0].phases]
    return {"run": stories[0].run, "phases": phases}


def write(story: Story, folder: Path) -> list[str]:
    """Write the page and the pictures into `folder`; return the names of the pictures."""
    from trainer.reporting.chart import png

    folder.mkdir(parents=True, exist_ok=True)
    pictures = {f"{phase.name}-{name}.png": chart for phase in story.phases for name, chart in charts(phase, story)}
    if cost := cost_chart(story):
        pictures["cost.png"] = cost
    if memory := memory_chart(story):
        pictures["gpu-memory.png"] = memory
    for name, chart in pictures.items():
        (folder / name).write_bytes(png(chart))
    (folder / "report.html").write_text(page(story), encoding="utf-8")
    return sorted(pictures)


def compare(first: Story, second: Story, folder: Path) -> list[str]:
    """Write the comparison page into `folder`. Return [], because the page contains the curves."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "report.html").write_text(comparison.page(first, second), encoding="utf-8")
    return []
