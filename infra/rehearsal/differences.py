"""Ways in which a vendor may differ from its documents, one thing each: what a drill must find.

In: a name. Out: a plan of faults, in the words of `faults.Plan`, and the clause of the drill that it breaks.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infra.drill.evidence import LEAVERS, SPOT, STRAY, TIMED, WORKER
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
    trials: tuple[str, ...] = (TIMED, WORKER, STRAY)  # the machines of the drill that it takes to find it
    vendors: tuple[str, ...] = tuple(VENDORS)  # those that can differ so


def _machine(trait: str, **more: Any) -> dict[str, Any]:
    """Return a plan in which every machine has that trait."""
    return {"machines": [{"trait": trait, "count": None, **more}]}


RUNPOD, WITH_SPOT = ("runpod",), ("runpod", "lium")
_BARE = {"count": None, "says": {"name": OTHER_NAME, "pod_name": OTHER_NAME}, "lacks": ["tags", "env"]}
DIFFERENCES: tuple[Difference, ...] = (
    *(Difference(name=name, about=about, clause=clause, faults=faults) for name, about, clause, faults in (
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
        ("throttled-create", "every request to rent is answered with 429", "throttle",
         {"requests": [{"call": "create", "kind": "throttle", "count": None}]}),
        ("never-boots", "a machine never boots", "boot", _machine("hang")),
        ("untold-bill", "a bill is never told", "bill",
         {"requests": [{"call": "billing", "kind": "error", "status": 404, "count": None}],
          "rows": [{"vendor": "shadeform", "count": None, "lacks": ["cost_estimate"]}]}),
    )),
    Difference(name="hidden-spot", about="the listing shows no spot machines", clause="spot",
               faults=_machine("spot unlisted"), trials=(SPOT,), vendors=WITH_SPOT),
    Difference(name="pod-key", about="the key of a pod opens no way to delete it",
               clause="self-delete by POST /graphql", faults=_machine("no pod key"), trials=LEAVERS, vendors=RUNPOD),
    Difference(name="dear-disk", about="the disk is billed at a dollar an hour", clause="disk price",
               faults=_machine("dear disk", factor=1.0), trials=(WORKER,), vendors=RUNPOD),
)  # fmt: skip


def chosen(word: str, vendor: str) -> tuple[Difference, ...]:
    """Return the difference of that name, or all of them that the vendor can have. Raises UsageError."""
    known = [one for one in DIFFERENCES if vendor in one.vendors]
    found = tuple(one for one in known if word in (one.name, "all"))
    if not found:
        raise UsageError(f"--plant {word}: known: all, {', '.join(one.name for one in known)}")
    return found
