"""The offer behind a rented pod, and the plan with the forecast for the machine of this offer.

A plan is about the first offer found. A launch takes another offer if the user picks the offer, if the first offer is
beyond a limit, and if the vendor refuses the first offer.
"""

from collections.abc import Sequence
from dataclasses import replace

from flows.planning import estimates
from infra.ledger.op import Op
from infra.records import Offer, Plan
from infra.selection import registry
from infra.settings import Settings


def find(op: Op, plan: Plan, offers: Sequence[Offer], settings: Settings) -> Offer | None:
    """Return the offer of a pod; None without offers, and if the record fits offers of different machines."""
    rate = op.read_job().limits.micro_usd_per_hour if op.job else op.rate  # the vendor may have reported a higher rate
    alike = [one for one in offers if (one.provider, one.place, one.micro_usd_per_hour) == (op.vendor, op.place, rate)]
    found = alike or offers
    return found[0] if len({_machine(one, plan, settings) for one in found}) == 1 else None


def plan_on(offer: Offer | None, plan: Plan, offers: Sequence[Offer], settings: Settings) -> Plan:
    """Return the plan with the forecast for a rented offer; without a forecast if the offer is unknown."""
    if offer is None:
        return replace(plan, estimate=None, imitated=None) if offers else plan
    if plan.displayed_estimate and plan.displayed_estimate.machine.name == _machine(offer, plan, settings):
        return plan
    return estimates.of_plan(plan, settings, registry.provider(settings, offer.provider), offer)


def _machine(offer: Offer, plan: Plan, settings: Settings) -> str:
    return estimates.remote_machine(plan.request, registry.provider(settings, offer.provider), offer).name
