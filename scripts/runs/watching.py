"""The view of `inv status --watch`: redrawn in place every second or every few seconds, within the terminal.

    watch -> Watcher.views -> status_table.watch_screen -> FittedScreen

A redraw asks the pods, and this machine's files for runs on this machine. Answers of vendors, and of engines that run
jobs, are reused for `vendor_s` seconds, so that redraws cost no requests.
"""

import math
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, NoReturn, cast

from flows.reading import status as use_case
from flows.runs import run_groups
from infra.errors import SlipwayError
from infra.ledger.journal import Journal
from infra.providers import Provider
from infra.records import Pod, PodView
from infra.selection import registry
from infra.settings import LOCAL, Settings
from infra.units import count
from scripts.cli import render
from scripts.cli.render import print_json
from scripts.runs import status_table

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderableType, RenderResult

HERE_S, ELSEWHERE_S = 1.0, 5.0  # seconds between redraws: all active runs are on this machine, or any other case
VENDOR_S = 60.0  # seconds between questions to vendors, and between settlements of ended runs

Refresh = Callable[[Journal, Settings, str, use_case.OpenProvider], list[PodView]]


class SlowProvider:
    """A provider with the answers about pods reused for `every_s` seconds; all other members are the provider's."""

    def __init__(self, provider: Provider, every_s: float) -> None:
        self._provider, self._every_s = provider, every_s
        self._answers: dict[str, tuple[float, Any]] = {}

    def __getattr__(self, name: str) -> Any:
        return getattr(self._provider, name)

    def find(self, pod: str) -> Pod | None:
        return cast("Pod | None", self._answer(pod, lambda: self._provider.find(pod)))

    def list(self) -> "list[Pod]":
        return cast("list[Pod]", self._answer("", self._provider.list))

    def _answer(self, key: str, ask: Callable[[], Any]) -> Any:
        at, found = self._answers.get(key, (-math.inf, None))
        if time.monotonic() - at >= self._every_s:
            try:
                found = ask()
            except SlipwayError as error:
                found = error
            self._answers[key] = time.monotonic(), found
        if isinstance(found, SlipwayError):
            raise found
        return found


class Watcher:
    """The rows of successive redraws."""

    def __init__(self, journal: Journal, settings: Settings, run: str, vendor_s: float, refresh: Refresh) -> None:
        self._journal, self._settings, self._run, self._vendor_s = journal, settings, run, vendor_s
        self._refresh = refresh
        self._slow: dict[str, SlowProvider] = {}
        self._settled_at = -math.inf
        self._last: list[PodView] = []

    def views(self) -> list[PodView]:
        """Return the current rows; every `vendor_s` seconds also end and settle due runs, as the plain command does."""
        if time.monotonic() - self._settled_at >= self._vendor_s:
            self._slow.clear()
            self._last = self._refresh(self._journal, self._settings, self._run, self._provider)
            self._settled_at = time.monotonic()
            return self._last
        before = {view.run: view for view in self._last}
        found = use_case.status(self._journal, self._settings, self._run, open_provider=self._provider)
        found = [before.get(one.run, one) if self._is_of_engine(one) else one for one in found]
        groups = run_groups.recorded_groups(self._settings)
        return use_case.of_run(found, self._journal, self._run, groups)

    def _provider(self, settings: Settings, name: str) -> Provider:
        found = registry.provider(settings, name)
        if found.is_here:
            return found
        return cast(Provider, self._slow.setdefault(name, SlowProvider(found, self._vendor_s)))

    def _is_of_engine(self, view: PodView) -> bool:
        with suppress(SlipwayError):
            return registry.provider(self._settings, view.provider).is_run_engine
        return False


class FittedScreen:
    """A screen that fits the terminal: without the oldest ended runs, then without lines in the middle."""

    def __init__(self, views: Sequence[PodView], every_s: float) -> None:
        self._views, self._every_s = list(views), every_s

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.console import Group
        from rich.segment import Segment

        height = options.height or options.max_height
        free = options.update(height=None)
        ended = [view for view in self._views if view.state not in use_case.AT_WORK]
        for left_out in range(len(ended) + 1):
            gone = ended[len(ended) - left_out :]
            shown = [view for view in self._views if view not in gone]
            parts: list[RenderableType] = [status_table.watch_screen(shown, self._every_s)]
            parts += [f"and {count(left_out, 'ended run')}: inv status"] if left_out else []
            lines = console.render_lines(Group(*parts), free, pad=False)
            if len(lines) <= height:
                break
        if (over := len(lines) - height) > 0:
            head = max(1, (height - 1) // 3)
            note = f"{count(over + 1, 'line')} left out; a larger terminal or inv status shows all lines"
            middle = console.render_lines(note, free, pad=False)[:1]
            lines = [*lines[:head], *middle, *lines[head + over + 1 :]]
        for number, line in enumerate(lines):
            yield from line
            if number < len(lines) - 1:
                yield Segment.line()


def seconds_between(views: Sequence[PodView]) -> float:
    """Return the seconds until the next redraw."""
    at_work = [view for view in views if view.state in use_case.AT_WORK]
    return HERE_S if at_work and all(view.provider == LOCAL for view in at_work) else ELSEWHERE_S


def watch(
    journal: Journal,
    settings: Settings,
    run: str,
    typed_s: float | None,
    as_json: bool,
    refresh: Refresh,
    fold: Callable[[list[PodView], Journal, Settings], list[PodView]],
) -> NoReturn:
    """Show the rows until Ctrl-C.

    typed_s: the interval given by the user, also for vendors; None without an interval. refresh: returns the rows after
    the end and settlement of due runs. fold: merges the rows of a group.

    On a terminal the view is redrawn in place. Otherwise each refresh prints a table, or a line of JSON, every
    `VENDOR_S` seconds unless the user gave an interval.
    """
    out = render.console(stderr=False)
    watcher = Watcher(journal, settings, run, VENDOR_S if typed_s is None else typed_s, refresh)
    is_drawn = out.is_terminal and not as_json
    with render.screen(out) as draw:
        while True:
            views = watcher.views()
            every_s = (seconds_between(views) if is_drawn else VENDOR_S) if typed_s is None else typed_s
            if as_json:
                print_json([status_table.view_json(view) for view in views], indent=None)
            else:
                shown = views if run else fold(views, journal, settings)
                draw(FittedScreen(shown, every_s) if is_drawn else status_table.watch_screen(shown, every_s))
            time.sleep(every_s)
