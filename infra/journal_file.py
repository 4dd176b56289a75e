"""File of the journal: path, lock, tables and opening.

SQLite in WAL mode with full sync. Every write and every checkpoint holds an exclusive flock on a sibling file, because
SQLite before 3.51.3 can corrupt a WAL when a write races a checkpoint. The lock belongs to a process and never expires.
A damaged file is opened read-only and never replaced by an empty file. The same holds for a file without all earlier
changes: a damaged or lost WAL loses whole commits without a trace, so the lock file stores the number of changes.
"""

import contextlib
import errno
import functools
import json
import os
import shutil
import sqlite3
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from infra import installation, names
from infra.agent.limits import Clocks, read_clocks
from infra.agent.shortage import is_full
from infra.errors import SlipwayError
from infra.installation import JournalClaim
from infra.units import size
from store import local_files, packs

PRAGMAS = {"journal_mode": "wal", "synchronous": 2, "foreign_keys": 1, "busy_timeout": 10_000, "wal_autocheckpoint": 0}
CHECKPOINT_BYTES = 1 << 20
ROOM_BYTES = 1 << 20  # with more free space, a disk error does not mean a full disk
MOVED_SCHEMA = 1_000_000  # schema number of a moved journal, which no version of Slipway writes to
MOVED_KEY = "moved"  # key in `meta`: JSON with `host` and `is_home`
NETWORK_FILE_SYSTEMS = frozenset(
    [
        "nfs",
        "nfs4",
        "cifs",
        "smb2",
        "smb3",
        "smbfs",
        "ncpfs",
        "9p",
        "afs",
        "ceph",
        "lustre",
        "gpfs",
        "beegfs",
        "glusterfs",
        "ocfs2",
        "gfs2",
        "pvfs2",
        "davfs",
        "fuse.sshfs",
        "fuse.glusterfs",
        "fuse.s3fs",
        "fuse.gcsfuse",
        "fuse.rclone",
        "fuse.ceph",
        "fuse.juicefs",
        "fuse.davfs",
    ]
)

