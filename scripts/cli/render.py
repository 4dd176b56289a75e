"""Output of commands: notices on stderr, tables and JSON on stdout, and formats of times and amounts.

This module makes no decisions. Separate modules render plans, steps, runs and scores.
"""

import contextlib
import errno
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, is_dataclass
from typing import TYPE_CHECKING, Any, TextIO

from infra.interrupts import ExitRequested
from infra.units import cents as cents
from infra.units import count as count
from infra.units import dollars
from infra.units import duration as duration
from infra.units import iso as iso
from infra.units import size as size
from scripts.cli import command_hints
from store import terminal

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult


usd = dollars
WIDEST = 10_000  # columns: programs reading a table expect a row per line
RIGHT = set("time about cost age at loss tok/s MFU left GPU memory".split()) | {"disk free", "A", "B", "B - A"}


def say(words: str) -> None:
    """Print to stderr and flush. Raises ExitRequested if the terminal was closed, since no step has failed."""
    try:
        terminal.clear()
        print(terminal.wrap_text(command_hints.insert_carried_flags(words), sys.stderr), file=sys.stderr, flush=True)
    except OSError as error:
        if error.errno != errno.EIO:
            raise
        raise ExitRequested(signal.SIGHUP) from error


def clean(text: str) -> str:
    """Remove control sequences from untrusted text, so that output of a pod cannot control the terminal."""
    return "".join(letter for letter in text if letter in "\n\t" or letter.isprintable())


def tell(words: str) -> None:
    """Print text that may quote a vendor, a pod or another program, without control sequences."""
    say(clean(words))


def console(stderr: bool = True) -> "Console":
    """Return a console for tables, as wide as the terminal, or `WIDEST` columns if a program reads the output."""
    from rich.console import Console

    class Frank(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # rich itself would exit with code 1

    is_read_by_people = (sys.stderr if stderr else sys.stdout).isatty() or "COLUMNS" in os.environ
    return Frank(stderr=stderr, highlight=False, width=None if is_read_by_people else WIDEST)


def is_plain(stderr: bool) -> bool:
    """Return whether the stream is no terminal, and no variable asks for a width or colours."""
    asked = {"COLUMNS", "FORCE_COLOR", "TTY_COMPATIBLE"} & os.environ.keys()
    return not (asked or (sys.stderr if stderr else sys.stdout).isatty())


def new_table(*headings: str) -> Any:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 2, 0, 0))
    for one in headings:
        no_wrap = one not in ("why", "beside", "measure")
        table.add_column(one, justify="right" if one in RIGHT else "left", no_wrap=no_wrap)
    return table


class FittedTable:
    """A table with optional columns, dropped if the terminal is too narrow: run names must not be truncated."""

    def __init__(self, *headings: str, least: Sequence[int]) -> None:
        """Store the headings, and the indices of the optional columns, the least important first."""
        self._headings, self._optional_columns, self._rows = headings, least, list[tuple[str, ...]]()

    def add_row(self, *cells: str) -> None:
        self._rows.append(cells)

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        for left_out in range(len(self._optional_columns) + 1):
            shown = [at for at in range(len(self._headings)) if at not in self._optional_columns[:left_out]]
            table = new_table(*(self._headings[at] for at in shown))
            for row in self._rows:
                table.add_row(*(row[at] for at in shown if at < len(row)))
            if console.measure(table, options=options.update(max_width=WIDEST)).maximum <= options.max_width:
                break
        yield table


def columns(rows: Sequence[Sequence[str]], least: Sequence[int] = (), out: TextIO | None = None) -> str:
    """Return rows as aligned text; on a narrow terminal `out` (default: stdout) wrapped, without columns `least`."""
    widths, out = [max(map(len, column)) for column in zip(*rows, strict=True)], out or sys.stdout
    shown, room = [*range(len(widths))], terminal.width_of(out) if out.isatty() else WIDEST
    for at in least:
        if sum(widths[one] + 2 for one in shown) - 2 > room:
            shown.remove(at)
    lines = ("  ".join(row[at].ljust(widths[at]) for at in shown).rstrip() for row in rows)
    return terminal.wrap_text("\n".join(lines), out)


@contextlib.contextmanager
def screen(out: "Console") -> Iterator[Callable[[Any], None]]:
    """Yield a function that shows a table: replacing the last table on a terminal, otherwise below."""
    if not out.is_terminal:
        yield out.print
        return
    from rich.live import Live

    with Live(console=out, screen=True, auto_refresh=False) as live:
        yield lambda what: live.update(what, refresh=True)


def print_json(document: Any, indent: int | None = 1) -> None:
    """Print a JSON document on stdout and flush.

    Dataclasses become objects; paths, times and amounts become strings.
    """

    def plain(value: Any) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            return asdict(value)
        return value.isoformat() if hasattr(value, "isoformat") else str(value)

    print(json.dumps(document, default=plain, indent=indent), flush=True)
