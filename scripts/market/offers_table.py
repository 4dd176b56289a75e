"""Tables of offers, their cost, and the events that end a pod made from an offer."""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TextIO

from infra.agent.job import Limits
from infra.market.catalogue import PricedOffer
from infra.market.step_times import evidence
from infra.providers import market, promises
from infra.providers.shutdown_paths import End, caveats_of, ends_of, unattended_ends
from infra.records import Offer, Plan, Request
from infra.selection import preflight, registry
from infra.settings import Settings
from infra.units import dollars, estimated, rate
from scripts.cli import plan_text, prompts, render
from scripts.cli.render import columns
from store import packs

GB = 10**9
LEAST = (11, 10, 8, 9, 6, 4, 2, 1)  # columns left out on a narrow terminal, the first one first
MOST_NAMED = 3  # GPU kinds in a table title
ITSELF = "Add --self-end, and the pod deletes itself when its work is done."


def show(
    plan: Plan,
    offers: Sequence[Offer],
    settings: Settings,
    on_failure: str,
    self_end: bool = False,
    has_parts: bool = False,
) -> None:
    """Print the offers, the cost of the first offer (has_parts: also by part), and the events that end the pod."""
    assert plan.job is not None
    show_offers(plan.request, offers)
    render.say("")
    first = offers[0]
    found = plan.displayed_estimate
    if found is None or not found.steps:
        render.say(
            f"first offer: {rate(first.micro_usd_per_hour * plan.request.nodes)} USD per hour; the "
            "duration of the work is unknown until the first run has ended"
        )
    else:
        costs = preflight.shown_forecast(plan, first) if plan.imitated else preflight.forecast_of(plan, first, settings)
        low, expected, high = map(render.cents, costs.micro_usd)
        cut = ", ended by a limit" if costs.is_cut else ""
        times = " / ".join(estimated(one) for one in costs.seconds)
        render.say(
            f"first offer: {low} / {expected} / {high} USD (low / expected / high{cut}), {times} ({evidence(found)})"
        )
        whole = preflight.shown_forecast(plan, first, is_cut=False)
        if costs.is_cut and whole.micro_usd[1] > costs.micro_usd[1]:
            amounts = " / ".join(map(render.cents, whole.micro_usd))
            render.say(f"without a limit: {amounts} USD, {' / '.join(map(estimated, whole.seconds))}")
        if plan.imitated and preflight.billed(plan) is not plan.imitated:
            costs = preflight.forecast_of(plan, first, settings)
            cut = ", ended by a limit" if costs.is_cut else ""
            bill = " / ".join(map(render.cents, costs.micro_usd))
            render.say(f"in this rehearsal: {bill} simulated USD{cut}, for the time that this machine needs")
    for table in cost_tables(plan, first, settings).values() if has_parts else ():
        render.say(f"\n{table.text}")
    if plan.request.nodes > 1:
        render.say(f"each of the {plan.request.nodes} pods has an equal part of the limit, and ends by itself")
    show_ends(plan.job.limits, first, settings, on_failure, self_end=self_end)


def plan_json(
    plan: Plan, offers: Sequence[Offer], settings: Settings, on_failure: str, self_end: bool = False
) -> dict[str, Any]:
    """Return the content of `show` for a JSON document: offers, cost and limit of the first, and ends of a pod."""
    assert plan.job is not None
    first, limits = offers[0], plan.job.limits
    found = plan.displayed_estimate
    costs = preflight.forecast_of(plan, first, settings) if found and found.steps else None
    ends, caveats = pod_ends(limits, first, settings, on_failure, self_end=self_end)
    return {
        "offers": [
            {
                "provider": one.provider,
                "offer_id": one.offer_id,
                "gpu": one.gpu or None,
                "num_gpus": one.num_gpus,
                "region": one.region or one.country or None,
                "spot": one.spot,
                "usd_per_hour": dollars(one.micro_usd_per_hour),
            }
            for one in offers[: prompts.SHOWN]
        ],
        "nodes": plan.request.nodes,
        "cost_usd": [*map(dollars, costs.micro_usd)] if costs else None,
        "cost_s": [*map(plan_text.whole_s, costs.seconds)] if costs else None,
        "is_cut_by_limit": costs.is_cut if costs else None,
        "limit_usd": dollars(limits.spend_micro_usd) if limits.spend_micro_usd is not None else None,
        "limit_s": limits.time_s,
        "cost_parts": {name: one.document for name, one in cost_tables(plan, first, settings).items()},
        "ends": [{"when": one.what, "by": one.by, "with_laptop_off": one.backstop} for one in ends],
        "caveats": caveats,
    }


