"""The journal of what we rented and owe: intents, written before their effects, and what became of them.

In: events about pods. Out: rows. One journal per installation, in the user's state directory. The protocol: `plan`
commits the intent, `advance` moves a row along the table of `infra.ledger.life_cycle`. A write names the row as its
writer last saw it (its epoch); when somebody else moved it meanwhile, nothing is written and Fenced is raised: look
again. A pod whose row is live, or UNKNOWN, may be billing.
"""

import contextlib
import functools
import json
import os
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

from infra import journal_file
from infra.agent.host import may_share
from infra.agent.job import Job
from infra.agent.limits import Clocks, read_clocks
from infra.agent.process import boot_id
from infra.journal_file import Fenced, JournalError
from infra.ledger.leases import Leases, keeper_lease
from infra.ledger.life_cycle import ENDED, TERMINATING, after
from infra.ledger.op import JournalEvent, Leased, Op, Taken
from infra.records import Pod

_STAMPS = {"sending": "sent_at", "found": "last_seen_at", "armed": "last_seen_at", "reachable": "last_seen_at",
           "end": "del_requested_at", "detach": "del_requested_at", "gone": "ended_at", "absent": "ended_at",
           "refused": "ended_at", "unsent": "ended_at"}  # fmt: skip

Admit = Callable[[list[Op], Op], None]
JournalVersion = tuple[str, int]

_COLUMNS = tuple(one.name for one in fields(Op))
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM ops"
_LIVE = "state NOT IN ('TERMINATED', 'FAILED')"


