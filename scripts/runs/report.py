"""What `inv report` does: a run, wherever its figures are, as one page and a picture of each curve.

In: the name of a run, of an artifact, or a folder. Out: `report.html` and PNGs in a folder.
"""

from pathlib import Path

from flows import status as use_case
from flows.reading.story import story_of
from infra.checkout import ROOT
from scripts.cli import context, render
from scripts.cli.invoke_patch import print_json
from scripts.cli.session import open_journal
from scripts.runs import status
from scripts.runs.flags import ReportFlags
from trainer.reporting.run_report import Story, charts, page


def report(spec: ReportFlags) -> None:
    settings = context.settings()
    with open_journal(settings) as journal:
        status.settle_due(use_case.status(journal, settings, ""), journal, settings)
        story = story_of(spec.run, journal, settings, render.tell)
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