def cost_tables(plan: Plan, offer: Offer, settings: Settings) -> dict[str, Any]:
    """Return the tables of packs about the expected cost of a plan by name, as `flows.reading.cost_views.CostTable`."""
    found = {name: packs.load(where)() for name, where in packs.entries("cost_views").items()}
    tables = {name: one.of_plan(plan, offer, settings) for name, one in found.items()}
    return {name: one for name, one in tables.items() if one}


def show_offers(request: Request, offers: Sequence[Offer]) -> None:
    gpu = f"{request.gpu} " if request.gpu and request.gpu.count(",") < MOST_NAMED else ""
    render.say(f"\n=== Available {gpu}Instances (sorted by price) ===")
    show_table(offers[: prompts.SHOWN])
    if len(offers) > prompts.SHOWN:
        render.say(f"and {render.count(len(offers) - prompts.SHOWN, 'more offer')} (inv offers)")
    first = offers[0]
    if first.disk_micro_usd_per_hour:
        disk = f"{rate(first.disk_micro_usd_per_hour)} for {first.disk_bytes // GB} GB of disk"
        render.say(f"the first offer costs {rate(first.micro_usd_per_hour)} USD/h, including {disk}")


def show_table(offers: Sequence[Offer]) -> None:
    render.say(render.clean(table(offers, time.time(), sys.stderr)))


def show_ends(
    limits: Limits, offer: Offer, settings: Settings, on_failure: str, stays: bool = False, self_end: bool = False
) -> None:
    """Print the events that end a pod made from the offer."""
    here = always_on_here(settings)
    rows = [("when", "ended by", f"and with {here or 'the laptop'} off, by")]
    ends, caveats = pod_ends(limits, offer, settings, on_failure, stays, self_end)
    text = columns([*rows, *((end.what, end.by, end.backstop) for end in ends)], out=sys.stderr)
    if "\n" * len(ends) != "".join(one for one in text if one == "\n"):  # too wide for the terminal: a paragraph each
        each = [f"- {end.what}:\n  {end.by}\n  {here or 'laptop'} off: {end.backstop}" for end in ends]
        text = "\n".join(["what ends a pod:", *each])
    render.say(f"\n{text}\n")
    for sentence in caveats:
        render.say(sentence)
    if not here:
        vendor = market(registry.provider(settings, offer.provider))
        is_open = vendor is not None and vendor.uses_self_end and not stays and not self_end
        print_laptop_options([ITSELF] if is_open else [])


def pod_ends(
    limits: Limits, offer: Offer, settings: Settings, on_failure: str, stays: bool = False, self_end: bool = False
) -> tuple[list[End], list[str]]:
    """Return the events that end a pod made from the offer, and sentences about what is not certain."""
    limits = replace(limits, micro_usd_per_hour=offer.micro_usd_per_hour)
    vendor = market(registry.provider(settings, offer.provider))
    assert vendor is not None, offer
    can = vendor.can_at(promises.api_of(offer))
    ends = ends_of(vendor.name, can, limits, on_failure, stays, self_end)
    return ends, [*caveats_of(vendor.name, vendor.documented, can, offer.volume)]