SCHEMA = 16  # from version 1.0 on, each release with changed tables brings a migration
# Money is in micro-USD (rates per hour), times are UTC epoch seconds. Every change of an op is also an event, which
# records the boot clock.
TABLES = (
    # boot_id, boot_s, lived_s: the boot clock, since a wall clock may be set back
    """CREATE TABLE ops (
        token TEXT PRIMARY KEY, run TEXT NOT NULL, rank INTEGER NOT NULL CHECK (rank >= 0),
        detached INTEGER NOT NULL CHECK (detached IN (0, 1)), owner_kind TEXT NOT NULL, owner TEXT NOT NULL,
        vendor TEXT NOT NULL, account_fp TEXT NOT NULL, spec_hash TEXT NOT NULL, target TEXT NOT NULL,
        store TEXT NOT NULL, job TEXT NOT NULL, request TEXT NOT NULL, recoveries INTEGER NOT NULL,
        state TEXT NOT NULL, epoch INTEGER NOT NULL, place TEXT NOT NULL, devices TEXT NOT NULL,
        remote_id TEXT, address TEXT, rate INTEGER NOT NULL, ttl_s REAL, cap INTEGER, budget INTEGER,
        budget_name TEXT NOT NULL, budget_run TEXT NOT NULL, asked TEXT NOT NULL,
        intent_at INTEGER NOT NULL, sent_at INTEGER, last_seen_at INTEGER, first_absent_at INTEGER,
        absent_n INTEGER NOT NULL, del_requested_at INTEGER, ended_at INTEGER, billed_at REAL,
        boot_id TEXT NOT NULL, boot_s REAL NOT NULL, lived_s REAL, reason TEXT NOT NULL, outcome TEXT NOT NULL)""",
    # a detached pod releases name, rank and target to a successor
    """CREATE UNIQUE INDEX one_live_per_rank ON ops (run, rank)
        WHERE NOT detached AND state NOT IN ('TERMINATED', 'FAILED')""",
    """CREATE UNIQUE INDEX one_live_per_target ON ops (target, store)
        WHERE target != '' AND NOT detached AND state NOT IN ('TERMINATED', 'FAILED')""",
    # a machine belongs to a single row, or to several rows with different devices
    """CREATE UNIQUE INDEX one_live_per_place ON ops (vendor, place, devices)
        WHERE place != '' AND state NOT IN ('TERMINATED', 'FAILED')""",
    """CREATE TABLE events (
        id INTEGER PRIMARY KEY, token TEXT NOT NULL REFERENCES ops, event TEXT NOT NULL, state TEXT NOT NULL,
        epoch INTEGER NOT NULL, facts TEXT NOT NULL, at INTEGER NOT NULL, boot_id TEXT NOT NULL,
        boottime_ms INTEGER NOT NULL)""",
    "CREATE TRIGGER events_stay BEFORE DELETE ON events BEGIN SELECT RAISE(ABORT, 'events only grow'); END",
    "CREATE TRIGGER events_are_fixed BEFORE UPDATE ON events BEGIN SELECT RAISE(ABORT, 'events only grow'); END",
    # heard_s: last sign of life of the holder, by a clock stopped during sleep
    """CREATE TABLE leases (
        name TEXT PRIMARY KEY, epoch INTEGER NOT NULL, boot_id TEXT, pid INTEGER, pid_starttime TEXT, heard_s REAL)""",
    """CREATE TABLE spend (
        token TEXT NOT NULL REFERENCES ops, at INTEGER NOT NULL, source TEXT NOT NULL, amount INTEGER NOT NULL)""",
    "CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL)",
    # wanted: target state of a service, written by commands; seen: actual state, written by the controller
    """CREATE TABLE services (
        name TEXT PRIMARY KEY, epoch INTEGER NOT NULL, wanted TEXT NOT NULL, seen TEXT NOT NULL)""",
    # budgets are shared by many runs
    """CREATE TABLE budgets (
        name TEXT PRIMARY KEY, epoch INTEGER NOT NULL, amount INTEGER NOT NULL, since INTEGER NOT NULL)""",
    """CREATE TABLE reservations (
        budget TEXT NOT NULL REFERENCES budgets, run TEXT NOT NULL, amount INTEGER NOT NULL, boot_id TEXT NOT NULL,
        pid INTEGER NOT NULL, pid_starttime TEXT NOT NULL, PRIMARY KEY (budget, run))""",
    """CREATE TABLE turns (
        number INTEGER PRIMARY KEY, run TEXT NOT NULL, vendor TEXT NOT NULL, places TEXT NOT NULL,
        devices TEXT NOT NULL, since INTEGER NOT NULL, why TEXT NOT NULL, boot_id TEXT NOT NULL,
        pid INTEGER NOT NULL, pid_starttime TEXT NOT NULL)""",
)


READ_ONLY = {errno.EROFS, errno.EACCES, errno.EPERM}  # errors of opening a file in a read-only folder


class JournalError(SlipwayError):
    """The journal cannot be used, or cannot be written."""


class Fenced(JournalError):
    """A concurrent process changed the row or the lease since the last read."""


class JournalFull(JournalError):
    """The disk of the journal is full, or fails to write; the failed change is not in the journal."""

    IN_WORDS = ("database or disk is full", "disk I/O error")  # of SQLite; error codes need Python 3.11


def failed(path: Path, error: Exception) -> JournalError:
    """Return the exception for an error of the system or of SQLite on the journal at `path`."""
    if not (str(error).startswith(JournalFull.IN_WORDS) or is_full(error)):
        return JournalError(f"journal {path}: {error}")
    free = shutil.disk_usage(path.parent).free
    then = "check the disk" if free > ROOM_BYTES else f"{size(free)} are free on the disk: free more space"
    return JournalFull(
        f"journal {path}: {error}; {then}, then run the command again. Until then this machine rents "
        "and ends no pods; pods end at their own limits"
    )


class SchemaMismatch(JournalError):
    """The file has an unsupported schema, or tables without a schema number."""

    def __init__(self, path: Path, schema: int) -> None:
        found = f"schema {schema}" if schema else "tables without a schema number"
        super().__init__(
            f"journal {path} has {found}, but this Slipway reads only schema {SCHEMA}. The file was not changed, and "
            "no machine was touched: runs continue, and pods end at their own limits. Either use the Slipway "
            f"version that wrote the file, or set the file aside: mv {path} {path}.schema{schema}; then run: "
            "./inv audit, which finds the pods of that file in the vendors' listings"
        )


