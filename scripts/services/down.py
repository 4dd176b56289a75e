"""The command `serve.down`: the shutdown of a service."""

from dataclasses import dataclass

from flows.services import engine_services
from flows.supervisor import supervisor_client
from infra.errors import UsageError
from infra.flags import flag
from infra.ledger import service_rows
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.render import print_json
from scripts.cli.session import open_journal
from scripts.services import engine_service
from scripts.services.one_service import OneServiceFlags
from serve.processes import controller_client
from store import terminal


@dataclass(frozen=True, kw_only=True)
class ServeDownFlags(OneServiceFlags, Output):
    all: bool = flag(False, "every service")


@command(record=ServeDownFlags, example="inv serve.down demo")
def down(spec: ServeDownFlags) -> None:
    """End a service; return when no replica runs.

    Open requests are answered first. A service is reported as gone only when the end of all replicas is proven.
    """
    if spec.name and spec.all:
        raise UsageError(f"--all and {spec.name} exclude each other; give only one")
    settings = context.settings()
    with open_journal(settings) as journal:
        found = engine_services.find(spec.name, journal)
        of_engines = engine_services.rows(journal) if spec.all else [found] if found else []
        for op in of_engines:
            engine_service.down(op, journal, settings)
        if spec.all:
            names = [one.name for one in service_rows.list_services(journal)]
        else:
            names = [] if found else [controller_client.find(spec.name, journal)]
        for one in names:
            with terminal.show_while(f"{one} ends"):
                controller_client.end_service(one, settings, journal, render.tell)
            render.say(f"{one}: ended; no replica is left")
        supervisor_client.stop_if_idle(settings)
        if spec.json:
            print_json({"ended": [*(one.run for one in of_engines), *names]})
        elif not names and not of_engines:
            render.say("no service is running")
