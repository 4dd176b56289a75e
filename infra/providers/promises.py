"""The promises of vendors: the documented abilities of an account, corrected by reported faults and by drills.

    documented abilities, reported faults, verdicts of drills -> abilities at one API

A broken clause lowers an ability at once, at every API of the account. A kept clause raises an ability for
`KEPT_FOR_S`, and only at the API of the drill: a tier or cloud of the vendor, on demand or spot. Drills write reports
as JSON files to a folder beside the journal; unreadable reports are ignored.
"""

import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from infra.providers import Abilities
from infra.records import Offer
from infra.settings import VENDORS, Settings

STAMP = "????????T??????Z"  # time of writing in the name of a report, UTC
STATES = {"kept": True, "broken": False}  # any other state of a clause does not concern the vendor
KEPT_FOR_S = 30 * 86_400.0
OFF = {"self_terminate": "none"}  # values of missing abilities, if not False


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
    def from_settings(vendor: str, settings: Settings) -> "DrillRecord":
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


@dataclass(frozen=True)
class ReportedFault:
    """An ability documented by a vendor, but reported as missing by other users."""

    ability: str
    source: str


REPORTED: dict[str, tuple[ReportedFault, ...]] = {
    "runpod": (
        ReportedFault("time_limit", "accepted without effect: runpodctl pulls 330, 331"),
        ReportedFault("lists_spot", "the pages about REST v2 mention only on-demand pods and savings plans"),
    )
}


def api_of(offer: Offer) -> str:
    """Return the name of the API for renting an offer."""
    return " ".join(filter(None, (offer.cloud, "spot" if offer.spot else "on demand")))


def abilities(
    documented: Abilities, faults: Iterable[ReportedFault], verdicts: Sequence[DrillVerdict], api: str, now: float
) -> Abilities:
    """Return the abilities at an API; "" = at any. `now`: UTC epoch seconds."""
    lowered = {one.ability for one in faults}
    raised: set[str] = set()
    kept: set[str] = set()
    for one in verdicts:
        if not one.is_kept:
            lowered |= tried_by(one.clause, documented)
        elif one.api == api and now - one.at < KEPT_FOR_S:
            raised |= tried_by(one.clause, documented)
            kept.add(one.clause)
    values: dict[str, Any] = {name: OFF.get(name, False) for name in lowered - raised}
    return replace(documented, **values, drilled=frozenset(kept))


def tried_by(clause: str, documented: Abilities) -> set[str]:
    """Return the abilities tested by a clause of the drill."""
    # A vendor timer not shown by the vendor is only proven by the absence of a machine. If the container has a timer
    # too, the drill cannot tell which timer ended the machine, and does not credit the vendor's timer.
    timer = "start_timer" if documented.start_timer else "time_limit"
    own = {"self_terminate", "start_timer"} if documented.self_terminate == "pod_credential" else set[str]()
    tries = {
        "timer": {timer},
        "spend limit": {"spend_limit"},
        "spot": {"spot"},
        "spot in v2": {"lists_spot"},
        "self-end": own,
    }
    return tries.get(clause, set())
