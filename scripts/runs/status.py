"""What `status` does: the table of runs, once or again and again."""

import functools
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.providers import registry
from infra.runs import observe
from infra.runs.lookup import find_run
from infra.runs.settle import settle
from infra.settings import VENDORS, Settings
from scripts.cli import context, render
from scripts.cli.invoke_patch import print_json
from scripts.cli.session import open_journal


def status(run, watch, json):
    settings = context.settings()
    every_s = context.watch_seconds(watch)
    with open_journal(settings) as journal:
        if every_s is None:
            views = snapshot(journal, settings, run)
            if json:
                print_json([render.view_json(view) for view in views])
            elif views:
                render.console(stderr=False).print(render.status_table(views), soft_wrap=True)
            else:
                render.say("no runs yet; begin with: ./inv launch --phase sft")
            return
        redraw(journal, settings, run, every_s, json)


def snapshot(journal: Journal, settings: Settings, run: str) -> list[Any]:
    """The table's rows, newest first. What has ended is settled on the way; a deaf pod holds up nobody."""
    vendors = {}
    for name in {op.vendor for op in journal.ops()}:
        with suppress(UsageError):  # no inventory any more, say: its rows say that their provider is not set up
            vendors[name] = registry.provider(settings, name)
    name = find_run(journal, run).run if run else ""
    look = functools.partial(observe.snapshot, journal, vendors, settings.homes, named=name)
    views = look()[::-1]
    ended = {view.run for view in views if view.state not in ("running", "lost", "idle")}
    rented = [view for view in views if view.provider in VENDORS]
    ended |= {view.run for view in rented if view.state == "lost" or view.limit_in_s == 0}  # it may bill
    due = [op.token for op in journal.ops(live=True) if op.vendor == "local" or op.run in ended]
    if due:
        settle(journal, settings, render.tell, due)
        if any(not journal.op(token).is_live for token in due):
            views = look()[::-1]
    return [view for view in views if not name or view.run == name]


def redraw(journal: Journal, settings: Settings, run: str, every_s: float, as_json: bool) -> None:
    """Until Ctrl-C. On a terminal one table that changes in place; elsewhere a table, or a JSON line, per look."""
    out = render.console(stderr=False)
    with screen(out) as show:
        while True:
            views = snapshot(journal, settings, run)
            if as_json:
                print_json([render.view_json(view) for view in views], indent=None)
            else:
                show(render.watch_screen(views, every_s))
            time.sleep(every_s)


@contextmanager
def screen(out: Any) -> Iterator[Any]:
    if not out.is_terminal:
        yield out.print
        return
    from rich.live import Live

    with Live(console=out, screen=True, auto_refresh=False) as live:
        yield lambda what: live.update(what, refresh=True)
