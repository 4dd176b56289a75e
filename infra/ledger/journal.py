"""The journal of rented pods: intents, written before the requests to the vendor, and outcomes.

An installation has one journal, in the user's state directory. `plan` commits an intent; `advance` moves a row along
the table of `infra.ledger.op`. A writer passes the row with the epoch last read. If the row has moved
since, the journal writes no changes and raises Fenced: the writer must read again. A pod with a live row, or an
UNKNOWN row, may be billing.
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
from infra.ledger.op import ENDED, TERMINATING, AlreadyLive, JournalEvent, Leased, Op, after
from infra.records import Pod

_STAMPS = {
    "sending": "sent_at",
    "found": "last_seen_at",
    "armed": "last_seen_at",
    "reachable": "last_seen_at",
    "end": "del_requested_at",
    "detach": "del_requested_at",
    "gone": "ended_at",
    "absent": "ended_at",
    "refused": "ended_at",
    "unsent": "ended_at",
}

Admit = Callable[[list[Op], Op], None]
JournalVersion = tuple[str, int]

_COLUMNS = tuple(one.name for one in fields(Op))
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM ops"
_LIVE = "state NOT IN ('TERMINATED', 'FAILED')"


class Journal:
    """The journal of an installation. Open with `Journal.open`; use as a context manager, or call `close`."""

    def __init__(self, path: Path, opened: journal_file.Opened, environ: Mapping[str, str] = os.environ) -> None:
        self.path, self._db, self._environ = path, opened.db, environ
        self.installation, self.problem, self.others = opened.installation, opened.problem, opened.others
        self.is_replacement, self.replaced = opened.is_replacement, opened.replaced
        # The open file, and the last event written by the open transaction.
        self._file, self._last_event = _identity(path), 0
        self.close = weakref.finalize(self, _close, opened.db, path, bool(opened.problem))

    @staticmethod
    def open(path: str | Path | None = None, environ: Mapping[str, str] = os.environ) -> "Journal":
        """Open the journal at `path`, or the default journal of this user.

        A damaged journal is opened read-only, with the damage in `problem`. Raise JournalError when the journal cannot
        or must not be used at all.
        """
        place = Path(path).absolute() if path else journal_file.default_path(environ)
        return Journal(place, journal_file.open_file(place, environ), environ)

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def leases(self) -> Leases:
        """Return the leases of the journal, as a new object: a stored object would keep the journal open."""
        # The heartbeat thread must open the same journal even if the environment of this process changes.
        open_again = functools.partial(Journal.open, self.path, dict(self._environ))
        return Leases(self._db, self.writing, (self.path, self._file), open_again)

    # Pods.

    def plan(self, *, token: str, run: str, vendor: str, admit: Admit | None = None, **facts: Any) -> Op:
        """Commit the intent to rent a pod.

        Raise AlreadyLive when the (run, rank), or the target in the store, is already live. Raise Leased when a live
        row at the same place has one of the devices; a row without devices has the whole place. `admit` gets all rows
        of the same transaction and the new row; errors of `admit` propagate.
        """
        clocks = read_clocks()
        op = Op(
            token=token,
            run=run,
            vendor=vendor,
            intent_at=int(clocks.wall_s),
            boot_id=clocks.boot_id,
            boot_s=clocks.boot_s,
            **facts,
        )
        with self.writing():
            same = "(run = ? AND rank = ?) OR (target = ? AND store = ? AND target != '')"
            live = self._ops(f"WHERE {_LIVE} AND NOT detached AND ({same})", op.run, op.rank, op.target, op.store)
            if live:
                raise AlreadyLive(live[0])
            there = self._ops(f"WHERE {_LIVE} AND vendor = ? AND place = ? AND place != ''", op.vendor, op.place)
            if leased := next((one for one in there if not may_share(one.devices, op.devices)), None):
                raise Leased(leased)
            if admit:
                admit(self._ops("ORDER BY rowid"), op)
            self._insert(op, "plan")
        return op

    def claim(self, pod: Pod, reason: str, state: str = TERMINATING) -> Op:
        """Insert a row for a pod with our mark and without a row: to be ended, or (LOST) possibly at work."""
        clocks = read_clocks()
        now = int(clocks.wall_s)
        sent_at = min(pod.created_at, now) or None
        if state == TERMINATING:
            run, job = f"orphan-{pod.token[-8:]}", ""
        else:
            run = pod.run if pod.run and not self.ops(run=pod.run) else f"found-{pod.token[-8:]}"
            job = Job(run=run, token=pod.token, steps=()).to_json()  # only the pod knows the running work
        op = Op(
            token=pod.token,
            run=run,
            vendor=pod.provider,
            state=state,
            job=job,
            reason=reason,
            remote_id=pod.pod_id or None,
            address=pod.address,
            rate=pod.rate(),
            intent_at=now,
            sent_at=sent_at,
            boot_id=clocks.boot_id,
            boot_s=clocks.boot_s - (now - (sent_at or now)),
            last_seen_at=now,
            cap=pod.spend_limit_micro_usd,
            ttl_s=pod.ends_at - pod.created_at if pod.ends_at and pod.created_at else None,
            del_requested_at=now if state == TERMINATING else None,
        )
        with self.writing():  # a single step: a PLANNED row would mean that no request was sent
            self._insert(op, "claim")
        return op

    def advance(self, op: Op, event: str, **facts: Any) -> Op:
        """Move a row along the table and write `facts` (columns).

        Raise Fenced for a row changed meanwhile, and SlipwayError for a move missing from the table.
        """
        state = after(op.state, event)
        if event in ("resurfaced", "detach"):  # a new pod is, or will soon be, live under the run's name
            facts |= {"detached": True}
        if event == "resurfaced":  # after `detach`, the silent pod keeps the machine leased
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
        """Write `facts` (columns) to a row without changing the state. Raise Fenced for a row changed meanwhile."""
        return self._change(op, "note", facts)

    def op(self, token: str) -> Op:
        """Return the row with this token. Raise JournalError for an unknown token."""
        found = self._ops("WHERE token = ?", token)
        if not found:
            raise JournalError(f"journal {self.path}: no row has the token {token}")
        return found[0]

    def ops(self, live: bool | None = None, run: str | None = None) -> list[Op]:
        """Return rows, oldest first: all rows, or only live or ended rows, or only rows of a run."""
        found = self._ops("WHERE run = ? ORDER BY rowid", run) if run else self._ops("ORDER BY rowid")
        return [op for op in found if live is None or op.is_live is live]

    def version(self) -> JournalVersion:
        """Return a version, changed by each event: the installation and the number of the last event."""
        return self.installation, self.read("SELECT coalesce(max(id), 0) FROM events")[0][0]

    def replaced_ago_s(self, now: Clocks) -> float | None:
        """Return the minimum seconds since this journal replaced a lost journal; None for an original journal."""
        if self.replaced is None:
            return None
        return now.boot_s - self.replaced.boot_s if now.boot_id == self.replaced.boot_id else now.boot_s

    def recovered_at(self, run: str) -> list[float]:
        """Return the recovery times of a run in UTC epoch seconds, ordered by recovery number."""
        found: dict[int, float] = {}
        for op in self._ops("WHERE run = ? ORDER BY rowid", run):
            notes = "SELECT facts, at FROM events WHERE token = ? AND event = 'note' AND facts LIKE '%\"recoveries\"%'"
            for facts, at in self._db.execute(f"{notes} ORDER BY id", (op.token,)).fetchall():
                found.setdefault(json.loads(facts)["recoveries"], float(at))
            if op.recoveries:
                found.setdefault(op.recoveries, float(op.intent_at))
        return [found[number] for number in sorted(found)]

    def changed_at(self, run: str) -> float:
        """Return the time of the last event of a run in UTC epoch seconds; 0 for a run without events."""
        sql = "SELECT max(at) FROM events JOIN ops USING (token) WHERE run = ?"
        return float(self._db.execute(sql, (run,)).fetchone()[0] or 0)

    def events(self, run: str) -> list[JournalEvent]:
        """Return all events of the pods of a run, oldest first."""
        sql = """SELECT events.token, event, events.state, facts, at FROM events JOIN ops USING (token)
            WHERE run = ? ORDER BY events.id"""
        rows = self._db.execute(sql, (run,)).fetchall()
        return [JournalEvent(token, event, state, json.loads(facts), at) for token, event, state, facts, at in rows]

    def runs(self) -> list[str]:
        """Return the names of runs, with the most recently rented run last."""
        return list(dict.fromkeys(op.run for op in reversed(self.ops())))[::-1]

    # Money.

    def record_cost(self, token: str, source: str, micro_usd: int) -> None:
        """Record the cost of a pod until now in micro-USD, as reported by `source`."""
        with self.writing():
            self._db.execute("INSERT INTO spend VALUES (?, ?, ?, ?)", (token, int(time.time()), source, micro_usd))

    def reported_costs(self, source: str) -> dict[str, tuple[int, int]]:
        """Return the last report of `source` by token: UTC epoch seconds of the report, and the cost in micro-USD."""
        rows = self._db.execute("SELECT token, at, amount FROM spend WHERE source = ? ORDER BY rowid", (source,))
        return {token: (at, amount) for token, at, amount in rows.fetchall()}

    # Internal.

    def _change(self, op: Op, event: str, facts: dict[str, Any]) -> Op:
        assert facts.keys() <= set(_COLUMNS), facts
        with self.writing():
            sets = ", ".join(f"{column} = ?" for column in facts)
            sql = f"UPDATE ops SET epoch = epoch + 1, {sets} WHERE token = ? AND epoch = ? AND state = ?"
            done = self._db.execute(sql, (*facts.values(), op.token, op.epoch, op.state))
            if done.rowcount != 1:
                raise Fenced(f"{op.run}: another process changed {op.token} in the meantime; run: inv status")
            changed = self.op(op.token)
            self._event(changed, event, facts)
            if event == "armed" and op.rate and op.is_head and not (op.outlives_run or op.service):
                # The launch may die before following the run, and the machine may be taken away.
                self.leases.abandon_in_transaction(keeper_lease(op.run))
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
        return [Op(**{**one, "detached": bool(one["detached"])}) for one in found]  # SQLite has no booleans

    def read(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        """Return the current rows of a table, with the changes of an open transaction. Raise JournalError."""
        try:
            return self._db.execute(sql, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise JournalError(self.problem or f"journal {self.path}: {error}") from error

    def execute(self, sql: str, *values: Any) -> None:
        """Execute a statement in the transaction begun by `writing`."""
        assert self._db.in_transaction
        self._db.execute(sql, values)

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Run a transaction under the lock.

        Raise JournalFull or JournalError on failure, and WorkTakenOver when a lease of this process was taken over.
        """
        if self.problem:
            raise JournalError(self.problem)
        with journal_file.locked(self.path) as lock:
            if _identity(self.path) != self._file:  # writes to an unlinked file are lost with this process
                raise JournalError(
                    f"journal {self.path} was moved or replaced during the command; run the command again"
                )
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
    """Return the device and inode of a file, or None for a missing file."""
    try:
        found = path.stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _close(db: sqlite3.Connection, path: Path, is_read_only: bool) -> None:
    """Close the database, under the lock unless read-only: the last connection to close runs a checkpoint."""
    if is_read_only:
        db.close()
    else:
        with journal_file.locked(path):
            db.close()
