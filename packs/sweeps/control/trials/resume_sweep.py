"""A sweep that goes on without whoever typed it: what would begin it again is kept beside its results.

    at work   the process that begins its runs holds the lease `sweep:NAME`, so that there is one
    left      that process has died without a word (killed, a closed terminal, a boot): the supervisor begins the same
              command again, which goes on where it was

Where the supervisor cannot (a sweep on this machine, one that was left long ago), `status` names the command.
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
from infra.ledger.leases import Held
from infra.ledger.op import Op
from infra.runs.timing import Say
from infra.settings import Settings
from packs.sweeps.control.trials import results as kept
from packs.sweeps.control.trials.results import SweepResult
from store import local_files, outside

LEASE = "sweep:"
COMMAND = "command.json"
STOP_S = 60.0  # for a sweep that was told to stop
POLL_S = 0.1
RECENT_S = 900.0  # since its last write, when none of its processes lives: nothing is rented for a sweep of last week


@dataclass(frozen=True)
class SweepCommand:
    """The command that started a sweep."""

    name: str
    words: tuple[str, ...]
    """Arguments of `inv`, with the answers to all questions."""
    typed: str
    """The command as it was typed."""
    is_here: bool
    """True if its runs are on this machine, and end with it."""

    def write(self, folder: Path) -> None:
        """Keep it in the sweep's folder."""
        folder.mkdir(parents=True, exist_ok=True)
        said = {"words": self.words, "typed": self.typed, "is_here": self.is_here}
        local_files.replace(folder / COMMAND, json.dumps(said).encode(), 0o600)


@contextlib.contextmanager
def at_work(command: SweepCommand, journal: Journal, settings: Settings) -> Iterator[None]:
    """Hold the lease of the process at work on a sweep. Raises UsageError while another process has it."""
    try:
        lease = journal.leases.take(f"{LEASE}{command.name}")
    except Held:
        holder = journal.leases.holder(f"{LEASE}{command.name}")
        by = f"process {holder.pid}" if holder else "another process"
        raise UsageError(f"the sweep {command.name} is already running, by {by}; watch it: inv status "
                         f"{command.name}; its table so far: inv sweep {command.name} --report") from None  # fmt: skip
    command.write(kept.folder_of(command.name, settings))
    try:
        yield
    finally:  # a sweep that stops by itself has said how to resume it
        journal.leases.release(lease)


def left(journal: Journal, settings: Settings) -> dict[str, SweepCommand]:
    """Return by name the sweeps whose process has died, with the commands that go on with them."""
    found = {}
    for lease in sorted(journal.leases.abandoned()):
        if lease.startswith(LEASE) and (command := _read(lease.removeprefix(LEASE), settings)):
            found[command.name] = command
    return found


def due(journal: Journal, settings: Settings) -> dict[str, SweepCommand]:
    """Return those of the sweeps that were left which go on by themselves: lately, or while something of it lives.

    A pod that was rented for it is to be given back, also when all its runs are over.
    """
    found, rows = {}, journal.ops(live=True)
    for name, command in left(journal, settings).items():
        result = _result(name, settings)
        if command.is_here or result is None:
            continue
        has_pods = "--no-deploy" not in command.words and any(op.pod_set == name for op in rows)
        is_over = all(one.is_over for one in result.trials.values())
        wrote_s = time.time() - (result.folder / "sweep.json").stat().st_mtime
        if has_pods or not is_over and (wrote_s < RECENT_S or any(op.run in result.trials for op in rows)):
            found[name] = command
    return found


def go_on(name: str, journal: Journal, settings: Settings, tell: Say) -> None:
    """Begin the process of a sweep that was left again, and wait for its end: it goes on with what is missing."""
    command = due(journal, settings).get(name)
    if command is None:
        return
    log = kept.folder_of(name, settings) / "sweep.log"
    tell(f"{name}: its process has died; it goes on: {command.typed}; its log: {log}")
    with log.open("ab") as file:
        process = subprocess.Popen(inv(command.words), cwd=ROOT, stdin=subprocess.DEVNULL, stdout=file, stderr=file,
                                   start_new_session=True)  # fmt: skip
    tell(f"{name}: its process exited with code {process.wait()}")


def known(journal: Journal, settings: Settings) -> list[str]:
    """Return the names of the sweeps that a process is at work on, or was when it died."""
    held = [one.removeprefix(LEASE) for one in journal.leases.held() if one.startswith(LEASE)]
    return sorted({*held, *left(journal, settings)})


def stop(name: str, journal: Journal, settings: Settings, tell: Say) -> list[Op]:
    """End the process at work on a sweep, for good; return the live rows of its runs and its pods."""
    lease = f"{LEASE}{name}"
    deadline = time.monotonic() + STOP_S
    if holder := journal.leases.holder(lease):
        tell(f"{name}: its process {holder.pid} is asked to exit")
        send(holder, signal.SIGINT)
    while (holder := journal.leases.holder(lease)) and time.monotonic() < deadline:
        time.sleep(POLL_S)
    if holder:
        send(holder, signal.SIGKILL)
        while journal.leases.holder(lease):
            time.sleep(POLL_S)
    if lease in journal.leases.abandoned():
        journal.leases.release(journal.leases.take(lease))
    result = _result(name, settings)
    runs = result.trials if result else {}
    return [op for op in journal.ops(live=True) if op.run in runs or op.pod_set == name]


def is_at_work(journal: Journal) -> bool:
    """Return whether a living process is at work on a sweep."""
    return any(one.startswith(LEASE) for one in journal.leases.held())


def how_to_go_on(journal: Journal, settings: Settings, results: Sequence[str]) -> dict[str, str]:
    """Return by name, of these sweeps, what to type for those that nobody goes on with."""
    carried = due(journal, settings)
    return {name: one.typed for name, one in left(journal, settings).items() if name in results and name not in carried}


def _read(name: str, settings: Settings) -> SweepCommand | None:
    try:
        said = outside.load(kept.folder_of(name, settings) / COMMAND)
        return SweepCommand(name, tuple(map(str, said["words"])), str(said["typed"]), bool(said["is_here"]))
    except (FileNotFoundError, outside.Unreadable, KeyError, TypeError):
        return None  # its files were removed


def _result(name: str, settings: Settings) -> SweepResult | None:
    try:
        return kept.load(name, settings)
    except UsageError:
        return None


def inv(words: Sequence[str]) -> list[str]:
    """Return the command line of another process of ours."""
    return [sys.executable, "-m", "invoke", "--search-root", str(ROOT), *words]


def shown(words: Sequence[str]) -> str:
    """Return a command of ours as it is typed."""
    return shlex.join(["./inv", *words])
