"""The command `inv report`: the page of runs, or of a report on shards, as one file."""

import hashlib
import os
import webbrowser
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra.checkout import ROOT
from infra.flags import flag
from packs.page.views import export
from packs.page.views.page_context import PageContext
from packs.page.views.run_sources import folder_name, name_of
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import print_json
from scripts.cli.session import open_journal
from scripts.runs import status
from store import terminal, untrusted_input

FIRST_BYTES = 150  # of the first name, if the folder of a page cannot have all names


@dataclass(frozen=True, kw_only=True)
class ReportFlags(Output):
    run: tuple[str, ...] = flag(
        (),
        "a run, an artifact such as base_checkpoints/smoke, a folder with metrics or with a report on shards, or "
        "foreground (the last inv train); give several to compare",
        word=True,
    )
    out: str = flag("", "folder for the page (default: var/reports/RUN)", unit="FOLDER")
    open: bool = flag(False, "open the page in the browser")


@command(record=ReportFlags, example="inv report brave-otter-3")
def report(spec: ReportFlags) -> None:
    """Write a page about runs: curves, cost, samples.

    The page is a single HTML file, which needs no network. Several runs share the charts, with the differences between
    their recipes. For a folder with report.json, the page shows the report on the shards.
    """
    settings = context.settings()
    with terminal.show_while("reading metrics and writing the page"):
        seen = PageContext(settings, say=render.tell)
        if folder := export.shards_of(spec.run):
            names, shown = [folder_name(spec.run[0])], export.of_shards(folder)
            about: dict[str, Any] = {"folder": str(folder)}
        else:
            with open_journal(settings) as journal:
                status.settle_due(seen.runs(), journal, settings)
                names = list(dict.fromkeys(name_of(seen, one, journal) for one in spec.run or ("",)))
            about = export.about_runs(seen, names)
            shown = export.of_runs(seen, names)
        folder_of_page = Path(os.path.expanduser(spec.out)) if spec.out else ROOT / "var" / "reports" / page_name(names)
        page = export.write(folder_of_page.absolute() / "report.html", shown)
    if spec.json:
        print_json({**about, "page": str(page)})
    else:
        print(page)
    if spec.open and not webbrowser.open(page.as_uri()):
        render.say(f"this machine has no browser to open; the page is {page}")


def page_name(names: Sequence[str]) -> str:
    """Return the name of the folder for a page: all names, or a cut first name, the number of others, and a digest."""
    parts = [one.strip("/").replace("/", "-") or "root" for one in names]
    whole = "-and-".join(parts)
    if len(os.fsencode(whole)) <= untrusted_input.NAME_BYTES:
        return whole
    first = os.fsencode(parts[0])[:FIRST_BYTES].decode("utf-8", "ignore")
    more = f"-and-{len(parts) - 1}-more" if len(parts) > 1 else ""
    return f"{first}{more}-{hashlib.sha256(os.fsencode(whole)).hexdigest()[:8]}"
