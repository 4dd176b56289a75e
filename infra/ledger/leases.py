"""Leases of the journal: the right of one process to change one thing.

In: a name, and who asks. Out: a `Lease`, held until its process dies, releases it or hands it on. Each lease has an
epoch; whoever writes with an old one is refused (Fenced).
"""

import sqlite3
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace

from infra import journal_file
from infra.agent.process import Identity, is_alive, myself
from infra.errors import UsageError
from infra.journal_file import Fenced

SUPERVISOR = "supervisor"  # the lease of an installation's supervisor


@dataclass(frozen=True)
class Lease:
    """The right to change one thing, held by one process until it dies, releases it or hands it on."""

    name: str
    epoch: int
    code: str = ""
    """The stamp of the code that its holder runs, which is told to others; "" = it tells none."""


def keeper_lease(run: str) -> str:
    """Return the name of the lease that the keeper of a run holds."""
    return f"keep:{run}"


class Held(UsageError):
    """A living process holds that lease."""


class Leases:
    """The leases of one open journal; writing: begins a transaction there."""

    def __init__(self, db: sqlite3.Connection, writing: Callable[[], AbstractContextManager[None]]) -> None:
        self._db, self._writing = db, writing

    def take(self, name: str, code: str = "") -> Lease:
        """Acquire a lease. Raises Held while the process that has it lives.

        code: the stamp of our code, for a lease that is held long.
        """
        with self._writing():
            epoch, holder = self._lease(name)
            if holder:
                raise Held(f"{name} is held by process {holder.pid}")
            me = myself()
            values = (name, epoch + 1, me.boot_id, me.pid, me.started)
            self._db.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?)", values)
            lease = Lease(name, epoch + 1, code)
            self._tell_code(lease)
        return lease

    def held(self) -> set[str]:
        """Return the names of the leases whose holders live."""
        rows = self._db.execute("SELECT name, boot_id, pid, pid_starttime FROM leases WHERE pid IS NOT NULL")
        return {name for name, *holder in rows.fetchall() if is_alive(Identity(*holder))}

    def abandoned(self) -> set[str]:
        """Return the names of the leases whose holders have died without releasing them."""
        rows = self._db.execute("SELECT name, boot_id, pid, pid_starttime FROM leases WHERE pid IS NOT NULL")
        return {name for name, *holder in rows.fetchall() if not is_alive(Identity(*holder))}

    def abandon(self, name: str) -> None:
        """Write a lease down as one whose holder has died, where none lives: whoever looks for those takes it up."""
        with self._writing():
            self.leave(name)

    def leave(self, name: str) -> None:
        """Do what `abandon` does, within a transaction."""
        epoch, holder = self._lease(name)
        if holder is None:
            self._db.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?)", (name, epoch + 1, "", 0, ""))

    def holder(self, name: str) -> Identity | None:
        """Return the living process that has this lease."""
        return self._lease(name)[1]

    def is_ours(self, lease: Lease) -> bool:
        """Return whether nobody has taken it over since."""
        return self._lease(lease.name)[0] == lease.epoch

    def renew(self, lease: Lease) -> Lease:
        """Return the same lease, held by this process from now on; what `lease` named before is void. Raises Fenced."""
        me = myself()
        return self._hold(lease, me.boot_id, me.pid, me.started)

    def release(self, lease: Lease) -> None:
        """Release a lease. Raises Fenced when it was no longer ours."""
        self._hold(lease, None, None, None)

    def forsake(self, lease: Lease) -> None:
        """Release a lease as if its holder had died: whoever looks for abandoned ones takes it up. Raises Fenced."""
        self._hold(lease, "", 0, "")

    def holders(self) -> list[journal_file.Holder]:
        """Return the living processes that hold leases, each with the stamp of its code."""
        return journal_file.holders(self._db)

    def _lease(self, name: str) -> tuple[int, Identity | None]:
        """Return its epoch, and who has it: a dead process has nothing."""
        row = self._db.execute("SELECT epoch, boot_id, pid, pid_starttime FROM leases WHERE name = ?", (name,))
        epoch, *holder = row.fetchone() or (0, None, None, None)
        found = Identity(*holder) if holder[1] is not None else None
        return epoch, found if found and is_alive(found) else None

    def _hold(self, lease: Lease, *holder: str | int | None) -> Lease:
        with self._writing():
            sql = "UPDATE leases SET epoch = ?, boot_id = ?, pid = ?, pid_starttime = ? WHERE name = ? AND epoch = ?"
            done = self._db.execute(sql, (lease.epoch + 1, *holder, lease.name, lease.epoch))
            if done.rowcount != 1:
                raise Fenced(f"{lease.name}: another process has taken over")
            held = replace(lease, epoch=lease.epoch + 1)
            self._tell_code(held)
        return held

    def _tell_code(self, lease: Lease) -> None:
        """Write down which code the holder of a lease runs; within a transaction."""
        if lease.code:
            pair = (journal_file.code_key(lease.name), f"{lease.epoch} {lease.code}")
            self._db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", pair)
