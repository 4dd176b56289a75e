"""The owners of a vendor's keys, as the vendor told them once: a key belongs to one account for as long as it exists.

In: a fingerprint of a key, and its owner. Out: `<journal>-owners.json`, which is read where the vendor does not tell
the owner now. A file that cannot be read tells nothing.
"""

import contextlib
import json
from dataclasses import dataclass
from pathlib import Path

from store import local_files


@dataclass(frozen=True)
class KeyOwners:
    """The owners by the fingerprints of their keys, in `path`; None = nothing is remembered."""

    path: Path | None = None

    @staticmethod
    def beside(journal: Path) -> "KeyOwners":
        return KeyOwners(journal.with_name(f"{journal.stem}-owners.json"))

    def of(self, key: str) -> str:
        """Return the owner of the key with that fingerprint, "" where none was told."""
        return self._known().get(key, "")

    def remember(self, key: str, owner: str) -> None:
        """Write down the owner of the key with that fingerprint, where that is news and the folder can be written."""
        known = self._known()
        if self.path is None or known.get(key) == owner:
            return
        with contextlib.suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            local_files.replace(self.path, json.dumps({**known, key: owner}).encode(), mode=0o600)

    def _known(self) -> dict[str, str]:
        try:
            told = json.loads(self.path.read_bytes()) if self.path else {}
        except (OSError, ValueError):
            return {}
        return {key: owner for key, owner in told.items() if isinstance(owner, str)} if isinstance(told, dict) else {}
