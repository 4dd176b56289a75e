"""Ten ways in which a vendor may differ from its documents, one thing each: what a drill must find.

In: a name. Out: a plan of faults, in the words of `faults.Plan`, and the clause of the drill that it breaks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infra.errors import UsageError
from infra.settings import VENDORS

OTHER_NAME = "gpu-1"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """One difference. `about`: in words; `clause`: which finding is to name it."""

    name: str
    about: str
    clause: str
    faults: Mapping[str, Any]


def _machine(trait: str, **more: Any) -> dict[str, Any]:
    """Return a plan in which every machine has that trait."""
    return {"machines": [{"trait": trait, "count": None, **more}]}


_BARE = {"count": None, "says": {"name": OTHER_NAME, "pod_name": OTHER_NAME}, "lacks": ["tags", "env"]}
DIFFERENCES = tuple(
    Difference(name=name, about=about, clause=clause, faults=faults)
    for name, about, clause, faults in (
        ("price", "a machine costs twice what its offer says", "price", _machine("dear")),
        ("token", "the listing shows neither name nor tags that were sent", "token", {"rows": [_BARE]}),
        ("no-timer", "the time limit is not armed", "timer", _machine("no timer")),
        ("late-timer", "the time limit is armed, two days later", "timer", _machine("late timer", after_s=172_800.0)),
        ("deaf-delete", "a deletion is answered with yes, and nothing is deleted", "delete",
         {"requests": [{"call": "delete", "kind": "pretended"}]}),
        ("duplicate", "an order makes two machines", "lost reply", _machine("twice")),
        ("host-key", "the host key changes after the first connection", "host key", _machine("new host key")),
        ("no-key", "the key that was sent is not injected", "key", _machine("no key")),
        ("coarse-bill", "every day that is begun is billed whole", "bill", _machine("coarse bill", after_s=86_400.0)),
        ("stale-listing", "the listing is 400 s late", "listing",
         {"listing_lag_s": dict.fromkeys(VENDORS, 400.0)}),
    )
)  # fmt: skip


def chosen(word: str) -> tuple[Difference, ...]:
    """Return the difference of that name, or all of them. Raises UsageError."""
    found = tuple(one for one in DIFFERENCES if word in (one.name, "all"))
    if not found:
        raise UsageError(f"--plant {word}: known: all, {', '.join(one.name for one in DIFFERENCES)}")
    return found
