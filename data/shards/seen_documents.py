"""Hashes of earlier documents in an SQLite file, for deduplication with constant memory."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from data.errors import DataError

CACHE_KIB = 64 << 10


class SeenHashes:
    """A set of document hashes, each with the number of the first document.

    The number makes repeated queries safe: a run resumed from an older mark finds its own entries.
    """

    def __init__(self, path: Path):
        self.path = path
        self.base = sqlite3.connect(path, isolation_level=None)
        self.base.execute("PRAGMA journal_mode=WAL")
        self.base.execute("PRAGMA synchronous=FULL")
        self.base.execute(f"PRAGMA cache_size=-{CACHE_KIB}")
        self.base.execute("CREATE TABLE IF NOT EXISTS seen (digest BLOB PRIMARY KEY, first INTEGER) WITHOUT ROWID")
        self.base.execute("BEGIN")

    def are_new(self, digests: Sequence[bytes], first_number: int) -> list[bool]:
        """Return a flag per digest: True for the first occurrence; documents are numbered from `first_number`."""
        new = []
        with self._disk():
            for number, digest in enumerate(digests, first_number):
                added = self.base.execute("INSERT OR IGNORE INTO seen VALUES (?, ?)", (digest, number)).rowcount
                if not added:
                    (first,) = self.base.execute("SELECT first FROM seen WHERE digest = ?", (digest,)).fetchone()
                    added = first >= number
                new.append(bool(added))
        return new

    def commit(self) -> None:
        """Commit the entries to disk; call before saving a mark that relies on them."""
        with self._disk():
            self.base.execute("COMMIT")
            self.base.execute("BEGIN")

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:  # a full or damaged disk
            raise DataError(f"{self.path}: {error}") from None

    def close(self) -> None:
        self.base.close()
