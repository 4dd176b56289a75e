"""Leases of the journal: the right of one process to change one resource.

A process holds a `Lease` until the process dies, falls silent, releases the lease or hands over the lease. Each lease
has an epoch; the journal refuses a write with an old epoch (Fenced).

A holder sends heartbeats: a thread records every `BEAT_S` seconds that the process is awake. The heartbeat clock stands
still while the machine sleeps, so a holder without a heartbeat for `SILENT_S` seconds hangs or was stopped, and a new
process may take the leases. When the old holder wakes up, `check_held` refuses the next write and the next vendor call
(Replaced), so that the old holder does no more work.
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
from infra.agent.process import Identity, current_identity, is_alive
from infra.errors import SlipwayError, UsageError
from infra.interrupts import WorkTakenOver
from infra.journal_file import Fenced

SUPERVISOR = "supervisor"  # lease of the supervisor of an installation
BEAT_S = 10.0
SILENT_S = 60.0  # seconds without a heartbeat, after which a new process may replace the holder
_HOLDER = "boot_id, pid, pid_starttime, heard_s"
_PUT = f"INSERT OR REPLACE INTO leases (name, epoch, {_HOLDER}) VALUES (?, ?, ?, ?, ?, ?)"


@dataclass(frozen=True)
class Lease:
    """The right of one process to change one resource, until death, silence, release or handover."""

    name: str
    epoch: int
    code: str = ""
    """Version stamp of the holder's code, published for other processes; "" = not published."""


@dataclass(frozen=True)
class Holder:
    """A living process that holds a lease."""

    lease: str
    process: Identity
    code: str
    """Version stamp of the holder's code; "" = not published."""


def keeper_lease(run: str) -> str:
    """Return the name of the lease held by the keeper of a run."""
    return f"keep:{run}"


class LeaseHeld(UsageError):
    """A living process holds the requested lease."""


class HeartbeatJournal(Protocol):
    """An open journal, as used by the heartbeat thread."""

    @property
    def leases(self) -> "Leases":
        """Return the leases of the journal."""


File = tuple[Path, tuple[int, int] | None]
Open = Callable[[], AbstractContextManager[HeartbeatJournal]]


