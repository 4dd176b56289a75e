"""What may be rented, at the terminal: flags into a request; offers, their cost and what will end them as tables."""

import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from infra.agent.job import Limits
from infra.errors import NoOffer, UsageError
from infra.market.forecast import flops_per_s
from infra.providers import Provider, clock_scale, market, registry
from infra.providers.shutdown_paths import ends_of
from infra.records import Offer, Plan, Request
from infra.runs.doctor import flops_per_s as flops_here
from infra.selection import choose, preflight
from infra.settings import Settings
from scripts.cli import prompts, render
from scripts.cli.render import columns
from scripts.market import offers as table

GPU, NUM_GPUS = "B200", 8  # what is rented when nothing is said
WAIT_S = 60.0


def request_for(
    flags: Mapping[str, Any], run: str, candidates: Sequence[Provider], nodes: int, pool: str, host: str
) -> Request:
    """What kind of machine is wanted; without a word about GPUs, the default where machines are rented."""
    asked = dict(flags)
    if candidates[0].is_rented and not asked["gpu"] and not asked["instance_type"]:
        asked |= {"gpu": GPU, "num_gpus": asked["num_gpus"] or NUM_GPUS}
    if asked["volume"] and not candidates[0].is_rented:
        raise UsageError("--volume is of a vendor's; own machines keep what is on their disks")
    wanted = table.request_for(**asked)
    provider = candidates[0].name if len(candidates) == 1 else "market"
    return replace(wanted, run=run, provider=provider, nodes=nodes, pool=pool, host=host)


def find(candidates: Sequence[Provider], request: Request, settings: Settings, wait: bool) -> list[Offer]:
    """Return what fits; with `wait` it is asked for again until something does. Raises NoOffer without."""
    while True:
        try:
            return choose.find(candidates, request, settings, render.tell)
        except NoOffer as error:
            if not wait:
                raise
            pause_s = WAIT_S / clock_scale(candidates[0])
            render.say(f"{str(error).splitlines()[0]}; looking again in {render.duration(pause_s)} (Ctrl-C ends it)")
            time.sleep(pause_s)


def again(*more: str) -> str:
    """Return the command that was typed, with more flags."""
    return shlex.join(["./inv", *sys.argv[1:], *more])


def work_rate(settings: Settings, offer: Offer) -> float:
    """FLOP/s that the estimates of steps stand on. A rehearsal's pods are processes of this machine."""
    return flops_here() if settings.rehearsal else flops_per_s(offer) or flops_here()


def show(plan: Plan, offers: Sequence[Offer], settings: Settings, on_failure: str) -> None:
    """The offers, what the first would cost, and what will end it."""
    assert plan.job is not None
    show_offers(plan.request, offers)
    first = offers[0]
    costs = preflight.forecast_of(plan, first, settings)
    low, expected, high = map(render.cents, costs.micro_usd)
    cut = ", where a limit ends it" if costs.is_cut else ""
    times = " / ".join(render.duration(one) for one in costs.seconds)
    render.say(f"on the first: {low} / {expected} / {high} USD (low / expected / high{cut}), {times} (estimates)")
    show_ends(plan.job.limits, first, settings, on_failure)


def show_offers(request: Request, offers: Sequence[Offer]) -> None:
    gpu = f"{request.gpu} " if request.gpu else ""
    render.say(f"=== Available {gpu}Instances (sorted by price) ===")
    render.say(render.clean(table.table(offers[: prompts.SHOWN], time.time())))
    if len(offers) > prompts.SHOWN:
        render.say(f"and {render.count(len(offers) - prompts.SHOWN, 'more offer')} (inv offers)")


def show_ends(limits: Limits, offer: Offer, settings: Settings, on_failure: str, stays: bool = False) -> None:
    """What will end a pod made from that offer."""
    limits = replace(limits, micro_usd_per_hour=offer.micro_usd_per_hour)
    vendor = market(registry.provider(settings, offer.provider))
    assert vendor is not None, offer
    rows = [("when", "ended by", "and with the laptop off, at the latest by")]
    ends = ends_of(vendor, limits, on_failure, stays)
    render.say(columns([*rows, *((end.what, end.by, end.backstop) for end in ends)]))
