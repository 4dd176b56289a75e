"""The command `serve.status`: the state of services, printed once or refreshed."""

import contextlib
import time
from dataclasses import dataclass

from flows.services import engine_services
from flows.services.service_view import look
from infra.flags import flag
from infra.ledger import service_rows
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.session import open_journal
from scripts.services import engine_service, services_text
from scripts.services.one_service import restart_controller, show
from serve.processes import controller_client
from store import terminal

WATCH_S = 5.0  # cheap: the data is on this machine


@dataclass(frozen=True, kw_only=True)
class ServeStatusFlags(Output):
    name: str = flag("", "name of the service (default: all)", word=True, also=("n",))
    all: bool = flag(False, "show one line per replica")
    metrics: bool = flag(False, "show requests per second, latencies and replicas over time, from the gateway's log")
    watch: str | bool | None = flag(None, "refresh the table every N seconds (5)", unit="SECONDS", bare=True)


@command(record=ServeStatusFlags, example="inv serve.status demo --metrics")
def status(spec: ServeStatusFlags) -> None:
    """Show services: address, ready replicas, state of each."""
    from rich.text import Text

    settings = context.settings()
    every_s = context.watch_seconds(spec.watch, WATCH_S)
    out = render.console(stderr=False)
    redraw = render.screen(out) if every_s is not None and not spec.json else contextlib.nullcontext()
    with open_journal(settings) as journal, redraw as redrawn:
        if op := engine_services.find(spec.name, journal):
            engine_service.show([op], settings, with_replicas=spec.all, as_json=spec.json)
            return
        while True:
            names = (
                [controller_client.find(spec.name, journal)]
                if spec.name
                else [one.name for one in service_rows.list_services(journal)]
            )
            asked = terminal.show_while(f"{', '.join(names)}: asked") if redrawn is None else contextlib.nullcontext()
            with asked:
                for one in names:
                    restart_controller(one, settings, journal)
            if redrawn is None or every_s is None:
                of_engines = [] if spec.name else engine_services.rows(journal)
                others = look(names, settings, journal, spec.metrics) if of_engines and spec.json else []
                if not of_engines or names and not spec.json:
                    show(names, settings, journal, with_replicas=spec.all, with_metrics=spec.metrics, as_json=spec.json)
                if of_engines:
                    engine_service.show(of_engines, settings, with_replicas=spec.all, as_json=spec.json, others=others)
            else:
                found = look(names, settings, journal, spec.metrics)
                text = services_text.watch_screen(found, every_s)
                redrawn(services_text.FittedText(text) if out.is_terminal else Text(text, no_wrap=True))
            if every_s is None:
                return
            time.sleep(every_s)