class JournalMoved(JournalError):
    """The journal moved to `host`, which holds the only writable copy.

    `is_home`: the journal is moving from a control host back to the user's machine.
    """

    def __init__(self, path: Path, host: str, is_home: bool = False) -> None:
        self.host = host
        if is_home:
            what = f"is moving back to {host}; wait for {packs.typed('./inv control.down')} on {host}, or "
            what += "run the command again"
        else:
            what = f"has moved to {host}, and this copy is read-only; add --control {host}, or move the journal back: "
            what += packs.typed("./inv control.down")
        super().__init__(f"journal {path} {what}")


class _Damaged(Exception):
    pass


@dataclass(frozen=True)
class Opened:
    db: sqlite3.Connection
    installation: str  # eight letters and digits; "" = unknown
    problem: str = ""  # reason for read-only access, as text; "" = writable
    is_replacement: bool = False  # True for a new file although this installation had a journal before
    replaced: Clocks | None = None  # time at which this file replaced a lost journal
    others: tuple[JournalClaim, ...] = ()  # other installations in this user's configuration


def default_path(environ: Mapping[str, str]) -> Path:
    return installation.folder(environ, "XDG_STATE_HOME", ".local/state") / "journal.sqlite"


def installation_file(path: Path, environ: Mapping[str, str]) -> Path:
    """Return the file with the id of the journal's installation; each journal is a separate installation."""
    return installation.file_of(path, environ)


@contextlib.contextmanager
def locked(path: Path, wait_s: float = 30.0) -> Iterator[int]:
    """Hold the lock of the journal at `path` and yield the lock file's descriptor.

    Raises JournalError after `wait_s` seconds without the lock.
    """
    busy = JournalError(f"journal {path}: another process has been writing for {wait_s:g} s")
    lock = path.with_name(path.name + ".lock")
    with local_files.holding_lock(lock, busy, wait_s, mode=0o600, look_s=0.002) as descriptor:
        yield descriptor


def open_file(path: Path, environ: Mapping[str, str]) -> Opened:
    """Open the file of the journal; create a missing file.

    Raises JournalError on a network file system, for a different schema or installation, and for a failed open.
    """
    try:
        if path.exists() and not path.is_file():  # neither chmod nor SQLite may touch a folder or a device
            raise JournalError(f"journal {path}: not a regular file; set SLIPWAY_STATE_FILE to a different path")
        installation.make_folder(path.parent, is_ours=path == default_path(environ))
        kind = file_system_of(path.parent)
        if kind in NETWORK_FILE_SYSTEMS:
            raise JournalError(
                f"journal {path}: a journal cannot be on {kind}; set SLIPWAY_STATE_FILE to a path on a local disk"
            )
        with locked(path) as lock:
            if path.is_symlink():
                raise JournalError(f"journal {path}: a symbolic link is not followed")
            if path.exists():  # not opened here: closing the file would drop this process's SQLite locks
                path.chmod(0o600)
            else:
                remember_changes(lock, 0)
                os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
            return _open_locked(path, environ, lock)
    except (OSError, sqlite3.OperationalError) as error:
        if isinstance(error, OSError) and error.errno in READ_ONLY and path.is_file():
            return _open_read_only(path, environ, error)
        raise failed(path, error) from error


def _open_read_only(path: Path, environ: Mapping[str, str], error: OSError) -> Opened:
    """Open a journal in a read-only place; the `problem` of the result explains the restriction."""
    wal = path.with_name(path.name + "-wal")
    # Without an existing WAL, SQLite cannot create a WAL here either, and needs the promise of an unchanging file.
    db = read_only(path, is_fixed=not (wal.exists() and wal.stat().st_size))
    try:
        if db.execute("PRAGMA user_version").fetchone() != (MOVED_SCHEMA,):  # a moved journal may still be read
            _check_schema(db, path)
        found = dict(db.execute("SELECT key, value FROM meta").fetchall()).get("installation", "")
    except SchemaMismatch:
        db.close()
        raise
    except sqlite3.Error as seen:
        db.close()
        raise failed(path, seen) from seen
    others = tuple(installation.others(installation_file(path, environ)))
    problem = (
        f"journal {path} is read-only: {error.strerror}; this machine cannot rent, end or record pods until "
        f"the folder is writable: {path.parent}"
    )
    return Opened(db, found, problem, others=others)


