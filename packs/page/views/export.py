"""Export of the page as one file that any browser opens offline: `inv ui --export DIR`.

The written `index.html` contains the style, the modules and the current content of each view. Browsers do not load
modules from local files, so the modules are embedded and import each other through an import map.
"""

import base64
import json
import re
from pathlib import Path
from typing import Any

from infra.errors import SlipwayError
from packs.page.views.figures import BY
from packs.page.views.page_context import PageContext
from packs.page.views.sections import VIEWS
from packs.page.views.sections.ask import ViewQuery
from store.manifest import StoreError

STATIC = Path(__file__).parent / "static"
ALONE = "runs", "pods", "logs", "services", "cost", "offers", "sweeps", "data"
MOST_RUNS = 50
IMPORT = re.compile(r'((?:from|import) )"(\.\.?/[^"]+)"')


def write(context: PageContext, folder: Path) -> Path:
    """Write the page into a folder and return the path."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "index.html"
    path.write_text(document(kept(context)), encoding="utf-8")
    return path


def kept(context: PageContext) -> dict[str, Any]:
    """Return the current content of each view, by view name and query."""
    found: dict[str, Any] = {"about": {"acts_allowed": False, "is_export": True}}
    for name in ALONE:
        found[name] = _look(context, name, {})
    runs = [one["run"] for one in found["runs"].get("runs", ())][:MOST_RUNS]
    for run in runs:
        about = _look(context, "curves", {"runs": run})
        for phase in about.get("about", {}).get("phases", ()):
            for by in BY:
                found[f"curves {run} {phase} {by}"] = _look(context, "curves", {"runs": run, "phase": phase, "by": by})
        found[f"curves {run}"] = about.get("about", {}).get("phase", "")
        found[f"logs {run}"] = _look(context, "logs", {"run": run})
    return found


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
        return VIEWS[name].look(context, ViewQuery(query))
    except (SlipwayError, StoreError, OSError) as error:
        return {"error": str(error)}
