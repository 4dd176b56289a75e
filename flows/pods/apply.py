"""Application of a pod file: the changes with their prices, carried out in order.

PodEntry records and journal -> changes -> `apply_change` for each change.
"""

import contextlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from flows.limits import shared_resources
from flows.limits.shared_resources import LaunchOffers
from flows.pods import held_pods, stop
from flows.supervisor import supervisor_client
from infra.agent.job import Limits
from infra.agent.limits import read_clocks
from infra.errors import SlipwayError, UsageError
from infra.ledger import budgets, spend
from infra.ledger.journal import Journal
from infra.ledger.leases import LeaseHeld
from infra.ledger.op import LOST, READY, Op
from infra.machines.host_memory import map_parallel
from infra.providers import Provider
from infra.records import Offer, Request
from infra.runs.keepers import pod_set
from infra.runs.keepers.pod_set import PodAction, PodEntry
from infra.runs.lookup import scale_of
from infra.runs.observation import AskedParties, Observation, observe_pod
from infra.runs.timing import Say
from infra.selection import choose, preflight, registry
from infra.selection.machine_spec import LimitSpec, MachineSpec, request_for
from infra.selection.preflight import MOST_USD
from infra.settings import MARKET, Settings
from infra.units import dollars, duration, in_usd, micro_usd

LOOK_S = 60.0  # Timeout of a look at all pods of the set; a silent pod is kept.


@dataclass(frozen=True)
class PodChange:
    """An action with display text and price."""

    step: PodAction
    provider: str
    micro_usd_per_hour: int  # Price of the offer for a pod to create; otherwise the rate of the live pod.
    about: str
    rented: tuple[Offer, Limits] | None = None
    """The offer and the limits of a pod to rent."""