def _open_locked(path: Path, environ: Mapping[str, str], lock: int) -> Opened:
    kept = installation_file(path, environ)
    remembered, others = installation.read(kept), tuple(installation.others(kept))
    # The garbage collector may close the connection in any thread.
    db = sqlite3.connect(path, isolation_level=None, timeout=10, check_same_thread=False)
    try:
        is_new = _is_empty(db)
        if not is_new:
            _check_schema(db, path)  # checked first, since the pragmas below change the file
        for name, value in PRAGMAS.items():
            db.execute(f"PRAGMA {name}={value}")
            if db.execute(f"PRAGMA {name}").fetchone() != (value,):
                raise JournalError(f"journal {path}: SQLite does not accept {name}={value} here")
        said = db.execute("PRAGMA integrity_check(1)").fetchone()[0]
        if said != "ok":
            raise _Damaged(said)
        if is_new and _remembered_changes(lock):
            raise _Damaged(f"the file is empty, but had {_remembered_changes(lock)} changes")
        if is_new:
            _make_tables(db, "" if installation.conflicting_claims(remembered, others) else remembered)
        if _layout(db) != _made_layout():
            raise _Damaged("the tables were altered")
        changes = _check_rows(db)
        if changes < _remembered_changes(lock):
            raise _Damaged(f"the last {_remembered_changes(lock) - changes} changes are missing")
        remember_changes(lock, changes)
        meta = dict(db.execute("SELECT key, value FROM meta").fetchall())
        if "installation" not in meta:
            raise _Damaged("the installation id is missing")
        found, replaced = meta["installation"], _replaced(meta)
    except sqlite3.OperationalError:
        db.close()
        raise
    except (sqlite3.DatabaseError, _Damaged, ValueError) as error:  # ValueError: a text field has a different type
        db.close()
        return Opened(
            read_only(path),
            remembered,
            f"journal {path} is damaged ({error}) and is now read-only; run: mv {path} {path}.damaged. The next "
            "command starts a new journal and finds the pods in the vendors' listings",
        )
    except JournalError:
        db.close()
        raise
    rivals = installation.conflicting_claims(found, others)
    if rivals or remembered not in ("", found) and not is_new:
        db.close()
        raise JournalError(_two(path, found, remembered, kept, rivals))
    if remembered != found:
        installation.remember(found, path, environ)
    return Opened(db, found, is_replacement=is_new and found == remembered, replaced=replaced, others=others)


def _two(path: Path, found: str, remembered: str, kept: Path, rivals: Sequence[JournalClaim]) -> str:
    """Return why this journal's installation id conflicts, with advice."""
    if not rivals:
        return (
            f"journal {path} belongs to installation {found}, but {kept} says {remembered}; move one of the files away"
        )
    other = rivals[0]
    return (
        f"journal {path}: installation {found} is also used by {other.where}; each would end the other's pods. "
        f"If {other.where} is no longer used: rm {other.file}; if this journal is a copy: mv {path} {path}.copy"
    )


def _replaced(meta: Mapping[str, str]) -> Clocks | None:
    """Return the time at which the journal replaced a lost journal, or None. Raises ValueError for invalid times."""
    if "replaced_at" not in meta:
        return None
    return Clocks(meta["replaced_boot_id"], float(meta["replaced_boot_s"]), float(meta["replaced_at"]))


def _layout(db: sqlite3.Connection) -> set[tuple[object, ...]]:
    """Return every column, index and trigger of the database.

    SQLite's own checks do not notice a changed letter in the text of a definition.
    """
    columns = """SELECT one.name, info.* FROM sqlite_master AS one, pragma_table_info(one.name) AS info
        WHERE one.type = 'table'"""
    return {
        *db.execute(columns),
        *db.execute("SELECT type, name, tbl_name, sql FROM sqlite_master WHERE type != 'table'"),
    }


