"""Tables of costs from packs: beside the ledger of `inv cost`, and on the page of a run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from infra.flags import Typed
from infra.ledger.journal import Journal
from infra.records import Offer, Plan
from infra.settings import Settings
from store import packs


@dataclass(frozen=True)
class CostPart:
    """A part of the time and of the cost of a run. Seconds are on the clock of the vendor."""

    name: str
    seconds: float
    micro_usd: int


@dataclass(frozen=True, kw_only=True)
class CostTable:
    """A table of costs: as text for a terminal, as JSON, and as parts for a page."""

    text: str
    document: Mapping[str, Any]
    parts: Sequence[CostPart] = ()
    caption: str = ""
    """Sentence below the parts."""


class CostView:
    """A kind of table."""

    def of_flags(self, spec: Typed, journal: Journal, settings: Settings) -> CostTable | None:
        """Return the table requested by the flags of the pack, in place of the ledger; None without these flags."""
        return None

    def of_run(self, run: str, journal: Journal, settings: Settings, asks: bool) -> CostTable | None:
        """Return the table of a run. asks: query pods and stores for records that are missing on this machine."""
        return None

    def of_plan(self, plan: Plan, offer: Offer, settings: Settings) -> CostTable | None:
        """Return the table of a plan on an offer, before the rental."""
        return None


def installed() -> dict[str, CostView]:
    """Return an instance of each view of the installed packs, by name."""
    return {name: packs.load(where)() for name, where in packs.entries("cost_views").items()}
