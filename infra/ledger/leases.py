"""Leases of the journal: the right of one process to change one thing.

In: a name, and the process that asks. Out: a `Lease`, held until its process dies, falls silent, releases it or hands
it on. Each lease has an epoch; whoever writes with an old one is refused (Fenced).

A process that holds leases beats: a thread writes down every few seconds that the process is awake. By a clock that
stands still while the machine sleeps, a holder whose last beat is a minute old hangs or was stopped: another process
may take its leases. When such a process wakes, `check_held` refuses its next write and its next call of a vendor
(Replaced), so that it does nothing more.
"""

import contextlib
import os
import sqlite3
import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Protocol

from infra.agent.limits import awake_s
from infra.agent.process import Identity, is_alive, myself
from infra.errors import SlipwayError, UsageError
from infra.interrupts import Replaced
from infra.journal_file import Fenced

SUPERVISOR = "supervisor"  # the lease of an installation's supervisor
BEAT_S = 10.0
SILENT_S = 60.0  # without a beat, after which a holder is replaced
_HOLDER = "boot_id, pid, pid_starttime, heard_s"
_PUT = f"INSERT OR REPLACE INTO leases (name, epoch, {_HOLDER}) VALUES (?, ?, ?, ?, ?, ?)"


@dataclass(frozen=True)
class Lease:
    """The right to change one thing, held by one process until it dies, falls silent, releases it or hands it on."""

    name: str
    epoch: int
    code: str = ""
    """The stamp of the code that its holder runs, which is told to others; "" = it tells none."""


@dataclass(frozen=True)
class Holder:
    """A living process that holds a lease."""

    lease: str
    process: Identity
    code: str
    """The stamp of its code; "" when it told none."""


def keeper_lease(run: str) -> str:
    """Return the name of the lease that the keeper of a run holds."""
    return f"keep:{run}"


class Held(UsageError):
    """A living process holds that lease."""


class Beating(Protocol):
    """An open journal, as the thread that beats sees it."""

    @property
    def leases(self) -> "Leases":
        """Return its leases."""


File = tuple[Path, tuple[int, int] | None]
Open = Callable[[], AbstractContextManager[Beating]]


