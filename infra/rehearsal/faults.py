"""The faults of a rehearsal: a plan in YAML, applied deterministically for a given seed.

    requests:                  # faults of responses
      - {vendor: shadeform, call: create, kind: lost}
      - {call: list, kind: throttle, count: 5, retry_after_s: 1}
    machines:                  # faults of machines, counted by orders
      - {trait: ghost, offer: H100, count: 2}
      - {trait: preempted, vendor: runpod, after_s: 300}
    rows:                      # wrong rows of healthy machines in listings, counted by machines
      - {vendor: shadeform, machine: otter, says: {ip: gpu_7.example.net, hourly_price: null}, lacks: [id]}
    strangers:                 # additional rows with arbitrary content
      lium: [{id: x, pod_name: [theirs]}, 5]
    prices: [{at_s: 600, offer: B200, factor: 1.2}]
    listing_lag_s: {lium: 30}
    balance_usd: {runpod: 25}
    lium_key_budget_usd: 5     # a key over budget loses its pods
    page_size: 2               # RunPod's lists are paginated
    hides_spot: true           # RunPod's REST v2 does not show spot pods
    retires_graphql: true      # RunPod's GraphQL answers 410
    preempt_at_work: 2         # preempt two machines, each after the store has a checkpoint of the machine;
                               # {runpod: 1, lium: 1}: one machine of each vendor

Among the matching requests, orders or machines, a rule skips the first `skip`, then hits the next `count` (null = all),
each with probability `chance`.
"""

import json
import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

import msgspec

from infra import strict_yaml
from infra.errors import UsageError
from infra.rehearsal.records import MachineFault

VendorName = Literal["runpod", "lium", "shadeform"]
Vendor = VendorName | Literal[""]
Kind = Literal[
    "dropped",  # the connection closes before the request is carried out
    "lost",  # carried out, then the connection closes without a response
    "late",  # carried out, answered after `delay_s` of real time
    "error",  # not carried out, answered with `status`
    "error but done",  # carried out, then answered with `status`
    "throttle",  # 429 with Retry-After, not carried out
    "torn",  # carried out, half of the body, then the connection closes
    "drip",  # carried out, the body byte by byte over `delay_s` of real time
    "pretended",  # answered with success, but not carried out
    "short list",  # half of the rows
    "empty list",
]
LISTS = ("pods", "instances")  # keys of the rows in a page
BEFORE = ("dropped", "error", "throttle")
Trait = Literal[
    "ghost",  # listed, but cannot be rented
    "hang",  # never boots
    "slow boot",  # boots `factor` times longer
    "fail",  # the boot ends in an error
    "no ssh",  # reported as running, but sshd does not listen
    "null port",  # runs, and the SSH address is reported `after_s` later
    "old driver",
    "slow disk",
    "fewer gpus",
    "slice",  # the GPUs are MIG slices of the offered GPUs
    "idle gpus",  # nvidia-smi reports no load
    "preempted",  # `after_s` after the start of running
    "vanished",  # deleted by the vendor, likewise
    "dear",  # costs `factor` times the quote
    "no pod key",  # RunPod: the pod's own API key is invalid
    "spot unlisted",  # a spot machine is missing in listings, but found by id
    "dear disk",  # RunPod: the bill adds `factor` dollars per hour for the disk
    "v2 pod key",  # RunPod: the pod's own API key also opens REST v2, which is unverified
    "disk in cost",  # RunPod: the reported price of a pod includes the disk
    "no timer",  # the vendor forgets the time limit
    "late timer",  # the time limit is armed `after_s` later than requested
    "whole hours",  # Lium: an exact end is accepted but not armed, so the whole hours from the boot apply
    "no end at boot",  # no end is shown during the boot
    "no key",  # no SSH key is accepted
    "new host key",  # the host key of sshd changes soon after the first login
    "twice",  # the order creates two machines
    "coarse bill",  # the reported bill rounds up to intervals of `after_s`
    "wrong bill",  # the reported bill is `factor` times the cost
]


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    vendor: Vendor = ""
    skip: int = 0
    count: int | None = 1
    chance: float = 1.0


class RequestRule(Rule, frozen=True, forbid_unknown_fields=True, kw_only=True):
    kind: Kind
    call: str = ""  # create, list, find, delete, offers, account, keys, update; "" = any
    delay_s: float = 5.0
    retry_after_s: int = 1
    status: int = 500
    body: Any = None  # replaces the vendor's usual error body


class MachineRule(Rule, frozen=True, forbid_unknown_fields=True, kw_only=True):
    trait: Trait
    offer: str = ""  # part of the offer id
    after_s: float = 60.0
    factor: float = 2.0


