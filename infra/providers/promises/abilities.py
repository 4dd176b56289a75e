"""The abilities of an account: documented by the vendor, lowered by reported faults and corrected by drills. Pure.

A broken clause lowers an ability at once, at every API of the account. A kept clause raises an ability for
`KEPT_FOR_S`, and only at the API of the drill: a tier or cloud of the vendor, on demand or spot.

    documented abilities, reported faults, verdicts of drills -> abilities at one API
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from infra.providers import Abilities
from infra.providers.promises.drill_record import DrillVerdict
from infra.records import Offer

KEPT_FOR_S = 30 * 86_400.0
OFF = {"self_terminate": "none"}  # values of missing abilities, if not False


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