@functools.cache
def _made_layout() -> set[tuple[object, ...]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as db:
        for statement in TABLES:
            db.execute(statement)
        return _layout(db)


def _check_rows(db: sqlite3.Connection) -> int:
    """Return the number of changes. Raises _Damaged if rows and events disagree.

    SQLite's integrity check does not cover cells outside of an index.
    """
    try:
        for table in ("ops", "leases", "services", "budgets", "reservations", "turns"):  # decodes all text
            db.execute(f"SELECT * FROM {table}").fetchall()
        wrong = db.execute(
            """SELECT token FROM ops JOIN (SELECT token, state, epoch, max(id) FROM events GROUP BY token) AS last
            USING (token) WHERE ops.state != last.state OR ops.epoch != last.epoch"""
        ).fetchone()
        lonely = db.execute("PRAGMA foreign_key_check").fetchone()
        changes: int = db.execute("SELECT coalesce(max(id), 0) FROM events").fetchone()[0]
    except sqlite3.OperationalError as error:
        raise _Damaged(str(error)) from error
    if wrong or lonely:
        raise _Damaged("rows and events disagree")
    return changes


def remember_changes(lock: int, changes: int) -> None:
    """Write the number of changes into the lock file, after a commit.

    The write needs no sync: after a crash the stored number may be too small, but never above the committed changes.
    """
    os.pwrite(lock, f"{changes:020d}".encode(), 0)


def _remembered_changes(lock: int) -> int:
    said = os.pread(lock, 20, 0)
    return int(said) if said.isdigit() else 0


def _make_tables(db: sqlite3.Connection, remembered: str) -> None:
    """Create the tables of a new file in a single transaction: a killed process leaves an empty file."""
    db.execute("BEGIN IMMEDIATE")
    for statement in TABLES:
        db.execute(statement)
    db.execute("INSERT INTO meta VALUES ('installation', ?)", (remembered or names.random_word(8),))
    if remembered:
        now = read_clocks()
        stamps = {"replaced_at": int(now.wall_s), "replaced_boot_id": now.boot_id, "replaced_boot_s": now.boot_s}
        db.executemany("INSERT INTO meta VALUES (?, ?)", [(key, str(value)) for key, value in stamps.items()])
    db.execute(f"PRAGMA user_version={SCHEMA}")
    db.execute("COMMIT")


def _is_empty(db: sqlite3.Connection) -> bool:
    """Return whether the file has neither a schema number nor tables."""
    tables = db.execute("SELECT count(*) FROM sqlite_master").fetchone()
    return db.execute("PRAGMA user_version").fetchone() == tables == (0,)


def _check_schema(db: sqlite3.Connection, path: Path) -> None:
    """Raise JournalMoved for a moved journal, and SchemaMismatch for a different schema."""
    (schema,) = db.execute("PRAGMA user_version").fetchone()
    if schema == MOVED_SCHEMA:
        raise JournalMoved(path, **_move_of(db))
    if schema != SCHEMA:
        raise SchemaMismatch(path, schema)


def moved_to(db: sqlite3.Connection) -> str:
    """Return the new host of a moved journal; "" = not moved. Raises sqlite3.Error."""
    if db.execute("PRAGMA user_version").fetchone() != (MOVED_SCHEMA,):
        return ""
    return str(_move_of(db)["host"])


def _move_of(db: sqlite3.Connection) -> dict[str, Any]:
    (about,) = db.execute("SELECT value FROM meta WHERE key = ?", (MOVED_KEY,)).fetchone()
    said = json.loads(about)
    return {"host": said["host"], "is_home": said.get("is_home", False)}


def read_only(path: Path, is_fixed: bool = False) -> sqlite3.Connection:
    """Return a read-only connection. `is_fixed`: no other process writes to the file either."""
    how = "mode=ro&immutable=1" if is_fixed else "mode=ro"
    return sqlite3.connect(
        f"file:{quote(str(path))}?{how}", uri=True, isolation_level=None, timeout=10, check_same_thread=False
    )


def checkpoint_if_long(db: sqlite3.Connection, path: Path) -> None:
    """Copy a WAL above CHECKPOINT_BYTES into the file; the caller must hold the lock."""
    wal = path.with_name(path.name + "-wal")
    if wal.exists() and wal.stat().st_size > CHECKPOINT_BYTES:
        db.execute("PRAGMA wal_checkpoint(TRUNCATE)")


def file_system_of(path: Path, mounts: str | None = None) -> str:
    """Return the type of the file system of `path`, or "" on systems without mount information.

    `mounts`: text in the format of /proc/self/mountinfo, which is the default.
    """
    table = Path("/proc/self/mountinfo")
    if mounts is None:
        mounts = table.read_text() if table.exists() else ""
    place, best, kind = str(path.resolve()), "", ""
    for line in mounts.splitlines():
        before, _, after = line.partition(" - ")
        point = before.split()[4].replace("\\040", " ")
        if (place == point or place.startswith(point.rstrip("/") + "/")) and len(point) >= len(best):
            best, kind = point, after.split()[0]
    return kind
