"""The state of runs, for a table or a page. It reads; `due` says what whoever settles has to look after."""

from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from flows.reading import learned
from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.providers import registry
from infra.records import PodView
from infra.runs import observe
from infra.runs.lookup import find_run
from infra.settings import VENDORS, Settings


def status(journal: Journal, settings: Settings, run: str = "", ended: int = 10) -> list[PodView]:
    """Return all that is live and the last `ended`, newest first; `run` is among them, however long ago it ended.

    A pod that does not answer holds up nobody. Raises UsageError when there is no such run.
    """
    vendors = {}
    for name in {op.vendor for op in journal.ops()}:
        with suppress(UsageError):  # no inventory any more, say: its rows say that their provider is not set up
            vendors[name] = registry.provider(settings, name)
    name = find_run(journal, run).run if run else ""
    views = observe.snapshot(journal, vendors, settings.homes, ended=ended, named=name)[::-1]
    return [learned.with_left(view, journal, settings) for view in views]


def of_run(views: list[PodView], journal: Journal, run: str) -> list[PodView]:
    """Return those of the run that is meant; all of them when none is."""
    name = find_run(journal, run).run if run else ""
    return [view for view in views if not name or view.run == name]


def due(views: list[PodView], journal: Journal) -> list[str]:
    """Return the tokens of live rows that `settle` may find ended: their work is over, or they may bill for nothing."""
    ended = {view.run for view in views if view.state not in ("running", "lost", "idle")}
    rented = [view for view in views if view.provider in VENDORS]
    ended |= {view.run for view in rented if view.state == "lost" or view.limit_in_s == 0}  # it may bill
    return [op.token for op in journal.ops(live=True) if op.vendor == "local" or op.run in ended]


def current_record(progress: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the last record of the step that runs, or of the last one that did."""
    for step in reversed(progress.get("steps", ())):
        if step.get("record") and step["state"] != "waiting":
            return step["record"]
    return {}
