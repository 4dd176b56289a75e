"""Moving a journal between machines: mark at the source, copy, install at the destination.

At every moment at most one journal file is writable. Under the lock, a copy naming the destination replaces the moving
journal. The copy carries a schema reserved for moved journals, and is a new file, which fences every process with the
old file open (`Journal` writes only to the file opened first). The content is sent afterwards and may be sent again.
"""

import contextlib
import json
import os
import sqlite3
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from infra import installation, journal_file
from infra.agent.limits import read_clocks
from infra.journal_file import MOVED_KEY, MOVED_SCHEMA, JournalError
from store import local_files

BUSY_S = 10.0  # time for another process to finish reading while commits are folded in
POLL_S = 0.05


def moved_to(path: Path) -> str:
    """Return the control host that the journal at `path` moved to; "" for a missing or unmoved journal."""
    if not path.is_file() or not path.stat().st_size:
        return ""
    try:
        with contextlib.closing(journal_file.read_only(path)) as db:
            return journal_file.moved_to(db)
    except sqlite3.Error:  # the next process to open the journal reports the error
        return ""


def mark_moved(path: Path, host: str, is_home: bool = False) -> None:
    """Mark the journal at `path` as moved to `host`. Raises JournalError and leaves the journal in place on failure.

    `is_home`: the journal returns from a control host to the laptop.
    """

    def mark(db: sqlite3.Connection) -> None:
        (schema,) = db.execute("PRAGMA user_version").fetchone()
        about = json.dumps({"host": host, "at": int(time.time()), "schema": schema, "is_home": is_home})
        db.execute("INSERT OR REPLACE INTO meta VALUES (?, ?)", (MOVED_KEY, about))
        db.execute(f"PRAGMA user_version={MOVED_SCHEMA}")

    try:
        with journal_file.locked(path):
            _fold(path)
            draft = path.with_name(f"{path.name}.moving")
            _copy(path, draft, mark)
            _replace(draft, path)
    except sqlite3.Error as error:
        raise JournalError(f"journal {path}: {error}") from error


def content(path: Path) -> bytes:
    """Return the journal at `path` as a self-contained file for installation elsewhere, moved or not."""
    draft = path.with_name(f"{path.name}.copy{os.getpid()}")
    try:
        with journal_file.locked(path):
            _copy(path, draft, unmark)
        return draft.read_bytes()
    except sqlite3.Error as error:
        raise JournalError(f"journal {path}: {error}") from error
    finally:
        draft.unlink(missing_ok=True)


def install(
    raw: bytes, path: Path, change: Callable[[sqlite3.Connection], None], environ: Mapping[str, str] = os.environ
) -> None:
    """Install a journal at `path` after applying `change`; a missing or moved-away journal is replaced.

    Raises JournalError for a journal in use at `path`.
    """
    installation.make_folder(path.parent, is_ours=path == journal_file.default_path(environ))
    with journal_file.locked(path):
        if path.exists() and path.stat().st_size and not moved_to(path):
            raise JournalError(f"journal {path} is in use and was not replaced")
        draft = path.with_name(f"{path.name}.coming")
        local_files.replace(draft, raw, mode=0o600)
        with contextlib.closing(sqlite3.connect(draft, isolation_level=None)) as db:
            change(db)
        _replace(draft, path)
        journal_file.installation_file(path, environ).unlink(missing_ok=True)  # the next process writes the file again


def unmark(db: sqlite3.Connection) -> None:
    """Remove the mark of a moved journal, so that the copy is writable."""
    if journal_file.moved_to(db):
        (about,) = db.execute("SELECT value FROM meta WHERE key = ?", (MOVED_KEY,)).fetchone()
        db.execute("DELETE FROM meta WHERE key = ?", (MOVED_KEY,))
        db.execute(f"PRAGMA user_version={int(json.loads(about)['schema'])}")


def note_replacement(db: sqlite3.Connection) -> None:
    """Mark a copy as the replacement of a lost journal; pods unknown to the copy may still run."""
    now = read_clocks()
    stamps = {"replaced_at": int(now.wall_s), "replaced_boot_id": now.boot_id, "replaced_boot_s": now.boot_s}
    db.executemany("INSERT OR REPLACE INTO meta VALUES (?, ?)", [(key, str(value)) for key, value in stamps.items()])


def _copy(path: Path, draft: Path, change: Callable[[sqlite3.Connection], None]) -> None:
    """Write `draft` as a self-contained copy of the journal. The caller holds the lock."""
    draft.unlink(missing_ok=True)
    os.close(os.open(draft, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    with contextlib.closing(journal_file.read_only(path)) as source, contextlib.closing(sqlite3.connect(draft)) as db:
        source.backup(db)
        db.isolation_level = None
        db.execute("PRAGMA journal_mode=delete")  # no write-ahead log beside the file
        change(db)


def _fold(path: Path) -> None:
    """Fold every commit into the main file; SQLite would replay a remaining write-ahead log into the replacement."""
    deadline = time.monotonic() + BUSY_S
    with contextlib.closing(sqlite3.connect(path, isolation_level=None)) as db:
        while db.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()[0]:
            if time.monotonic() > deadline:
                raise JournalError(f"journal {path}: a process keeps reading the journal; the journal was not moved")
            time.sleep(POLL_S)


def _replace(draft: Path, path: Path) -> None:
    local_files.sync(str(draft))
    for suffix in ("-wal", "-shm"):
        path.with_name(path.name + suffix).unlink(missing_ok=True)
    os.replace(draft, path)
    local_files.sync(str(path.parent))
