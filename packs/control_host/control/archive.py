"""An installation as a single text for transfer: the journal with the SSH keys, pinned host keys and machine memory.

`pack` takes the path of a journal and returns the text; `unpack` installs the text on a different machine and rewrites
key paths in the journal.
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

from infra.errors import SlipwayError
from infra.journal_file import JournalError
from infra.machines.host_memory import HostMemory
from infra.providers.pod_keys import PodKeys
from infra.records import Address
from infra.units import size
from packs.control_host.control import journal_moves
from store import local_files, untrusted_input
from store.untrusted_input import UnusableDocument

KNOWN_HOSTS = "known_hosts"
MOST_TEXT = 128 << 20  # bytes of an archive in transfer
MOST_UNPACKED = 256 << 20
PIECE_BYTES = 1 << 20
NOT_READ = "the copy of the journal cannot be read"


@dataclass(frozen=True)
class LiveRow:
    """A live row of a journal copy; `rate` is in micro-USD per hour."""

    run: str
    vendor: str
    state: str
    rate: int


def pack(state_file: Path) -> str:
    """Return the archive of the installation with the journal at `state_file`. Raises JournalError."""
    keys = PodKeys.for_journal(state_file).folder
    memory = HostMemory.for_journal(state_file).path
    document = {
        "keys_folder": str(keys),
        "journal": _text(journal_moves.content(state_file)),
        "keys": _folder(keys),
        "known_hosts": _folder(state_file.parent / KNOWN_HOSTS),
        "hosts": _text(memory.read_bytes()) if memory.is_file() else None,
    }
    unpacked = json.dumps(document, sort_keys=True).encode()
    if len(unpacked) > MOST_UNPACKED:
        raise JournalError(
            f"journal {state_file}: the journal and keys have {size(len(unpacked))} as text; the limit "
            f"for a move between machines is {size(MOST_UNPACKED)}"
        )
    return base64.b64encode(zlib.compress(unpacked, 6)).decode()


def check(archive: str) -> None:
    """Raise SlipwayError for a text that is not a valid archive, or too large to unpack."""
    with _opened(archive):
        pass


def digest(archive: str) -> str:
    """Return a digest of the archive, equal for archives of equal content."""
    return sha256(archive.encode()).hexdigest()[:32]


def unpack(
    archive: str,
    state_file: Path,
    change: Callable[[sqlite3.Connection], None] = lambda _: None,
    environ: Mapping[str, str] = os.environ,
) -> None:
    """Install an archive, with the journal last, after applying `change`. Raises JournalError for a journal in use."""
    document = _read(archive)
    keys = PodKeys.for_journal(state_file).folder
    _write(document["keys"], keys)
    _write(document["known_hosts"], state_file.parent / KNOWN_HOSTS)
    if document["hosts"]:
        local_files.replace(HostMemory.for_journal(state_file).path, _bytes(document["hosts"]), mode=0o600)

    def settle_in(db: sqlite3.Connection) -> None:
        _move_keys(db, document["keys_folder"], keys)
        change(db)

    journal_moves.install(_bytes(document["journal"]), state_file, settle_in, environ)


def keys_of(state_file: Path) -> Path:
    """Return the folder of pod keys."""
    return PodKeys.for_journal(state_file).folder


def installation_of(archive: str) -> str:
    """Return the id of the installation. Raises SlipwayError."""
    with _opened(archive) as db:
        (found,) = db.execute("SELECT value FROM meta WHERE key = 'installation'").fetchone()
    return str(found)


def runs_at_work(archive: str) -> list[str]:
    """Return the runs that are live, or stopped between two pods without an outcome."""
    with _opened(archive) as db:
        rows = db.execute("SELECT DISTINCT run FROM ops WHERE state NOT IN ('TERMINATED', 'FAILED') OR outcome = ''")
        return [run for (run,) in rows.fetchall()]


def runs_over(archive: str) -> list[str]:
    """Return the runs omitted by `runs_at_work`."""
    at_work = runs_at_work(archive)
    with _opened(archive) as db:
        return [run for (run,) in db.execute("SELECT DISTINCT run FROM ops").fetchall() if run not in at_work]


def live_rows(archive: str) -> list[LiveRow]:
    """Return the rows that were live at the time of the archive."""
    with _opened(archive) as db:
        rows = db.execute("SELECT run, vendor, state, rate FROM ops WHERE state NOT IN ('TERMINATED', 'FAILED')")
        return [LiveRow(*row) for row in rows.fetchall()]


@contextlib.contextmanager
def _opened(archive: str) -> Iterator[sqlite3.Connection]:
    document = _read(archive)
    with tempfile.TemporaryDirectory(prefix="slipway-") as folder:
        path = Path(folder, "journal.sqlite")
        path.write_bytes(_bytes(document["journal"]))
        try:
            with contextlib.closing(sqlite3.connect(path)) as db:
                _refuse_odd_tables(db)
                yield db
        except (sqlite3.Error, TypeError, ValueError) as error:
            raise SlipwayError(f"{NOT_READ}: its journal: {error}") from None


def _refuse_odd_tables(db: sqlite3.Connection) -> None:
    """Raise UnusableDocument when `ops` or `meta` is not a table, for example a view."""
    found = dict(db.execute("SELECT name, type FROM sqlite_master WHERE name IN ('ops', 'meta')").fetchall())
    if found != {"ops": "table", "meta": "table"}:
        raise UnusableDocument(f"expected the tables ops and meta, found {untrusted_input.printable_line(found)}")


def _move_keys(db: sqlite3.Connection, before: str, keys: Path) -> None:
    """Rewrite the key paths in pod addresses after the move of the key folder."""
    rows = db.execute("SELECT token, address FROM ops WHERE address LIKE 'ssh://%'").fetchall()
    for token, text in rows:
        address = Address.parse(text)
        if os.path.dirname(address.key) == before:
            moved = replace(address, key=str(keys / os.path.basename(address.key)))
            db.execute("UPDATE ops SET address = ? WHERE token = ?", (str(moved), token))


def _read(archive: str) -> dict[str, Any]:
    """Parse an archive, which is untrusted input, and check the types written by `pack`. Raises SlipwayError."""
    try:
        if len(archive) > MOST_TEXT:
            raise UnusableDocument(f"the copy has {size(len(archive))}; the limit is {size(MOST_TEXT)}")
        document = untrusted_input.mapping(_unzipped(base64.b64decode(archive)), most_bytes=MOST_UNPACKED)
        for key in ("keys_folder", "journal"):
            untrusted_input.typed(document, key, str)
        for key in ("keys", "known_hosts"):
            _check_files(untrusted_input.typed(document, key, dict))
        _bytes(document["journal"])
        _bytes(document["hosts"] or "")
    except (ValueError, KeyError, TypeError, zlib.error) as error:
        raise SlipwayError(f"{NOT_READ}: {error}") from None
    return document


def _unzipped(packed: bytes) -> bytes:
    found, unzip = bytearray(), zlib.decompressobj()
    for start in range(0, len(packed), PIECE_BYTES):
        piece = packed[start : start + PIECE_BYTES]
        while piece and not unzip.eof:
            found += unzip.decompress(piece, PIECE_BYTES)
            piece = unzip.unconsumed_tail
            if len(found) > MOST_UNPACKED:
                raise UnusableDocument(f"the unpacked copy exceeds {size(MOST_UNPACKED)}")
    while not unzip.eof:
        piece = unzip.decompress(b"", PIECE_BYTES)
        if not piece:
            raise UnusableDocument("the copy is cut off")
        found += piece
    return bytes(found)


def _check_files(files: dict[str, Any]) -> None:
    for name in files:
        if "/" in untrusted_input.relative(name):
            raise UnusableDocument(f"{untrusted_input.printable_line(name)} is no name of a file")
        _bytes(untrusted_input.typed(files, name, str))


def _folder(folder: Path) -> dict[str, str]:
    return {one.name: _text(one.read_bytes()) for one in sorted(folder.glob("*")) if one.is_file()}


def _write(files: Mapping[str, str], folder: Path) -> None:
    for name, text in files.items():
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        local_files.replace(folder / name, _bytes(text), mode=0o600)


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode()


def _bytes(text: str) -> bytes:
    return base64.b64decode(text, validate=True)
