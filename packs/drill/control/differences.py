"""Planted faults for rehearsed drills: each makes a simulated vendor break a documented promise.

A `Difference` holds a fault plan in the format of `faults.Plan` and the clause expected to report the fault.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from infra.errors import UsageError
from infra.settings import VENDORS
from packs.drill.control.evidence import LEAVERS, SPOT, STRAY, TIMED, WORKER

OTHER_NAME = "gpu-1"


@dataclass(frozen=True, kw_only=True)
class Difference:
    """A planted fault. `about` is the description; `clause` is the clause expected to report the fault."""

    name: str
    about: str
    clause: str
    faults: Mapping[str, Any]
    trials: tuple[str, ...] = (TIMED, WORKER, STRAY)  # trials needed to find the fault
    vendors: tuple[str, ...] = tuple(VENDORS)  # vendors with the tested feature


def _machine(trait: str, **more: Any) -> dict[str, Any]:
    """Return a fault plan in which every machine has the trait."""
    return {"machines": [{"trait": trait, "count": None, **more}]}


RUNPOD, WITH_SPOT, WITH_TIMER = ("runpod",), ("runpod", "lium"), ("lium", "shadeform")
# An error reply outside of every vendor's documentation.
_ODD = {"error": {"code": "new_code", "message": "new rule"}, "error_code": "NEW_CODE", "detail": "new rule"}
# Bills with an undocumented name for the amount.
_RENAMED = [
    {"vendor": vendor, "call": "billing", "kind": "error", "status": 200, "count": None, "body": body}
    for vendor, body in (("runpod", {"records": [{"amount": 0.5}]}), ("lium", {"total_cost": 0.5}))
]
_BARE = {"count": None, "says": {"name": OTHER_NAME, "pod_name": OTHER_NAME}, "lacks": ["tags", "env"]}
DIFFERENCES: tuple[Difference, ...] = (
    *(Difference(name=name, about=about, clause=clause, faults=faults) for name, about, clause, faults in (
        ("price", "a machine costs twice the price of the offer", "price", _machine("dear")),
        ("token", "the listing shows neither the name nor the tags of the request", "token", {"rows": [_BARE]}),
        ("no-timer", "the time limit is not armed", "timer", _machine("no timer")),
        ("late-timer", "the time limit is armed two days too late", "timer", _machine("late timer", after_s=172_800.0)),
        ("deaf-delete", "the vendor confirms a deletion and deletes nothing", "delete",
         {"requests": [{"call": "delete", "kind": "pretended"}]}),
        ("duplicate", "one request makes two machines", "lost reply", _machine("twice")),
        ("host-key", "the host key changes after the first connection", "host key", _machine("new host key")),
        ("no-key", "the SSH key of the request is not installed", "key", _machine("no key")),
        ("coarse-bill", "each started day is billed as a whole day", "bill", _machine("coarse bill", after_s=86_400.0)),
        ("stale-listing", "the listing is 400 s late", "listing",
         {"listing_lag_s": dict.fromkeys(VENDORS, 400.0)}),
        ("throttled-create", "every request to rent is answered with 429", "throttle",
         {"requests": [{"call": "create", "kind": "throttle", "count": None}]}),
        ("never-boots", "a machine never boots", "boot", _machine("hang")),
        ("untold-bill", "the vendor never reports a bill", "bill",
         {"requests": [{"call": "billing", "kind": "error", "status": 404, "count": None}],
          "rows": [{"vendor": "shadeform", "count": None, "lacks": ["cost_estimate"]}]}),
        ("renamed-bill", "the amount of a bill has another name", "bill",
         {"requests": _RENAMED,
          "rows": [{"vendor": "shadeform", "count": None, "says": {"cost": "0.50"}, "lacks": ["cost_estimate"]}]}),
        ("slice", "the machine has a slice (MIG) of the GPU in the offer", "machine", _machine("slice")),
        ("odd-refusal", "a request to rent is refused with an undocumented message", "refusal",
         {"requests": [{"call": "create", "kind": "error", "status": 409, "count": None, "body": _ODD}]}),
    )),
    Difference(name="unshown-limits", about="no limit is shown, even by the id of the machine", clause="timer",
               faults={"rows": [{"count": None, "lacks": ["auto_delete", "removal_scheduled_at"]}]},
               trials=(WORKER,), vendors=WITH_TIMER),
    Difference(name="late-end", about="no end time is shown while a machine boots", clause="timer before boot",
               faults=_machine("no end at boot"), trials=(WORKER,), vendors=WITH_TIMER),
    Difference(name="whole-hours", about="an exact end is accepted but not armed: whole hours from the boot hold",
               clause="timer", faults=_machine("whole hours"), trials=(WORKER,), vendors=("lium",)),
    Difference(name="v2-hides-spot", about="REST v2 does not list spot machines",
               clause="spot in v2", faults={"hides_spot": True}, trials=(SPOT,), vendors=RUNPOD),
    Difference(name="graphql-gone", about="GraphQL is retired: 410", clause="self-delete by POST /graphql",
               faults={"retires_graphql": True}, trials=LEAVERS, vendors=RUNPOD),
    Difference(name="hidden-spot", about="the listing shows no spot machines", clause="spot",
               faults=_machine("spot unlisted"), trials=(SPOT,), vendors=WITH_SPOT),
    Difference(name="pod-key", about="the key of a pod cannot delete the pod",
               clause="self-delete by POST /graphql", faults=_machine("no pod key"), trials=LEAVERS, vendors=RUNPOD),
    Difference(name="dear-disk", about="the disk is billed at a dollar an hour", clause="disk price",
               faults=_machine("dear disk", factor=1.0), trials=(WORKER,), vendors=RUNPOD),
)  # fmt: skip


def chosen(word: str, vendor: str) -> tuple[Difference, ...]:
    """Return the named difference, or all differences of the vendor for `all`. Raise UsageError for an unknown name."""
    known = [one for one in DIFFERENCES if vendor in one.vendors]
    found = tuple(one for one in known if word in (one.name, "all"))
    if not found:
        raise UsageError(f"--plant {word}: known: all, {', '.join(one.name for one in known)}")
    return found