@dataclass
class _Heartbeat:
    """The leases of a journal held by this process, and the heartbeat thread."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    held: dict[str, Lease] = field(default_factory=dict)
    is_beating: bool = False
    is_healthy: Callable[[], bool] = lambda: True
    """Health check: True while this process works. The heartbeat thread may survive in a hanging process."""

    def leases(self) -> list[Lease]:
        with self.lock:
            return list(self.held.values())

    def hold(self, lease: Lease, path: Path, open_again: Open) -> None:
        """Add a lease, and start the heartbeat thread if none runs."""
        with self.lock:
            self.held[lease.name] = lease
            if not self.is_beating:
                self.is_beating = True
                threading.Thread(target=self._beat_loop, args=(path, open_again), name="beat", daemon=True).start()

    def discard(self, lease: Lease) -> None:
        with self.lock:
            self.held.pop(lease.name, None)

    def _beat_loop(self, path: Path, open_again: Open) -> None:
        """Send heartbeats until no lease is held or the journal is gone; ignore a failed write."""
        resting = threading.Event()
        while True:
            resting.wait(BEAT_S)
            with self.lock:
                if not (self.held and path.exists()):
                    self.held.clear()
                    self.is_beating = False
                    return
            if self.is_healthy():
                errors = (SlipwayError, OSError, sqlite3.Error, WorkTakenOver)
                with contextlib.suppress(*errors), _WRITING, open_again() as journal:
                    journal.leases.send_heartbeat()


_PULSES: dict[File, _Heartbeat] = {}
# A fork must not copy the open files and locks of a running heartbeat.
_WRITING = threading.Lock()


def _begin_as_child() -> None:
    """Drop the leases and the heartbeat of the parent process in a forked child."""
    _WRITING.release()
    _PULSES.clear()


os.register_at_fork(before=_WRITING.acquire, after_in_parent=_WRITING.release, after_in_child=_begin_as_child)


class Leases:
    """The leases of an open journal.

    writing: begins a transaction in the journal. file: the path, device and inode of the journal. open_again: opens the
    journal a second time, for the heartbeat thread.
    """

    def __init__(
        self, db: sqlite3.Connection, writing: Callable[[], AbstractContextManager[None]], file: File, open_again: Open
    ) -> None:
        self._db, self._writing, self._file, self._open_again = db, writing, file, open_again

    @property
    def _heartbeat(self) -> _Heartbeat:
        return _PULSES.setdefault(self._file, _Heartbeat())

    def acquire(self, name: str, code: str = "") -> Lease:
        """Acquire a lease. Raise LeaseHeld while the current holder lives and sends heartbeats.

        code: the version stamp of our code, for a lease held long.
        """
        with self._writing():
            epoch, holder = self._lease(name)
            if holder:
                raise LeaseHeld(f"{name} is held by process {holder.pid}")
            me = current_identity()
            values = (name, epoch + 1, me.boot_id, me.pid, me.started, awake_s())
            self._db.execute(_PUT, values)
            lease = Lease(name, epoch + 1, code)
            self._record_code(lease)
        self._heartbeat.hold(lease, self._file[0], self._open_again)
        return lease

    def held_names(self) -> set[str]:
        """Return the names of leases with a living holder and recent heartbeats."""
        rows = self._db.execute(f"SELECT name, {_HOLDER} FROM leases WHERE pid IS NOT NULL")
        return {name for name, *holder in rows.fetchall() if _living(*holder)}

    def abandoned_names(self) -> set[str]:
        """Return the names of leases not released by a dead or silent holder."""
        rows = self._db.execute(f"SELECT name, {_HOLDER} FROM leases WHERE pid IS NOT NULL")
        return {name for name, *holder in rows.fetchall() if not _living(*holder)}

    def abandon(self, name: str) -> None:
        """Mark a lease without a living holder as abandoned, so that a new holder takes over the work."""
        with self._writing():
            self.abandon_in_transaction(name)

    def abandon_in_transaction(self, name: str) -> None:
        """Mark a lease as `abandon` does, within a transaction."""
        epoch, holder = self._lease(name)
        if holder is None:
            values = (name, epoch + 1, "", 0, "", None)
            self._db.execute(_PUT, values)

    def holder(self, name: str) -> Identity | None:
        """Return the living holder with recent heartbeats, or None."""
        return self._lease(name)[1]

    def is_ours(self, lease: Lease) -> bool:
        """Return whether the lease still has this epoch: no process has taken over."""
        return self._lease(lease.name)[0] == lease.epoch

    def check_held(self) -> None:
        """Raise WorkTakenOver when a lease of this process was taken over; call before each write and vendor call."""
        for lease in self._heartbeat.leases():
            if not self.is_ours(lease):
                holder = self.holder(lease.name)
                who = f"process {holder.pid}" if holder else "another process"
                raise WorkTakenOver(
                    f"{lease.name}: {who} has taken over, because this process was silent for {SILENT_S:g} s or "
                    "longer; this process stops. Run: inv status"
                )

    def set_health_check(self, is_well: Callable[[], bool]) -> None:
        """Send heartbeats only while `is_well` returns True, so that a hanging process is replaced as well."""
        self._heartbeat.is_healthy = is_well

    def send_heartbeat(self) -> None:
        """Record a heartbeat of this process."""
        me = current_identity()
        with self._writing():
            sql = "UPDATE leases SET heard_s = ? WHERE boot_id = ? AND pid = ? AND pid_starttime = ?"
            self._db.execute(sql, (awake_s(), me.boot_id, me.pid, me.started))

    def renew(self, lease: Lease) -> Lease:
        """Return the lease with a new epoch, held by this process; the old epoch is void. Raise Fenced if lost."""
        me = current_identity()
        held = self._update_row(lease, me.boot_id, me.pid, me.started, awake_s())
        self._heartbeat.hold(held, self._file[0], self._open_again)
        return held

    def release(self, lease: Lease) -> None:
        """Release a lease. Raise Fenced after a takeover."""
        self._update_row(lease, None, None, None)

    def release_for_takeover(self, lease: Lease) -> None:
        """Release a lease as abandoned, so that a new holder takes over the work. Raise Fenced after a takeover."""
        self._update_row(lease, "", 0, "")

    def holders(self) -> list[Holder]:
        """Return the living holders of leases, also silent holders, with the version stamps of their code."""
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
        """Return the epoch of a lease and the holder; None for a dead or silent holder."""
        row = self._db.execute(f"SELECT epoch, {_HOLDER} FROM leases WHERE name = ?", (name,)).fetchone()
        epoch, *holder = row or (0, None, None, None, None)
        return epoch, _living(*holder) if holder[1] is not None else None

    def _update_row(
        self, lease: Lease, boot_id: str | None, pid: int | None, started: str | None, heard_s: float | None = None
    ) -> Lease:
        self._heartbeat.discard(lease)
        with self._writing():
            sql = """UPDATE leases SET epoch = ?, boot_id = ?, pid = ?, pid_starttime = ?, heard_s = ?
                WHERE name = ? AND epoch = ?"""
            done = self._db.execute(sql, (lease.epoch + 1, boot_id, pid, started, heard_s, lease.name, lease.epoch))
            if done.rowcount != 1:
                raise Fenced(f"{lease.name}: another process has taken over")
            held = replace(lease, epoch=lease.epoch + 1)
            self._record_code(held)
        return held

    def _record_code(self, lease: Lease) -> None:
        """Record the version stamp of the holder's code; call within a transaction."""
        if lease.code:
            pair = (_code_key(lease.name), f"{lease.epoch} {lease.code}")
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", pair)


def _code_key(lease: str) -> str:
    """Return the key in `meta` for the version stamp of a lease holder."""
    return f"code of {lease}"


def _living(boot_id: str, pid: int, started: str, heard_s: float | None) -> Identity | None:
    """Return the holder of a lease, or None if the process died or has been silent for `SILENT_S` seconds."""
    found = Identity(boot_id, pid, started)
    is_silent = heard_s is not None and awake_s() - heard_s >= SILENT_S
    return None if is_silent or not is_alive(found) else found
