"""The command `serve.status`: services, once or refreshed."""

import contextlib
import time

from flows.services.service_view import look
from infra.ledger import service_rows
from scripts.cli import context, render
from scripts.cli.session import open_journal
from scripts.services import services_text
from scripts.services.flags import ServeStatusFlags
from scripts.services.one_service import show, take_over
from serve.processes import controller_client
from store import moving_line

WATCH_S = 5.0  # what is shown lies on this machine


def status(spec: ServeStatusFlags) -> None:
    settings = context.settings()
    every_s = context.watch_seconds(spec.watch, WATCH_S)
    out = render.console(stderr=False)
    redraw = render.screen(out) if every_s is not None and not spec.json else contextlib.nullcontext()
    with open_journal(settings) as journal, redraw as redrawn:
        while True:
            names = (
                [controller_client.find(spec.name, journal)]
                if spec.name
                else [one.name for one in service_rows.every(journal)]
            )
            asked = moving_line.waiting(f"{', '.join(names)}: asked") if redrawn is None else contextlib.nullcontext()
            with asked:
                for one in names:
                    take_over(one, settings, journal)
            if redrawn is None or every_s is None:
                show(names, settings, journal, with_replicas=spec.all, with_metrics=spec.metrics, as_json=spec.json)
            else:
                found = look(names, settings, journal, spec.metrics)
                redrawn(services_text.watch_screen(found, every_s))
            if every_s is None:
                return
            time.sleep(every_s)