class RowRule(Rule, frozen=True, forbid_unknown_fields=True, kw_only=True):
    machine: str = ""  # part of the row, such as id, name or run
    says: dict[str, Any] = {}
    lacks: tuple[str, ...] = ()


class PriceRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    at_s: float  # after the start
    factor: float
    offer: str = ""


class Plan(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    requests: tuple[RequestRule, ...] = ()
    machines: tuple[MachineRule, ...] = ()
    rows: tuple[RowRule, ...] = ()
    strangers: dict[VendorName, list[Any]] = {}
    prices: tuple[PriceRule, ...] = ()
    listing_lag_s: dict[VendorName, float] = {}
    balance_usd: dict[VendorName, float] = {}
    lium_key_budget_usd: float | None = None
    page_size: int = 0
    hides_spot: bool = False
    retires_graphql: bool = False
    preempt_at_work: int | dict[VendorName, int] = 0


def read_plan(path: Path) -> Plan:
    """Read a plan from a file. Raises UsageError with file and position, and FileNotFoundError."""
    return plan_of(strict_yaml.read(path) or {}, str(path))


def plan_of(content: Mapping[str, Any], name: str = "faults") -> Plan:
    """Return the plan in a document. Raises UsageError."""
    try:
        return msgspec.convert(content, Plan)
    except msgspec.ValidationError as error:
        raise UsageError(f"{name}: {error}") from None


class Faults:
    """A plan with a counter per rule."""

    def __init__(self, plan: Plan, seed: int = 0) -> None:
        self.plan = plan
        of_work = plan.preempt_at_work
        per = {"": of_work} if isinstance(of_work, int) else {str(name): count for name, count in of_work.items()}
        self._preemptions = per
        self._seed = seed
        self._asked: dict[tuple[str, int], int] = {}
        self._rows: dict[tuple[int, Any], bool] = {}

    @property
    def preemptions_left(self) -> int:
        """Return the number of preemptions still to come."""
        return sum(self._preemptions.values())

    def take_preemption(self, vendor: str) -> bool:
        """Return whether to preempt a running machine of the vendor now; count the preemption."""
        for name in (vendor, ""):
            if self._preemptions.get(name, 0) > 0:
                self._preemptions[name] -= 1
                return True
        return False

    def for_request(self, vendor: str, call: str) -> RequestRule | None:
        """Return the rule that hits this request, or None."""
        about = [rule for rule in self.plan.requests if rule.vendor in ("", vendor) and rule.call in ("", call)]
        hits = [rule for rule in about if self._hits("requests", self.plan.requests.index(rule), rule)]
        return hits[0] if hits else None

    def for_order(self, vendor: str, offer_id: str) -> tuple[MachineFault, ...]:
        """Return the faults of the machine for this order."""
        fates = []
        for index, rule in enumerate(self.plan.machines):
            if rule.vendor in ("", vendor) and rule.offer in offer_id and self._hits("machines", index, rule):
                fates.append(MachineFault(rule.trait, rule.after_s, rule.factor))
        return tuple(fates)

    def apply_row_rules(self, vendor: str, body: Any, is_first: bool) -> Any:
        """Return a listing, or the row of a machine, with the plan's wrong values; add strangers to the first page."""
        if isinstance(body, list):
            return [*(self._row(vendor, row) for row in body), *(self._strangers(vendor) if is_first else ())]
        if key := next((key for key in LISTS if key in body), ""):
            return {**body, key: self.apply_row_rules(vendor, body[key], is_first)}
        return self._row(vendor, body) if "id" in body else body

    def _row(self, vendor: str, row: dict[str, Any]) -> dict[str, Any]:
        told = row
        for index, rule in enumerate(self.plan.rows):
            if rule.vendor in ("", vendor) and rule.machine in json.dumps(row):
                if (index, row.get("id")) not in self._rows:
                    self._rows[index, row.get("id")] = self._hits("rows", index, rule)
                if self._rows[index, row.get("id")]:
                    told = {key: value for key, value in {**told, **rule.says}.items() if key not in rule.lacks}
        return told

    def _strangers(self, vendor: str) -> list[Any]:
        return {str(key): rows for key, rows in self.plan.strangers.items()}.get(vendor, [])

    def lag_s(self, vendor: str) -> float:
        """Return the delay in seconds of the vendor's listings."""
        return {str(key): value for key, value in self.plan.listing_lag_s.items()}.get(vendor, 0.0)

    def _hits(self, group: str, index: int, rule: Rule) -> bool:
        nth = self._asked.get((group, index), 0)
        self._asked[group, index] = nth + 1
        if nth < rule.skip or (rule.count is not None and nth >= rule.skip + rule.count):
            return False
        # Drawn from the number of the request, so that threads of other vendors do not change the result.
        return random.Random(f"{self._seed}:{group}:{index}:{nth}").random() < rule.chance
