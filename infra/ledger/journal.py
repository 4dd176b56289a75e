"""The journal of what we rented and owe: intents, written before their effects, and what became of them.

In: events about pods. Out: rows. One journal per installation, in the user's state directory. The protocol: `plan`
commits the intent, `advance` moves a row along the table of `infra.ledger.life_cycle`. A write names the row as its
writer last saw it (its epoch); when somebody else moved it meanwhile, nothing is written and Fenced is raised: look
again. A pod whose row is live, or UNKNOWN, may be billing.
"""

import contextlib
import json
import os
import sqlite3
import time
import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from infra import journal_file
from infra.agent.host import may_share
from infra.agent.job import Job
from infra.agent.limits import Clocks, gap_s, read_clocks
from infra.agent.process import Identity, boot_id, is_alive, myself
from infra.errors import Busy, UsageError
from infra.journal_file import JournalError
from infra.ledger.life_cycle import ENDED, PLANNED, TERMINATING, after
from infra.records import Pod

POD, SERVE = "pod", "serve"
SUPERVISOR = "supervisor"  # the lease of an installation's supervisor
_STAMPS = {"sending": "sent_at", "found": "last_seen_at", "armed": "last_seen_at", "reachable": "last_seen_at",
           "end": "del_requested_at", "aside": "del_requested_at", "gone": "ended_at", "absent": "ended_at",
           "refused": "ended_at", "unsent": "ended_at"}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Op:
    """One billable thing, as last read. Money is micro-USD, rates per hour; times are UTC epoch seconds."""

    token: str
    run: str
    slot: int = 0  # the rank of its node; below 0, it stands beside the run: whatever it is, it is to be ended
    role: str = "train"  # "pod": outlives its work; "pod:NAME": of that set of pods; "serve:NAME": a service's replica
    vendor: str
    account_fp: str = ""
    spec_hash: str = ""
    target: str = ""  # the artifact it makes, and where: one live op for each pair
    store: str = ""
    job: str = ""  # JSON, as it is handed over
    request: str = ""  # JSON: what kind of machine was asked for, so that another one can be found
    recoveries: int = 0  # times that a keeper has brought the run back, on this pod and those before it
    state: str = PLANNED
    epoch: int = 1
    place: str = ""  # the one machine that it wants; leased to this row while it is live
    devices: str = ""  # GPUs of that machine, such as `0,1`: others may have the rest; "" = the whole machine
    remote_id: str | None = None
    address: str | None = None
    rate: int = 0
    storage_rate: int = 0
    ttl_s: float | None = None
    hard_deadline: int | None = None
    cap: int | None = None
    budget: int | None = None  # all pods under the names of its run may cost so much; each has a share of that as `cap`
    budget_name: str = ""  # the budget that pays for it, of many runs (`infra.ledger.budgets`); "" = none
    budget_run: str = ""  # the run whose reservation there it is part of
    asked: str = ""  # JSON: the words of its launch besides those on what it makes; "" = not on record
    intent_at: int = 0
    sent_at: int | None = None
    # when its vendor first listed it, or its guard answered; the answer to its creation is not enough
    last_seen_at: int | None = None
    first_absent_at: int | None = None
    absent_n: int = 0
    del_requested_at: int | None = None
    ended_at: int | None = None  # when it was proven gone
    billed_at: float | None = None  # when its vendor began to bill it, where that is later than the request and told
    boot_id: str = ""  # the boot, and its own clock, when it was sent, or before that intended
    boot_s: float | None = None
    lived_s: float | None = None  # time until it was proven gone, by the clock that counted more
    reason: str = ""  # reason of its end, or of what is unclear, for people
    outcome: str = ""  # end of its run with it: ASKED, or the state of a verdict; "" = another pod may go on with it

    def since_sent_s(self, now: Clocks) -> float:
        """Return the time since it was sent, or else intended, by the clock that says more; never negative."""
        at = float(self.intent_at if self.sent_at is None else self.sent_at)
        if self.boot_s is None:  # a row of an older Slipway
            return max(0.0, now.wall_s - at)
        return gap_s(Clocks(self.boot_id, self.boot_s, at), now)

    def settling_s(self, now: Clocks) -> float:
        """Return how long ago it was sent, or else intended, at least: by the boot's own clock, which nobody sets."""
        at = float(self.intent_at if self.sent_at is None else self.sent_at)
        if self.boot_s is None:  # a row of an older Slipway
            return max(0.0, now.wall_s - at)
        return max(0.0, now.boot_s - self.boot_s if now.boot_id == self.boot_id else now.boot_s)

    @property
    def is_live(self) -> bool:
        return self.state not in ENDED

    @property
    def stays(self) -> bool:
        """Return whether it is there for its own sake, and not for one piece of work."""
        return self.role.partition(":")[0] == POD

    @property
    def pod_set(self) -> str:
        """Return the set of pods that it belongs to, "" for none."""
        kind, _, name = self.role.partition(":")
        return name if kind == POD else ""

    @property
    def service(self) -> str:
        """Return the service that it is a replica of, "" for none.

        Its controller looks after it; it is nobody's run.
        """
        kind, _, name = self.role.partition(":")
        return name if kind == SERVE else ""


