"""The owners of a vendor's keys, as reported once: a key belongs to the same account for the lifetime of the key.

The file `<journal>-owners.json` maps the fingerprint of a key to the owner. Providers read the file when the vendor
does not report the owner. An unreadable file counts as empty.
"""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from store import local_files


@dataclass(frozen=True)
class KeyOwners:
    """The owners by key fingerprint, stored in `path`; None = not stored."""

    path: Path | None = None

    @staticmethod
    def for_journal(journal: Path) -> "KeyOwners":
        return KeyOwners(journal.with_name(f"{journal.stem}-owners.json"))

    def get(self, key: str) -> str:
        """Return the owner of the key with this fingerprint, "" if unknown."""
        return self._read().get(key, "")

    def save(self, key: str, owner: str) -> None:
        """Record the owner of the key with this fingerprint, if new and if the folder is writable."""
        known = self._read()
        if self.path is None or known.get(key) == owner:
            return
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            local_files.replace(self.path, json.dumps({**known, key: owner}).encode(), mode=0o600)

    def _read(self) -> dict[str, str]:
        try:
            told = json.loads(self.path.read_bytes()) if self.path else {}
        except (OSError, ValueError):
            return {}
        return {key: owner for key, owner in told.items() if isinstance(owner, str)} if isinstance(told, dict) else {}
