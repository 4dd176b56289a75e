"""Text for people about services, their replicas and answered requests."""

import json
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from infra.units import micro_usd, rate
from scripts.cli import render
from scripts.cli.render import columns
from store import terminal

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult

NONE = "no service is running. Start a service: inv serve.up"


def lines_about(one: dict[str, Any], with_replicas: bool) -> list[str]:
    """Return the lines about a service. `one`: a document of `flows.services.service_view.look`."""
    versions = ", ".join(map(str, one["versions"])) or "-"
    lines = [f"Service: {one['service']}  {one['state']}  version {versions}"]
    lines += [f"Endpoint: {one['endpoint'] or 'none yet'}", f"Replicas: {one['ready']}/{one['target']} ready"]
    if one["held"]:
        lines.append(f"Held: {one['held']}")
    if found := one.get("certificate"):
        lines.append(f"Certificate: {found['problem'] or 'ends ' + found['ends']}")
    if with_replicas and one["replicas"]:
        lines.append(table(one["replicas"]))
    for starting in one["replicas"] if not with_replicas else ():
        if starting["at"]:
            lines.append(f"Starting: {starting['run']}, {starting['at']}")
    if "metrics" in one:
        lines.append(columns([(key, str(value)) for key, value in flat(one["metrics"])]))
    return [render.clean(line) for line in lines]


def table(replicas: Sequence[dict[str, Any]]) -> str:
    rows = [("id", "version", "state", "where", "kind", "USD/h", "age", "")]
    for one in replicas:
        rows.append(
            (
                str(one["id"]),
                str(one["version"]),
                one["state"],
                one["where"] or "-",
                one["kind"],
                rate(micro_usd(one["usd_per_hour"])),
                render.duration(one["age_s"]),
                one["why"] or one["at"] or "",
            )
        )
    return columns(rows, least=(4, 1, 5, 6))


def flat(found: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in found.items():
        if isinstance(value, dict):
            yield from flat(value, f"{before}{key}.")
        elif isinstance(value, list):
            yield from ((f"{before}{key}", f"{one['at']}  {one['ready']}") for one in value)
        else:
            yield f"{before}{key}", "-" if value is None else value


def watch_screen(found: Sequence[dict[str, Any]], every_s: float) -> str:
    """Return the text of `serve.status --watch` for a single refresh."""
    clock = datetime.now().strftime("%H:%M:%S")
    head = f"{clock}, refreshed every {render.duration(every_s)}; Ctrl-C ends this view, not the services"
    each = ["\n".join(lines_about(one, with_replicas=True)) for one in found] or [NONE]
    return "\n\n".join([head, *each])


class FittedText:
    """A text that fits the terminal: wrapped at spaces, and without lines in the middle."""

    def __init__(self, text: str) -> None:
        self._text = text

    def __rich_console__(self, console: "Console", options: "ConsoleOptions") -> "RenderResult":
        from rich.text import Text

        width, height = options.max_width, options.height or options.max_height
        lines = list(Text(terminal.wrap_to(self._text, width), overflow="fold").wrap(console, width))
        if (over := len(lines) - height) > 0:
            head = max(1, (height - 1) // 3)
            note = Text(f"{render.count(over + 1, 'line')} left out; inv serve.status --all shows all lines")
            note.truncate(width)
            lines[head : head + over + 1] = [note]
        yield Text("\n").join(lines)


def request_line(text: str) -> str:
    """Format a line of the gateway's log for people; return an unparsable line unchanged."""
    try:
        one = json.loads(text)
        at = datetime.fromtimestamp(one["at"]).strftime("%H:%M:%S")
        parts = [at, str(one["status"]), f"{one['route']:<20}", f"{one['total_s']:.3f} s"]
        parts += [f"first byte {one['first_byte_s']:.3f} s"] if one["first_byte_s"] is not None else []
        parts += [f"queued {one['queue_s']:.3f} s"] if one["queue_s"] else []
        parts += [f"by {one['replica']}"] if one["replica"] else []
        parts += [f"key {one['key']}"] if one["key"] else []
        parts += [render.count(one["tries"], "attempt")] if one["tries"] > 1 else []
        return "  ".join([*parts, *([one["note"]] if one["note"] else [])])
    except (ValueError, KeyError, TypeError):
        return text
