"""Starter of the controller process of a service.

`ensure` returns the record of the living controller, or starts a controller that outlives the command. After a
controller's death the next caller starts a successor, which adopts the replicas. Imports no module of the `serve`
environment.
"""

import os
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from infra.errors import SlipwayError, UsageError
from infra.ledger import service_rows
from infra.ledger.journal import Journal
from infra.ledger.service_rows import service_lease
from infra.settings import Settings
from infra.units import duration
from serve.policy.service_state import ServiceRecord, parse_observed
from serve.processes.service_paths import ServicePaths

START_S = 120.0  # imports are slow on a busy machine; a failing controller reports at once
POLL_S = 0.05
TAIL_BYTES = 4000


def is_kept(name: str, journal: Journal) -> bool:
    """Return whether a controller of the service lives, by the lease."""
    return journal.leases.holder(service_lease(name)) is not None


def ensure(name: str, settings: Settings, journal: Journal, python: Callable[[], Path], root: Path) -> ServiceRecord:
    """Return the record of a living controller of the service; start a controller if none lives.

    `python` returns the interpreter of the serve environment. Raises UsageError for an unknown service, or with the
    problem recorded by the controller; SlipwayError when the controller exits or does not answer.
    """
    row = service_rows.find(journal, name)
    if row is None:
        raise UsageError(f"no service is called {name}; see: inv serve.status")
    seen = parse_observed(row.seen)
    if is_kept(name, journal) and seen.endpoint:
        return seen
    before, places = seen.began_at, ServicePaths.for_service(settings, name)
    process = None if is_kept(name, journal) else _start([str(python()), "-m", "serve.controller", name], places, root)
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        # Poll before reading the lease: a second controller may take over in between.
        has_ended = process is not None and process.poll() is not None
        row = service_rows.find(journal, name)
        seen = parse_observed(row.seen) if row else ServiceRecord()
        if row is None:
            return seen  # the service was ending and has ended
        is_new = seen.began_at != before
        if is_kept(name, journal):
            if is_new and not seen.problem:  # otherwise the controller is about to end
                return seen
        elif is_new and seen.problem:
            raise UsageError(seen.problem)
        elif has_ended and process is not None:
            raise SlipwayError(f"the controller of {name} ended with code {process.returncode}: {tail(places.log)}")
        time.sleep(POLL_S)
    raise SlipwayError(f"the controller of {name} does not answer after {duration(START_S)}; log: {places.log}")


def _start(line: Sequence[str], places: ServicePaths, root: Path) -> "subprocess.Popen[bytes]":
    places.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    environ = {**os.environ, "PYTHONPATH": str(root), "PYTHONUNBUFFERED": "1"}
    with places.log.open("ab") as log:
        return subprocess.Popen(
            line, cwd=root, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
        )


def tail(path: Path, lines: int = 3) -> str:
    """Return the last `lines` lines of a log, joined by " / "."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - TAIL_BYTES))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return "it said nothing"
    return " / ".join(text.splitlines()[-lines:]) or "it said nothing"
