"""The record of the drills of an account: the last finding and the time for each clause and API.

Drills write reports as JSON files to a folder beside the journal. This module reads the reports as `DrillVerdict`s,
from which `infra.providers.promises.abilities` computes the abilities of a vendor. Unreadable reports are ignored.
"""

import functools
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

from infra.settings import VENDORS, Settings

STAMP = "????????T??????Z"  # time of writing in the name of a report, UTC
STATES = {"kept": True, "broken": False}  # any other state of a clause does not concern the vendor


@dataclass(frozen=True, kw_only=True)
class DrillVerdict:
    """The last finding about a clause at an API. `at`: UTC epoch seconds."""

    clause: str
    api: str
    is_kept: bool
    at: int


@dataclass(frozen=True)
class DrillRecord:
    """The drills of an account with a vendor. `folder`: folder of the reports; None = no drills."""

    folder: Path | None = None
    vendor: str = ""
    account: str = ""

    @staticmethod
    def of(vendor: str, settings: Settings) -> "DrillRecord":
        return DrillRecord(folder_beside(settings.state_file), vendor, account_of(vendor, settings))

    def verdicts(self) -> tuple[DrillVerdict, ...]:
        """Return the last verdict on each clause at each API, from the current reports."""
        if self.folder is None:
            return ()
        try:
            changed_at = self.folder.stat().st_mtime_ns
        except OSError:
            return ()
        return _read(self.folder, self.vendor, self.account, changed_at)


def folder_beside(journal: Path) -> Path:
    """Return the folder with the drill reports of an installation."""
    return journal.with_name(f"{journal.stem}-drills")


def account_of(vendor: str, settings: Settings) -> str:
    """Return an id of the account in the settings, a fingerprint of the key; send no request.

    Return "" for a vendor without a key in the settings, such as the vendor of an extension.
    """
    key = str(getattr(settings, VENDORS[vendor])) if vendor in VENDORS else ""
    return hashlib.sha256(key.encode()).hexdigest()[:16] if key else ""


@functools.lru_cache(maxsize=64)  # called repeatedly while a process follows a run; a new report changes `changed_at`
def _read(folder: Path, vendor: str, account: str, changed_at: int) -> tuple[DrillVerdict, ...]:
    last: dict[tuple[str, str], DrillVerdict] = {}
    for path in sorted(folder.glob(f"{vendor}-{STAMP}.json")):
        try:
            said = json.loads(path.read_text(encoding="utf-8"))
            if said["account"] != account:
                continue
            found = [
                DrillVerdict(clause=one["clause"], api=one["api"], is_kept=STATES[one["state"]], at=int(said["at"]))
                for one in said["findings"]
                if one["state"] in STATES
            ]
        except (OSError, ValueError, TypeError, KeyError):
            continue
        last.update({(one.clause, one.api): one for one in found})
    return tuple(last.values())
