"""The abilities of an account: what its vendor documents, lowered by reported faults and corrected by drills. Pure.

    documented abilities, faults that others report, verdicts of drills -> abilities at one API

A failed clause lowers at once, at every API of the account. A kept clause raises for `KEPT_FOR_S`, and only at the API
at which it was kept: a tier or cloud of the vendor, on demand or spot.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from infra.providers import Abilities
from infra.providers.promises.drill_record import DrillVerdict
from infra.records import Offer

KEPT_FOR_S = 30 * 86_400.0
OFF = {"self_terminate": "none"}  # values of abilities that are not there, beside False


@dataclass(frozen=True)
class ReportedFault:
    """An ability that a vendor documents and others have found missing."""

    ability: str
    source: str


REPORTED: dict[str, tuple[ReportedFault, ...]] = {
    "runpod": (
        ReportedFault("time_limit", "accepted, ends nothing: runpodctl pulls 330, 331"),
        ReportedFault("lists_spot", "its pages about REST v2 name on-demand pods and savings plans only"),
    )
}


def api_of(offer: Offer) -> str:
    """Return the API at which an offer is rented."""
    return " ".join(filter(None, (offer.cloud, "spot" if offer.spot else "on demand")))


def abilities(
    documented: Abilities, faults: Iterable[ReportedFault], verdicts: Sequence[DrillVerdict], api: str, now: float
) -> Abilities:  # fmt: skip
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
    """Return the abilities that a clause of the drill tries."""
    # A timer that the vendor does not show is told by the absence of a machine, whichever timer has ended it: of a
    # container's own and a vendor's, the drill cannot credit the vendor's.
    timer = "start_timer" if documented.start_timer else "time_limit"
    own = {"self_terminate", "start_timer"} if documented.self_terminate == "pod_credential" else set[str]()
    tries = {"timer": {timer}, "spend limit": {"spend_limit"}, "spot": {"spot"}, "spot in v2": {"lists_spot"},
             "self-end": own}  # fmt: skip
    return tries.get(clause, set())
