"""The hashes of documents that were there before, in an SQLite file, so that memory stays flat."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from data.errors import DataError

CACHE_KIB = 64 << 10


class Seen:
    """A set of hashes with the number of the document that first had each.

    The number makes asking again harmless: a run that resumes from an older mark meets its own entries.
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
        """Return for each whether it is seen for the first time; numbers go on from `first_number`."""
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
        """Keep it. To be called before a mark is kept that relies on it."""
        with self._disk():
            self.base.execute("COMMIT")
            self.base.execute("BEGIN")

    @contextmanager
    def _disk(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.OperationalError as error:  # the disk is full, or damaged
            raise DataError(f"{self.path}: {error}") from None

    def close(self) -> None:
        self.base.close()