class Journal:
    """Open with `Journal.open`; use as a context manager, or close it."""

    def __init__(self, path: Path, opened: journal_file.Opened, environ: Mapping[str, str] = os.environ) -> None:
        self.path, self._db, self._environ = path, opened.db, environ
        self.installation, self.problem, self.others = opened.installation, opened.problem, opened.others
        self.is_replacement, self.replaced = opened.is_replacement, opened.replaced
        self._file, self._last_event = _identity(path), 0  # the file; the event that this transaction has written
        self.close = weakref.finalize(self, _close, opened.db, path, bool(opened.problem))

    @staticmethod
    def open(path: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> "Journal":
        """Open the journal at `path`, else this user's. A damaged one is read-only, and its `problem` says so.

        Raises JournalError when it cannot or must not be used at all.
        """
        place = Path(path).absolute() if path else journal_file.default_path(environ)
        return Journal(place, journal_file.open_file(place, environ), environ)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def leases(self) -> Leases:
        """Return its leases. Made anew each time: what held on to its journal would keep that from being closed."""
        # The thread that beats opens the same journal, whatever the environment of this process becomes.
        open_again = functools.partial(Journal.open, self.path, dict(self._environ))
        return Leases(self._db, self.writing, (self.path, self._file), open_again)

    # Pods.

    def plan(self, *, token: str, run: str, vendor: str, admit: Admit | None = None, **facts: Any) -> Op:
        """Commit the intent to rent.

        Raises Taken when its (run, rank), or its target in its store, is live; Leased when its place is; what `admit`
        raises for all rows, as they are in that very transaction, and the new one.
        """
        clocks = read_clocks()
        op = Op(token=token, run=run, vendor=vendor, intent_at=int(clocks.wall_s), boot_id=clocks.boot_id,
                boot_s=clocks.boot_s, **facts)  # fmt: skip
        with self.writing():
            same = "(run = ? AND rank = ?) OR (target = ? AND store = ? AND target != '')"
            live = self._ops(f"WHERE {_LIVE} AND NOT detached AND ({same})", op.run, op.rank, op.target, op.store)
            if live:
                raise Taken(live[0])
            there = self._ops(f"WHERE {_LIVE} AND vendor = ? AND place = ? AND place != ''", op.vendor, op.place)
            if leased := next((one for one in there if not may_share(one.devices, op.devices)), None):
                raise Leased(leased)
            if admit:
                admit(self._ops("ORDER BY rowid"), op)
            self._insert(op, "plan")
        return op

    def claim(self, pod: Pod, reason: str, state: str = TERMINATING) -> Op:
        """Claim a pod that bears our mark and has no row: it is to be ended, or (LOST) may be at work."""
        clocks = read_clocks()
        now = int(clocks.wall_s)
        sent_at = min(pod.created_at, now) or None
        if state == TERMINATING:
            run, job = f"orphan-{pod.token[-8:]}", ""
        else:
            run = pod.run if pod.run and not self.ops(run=pod.run) else f"found-{pod.token[-8:]}"
            job = Job(run=run, token=pod.token, steps=()).to_json()  # only the pod knows what is at work on it
        op = Op(token=pod.token, run=run, vendor=pod.provider, state=state, job=job, reason=reason,
                remote_id=pod.pod_id or None, address=pod.address, rate=pod.micro_usd_per_hour, intent_at=now,
                sent_at=sent_at, boot_id=clocks.boot_id, boot_s=clocks.boot_s - (now - (sent_at or now)),
                last_seen_at=now, cap=pod.spend_limit_micro_usd,
                ttl_s=pod.ends_at - pod.created_at if pod.ends_at and pod.created_at else None,
                del_requested_at=now if state == TERMINATING else None)  # fmt: skip
        with self.writing():  # at once: a row that is only PLANNED would say that nothing was sent
            self._insert(op, "claim")
        return op

    def advance(self, op: Op, event: str, **facts: Any) -> Op:
        """Move a row along the table, writing down `facts` (columns). Raises Fenced; SlipwayError: no such move."""
        state = after(op.state, event)
        if event in ("resurfaced", "detach"):  # another pod is live under the run's name, by now or soon
            facts |= {"detached": True}
        if event == "resurfaced":  # one that was only silent keeps its machine leased
            facts |= {"target": "", "place": "", "ended_at": None}
        if event in _STAMPS:
            facts.setdefault(_STAMPS[event], int(time.time()))
        if event == "sending":
            clocks = read_clocks()
            facts = {"boot_id": clocks.boot_id, "boot_s": clocks.boot_s, **facts}
        if event == "resurfaced":
            facts |= {"lived_s": None}
        elif state in ENDED:
            facts |= {"lived_s": op.since_sent_s(read_clocks())}
        return self._change(op, event, {"state": state, **facts})

    def note(self, op: Op, **facts: Any) -> Op:
        """Write down `facts` (columns) about a row that stays in its state. Raises Fenced."""
        return self._change(op, "note", facts)

    def op(self, token: str) -> Op:
        """Return the row with this token. Raises JournalError when none has it."""
        found = self._ops("WHERE token = ?", token)
        if not found:
            raise JournalError(f"journal {self.path}: no row has the token {token}")
        return found[0]

    def ops(self, live: bool | None = None, run: str | None = None) -> list[Op]:
        """Return rows, oldest first; all, or only the live or the ended ones, or only those of a run."""
        found = self._ops("WHERE run = ? ORDER BY rowid", run) if run else self._ops("ORDER BY rowid")
        return [op for op in found if live is None or op.is_live is live]

    def version(self) -> JournalVersion:
        """Return what differs whenever a row has changed: whose journal it is, and the number of its last event."""
        return self.installation, self.read("SELECT coalesce(max(id), 0) FROM events")[0][0]

    def replaced_ago_s(self, now: Clocks) -> float | None:
        """Return for how long, at least, it has replaced one that was lost; None when it does not."""
        if self.replaced is None:
            return None
        return now.boot_s - self.replaced.boot_s if now.boot_id == self.replaced.boot_id else now.boot_s

    def recovered_at(self, run: str) -> list[float]:
        """Return the times at which the run was brought back: UTC epoch seconds, by the number of the recovery."""
        found: dict[int, float] = {}
        for op in self._ops("WHERE run = ? ORDER BY rowid", run):
            notes = "SELECT facts, at FROM events WHERE token = ? AND event = 'note' AND facts LIKE '%\"recoveries\"%'"
            for facts, at in self._db.execute(f"{notes} ORDER BY id", (op.token,)).fetchall():
                found.setdefault(json.loads(facts)["recoveries"], float(at))
            if op.recoveries:
                found.setdefault(op.recoveries, float(op.intent_at))
        return [found[number] for number in sorted(found)]

    def changed_at(self, run: str) -> float:
        """Return when a pod of the run was last written about: UTC epoch seconds, 0 for a run without any."""
        sql = "SELECT max(at) FROM events JOIN ops USING (token) WHERE run = ?"
        return float(self._db.execute(sql, (run,)).fetchone()[0] or 0)

    def events(self, run: str) -> list[JournalEvent]:
        """Return everything that was written down of the pods of a run, oldest first."""
        sql = """SELECT events.token, event, events.state, facts, at FROM events JOIN ops USING (token)
            WHERE run = ? ORDER BY events.id"""
        rows = self._db.execute(sql, (run,)).fetchall()
        return [JournalEvent(token, event, state, json.loads(facts), at) for token, event, state, facts, at in rows]

    def runs(self) -> list[str]:
        """Return the names of runs, the one that was rented for last at the end."""
        return list(dict.fromkeys(op.run for op in reversed(self.ops())))[::-1]

    # Money.

    def tell(self, token: str, source: str, micro_usd: int) -> None:
        """Write down what `source` says that a pod has cost until now."""
        with self.writing():
            self._db.execute("INSERT INTO spend VALUES (?, ?, ?, ?)", (token, int(time.time()), source, micro_usd))

    def told(self, source: str) -> dict[str, tuple[int, int]]:
        """Return by token when `source` reported last what a pod has cost, and how much."""
        rows = self._db.execute("SELECT token, at, amount FROM spend WHERE source = ? ORDER BY rowid", (source,))
        return {token: (at, amount) for token, at, amount in rows.fetchall()}

    # Within.

    def _change(self, op: Op, event: str, facts: dict[str, Any]) -> Op:
        assert facts.keys() <= set(_COLUMNS), facts
        with self.writing():
            sets = ", ".join(f"{column} = ?" for column in facts)
            sql = f"UPDATE ops SET epoch = epoch + 1, {sets} WHERE token = ? AND epoch = ? AND state = ?"
            done = self._db.execute(sql, (*facts.values(), op.token, op.epoch, op.state))
            if done.rowcount != 1:
                raise Fenced(f"{op.run}: another process changed {op.token} meanwhile; run: inv status")
            changed = self.op(op.token)
            self._event(changed, event, facts)
            if event == "armed" and op.rate and op.is_head and not (op.stays or op.service):
                self.leases.leave(
                    keeper_lease(op.run)
                )  # its launch may die before it follows it, and its machine be taken
        return changed

    def _insert(self, op: Op, event: str) -> None:
        marks, values = ", ".join("?" * len(_COLUMNS)), [getattr(op, column) for column in _COLUMNS]
        self._db.execute(f"INSERT INTO ops ({', '.join(_COLUMNS)}) VALUES ({marks})", values)
        self._event(op, event, {})

    def _event(self, op: Op, event: str, facts: Mapping[str, Any]) -> None:
        clock = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)
        sql = (
            "INSERT INTO events (token, event, state, epoch, facts, at, boot_id, boottime_ms) VALUES (?,?,?,?,?,?,?,?)"
        )
        now = (int(time.time()), boot_id(), time.clock_gettime_ns(clock) // 1_000_000)
        done = self._db.execute(sql, (op.token, event, op.state, op.epoch, json.dumps(facts), *now))
        self._last_event = done.lastrowid or 0

    def _ops(self, where: str, *values: Any) -> list[Op]:
        try:
            rows = self._db.execute(f"{_SELECT} {where}", values).fetchall()
        except sqlite3.DatabaseError as error:
            raise JournalError(self.problem or f"journal {self.path}: {error}") from error
        found = [dict(zip(_COLUMNS, row, strict=True)) for row in rows]
        return [Op(**{**one, "detached": bool(one["detached"])}) for one in found]  # SQLite has numbers only

    def read(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return rows of a table, as they are now; within a transaction, as it has them. Raises JournalError."""
        try:
            return self._db.execute(sql, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise JournalError(self.problem or f"journal {self.path}: {error}") from error

    def execute(self, sql: str, *values: Any) -> None:
        """Execute a statement of the transaction that `writing` has begun."""
        assert self._db.in_transaction
        self._db.execute(sql, values)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Run one transaction under the lock. Raises JournalFull, JournalError; Replaced: a lease of ours was taken."""
        if self.problem:
            raise JournalError(self.problem)
        with journal_file.locked(self.path) as lock:
            if _identity(self.path) != self._file:  # writes to a file without a name are lost with this process
                raise JournalError(f"journal {self.path} was moved away or replaced while it was open; run that again")
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    self._last_event = 0
                    self.leases.check_held()
                    yield
                    self._db.execute("COMMIT")
                    if self._last_event:
                        journal_file.remember_changes(lock, self._last_event)
                except BaseException:
                    if self._db.in_transaction:
                        self._db.execute("ROLLBACK")
                    raise
                journal_file.checkpoint_if_long(self._db, self.path)
            except sqlite3.Error as error:
                raise journal_file.failed(self.path, error) from error


def _identity(path: Path) -> tuple[int, int] | None:
    """Return the device and inode of that file; None when there is none."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _close(db: sqlite3.Connection, path: Path, is_read_only: bool) -> None:
    """Close the database under the lock, as the last one to close makes a checkpoint."""
    if is_read_only:
        db.close()
    else:
        with journal_file.locked(path):
            db.close()