def show_laptop_off(
    what: str, pods: Sequence[tuple[Offer, Limits]], settings: Settings, is_followed: bool = True
) -> None:
    """Print the fate of several pods while the laptop is off: `what`, and per vendor the end of a pod.

    is_followed: a process follows the pods, which an always-on machine could run instead.
    """
    if not pods or always_on_here(settings):
        return
    render.say(f"with the laptop off: {what}")
    first: dict[str, tuple[Offer, Limits]] = {}
    for offer, limits in pods:
        first.setdefault(offer.provider, (offer, limits))
    for name, (offer, limits) in first.items():
        if vendor := market(registry.provider(settings, name)):
            priced = replace(limits, micro_usd_per_hour=offer.micro_usd_per_hour)
            render.say(f"  {unattended_ends(name, vendor.can_at(promises.api_of(offer)), priced)}")
    if is_followed:
        print_laptop_options([])


def always_on_here(settings: Settings) -> str:
    """Return the plan's name for this machine if always on, or "" for a laptop."""
    return next(filter(None, (one.this_machine_name(settings) for one in packs.always_on_machines())), "")


def print_laptop_options(ways: Sequence[str]) -> None:
    """Print the options for a laptop going offline: `ways`, and the suggestions of packs."""
    if said := " ".join([*ways, *(one.suggestion for one in packs.always_on_machines())]):
        render.say(f"If the laptop will be off: {said}")


def table(found: Sequence[Offer], now: float, out: TextIO) -> str:
    """Return a table for `out` with a numbered row per offer; `?` for values the vendor omits."""
    rows = [
        (
            "#",
            "Provider",
            "Region",
            "GPUs",
            "VRAM",
            "Price/hr",
            "$/GPU-h",
            "Spot",
            "NVLink",
            "Up/Down Mbps",
            "Age",
            "Type",
        )
    ]
    for number, one in enumerate(found, 1):
        kind = f" {one.gpu}" if one.gpu else ""
        rows.append(
            (
                str(number),
                f"{one.provider}/{one.cloud}" if one.cloud else one.provider,
                one.region or one.country or "any",
                f"{one.num_gpus}x{kind}" if one.num_gpus else "none",
                f"{one.gpu_memory_bytes // GB}GB" if one.gpu_memory_bytes else "?",
                f"${rate(one.micro_usd_per_hour)}",
                f"${per_gpu(one)}" if one.num_gpus else "",
                "Yes" if one.spot else "No",
                {True: "Yes", False: "No", None: "?"}[one.nvlink],
                speeds(one),
                render.duration(max(0.0, now - one.seen_at)) if one.seen_at else "?",
                one.instance_type or one.place,
            )
        )
    return columns(rows, LEAST, out)


def catalogue_table(found: Sequence[PricedOffer]) -> str:
    """Return a table of catalogue prices, with the date of the price in the last column."""
    rows = [("provider", "GPUs", "USD/h", "USD/GPU-h", "as of")]
    for one in found:
        offer = one.offer
        whose = f"{offer.provider}/{offer.cloud}" if offer.cloud else offer.provider
        rows.append(
            (
                whose,
                f"{offer.num_gpus}x {offer.gpu}" if offer.num_gpus else "none",
                rate(offer.micro_usd_per_hour),
                per_gpu(offer) if offer.num_gpus else "",
                one.label,
            )
        )
    return columns(list(dict.fromkeys(rows)), least=(3, 4))


def per_gpu(offer: Offer) -> str:
    """Return the price per GPU-hour in US dollars, rounded up to a tenth of a cent."""
    return rate(-(-offer.micro_usd_per_hour // offer.num_gpus))


def speeds(offer: Offer) -> str:
    """Return upload/download speed in Mbps, or `unknown` if the vendor omits both."""
    both = (offer.upload_mbps, offer.download_mbps)
    return "unknown" if both == (None, None) else "/".join(map(mbps, both))


def mbps(speed: float | None) -> str:
    return "unknown" if speed is None else f"{speed:.0f}"
