"""An installation as one text that travels: its journal, and what lies beside it.

In: the path of a journal. Out: a text with the journal, the SSH keys of pods, the host keys that were pinned and the
memory of machines; and the same put in place on another machine, where the journal has another path.
"""

import base64
import contextlib
import json
import os
import sqlite3
import tempfile
import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import Any

from infra import journal_moves
from infra.machines.host_memory import HostMemory
from infra.providers.pod_keys import PodKeys
from infra.records import Address
from store import local_files

KNOWN_HOSTS = "known_hosts"


@dataclass(frozen=True)
class AtWork:
    """A live row, as a copy of a journal has it. `rate`: micro-USD per hour."""

    run: str
    vendor: str
    state: str
    rate: int


def pack(state_file: Path) -> str:
    """Return the archive of the installation whose journal is at `state_file`. Raises JournalError."""
    keys = PodKeys.beside(state_file).folder
    memory = HostMemory.beside(state_file).path
    document = {
        "keys_folder": str(keys),
        "journal": _text(journal_moves.content(state_file)),
        "keys": _folder(keys),
        "known_hosts": _folder(state_file.parent / KNOWN_HOSTS),
        "hosts": _text(memory.read_bytes()) if memory.is_file() else None,
    }
    return base64.b64encode(zlib.compress(json.dumps(document, sort_keys=True).encode(), 6)).decode()


def digest(archive: str) -> str:
    """Return a digest of the archive's content, the same for two archives of the same content."""
    return sha256(archive.encode()).hexdigest()[:32]


def unpack(
    archive: str, state_file: Path, change: Callable[[sqlite3.Connection], None] = lambda _: None,
    environ: Mapping[str, str] = os.environ,
) -> None:  # fmt: skip
    """Install an archive: the journal last, after `change`. Raises JournalError when there is one in use."""
    document = _read(archive)
    keys = PodKeys.beside(state_file).folder
    _write(document["keys"], keys)
    _write(document["known_hosts"], state_file.parent / KNOWN_HOSTS)
    if document["hosts"]:
        local_files.replace(HostMemory.beside(state_file).path, _bytes(document["hosts"]), mode=0o600)

    def settle_in(db: sqlite3.Connection) -> None:
        _move_keys(db, document["keys_folder"], keys)
        change(db)

    journal_moves.install(_bytes(document["journal"]), state_file, settle_in, environ)


def keys_of(state_file: Path) -> Path:
    """Return the folder of the keys of pods."""
    return PodKeys.beside(state_file).folder


def installation_of(archive: str) -> str:
    """Return the id of the installation."""
    with _opened(archive) as db:
        (found,) = db.execute("SELECT value FROM meta WHERE key = 'installation'").fetchone()
    return str(found)


def runs_at_work(archive: str) -> list[str]:
    """Return the runs that are live, or whose keeper has left them between two pods."""
    with _opened(archive) as db:
        rows = db.execute("SELECT DISTINCT run FROM ops WHERE state NOT IN ('TERMINATED', 'FAILED') OR outcome = ''")
        return [run for (run,) in rows.fetchall()]


def runs_over(archive: str) -> list[str]:
    """Return all other runs."""
    at_work = runs_at_work(archive)
    with _opened(archive) as db:
        return [run for (run,) in db.execute("SELECT DISTINCT run FROM ops").fetchall() if run not in at_work]


def at_work(archive: str) -> list[AtWork]:
    """Return the rows that were live when the archive was made."""
    with _opened(archive) as db:
        rows = db.execute("SELECT run, vendor, state, rate FROM ops WHERE state NOT IN ('TERMINATED', 'FAILED')")
        return [AtWork(*row) for row in rows.fetchall()]


@contextlib.contextmanager
def _opened(archive: str) -> Iterator[sqlite3.Connection]:
    with tempfile.TemporaryDirectory(prefix="slipway-") as folder:
        path = Path(folder, "journal.sqlite")
        path.write_bytes(_bytes(_read(archive)["journal"]))
        with contextlib.closing(sqlite3.connect(path)) as db:
            yield db


def _move_keys(db: sqlite3.Connection, before: str, keys: Path) -> None:
    """Rewrite the addresses of pods, which name the private key that lets us in."""
    rows = db.execute("SELECT token, address FROM ops WHERE address LIKE 'ssh://%'").fetchall()
    for token, text in rows:
        address = Address.parse(text)
        if os.path.dirname(address.key) == before:
            moved = replace(address, key=str(keys / os.path.basename(address.key)))
            db.execute("UPDATE ops SET address = ? WHERE token = ?", (str(moved), token))


def _read(archive: str) -> dict[str, Any]:
    return dict(json.loads(zlib.decompress(base64.b64decode(archive))))


def _folder(folder: Path) -> dict[str, str]:
    return {one.name: _text(one.read_bytes()) for one in sorted(folder.glob("*")) if one.is_file()}


def _write(files: Mapping[str, str], folder: Path) -> None:
    for name, text in files.items():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        local_files.replace(folder / os.path.basename(name), _bytes(text), mode=0o600)


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text)
