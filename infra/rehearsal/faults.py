"""The faults of a rehearsal: a plan read from YAML, and its counting, the same for the same seed.

    requests:                  # what becomes of an answer
      - {vendor: shadeform, call: create, kind: lost}
      - {call: list, kind: throttle, count: 5, retry_after_s: 1}
    machines:                  # what becomes of a machine, counted by orders
      - {trait: ghost, offer: H100, count: 2}
      - {trait: preempted, vendor: runpod, after_s: 300}
    rows:                      # what a listing says of a machine that is well, counted by machines
      - {vendor: shadeform, machine: otter, says: {ip: gpu_7.example.net, hourly_price: null}, lacks: [id]}
    strangers:                 # rows beside those of machines, whatever they are
      lium: [{id: x, pod_name: [theirs]}, 5]
    prices: [{at_s: 600, offer: B200, factor: 1.2}]
    listing_lag_s: {lium: 30}
    balance_usd: {runpod: 25}
    lium_key_budget_usd: 5     # a key that has spent it loses its pods
    page_size: 2               # RunPod's lists come in pages
    hides_spot: true           # RunPod's REST v2 knows nothing of pods that were rented as spot
    retires_graphql: true      # RunPod's GraphQL answers 410
    preempt_at_work: 2         # twice a machine is taken away once the store has a checkpoint of it;
                               # {runpod: 1, lium: 1}: once on each

Of the requests, orders or machines that a rule is about, it lets `skip` pass and hits the next `count` (null = all),
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
from infra.rehearsal.records import Fate

Vendor = Literal["runpod", "lium", "shadeform", ""]
Kind = Literal[
    "dropped",  # the connection is closed before anything is done
    "lost",  # done, then closed without an answer
    "late",  # done, answered after `delay_s` of real time
    "error",  # `status` instead of doing it
    "error but done",  # done, then `status`
    "throttle",  # 429 with Retry-After, nothing done
    "torn",  # done, half of the body, then closed
    "drip",  # done, the body byte by byte over `delay_s` of real time
    "pretended",  # answered with yes, and not done
    "short list",  # half of the rows
    "empty list",
]
LISTS = ("pods", "instances")  # under which a page has its rows
BEFORE = ("dropped", "error", "throttle")
Trait = Literal[
    "ghost",  # listed and cannot be taken
    "hang",  # never boots
    "slow boot",  # `factor` times longer
    "fail",  # the boot ends in an error
    "no ssh",  # is said to run, but sshd does not listen
    "null port",  # runs, and its SSH address is told `after_s` later
    "old driver",
    "slow disk",
    "fewer gpus",
    "slice",  # its GPUs are slices (MIG) of those that its offer names
    "idle gpus",  # nvidia-smi says that none of them works
    "preempted",  # `after_s` after it began to run
    "vanished",  # deleted by the vendor, likewise
    "dear",  # costs `factor` times the quote
    "no pod key",  # RunPod: the key that a pod has of itself opens nothing
    "spot unlisted",  # a spot machine is in no listing, and is found by its id
    "dear disk",  # RunPod: the bill has `factor` dollars per hour for its disk
    "v2 pod key",  # RunPod: the key that a pod has of itself opens REST v2 too, which nobody has verified
    "disk in cost",  # RunPod: the price that a pod tells has its disk in it
    "no timer",  # the vendor forgets its time limit
    "late timer",  # the time limit is armed `after_s` later than requested
    "whole hours",  # Lium: an exact end is answered with yes and not armed, so that whole hours from the boot hold
    "no end at boot",  # no end is shown while it boots
    "no key",  # nobody is let in
    "new host key",  # the host key of its sshd changes soon after somebody has logged in
    "twice",  # the order makes two machines
    "coarse bill",  # the vendor says what it would cost if every `after_s` that is begun were billed whole
    "wrong bill",  # the vendor says `factor` times what it costs
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
    body: Any = None  # body of an error, where it is not like the vendor's errors


class MachineRule(Rule, frozen=True, forbid_unknown_fields=True, kw_only=True):
    trait: Trait
    offer: str = ""  # part of the offer's id
    after_s: float = 60.0
    factor: float = 2.0


class RowRule(Rule, frozen=True, forbid_unknown_fields=True, kw_only=True):
    machine: str = ""  # part of its row: of its id, its name, its run
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
    strangers: dict[Literal["runpod", "lium", "shadeform"], list[Any]] = {}
    prices: tuple[PriceRule, ...] = ()
    listing_lag_s: dict[Literal["runpod", "lium", "shadeform"], float] = {}
    balance_usd: dict[Literal["runpod", "lium", "shadeform"], float] = {}
    lium_key_budget_usd: float | None = None
    page_size: int = 0
    hides_spot: bool = False
    retires_graphql: bool = False
    preempt_at_work: int | dict[Literal["runpod", "lium", "shadeform"], int] = 0


def read_plan(path: Path) -> Plan:
    """Return the plan in a file. Raises UsageError, which names the file and the place; FileNotFoundError."""
    return plan_of(strict_yaml.read(path) or {}, str(path))


def plan_of(content: Mapping[str, Any], name: str = "faults") -> Plan:
    """Return the plan in a document. Raises UsageError."""
    try:
        return msgspec.convert(content, Plan)
    except msgspec.ValidationError as error:
        raise UsageError(f"{name}: {error}") from None


class Faults:
    """A plan and how often each of its rules was asked."""

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
        """Return how many active machines are still to be taken away."""
        return sum(self._preemptions.values())

    def preempts(self, vendor: str) -> bool:
        """Return whether an active machine of the vendor is taken away now, and count it off."""
        for name in (vendor, ""):
            if self._preemptions.get(name, 0) > 0:
                self._preemptions[name] -= 1
                return True
        return False

    def for_request(self, vendor: str, call: str) -> RequestRule | None:
        """Return the rule that hits this request; None = nothing bad."""
        about = [rule for rule in self.plan.requests if rule.vendor in ("", vendor) and rule.call in ("", call)]
        hits = [rule for rule in about if self._hits("requests", self.plan.requests.index(rule), rule)]
        return hits[0] if hits else None

    def for_order(self, vendor: str, offer_id: str) -> tuple[Fate, ...]:
        """Return the faults of the machine that this order gets."""
        fates = []
        for index, rule in enumerate(self.plan.machines):
            if rule.vendor in ("", vendor) and rule.offer in offer_id and self._hits("machines", index, rule):
                fates.append(Fate(rule.trait, rule.after_s, rule.factor))
        return tuple(fates)

    def told(self, vendor: str, body: Any, is_first: bool) -> Any:
        """Return a listing, or the row of one machine, as the vendor tells it; strangers stand on its first page."""
        if isinstance(body, list):
            return [*(self._row(vendor, row) for row in body), *(self._strangers(vendor) if is_first else ())]
        if key := next((key for key in LISTS if key in body), ""):
            return {**body, key: self.told(vendor, body[key], is_first)}
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
        """Return the delay of the vendor's list."""
        return {str(key): value for key, value in self.plan.listing_lag_s.items()}.get(vendor, 0.0)

    def _hits(self, group: str, index: int, rule: Rule) -> bool:
        nth = self._asked.get((group, index), 0)
        self._asked[group, index] = nth + 1
        if nth < rule.skip or (rule.count is not None and nth >= rule.skip + rule.count):
            return False
        # Drawn from the request's own number, so that other vendors' threads do not change it.
        return random.Random(f"{self._seed}:{group}:{index}:{nth}").random() < rule.chance
