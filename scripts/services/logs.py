"""The command `serve.logs`: requests of a service, or the log of an engine or of the controller."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from flows.services import engine_services
from infra.errors import UsageError
from infra.flags import flag
from infra.ledger import service_rows
from infra.ledger.journal import Journal
from infra.runs.lookup import transport_to
from infra.runs.run_home import RunHome
from infra.runs.sync import mirror
from infra.settings import Settings
from scripts.cli import context, render
from scripts.cli.command import command
from scripts.cli.flags import TALK
from scripts.cli.session import open_journal
from scripts.services import engine_service, services_text
from scripts.services.one_service import REPLICA, OneServiceFlags
from serve.processes import controller_client, controller_process

FOLLOW_S = 0.5


@dataclass(frozen=True, kw_only=True)
class ServeLogsFlags(OneServiceFlags):
    replica_id: int | None = flag(None, REPLICA)
    controller: bool = flag(False, "show the controller's log")
    tail: int | None = flag(None, "print only the last N lines")
    follow: bool = flag(False, "keep printing until Ctrl-C")
    json: bool = flag(False, "print requests in the gateway's format, one JSON object per line", group=TALK)


@command(record=ServeLogsFlags, example="inv serve.logs demo --follow")
def logs(spec: ServeLogsFlags) -> None:
    """Print the log of requests, of a replica or the controller.

    Each request is a line without the prompt.
    """
    if spec.tail is not None and spec.tail < 0:
        raise UsageError(f"--tail is {spec.tail}; it cannot be negative")
    if spec.controller and spec.replica_id is not None:
        raise UsageError("--controller and --replica-id exclude each other")
    settings = context.settings()
    with open_journal(settings) as journal:
        if found := engine_services.find(spec.name, journal):
            engine_service.logs(found, settings, spec.replica_id, spec.tail, spec.follow)
            return
        path = lambda: log_path(spec.name, spec.replica_id, spec.controller, settings, journal)  # noqa: E731
        plain = spec.json or spec.controller or spec.replica_id is not None  # only requests are stored as JSON
        line = str if plain else services_text.request_line
        offset = write(path(), 0, spec.tail, line)
        while spec.follow:
            time.sleep(FOLLOW_S)
            offset = write(path(), offset, None, line)


def log_path(name: str, number: int | None, controller: bool, settings: Settings, journal: Journal) -> Path:
    """Return the local path of the log; the log of a remote live replica is fetched first. Raises UsageError."""
    known = [one.name for one in service_rows.list_services(journal)]
    places = controller_process.ServicePaths.for_service(settings, name or "-")
    if name in known or not places.folder.is_dir():  # the logs of an ended service remain on this machine
        name = controller_client.find(name, journal)
    places = controller_process.ServicePaths.for_service(settings, name)
    if controller:
        return places.log
    if number is None:
        return places.access
    rows = journal.ops(run=f"{name}-{number}")
    if not rows:
        numbers = [run.removeprefix(f"{name}-") for run in journal.runs() if run.startswith(f"{name}-")]
        had = ", ".join(sorted(filter(str.isdecimal, numbers), key=int)) or "none"
        see = f"see: inv serve.status {name} --all" if name in known else f"the service has ended; its replicas: {had}"
        raise UsageError(f"{name} never had a replica {number}; {see}")
    home = RunHome.for_run(rows[-1].run, settings.homes)
    if rows[-1].is_live and rows[-1].address:
        mirror.bring_logs(rows[-1], transport_to(settings, rows[-1]), home)
    log = home.pod.log("engine")
    return log if log.exists() else home.pod.log("environment")  # written before the engine starts


def write(path: Path, offset: int, tail: int | None, form: Callable[[str], str] = str) -> int:
    """Print the lines from `offset` on, each formatted by `form`; return the new offset."""
    if not path.exists():
        return 0
    with path.open("rb") as file:
        if path.stat().st_size < offset:
            offset = 0  # the file was replaced
        file.seek(offset)
        text = file.read()
    lines = text.decode(errors="replace").splitlines(keepends=True)
    for line in lines if tail is None else lines[max(0, len(lines) - tail) :]:
        print(render.clean(form(line.rstrip("\n"))), flush=True)
    return offset + len(text)
