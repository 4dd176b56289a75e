"""Views of results: datasets with reports, sweeps, and run reports as HTML pages."""

from pathlib import Path
from typing import Any

from flows.reading.story import story_of
from flows.runs import run_groups
from packs.page.views.page_context import PageContext
from packs.page.views.sections.ask import View, ViewQuery
from store import credentials
from store.artifacts.artifacts import Store
from store.manifest import Artifact, StoreError
from trainer.reporting import comparison, run_report

REPORT = "report.html"
MOST_REPORT_BYTES = 32 << 20
UNDER_WAY = ("running", "detached")


def data(context: PageContext, asked: ViewQuery) -> dict[str, Any]:
    """Return the artifacts of the store with the plain metadata of their makers."""
    store, rows = Store(context.settings.store), []
    for one in context.artifacts():
        plain = {key: value for key, value in one.about.items() if isinstance(value, (str, int, float, bool))}
        rows.append(
            {
                "name": one.name,
                "fingerprint": one.fingerprint,
                "problem": one.problem,
                "about": plain,
                "has_report": _report_of(store, one) is not None,
            }
        )
    return {"store": context.settings.store, "artifacts": rows, "command": "inv ckpt.list"}


def sweeping(context: PageContext, asked: ViewQuery) -> dict[str, Any]:
    """Return the recorded run groups, most recently changed first, with the current state of each run."""
    views = {view.run: view for view in context.runs()}
    found = []
    for group in run_groups.recorded_groups(context.settings).values():
        runs = []
        for one in group.runs.values():
            view = views.get(one.run)
            state = view.state if view and one.state in UNDER_WAY else one.state
            runs.append(
                {"run": one.run, "state": state, "reason": one.reason, "is_known": view is not None, **one.details}
            )
        found.append({"name": group.name, "is_over": group.is_over, "trials": runs, **group.details})
    return {"sweeps": found, "command": "inv sweep FILE"}


DATA, SWEEPS = View(data), View(sweeping)


def report(context: PageContext, asked: ViewQuery) -> str:
    """Return the HTML report of one run, or of two runs side by side, as `inv report` writes it.

    Raise SlipwayError for an unknown run.
    """
    words = asked.words("run")[:2] or [""]
    with context.journal() as journal:
        stories = [story_of(one, journal, context.settings, context.tell) for one in words]
    return comparison.page(*stories) if len(stories) == 2 else run_report.page(stories[0])


def data_report(context: PageContext, asked: ViewQuery) -> str:
    """Return the HTML report beside the shards. Raise StoreError without a report."""
    name = asked.word("name")
    store = Store(context.settings.store)
    found = store.check(name)
    path = _report_of(store, found)
    if path is None:
        raise StoreError(f"{name} has no report; make a report with: inv shard --report FOLDER")
    with path.open("rb") as file:
        return file.read(MOST_REPORT_BYTES).decode("utf-8", "replace")


def _report_of(store: Store, one: Artifact) -> Path | None:
    """Return the report file of an artifact in a local store, or None. Reports of remote stores are not downloaded."""
    if one.problem or credentials.kind(store.uri) != "":
        return None
    folder = store.path(one.name, one.fingerprint)
    return next((path for path in (folder / REPORT, folder / "train" / REPORT) if path.is_file()), None)
