"""Export of the page as one file that any browser opens offline, for `inv ui --export`, `inv report` and sweeps.

The written file contains the style, the modules and the current content of views. Browsers do not load modules from
local files, so the modules are embedded and import each other through an import map.
"""

import base64
import errno
import json
import re
import shlex
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

from infra.errors import SlipwayError, UsageError
from infra.runs.timing import Say
from infra.settings import Settings
from infra.units import moment
from packs.page.views.figures import BY
from packs.page.views.page_context import PageContext
from packs.page.views.run_sources import figures_of, folder_name, folders, source_of
from packs.page.views.sections import VIEWS
from packs.page.views.sections.artifacts import REPORT, read_report, report_in
from packs.page.views.sections.ask import ViewQuery
from store.manifest import StoreError
from trainer.reporting.config_differences import differences

STATIC = Path(__file__).parent / "static"
ALONE = "runs", "pods", "logs", "services", "cost", "offers", "sweeps", "data"
MOST_RUNS = 50
MOST_REPORTS = 20
NO_PLACE = (errno.EEXIST, errno.EISDIR, errno.ENOTDIR, errno.ENAMETOOLONG)  # errors of a path that cannot be a page
IMPORT = re.compile(r'((?:from|import) )"(\.\.?/[^"]+)"')


def write(path: Path, shown: dict[str, Any]) -> Path:
    """Write the page with the content of views, and return the path. Raise UsageError if the path cannot be a file."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(document(shown), encoding="utf-8")
    except OSError as error:
        if error.errno not in NO_PLACE:
            raise
        raise UsageError(
            f"the page cannot be written to {path}: {error.strerror}; give a different folder: "
            "inv report --out FOLDER, inv ui --export FOLDER"
        ) from None
    return path


def whole(context: PageContext) -> dict[str, Any]:
    """Return the current content of each view, by view name and query."""
    found = {**_about(), **{name: _look(context, name, {}) for name in ALONE}}
    runs = [one["run"] for one in found["runs"].get("runs", ())][:MOST_RUNS]
    found |= _curves(context, runs)
    for run in runs:
        found[f"logs {run}"] = _look(context, "logs", {"run": run})
    for one in found["sweeps"].get("sweeps", ()):
        found[f"sweeps {one['name']}"] = _look(context, "sweeps", {"name": one["name"]})
    reports = [one["name"] for one in found["data"].get("artifacts", ()) if one["has_report"]]
    for name in reports[:MOST_REPORTS]:
        found[f"data_report {name}"] = _look(context, "data_report", {"name": name})
    return found


def of_runs(context: PageContext, runs: Sequence[str]) -> dict[str, Any]:
    """Return the content of the views of some runs, which the page opens first."""
    listed = _look(context, "runs", {})
    rows = [one for one in listed.get("runs", ()) if one["run"] in runs]
    return {
        **_about(f"curves?{urlencode({'runs': ','.join(runs)})}"),
        "runs": {**listed, "runs": rows, "command": "inv status"},
        **_curves(context, runs),
    }


def write_group(settings: Settings, name: str, folder: Path, tell: Say) -> Path:
    """Write the page of a run group into a folder, with the curves of the runs, and return the path."""
    context = PageContext(settings, say=tell)
    group = _look(context, "sweeps", {"name": name})
    runs = [one["run"] for one in group["sweeps"][0]["trials"] if one["is_known"]] if group.get("sweeps") else []
    shown = of_runs(context, runs[:MOST_RUNS])
    shown |= {**_about(f"sweeps?{urlencode({'name': name})}"), "sweeps": group, f"sweeps {name}": group}
    return write(folder / "page.html", shown)


def shards_of(words: Sequence[str]) -> Path | None:
    """Return the folder of a report on shards, if the only typed word names a folder with a report.

    Return None for a folder with metrics, whose report.json is the file of a training.
    """
    folder = Path(folder_name(words[0])).absolute() if len(words) == 1 else None
    return folder if folder and report_in(folder) and not folders(folder) else None


def of_shards(folder: Path) -> dict[str, Any]:
    """Return the content of the view of a report on shards. Raise UsageError for an unreadable report."""
    shown = {
        "report": read_report(report_in(folder) or folder / REPORT),
        "command": f"inv shard --report {shlex.quote(str(folder))}",
    }
    return {**_about(f"data?{urlencode({'report': folder.name})}"), f"data_report {folder.name}": shown}


def about_runs(context: PageContext, runs: Sequence[str]) -> dict[str, Any]:
    """Return the content of a page for JSON: the phases of a single run, or the names and differences of several.

    A message names each run without metrics.
    """
    with context.journal() as journal:
        sources = [source_of(context, one, journal, journal.version()) for one in runs]
    counts = {
        one.run: {name: len(figures_of(context, one, name).get()[0].steps) for name in one.phases} for one in sources
    }
    for run, steps in counts.items():
        if not any(steps.values()):
            context.add_note(f"{run} has written no metrics yet, so the page has no curves")
    if len(sources) > 1:
        common = [name for name in sources[0].phases if all(name in one.phases for one in sources)]
        configs = {name: {one.run: one.phases[name] for one in sources} for name in common}
        return {"runs": list(runs), "differences": {name: differences(one) for name, one in configs.items()}}
    view = next((one for one in context.runs() if one.run == runs[0]), None)
    states = {one["name"]: one["state"] for one in (view.progress.get("steps", ()) if view else ())}
    phases = [{"name": name, "state": states.get(name), "steps": steps} for name, steps in counts[runs[0]].items()]
    return {"run": runs[0], "phases": phases}


def document(shown: dict[str, Any]) -> str:
    """Return the page as HTML with embedded style, modules and content."""
    modules = {path.relative_to(STATIC).as_posix(): path.read_text(encoding="utf-8") for path in STATIC.rglob("*.js")}
    imports = {f"slipway/{name}": _url(_named(name, text)) for name, text in modules.items()}
    page = (STATIC / "index.html").read_text(encoding="utf-8")
    style = (STATIC / "style.css").read_text(encoding="utf-8")
    page = page.replace('<link rel="stylesheet" href="/static/style.css">', f"<style>{style}</style>")
    page = page.replace('<link rel="icon" href="/static/icon.svg">\n', "")
    parts = (
        f'<script type="importmap">{_inside({"imports": imports})}</script>\n'
        f'<script type="application/json" id="kept">{_inside(shown)}</script>\n'
        '<script type="module">import "slipway/app.js";</script>'
    )
    return page.replace('<script type="module" src="/static/app.js"></script>', parts)


def _about(start: str = "runs") -> dict[str, Any]:
    return {"about": {"acts_allowed": False, "start": start, "written": moment(time.time())}}


def _curves(context: PageContext, runs: Sequence[str]) -> dict[str, Any]:
    """Return the curves of runs by run, phase and axis, and once per run the default phase and the curves over time.

    For an axis other than the steps, only positions and marks are repeated. An error takes the place of what could not
    be read, and is a message.
    """
    found: dict[str, Any] = {}
    for run in runs:
        asked = {"runs": run, "among": str(len(runs))}
        first = _look(context, "curves", asked)
        about = first.get("about", {"phases": (), **first})
        if "error" in first:
            context.add_note(f"{run}: {first['error']}")
        found[f"over {run}"] = first.get(f"over {run}", {})
        found[f"curves {run}"] = about
        for phase in about["phases"]:
            for by in BY:
                parts = _look(context, "curves", {**asked, "phase": phase, "by": by})
                if "error" in parts:
                    context.add_note(f"{run}, {phase}: {parts['error']}")
                    found[f"curves {run} {phase} {by}"] = parts
                    continue
                parts.pop(f"over {run}", None)
                shown = parts.get(f"run {run}", {"figures": {}, "marks": []})
                if by != BY[0]:  # the buckets are those of the first axis
                    parts = {"x": {name: one["x"] for name, one in shown["figures"].items()}, "marks": shown["marks"]}
                found[f"curves {run} {phase} {by}"] = parts
    return found


def _named(module: str, text: str) -> str:
    """Replace relative imports of a module with names of the import map."""

    def name(found: re.Match[str]) -> str:
        inside = (STATIC / module).parent / found[2]
        return f'{found[1]}"slipway/{inside.resolve().relative_to(STATIC.resolve()).as_posix()}"'

    return IMPORT.sub(name, text)


def _url(text: str) -> str:
    return f"data:text/javascript;base64,{base64.b64encode(text.encode()).decode()}"


def _inside(value: Any) -> str:
    """Return JSON that is safe inside a script element: `<` is escaped."""
    return json.dumps(value, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def _look(context: PageContext, name: str, query: dict[str, str]) -> dict[str, Any]:
    try:
        return VIEWS[name].render(context, ViewQuery(query))
    except (SlipwayError, StoreError, OSError) as error:
        return {"error": str(error)}
