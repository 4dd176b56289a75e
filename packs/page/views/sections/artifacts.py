"""Views of results: artifacts, reports on shards, and sweeps."""

import shlex
from pathlib import Path
from typing import Any

import msgspec

from flows.runs import run_groups
from infra.errors import UsageError
from packs.page.views.page_context import PageContext
from packs.page.views.sections.ask import View, ViewQuery
from packs.page.views.shard_report import ShardReport
from store import credentials, untrusted_input
from store.artifacts.artifacts import Store
from store.manifest import Artifact, StoreError

REPORT = "report.json"
SLOW_S = 5.0
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
    """Return the recorded run groups, most recently changed first, with the current state of each run.

    With a name, return this group only, with the evaluation of the group.
    """
    views = {view.run: view for view in context.runs()}
    found = []
    for group in run_groups.recorded_groups(context.settings).values():
        if asked.word("name") not in ("", group.name):
            continue
        runs = []
        for one in group.runs.values():
            view = views.get(one.run)
            state = view.state if view and one.state in UNDER_WAY else one.state
            runs.append(
                {"run": one.run, "state": state, "reason": one.reason, "is_known": view is not None, **one.details}
            )
        answer = group.evaluate() if asked.word("name") else {}
        found.append({"name": group.name, "is_over": group.is_over, "trials": runs, **group.details, **answer})
    command = f"inv sweep {shlex.quote(asked.word('name'))} --report" if asked.word("name") else "inv sweep FILE"
    return {"sweeps": found, "command": command}


def data_report(context: PageContext, asked: ViewQuery) -> dict[str, Any]:
    """Return the report beside the shards of an artifact. Raise StoreError without a report."""
    name = asked.word("name")
    store = Store(context.settings.store)
    path = _report_of(store, store.check(name))
    if path is None:
        raise StoreError(f"{name} has no report; make a report with: inv shard --report FOLDER")
    return {"report": read_report(path), "command": f"inv shard --report {shlex.quote(str(path.parent))}"}


def report_in(folder: Path) -> Path | None:
    """Return the report in a folder of shards, or None. In an artifact of the store the file is hidden."""
    return next((folder / name for name in (REPORT, f".{REPORT}") if (folder / name).is_file()), None)


def read_report(path: Path) -> ShardReport:
    """Return the content of a report on shards. Raise UsageError for an unreadable file, or a file of other content."""
    try:
        # File names may not be valid UTF-8.
        return msgspec.convert(untrusted_input.load(path, half_pairs="surrogateescape"), ShardReport)
    except (OSError, untrusted_input.UnusableDocument, msgspec.ValidationError) as error:
        again = f"inv shard --report {shlex.quote(str(path.parent))}"
        raise UsageError(f"{path}: {error}; write the report again: {again}") from None


DATA, SWEEPS, DATA_REPORT = View(data), View(sweeping), View(data_report, every_s=SLOW_S)


def _report_of(store: Store, one: Artifact) -> Path | None:
    """Return the report file of an artifact in a local store, or None. Reports of remote stores are not downloaded."""
    if one.problem or credentials.kind(store.uri) != "":
        return None
    folder = Path(store.uri) / one.name
    return report_in(folder) or report_in(folder / "train")