@dataclass
class _Pulse:
    """The leases of one journal that this process holds, and the thread that beats for them."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    held: dict[str, Lease] = field(default_factory=dict)
    is_beating: bool = False
    is_well: Callable[[], bool] = lambda: True
    """True while this process does its work: the thread that beats may live on in a process that hangs."""

    def leases(self) -> list[Lease]:
        with self.lock:
            return list(self.held.values())

    def hold(self, lease: Lease, path: Path, open_again: Open) -> None:
        """Add a lease, and begin to beat where nothing was held before."""
        with self.lock:
            self.held[lease.name] = lease
            if not self.is_beating:
                self.is_beating = True
                threading.Thread(target=self._beat_on, args=(path, open_again), name="beat", daemon=True).start()

    def let_go(self, lease: Lease) -> None:
        with self.lock:
            self.held.pop(lease.name, None)

    def _beat_on(self, path: Path, open_again: Open) -> None:
        """Beat until nothing is held, or the journal is gone; a beat that cannot be written waits for the next."""
        resting = threading.Event()
        while True:
            resting.wait(BEAT_S)
            with self.lock:
                if not (self.held and path.exists()):
                    self.held.clear()
                    self.is_beating = False
                    return
            if self.is_well():
                errors = (SlipwayError, OSError, sqlite3.Error, Replaced)
                with contextlib.suppress(*errors), _WRITING, open_again() as journal:
                    journal.leases.beat()


_PULSES: dict[File, _Pulse] = {}
# No fork copies the files and the locks of a beat that is being written.
_WRITING = threading.Lock()


def _begin_as_child() -> None:
    """Forget the leases of the parent, and the thread that beats for them there."""
    _WRITING.release()
    _PULSES.clear()


os.register_at_fork(before=_WRITING.acquire, after_in_parent=_WRITING.release, after_in_child=_begin_as_child)


class Leases:
    """The leases of one open journal.

    writing: begins a transaction there. file: its path, device and inode.
    open_again: opens that journal once more, for the thread that beats.
    """

    def __init__(
        self, db: sqlite3.Connection, writing: Callable[[], AbstractContextManager[None]], file: File, open_again: Open
    ) -> None:
        self._db, self._writing, self._file, self._open_again = db, writing, file, open_again

    @property
    def _pulse(self) -> _Pulse:
        return _PULSES.setdefault(self._file, _Pulse())

    def take(self, name: str, code: str = "") -> Lease:
        """Acquire a lease. Raises Held while the process that has it lives, and beats.

        code: the stamp of our code, for a lease that is held long.
        """
        with self._writing():
            epoch, holder = self._lease(name)
            if holder:
                raise Held(f"{name} is held by process {holder.pid}")
            me = myself()
            values = (name, epoch + 1, me.boot_id, me.pid, me.started, awake_s())
            self._db.execute(_PUT, values)
            lease = Lease(name, epoch + 1, code)
            self._tell_code(lease)
        self._pulse.hold(lease, self._file[0], self._open_again)
        return lease

    def held(self) -> set[str]:
        """Return the names of the leases whose holders live, and beat."""
        rows = self._db.execute(f"SELECT name, {_HOLDER} FROM leases WHERE pid IS NOT NULL")
        return {name for name, *holder in rows.fetchall() if _living(*holder)}

    def abandoned(self) -> set[str]:
        """Return the names of the leases whose holders have died or fallen silent without releasing them."""
        rows = self._db.execute(f"SELECT name, {_HOLDER} FROM leases WHERE pid IS NOT NULL")
        return {name for name, *holder in rows.fetchall() if not _living(*holder)}

    def abandon(self, name: str) -> None:
        """Write a lease down as one whose holder has died, where none lives: whoever looks for those takes it up."""
        with self._writing():
            self.leave(name)

    def leave(self, name: str) -> None:
        """Do what `abandon` does, within a transaction."""
        epoch, holder = self._lease(name)
        if holder is None:
            values = (name, epoch + 1, "", 0, "", None)
            self._db.execute(_PUT, values)

    def holder(self, name: str) -> Identity | None:
        """Return the living process that has this lease, and beats."""
        return self._lease(name)[1]

    def is_ours(self, lease: Lease) -> bool:
        """Return whether nobody has taken it over since."""
        return self._lease(lease.name)[0] == lease.epoch

    def check_held(self) -> None:
        """Raise Replaced when another process has taken a lease of this one: before each write and vendor's call."""
        for lease in self._pulse.leases():
            if not self.is_ours(lease):
                holder = self.holder(lease.name)
                who = f"process {holder.pid}" if holder else "another process"
                raise Replaced(
                    f"{lease.name}: {who} has taken over, as this process was silent for {SILENT_S:g} s or longer; "
                    "nothing more is done here; run: inv status"
                )

    def beat_while(self, is_well: Callable[[], bool]) -> None:
        """Let this process beat only while that is true: one that hangs is to be replaced as well."""
        self._pulse.is_well = is_well

    def beat(self) -> None:
        """Write down that this process is awake."""
        me = myself()
        with self._writing():
            sql = "UPDATE leases SET heard_s = ? WHERE boot_id = ? AND pid = ? AND pid_starttime = ?"
            self._db.execute(sql, (awake_s(), me.boot_id, me.pid, me.started))

    def renew(self, lease: Lease) -> Lease:
        """Return the same lease, held by this process from now on; what `lease` named before is void. Raises Fenced."""
        me = myself()
        held = self._hold(lease, me.boot_id, me.pid, me.started, awake_s())
        self._pulse.hold(held, self._file[0], self._open_again)
        return held

    def release(self, lease: Lease) -> None:
        """Release a lease. Raises Fenced when it was no longer ours."""
        self._hold(lease, None, None, None)

    def forsake(self, lease: Lease) -> None:
        """Release a lease as if its holder had died: whoever looks for abandoned ones takes it up. Raises Fenced."""
        self._hold(lease, "", 0, "")

    def holders(self) -> list[Holder]:
        """Return the living processes that hold leases, silent ones too, each with the stamp of its code."""
        told = dict(self._db.execute("SELECT key, value FROM meta WHERE key LIKE 'code of %'").fetchall())
        columns = "name, epoch, boot_id, pid, pid_starttime"
        rows = self._db.execute(f"SELECT {columns} FROM leases WHERE pid IS NOT NULL ORDER BY name")
        found = []
        for name, epoch, *who in rows.fetchall():
            at, _, code = told.get(_code_key(name), "").partition(" ")
            if is_alive(Identity(*who)):
                found.append(Holder(name, Identity(*who), code if at == str(epoch) else ""))
        return found

    def _lease(self, name: str) -> tuple[int, Identity | None]:
        """Return its epoch, and who has it: a process that is dead or silent has nothing."""
        row = self._db.execute(f"SELECT epoch, {_HOLDER} FROM leases WHERE name = ?", (name,)).fetchone()
        epoch, *holder = row or (0, None, None, None, None)
        return epoch, _living(*holder) if holder[1] is not None else None

    def _hold(
        self, lease: Lease, boot_id: str | None, pid: int | None, started: str | None, heard_s: float | None = None
    ) -> Lease:
        self._pulse.let_go(lease)
        with self._writing():
            sql = """UPDATE leases SET epoch = ?, boot_id = ?, pid = ?, pid_starttime = ?, heard_s = ?
                WHERE name = ? AND epoch = ?"""
            done = self._db.execute(sql, (lease.epoch + 1, boot_id, pid, started, heard_s, lease.name, lease.epoch))
            if done.rowcount != 1:
                raise Fenced(f"{lease.name}: another process has taken over")
            held = replace(lease, epoch=lease.epoch + 1)
            self._tell_code(held)
        return held

    def _tell_code(self, lease: Lease) -> None:
        """Write down which code the holder of a lease runs; within a transaction."""
        if lease.code:
            pair = (_code_key(lease.name), f"{lease.epoch} {lease.code}")
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", pair)


def _code_key(lease: str) -> str:
    """Return the key in `meta` under which the holder of a lease tells which code it runs."""
    return f"code of {lease}"


def _living(boot_id: str, pid: int, started: str, heard_s: float | None) -> Identity | None:
    """Return the holder of a lease; None where its process has died, or was not heard for long."""
    found = Identity(boot_id, pid, started)
    is_silent = heard_s is not None and awake_s() - heard_s >= SILENT_S
    return None if is_silent or not is_alive(found) else found