@dataclass(frozen=True)
class Lease:
    """The right to change one thing, held by one process until it dies, releases it or hands it on."""

    name: str
    epoch: int
    code: str = ""
    """The stamp of the code that its holder runs, which is told to others; "" = it tells none."""


@dataclass(frozen=True)
class JournalEvent:
    """One change of a row, as it was written down."""

    token: str
    event: str  # an event of `infra.ledger.life_cycle`; or plan, note, claim
    state: str  # after it
    facts: Mapping[str, Any]
    at: int  # UTC epoch seconds


def keeper_lease(run: str) -> str:
    """Return the name of the lease that the keeper of a run holds."""
    return f"keep:{run}"


Admit = Callable[[list[Op], Op], None]
JournalVersion = tuple[str, int]

_COLUMNS = tuple(one.name for one in fields(Op))
_SELECT = f"SELECT {', '.join(_COLUMNS)} FROM ops"
_LIVE = "state NOT IN ('TERMINATED', 'FAILED')"


class Taken(UsageError):
    """The same thing is live already; `op` is its row."""

    def __init__(self, op: Op) -> None:
        self.op = op
        super().__init__(
            f"{op.run} is already running it ({op.state} on {op.vendor}); run: inv status, or inv down {op.run}"
        )


class Leased(Busy):
    """The machine holds another pod; `op` is its row. It is free when that row has ended, which takes proof."""

    def __init__(self, op: Op) -> None:
        self.op = op
        what = f"{op.place or 'this machine'}{f', device {op.devices},' if op.devices else ''}"
        super().__init__(f"{op.vendor}: {what} is leased by {op.run} ({op.state}); stand in line for it: --wait; see: "
                         f"inv status {op.run}")  # fmt: skip


class Held(UsageError):
    """A living process holds that lease."""


class Fenced(JournalError):
    """The row was changed by somebody else since it was read."""


class Journal:
    """Open with `Journal.open`; use as a context manager, or close it."""

    def __init__(self, path: Path, opened: journal_file.Opened) -> None:
        self.path, self._db = path, opened.db
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
        return Journal(place, journal_file.open_file(place, environ))

    def __enter__(self) -> "Journal":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Pods.

    def plan(self, *, token: str, run: str, vendor: str, admit: Admit | None = None, **facts: Any) -> Op:
        """Commit the intent to rent.

        Raises Taken when its (run, slot), or its target in its store, is live; Leased when its place is; what `admit`
        raises for all rows, as they are in that very transaction, and the new one.
        """
        clocks = read_clocks()
        op = Op(token=token, run=run, vendor=vendor, intent_at=int(clocks.wall_s), boot_id=clocks.boot_id,
                boot_s=clocks.boot_s, **facts)  # fmt: skip
        with self.writing():
            same_target = "target = ? AND store = ? AND target != '' AND slot >= 0"
            rivals = f"{_LIVE} AND ((run = ? AND slot = ?) OR ({same_target}))"
            live = self._ops(f"WHERE {rivals}", op.run, op.slot, op.target, op.store)
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
        if event in ("resurfaced", "aside"):  # beside whatever is live under the run's name, by now or soon
            facts |= {"slot": min(0, *(one.slot for one in self.ops(run=op.run))) - 1}
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
        if not self.replaced.boot_id:  # written by an older Slipway, which knew the wall clock only
            return max(0.0, now.wall_s - self.replaced.wall_s)
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

    # Leases.

    def take(self, name: str, code: str = "") -> Lease:
        """Acquire a lease. Raises Held while the process that has it lives.

        code: the stamp of our code, for a lease that is held long.
        """
        with self.writing():
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
        with self.writing():
            self._leave(name)

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

    # Within.

    def _lease(self, name: str) -> tuple[int, Identity | None]:
        """Return its epoch, and who has it: a dead process has nothing."""
        row = self._db.execute("SELECT epoch, boot_id, pid, pid_starttime FROM leases WHERE name = ?", (name,))
        epoch, *holder = row.fetchone() or (0, None, None, None)
        found = Identity(*holder) if holder[1] is not None else None
        return epoch, found if found and is_alive(found) else None

    def _hold(self, lease: Lease, *holder: str | int | None) -> Lease:
        with self.writing():
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

    def holders(self) -> list[journal_file.Holder]:
        """Return the living processes that hold leases, each with the stamp of its code."""
        return journal_file.holders(self._db)

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
            if event == "armed" and op.rate and op.slot == 0 and not (op.stays or op.service):
                self._leave(keeper_lease(op.run))  # its launch may die before it follows it, and its machine be taken
        return changed

    def _leave(self, name: str) -> None:
        epoch, holder = self._lease(name)
        if holder is None:
            self._db.execute("INSERT OR REPLACE INTO leases VALUES (?, ?, ?, ?, ?)", (name, epoch + 1, "", 0, ""))

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
        return [Op(**dict(zip(_COLUMNS, row, strict=True))) for row in rows]

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
        """Run one transaction under the lock. Raises JournalFull, JournalError."""
        if self.problem:
            raise JournalError(self.problem)
        with journal_file.locked(self.path) as lock:
            if _identity(self.path) != self._file:  # writes to a file without a name are lost with this process
                raise JournalError(f"journal {self.path} was moved away or replaced while it was open; run that again")
            try:
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    self._last_event = 0
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
