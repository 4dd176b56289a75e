"""Resumption of sweeps after the death of their process, from a command stored beside the results.

    at work   the process that starts the runs holds the lease `sweep:NAME`, so each sweep has at most one process
    left      the process died without cleanup (killed, closed terminal, reboot): the supervisor repeats the command,
              which continues with the missing runs

`status` shows the command for the other sweeps: sweeps on this machine, and sweeps abandoned long ago.
"""

import contextlib
import json
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.agent.process import send
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.ledger.leases import LeaseHeld
from infra.ledger.op import Op
from infra.runs.timing import Say
from infra.settings import Settings
from packs.sweeps.control.place import LEASE
from packs.sweeps.control.trials import results as kept
from packs.sweeps.control.trials.results import SweepResult
from store import local_files, untrusted_input

COMMAND = "command.json"
STOP_S = 60.0  # time for a sweep process to stop
POLL_S = 0.1
RECENT_S = 900.0  # since the last write, without live rows: older sweeps are not resumed, to avoid unexpected rentals


@dataclass(frozen=True)
class SweepCommand:
    """Command to start or resume a sweep."""

    name: str
    words: tuple[str, ...]
    """Arguments of `inv`, with the answers to all questions."""
    typed: str
    """The command as typed by the user."""
    is_here: bool
    """True if the runs are on this machine, and end with the machine."""

    def write(self, folder: Path) -> None:
        """Write the command into the sweep's folder, readable by the user only."""
        folder.mkdir(parents=True, exist_ok=True)
        said = {"words": self.words, "typed": self.typed, "is_here": self.is_here}
        local_files.replace(folder / COMMAND, json.dumps(said).encode(), 0o600)


@contextlib.contextmanager
def hold_sweep_lease(command: SweepCommand, journal: Journal, settings: Settings) -> Iterator[None]:
    """Hold the lease of a sweep's process. Raises UsageError while a different process holds the lease."""
    try:
        lease = journal.leases.acquire(f"{LEASE}{command.name}")
    except LeaseHeld:
        holder = journal.leases.holder(f"{LEASE}{command.name}")
        by = f"process {holder.pid}" if holder else "another process"
        raise UsageError(
            f"the sweep {command.name} is already running, by {by}; watch the sweep: inv status "
            f"{command.name}; show the table so far: inv sweep {command.name} --report"
        ) from None
    command.write(kept.folder_of(command.name, settings))
    try:
        yield
    finally:  # Released also after an error: the sweep has then printed the resume command.
        journal.leases.release(lease)


def abandoned_sweeps(journal: Journal, settings: Settings) -> dict[str, SweepCommand]:
    """Return the abandoned sweeps by name, with their resume commands."""
    found = {}
    for lease in sorted(journal.leases.abandoned_names()):
        if lease.startswith(LEASE) and (command := _read(lease.removeprefix(LEASE), settings)):
            found[command.name] = command
    return found


def due(journal: Journal, settings: Settings) -> dict[str, SweepCommand]:
    """Return the abandoned sweeps to resume automatically.

    A sweep is due while a pod rented for it is alive, because the pod must be released even after the last run. An
    unfinished sweep is also due while a run of the sweep is alive, or within `RECENT_S` seconds of the last write.
    Sweeps on this machine are never due.
    """
    found, rows = {}, journal.ops(live=True)
    for name, command in abandoned_sweeps(journal, settings).items():
        result = _result(name, settings)
        if command.is_here or result is None:
            continue
        has_pods = "--no-deploy" not in command.words and any(op.pod_set == name for op in rows)
        is_over = all(one.is_over for one in result.trials.values())
        wrote_s = time.time() - (result.folder / "sweep.json").stat().st_mtime
        if has_pods or not is_over and (wrote_s < RECENT_S or any(op.run in result.trials for op in rows)):
            found[name] = command
    return found


def restart_sweep(name: str, journal: Journal, settings: Settings, tell: Say) -> None:
    """Restart the process of a due sweep and wait for the end; do nothing if the sweep is not due."""
    command = due(journal, settings).get(name)
    if command is None:
        return
    log = kept.folder_of(name, settings) / "sweep.log"
    tell(
        f"{name}: the process of the sweep has died; the supervisor starts the sweep again: {command.typed}; log: {log}"
    )
    with log.open("ab") as file:
        process = subprocess.Popen(
            inv(command.words), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True
        )
    tell(f"{name}: the process of the sweep exited with code {process.wait()}")


def known(journal: Journal, settings: Settings) -> list[str]:
    """Return the names of the sweeps with a living process or an abandoned lease."""
    held = [one.removeprefix(LEASE) for one in journal.leases.held_names() if one.startswith(LEASE)]
    return sorted({*held, *abandoned_sweeps(journal, settings)})


def stop(name: str, journal: Journal, settings: Settings, tell: Say) -> list[Op]:
    """Stop the process of a sweep for good; return the live rows of the sweep's runs and pods.

    Sends SIGINT, then SIGKILL after `STOP_S` seconds, and releases an abandoned lease.
    """
    lease = f"{LEASE}{name}"
    deadline = time.monotonic() + STOP_S
    if holder := journal.leases.holder(lease):
        tell(f"{name}: asking process {holder.pid} of the sweep to exit")
        send(holder, signal.SIGINT)
    while (holder := journal.leases.holder(lease)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    if holder:
        send(holder, signal.SIGKILL)
        while journal.leases.holder(lease):
            time.sleep(POLL_S)
    if lease in journal.leases.abandoned_names():
        journal.leases.release(journal.leases.acquire(lease))
    result = _result(name, settings)
    runs = result.trials if result else {}
    return [op for op in journal.ops(live=True) if op.run in runs or op.pod_set == name]


def is_at_work(journal: Journal) -> bool:
    """Return whether a living process works on a sweep."""
    return any(one.startswith(LEASE) for one in journal.leases.held_names())


def how_to_go_on(journal: Journal, settings: Settings, results: Sequence[str]) -> dict[str, str]:
    """Return the resume commands of the abandoned sweeps in `results`, except sweeps resumed automatically."""
    carried = due(journal, settings)
    return {
        name: one.typed
        for name, one in abandoned_sweeps(journal, settings).items()
        if name in results and name not in carried
    }


def _read(name: str, settings: Settings) -> SweepCommand | None:
    try:
        said = untrusted_input.load(kept.folder_of(name, settings) / COMMAND)
        return SweepCommand(name, tuple(map(str, said["words"])), str(said["typed"]), bool(said["is_here"]))
    except (FileNotFoundError, untrusted_input.UnusableDocument, KeyError, TypeError):
        return None  # the files were removed


def _result(name: str, settings: Settings) -> SweepResult | None:
    try:
        return kept.load(name, settings)
    except UsageError:
        return None


def inv(words: Sequence[str]) -> list[str]:
    """Return the command line for a separate `inv` process."""
    return [sys.executable, "-m", "invoke", "--search-root", str(ROOT), *words]


def command_text(words: Sequence[str]) -> str:
    """Return the command as the user would type it."""
    return shlex.join(["./inv", *words])