@dataclass(frozen=True)
class SetLimit:
    """The spend limit shared by all rented pods of a set, in micro-USD."""

    budget: str
    amount: int
    share: int
    """Limit of each pod without an own limit."""

    @staticmethod
    def for_set(set_name: str, said: str, specs: Mapping[str, PodEntry]) -> "SetLimit | None":
        """Return the limit in a pod file; None without a limit.

        Raises UsageError if the pods' own limits leave too little.
        """
        if not said:
            return None
        amount = preflight.amount_of("spend-limit", said)
        own = [micro_usd(one.spend_limit.lstrip("$")) for one in specs.values() if one.spend_limit]
        others = len(specs) - len(own)
        if sum(own) > amount or others and sum(own) == amount:
            raise UsageError(
                f"set {set_name}: the limits of single pods allow {in_usd(sum(own))}; {in_usd(amount)} for the whole "
                "set is too low"
            )
        return SetLimit(f"set:{set_name}", amount, (amount - sum(own)) // max(1, others))

    def open_budget(self, journal: Journal, settings: Settings) -> None:
        """Set the budget of the set to the amount. Raises UsageError if more is already spent and reserved."""
        shared_resources.set_budget(journal, self.budget, self.amount, settings)

    def change_budget(self, journal: Journal, settings: Settings) -> bool:
        """Change the budget of a set with existing pods; return True if the amount changed. Raises as `open`."""
        before = budgets.find(journal, self.budget)
        if before is None or before.amount == self.amount:
            return False
        self.open_budget(journal, settings)
        return True


@contextlib.contextmanager
def hold_set_lease(set_name: str, journal: Journal) -> Iterator[None]:
    """Hold the lease on the set inside the block. Raises UsageError if a different process holds the lease."""
    try:
        lease = journal.leases.acquire(pod_set.set_lease(set_name))
    except LeaseHeld as error:
        raise UsageError(
            f"a second process is changing the set {set_name} ({error}); wait until the process has finished"
        ) from None
    try:
        yield
    finally:
        journal.leases.release(lease)


def changes(
    set_name: str,
    specs: Mapping[str, PodEntry],
    journal: Journal,
    settings: Settings,
    tell: Say,
    limit: SetLimit | None = None,
) -> list[PodChange]:
    """Return the actions that turn the live pods into `specs`, in order, including pods to keep.

    Raises SlipwayError with the name of a pod without an offer.
    """
    rows = journal.ops()
    ours = [op for op in rows if op.pod_set == set_name and op.state in (READY, LOST) and op.is_head]
    looks = map_parallel(
        lambda op: observe_pod(op, registry.provider(settings, op.vendor), AskedParties.PROVIDER), ours, LOOK_S
    )
    sights = {op.token: one for op, one in zip(ours, looks, strict=True) if isinstance(one, Observation)}
    steps = pod_set.decide(set_name, {name: spec.digest for name, spec in specs.items()}, rows, sights)
    return [_change(step, specs, journal, settings, tell, limit) for step in steps]


def apply_change(
    step: PodAction,
    set_name: str,
    specs: Mapping[str, PodEntry],
    journal: Journal,
    settings: Settings,
    tell: Say,
    limit: SetLimit | None = None,
) -> Op | None:
    """Create or end a pod; return the created pod. Raises OutOfMoney if the set's budget is exhausted."""
    if step.action == "end":
        stop.end_pod(journal.op(step.token), journal, settings, tell)
        return None
    spec = specs[step.name]
    request, limits, offers = find(spec, settings, tell, limit)
    paid_from = limit.budget if limit and offers[0].micro_usd_per_hour else ""
    had = LaunchOffers(request=request, offers=tuple(offers))
    return held_pods.rent(
        had, limits, journal, settings, tell, pod_set=set_name, spec_hash=spec.digest, budget=paid_from
    )


def enable_recovery(set_name: str, specs: Mapping[str, PodEntry], journal: Journal, settings: Settings) -> list[str]:
    """Record which pods of the set have automatic replacement, and start the supervisor if needed.

    Return the names of kept pods with a changed record.
    """
    changed = []
    for op in journal.ops(live=True):
        if op.pod_set == set_name and op.run in specs and op.is_head:
            said, recovers = json.loads(op.request), specs[op.run].recover
            if said.get("recovers", False) != recovers:
                journal.note(op, request=json.dumps({**said, "recovers": recovers}))
                changed.append(op.run)
    supervisor_client.ensure(settings)
    return changed


def pod_request(
    spec: PodEntry, settings: Settings, tell: Say, limit: SetLimit | None = None
) -> tuple[list[Provider], Request, Limits]:
    """Return the candidate providers, the request and the limits of a pod. Raises UsageError."""
    candidates = registry.candidates(settings, spec.provider or "")
    text = ("country", "cpus", "memory", "disk_size", "city", "cloud", "region", "instance_type", "max_price")
    words: dict[str, Any] = {name: getattr(spec, name) or "" for name in text}
    machine = MachineSpec(
        gpu=spec.gpu_type or "",
        num_gpus=spec.gpu_count,
        use_spot=spec.use_spot,
        volume=spec.volume_id or "",
        min_upload_mbps=spec.min_upload_mbps or 0,
        min_download_mbps=spec.min_download_mbps or 0,
        **words,
    )
    request = request_for(machine)
    name = candidates[0].name if len(candidates) == 1 else MARKET
    request = replace(
        request, run=spec.name, provider=name, pool=spec.pool or "", host=spec.host or "", recovers=spec.recover
    )
    is_rented = candidates[0].is_rented
    if spec.recover and not is_rented:
        raise UsageError(f"recover applies to rented pods only; {candidates[0].name} does not take machines away")
    ttl = "" if spec.ttl_hours is None else f"{spec.ttl_hours * 3600:f}s"
    spend_limit = spec.spend_limit or (dollars(limit.share) if limit and is_rented else "")
    spend_limit = spend_limit or (MOST_USD if is_rented and not ttl else "")
    idle_stop = "" if spec.idle_stop_minutes is None else f"{spec.idle_stop_minutes:f}m"
    limits = LimitSpec(ttl=ttl, spend_limit=spend_limit, idle_stop=idle_stop)
    return candidates, request, preflight.limits_for(settings, is_rented, limits)


def rate_then(found: Sequence[PodChange]) -> int:
    """Return the micro-USD per hour after all changes."""
    return sum(one.micro_usd_per_hour for one in found if one.step.action != "end")


def find(spec: PodEntry, settings: Settings, tell: Say, limit: SetLimit | None) -> tuple[Request, Limits, list[Offer]]:
    """Return the request and limits of a pod, and the offers, cheapest first.

    Raises SlipwayError with the name of the pod.
    """
    candidates, request, limits = pod_request(spec, settings, tell, limit)
    try:
        offers = choose.find(candidates, request, settings, tell)
        return request, limits, choose.payable(offers, 1, settings, tell)
    except SlipwayError as error:
        error.args = (f"{spec.name}: {error}",)
        raise


def _change(
    step: PodAction,
    specs: Mapping[str, PodEntry],
    journal: Journal,
    settings: Settings,
    tell: Say,
    limit: SetLimit | None,
) -> PodChange:
    if step.action == "create":
        _, limits, offers = find(specs[step.name], settings, tell, limit)
        offer = offers[0]
        gpus = f"{offer.num_gpus} x {offer.gpu}" if offer.num_gpus else "no GPU"
        place = " ".join(filter(None, (gpus, offer.region)))
        ends = [] if limits.time_s is None else [f"after {duration(limits.time_s)}"]
        ends += [] if limits.spend_micro_usd is None else [f"at {in_usd(limits.spend_micro_usd)}"]
        said = f"{place}, ends {' or '.join(ends)}" if ends else place
        rented = (offer, limits) if offer.micro_usd_per_hour else None
        return PodChange(step, offer.provider, offer.micro_usd_per_hour, said, rented)
    op = journal.op(step.token)
    age_s = round(spend.age_s(op, read_clocks(), scale_of(op, settings)), 1)
    return PodChange(step, op.vendor, op.rate, f"{duration(age_s)} old, makes {held_pods.purpose(op)}")
