"""Client of the supervisor for commands: start, replace or stop the process, hand runs over, and read its last state.

The functions read the journal and start or signal the supervisor process. The supervisor writes the last state to a
file beside the journal; `inv supervisor`, `inv status` and the web page read the file.
"""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from flows.supervisor.due import is_dead, is_needed, runs_to_keep
from infra import checkout
from infra.agent.process import is_alive, send
from infra.checkout import ROOT
from infra.errors import SlipwayError
from infra.ledger import service_rows
from infra.ledger.journal import Journal
from infra.ledger.leases import SUPERVISOR, keeper_lease
from infra.ledger.op import Op
from infra.ledger.service_rows import service_lease
from infra.runs.run_home import RunHome
from infra.selection import registry
from infra.settings import LOCAL, Settings

START_S = 60.0
LEAVE_S = 30.0
POLL_S = 0.1


def resume_abandoned(settings: Settings, also: Iterable[str] = ()) -> list[str]:
    """Let the supervisor continue all local work; return the leases without a holder.

    Record runs as abandoned after an interruption by a reboot or by a move to this machine. `also` lists the leases
    held on the former machine. Raises SlipwayError if the supervisor does not start.
    """
    with Journal.open(settings.state_file) as journal:
        here = [op for op in journal.ops(live=True) if op.vendor == LOCAL and not op.service]
        dead = {keeper_lease(op.run) for op in here if is_dead(op, settings)}
        for lease in dead.union(one for one in also if one.startswith(keeper_lease(""))):
            journal.leases.abandon(lease)
        due = [keeper_lease(op.run) for op in runs_to_keep(journal, settings)]
        due += [
            one
            for one in (service_lease(row.name) for row in service_rows.list_services(journal))
            if not journal.leases.holder(one)
        ]
    ensure(settings)
    return due


def renew(settings: Settings) -> int | None:
    """Replace a supervisor with other code than this checkout; return the process id of the new supervisor.

    Return None if the supervisor runs this code, no supervisor is alive, or no work is left. Raises SlipwayError if the
    new supervisor does not take over.
    """
    with Journal.open(settings.state_file) as journal:
        older = [one for one in journal.leases.holders() if one.lease == SUPERVISOR and one.code != checkout.stamp()]
        if not older:
            return None
        process = start(settings, renews=True)
        deadline = time.monotonic() + START_S + LEAVE_S
        while time.monotonic() < deadline:
            holder = journal.leases.holder(SUPERVISOR)
            if holder is not None and holder != older[0].process:
                return holder.pid
            if process.poll() is not None:
                if process.returncode == 0 and holder is None:
                    return None  # No work is left.
                break
            time.sleep(POLL_S)
    raise SlipwayError(
        f"the supervisor with other code (process {older[0].process.pid}) was not replaced and continues; log: "
        f"{log_file(settings)}; run: inv supervisor"
    )


def ensure(settings: Settings, waits: bool = True, journal: Journal | None = None) -> int | None:
    """Return the process id of the supervisor; start the process if needed.

    Return None if no supervisor is needed, or if the journal is damaged and blocks all work. With `waits`, wait until
    the process is up. Raises SlipwayError if the process does not come up. `journal`: the journal, if already open.
    """
    with contextlib.nullcontext(journal) if journal else Journal.open(settings.state_file) as journal:
        if holder := journal.leases.holder(SUPERVISOR):
            return holder.pid
        if journal.problem or not is_needed(journal, settings):
            return None
        process = start(settings)
        if not waits:
            return process.pid
        deadline = time.monotonic() + START_S
        while time.monotonic() < deadline:
            if holder := journal.leases.holder(SUPERVISOR):
                return holder.pid
            if process.poll() is not None and journal.leases.holder(SUPERVISOR) is None:
                if process.returncode == 0:
                    return None  # No work is left.
                break
            time.sleep(POLL_S)
    raise SlipwayError(f"the supervisor did not start; log: {log_file(settings)}; run: inv supervisor")


def hand_over(op: Op, settings: Settings) -> str:
    """Hand a run over, and return a display text about the process that keeps the run from now on.

    The supervisor keeps runs on other machines; a local run keeps itself, and an engine keeps its own runs.
    """
    vendor = registry.provider(settings, op.vendor)
    if vendor.is_here:
        return "the guard and the agent on this machine keep the run alive; no other process is needed"
    if vendor.is_run_engine:
        return f"the controller of {vendor.name} keeps the run alive; no other process is needed"
    with Journal.open(settings.state_file) as journal:
        # If the pod fails before the supervisor sees the run, the run must still continue.
        journal.leases.abandon(keeper_lease(op.run))
    pid = ensure(settings)
    who = f"the supervisor (process {pid})" if pid else "the supervisor"
    log = RunHome.for_run(op.run, settings.homes).keep_log
    return (
        f"{who} copies the results to this machine, and continues the run if the machine fails; log: {log}; see: inv "
        "supervisor"
    )


@contextlib.contextmanager
def hand_over_on_error(settings: Settings) -> Iterator[None]:
    """Hand active and due work to the supervisor if an error or signal ends this block."""
    try:
        yield
    except BaseException:
        with contextlib.suppress(SlipwayError, OSError):  # The original error must be shown.
            ensure(settings, waits=False)
        raise


def stop_if_idle(settings: Settings) -> None:
    """Stop a supervisor without work, and wait up to `LEAVE_S` seconds for the exit."""
    with Journal.open(settings.state_file) as journal:
        holder = journal.leases.holder(SUPERVISOR)
        if (
            holder is None
            or is_needed(journal, settings)
            or any(one.startswith("keep:") for one in journal.leases.held_names())
        ):
            return
        send(holder, signal.SIGTERM)
        deadline = time.monotonic() + LEAVE_S
        while is_alive(holder) and time.monotonic() < deadline:
            time.sleep(POLL_S)


def start(settings: Settings, renews: bool = False) -> "subprocess.Popen[bytes]":
    """Start a supervisor process. With `renews`, the process replaces a supervisor with other code once up."""
    log = log_file(settings)
    log.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "SLIPWAY_STATE_FILE": str(settings.state_file)}
    with log.open("ab") as file:
        return subprocess.Popen(
            [sys.executable, "-m", "scripts.runs.supervisor", *(["renew"] if renews else [])],
            cwd=ROOT,
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )


@dataclass(frozen=True, kw_only=True)
class SupervisorState:
    """The supervisor's last observations; times are UTC epoch seconds."""

    pid: int
    since: float
    looked_at: float
    runs: tuple[str, ...] = ()
    """Runs kept by the supervisor."""
    services: tuple[str, ...] = ()
    """Services with a controller under supervision."""
    given_up: Mapping[str, str] = field(default_factory=dict)
    """Runs and services given up until a user acts, with the reason."""


def state_file(settings: Settings) -> Path:
    return settings.state_file.with_name(f"{settings.state_file.stem}-supervisor.json")


def log_file(settings: Settings) -> Path:
    return settings.state_file.with_name(f"{settings.state_file.stem}-supervisor.log")


def last_state(settings: Settings) -> SupervisorState | None:
    """Return the last state of the last supervisor, or None without a readable file."""
    try:
        said = json.loads(state_file(settings).read_bytes())
        return SupervisorState(**{**said, "runs": tuple(said["runs"]), "services": tuple(said["services"])})
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
