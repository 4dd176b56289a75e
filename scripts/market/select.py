"""Choosing what to rent: the offers that fit, what they would cost, which ends will be armed, and the user's pick."""

import math
import shlex
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from infra.agent.job import Limits
from infra.agent.limits import hard_limit_s
from infra.errors import NoOffer, OutOfMoney, SlipwayError, UsageError
from infra.machines.host_memory import HostMemory
from infra.market.filters import in_words
from infra.market.forecast import SETUP_S, Forecast, flops_per_s, forecast
from infra.money import BadAmount, micro_usd
from infra.providers import Market, Provider, clock_scale
from infra.providers import market as as_market
from infra.providers import offers as market
from infra.providers.offers import Source
from infra.providers.shutdown_paths import ends_of
from infra.records import Offer, Plan, Request
from infra.runs.acceptance_policy import known_as
from infra.runs.doctor import flops_per_s as flops_here
from infra.runs.launch import choose as choose_own
from infra.settings import Settings
from scripts.cli import context, render
from scripts.cli.render import columns
from scripts.market import offers as table

GPU, NUM_GPUS, SPEND_LIMIT = "B200", 8, "150"  # what is rented when nothing is said
SHOWN = 9
LARGE_BYTES, LARGE_VOLUME_BYTES = 50 * 10**9, 10**12  # of checkpoints, and of a volume that also holds data and caches
WAIT_S = 60.0
DOUBT_S = 6 * 3600.0  # on the vendor's clock: for so long an offer that failed is tried last


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


def limits_for(settings: Settings, is_rented: bool, ttl: str, spend_limit: str, idle_stop: str = "") -> Limits:
    """What ends a run. Rented machines never go without: a spend limit is armed when neither is asked for."""
    time_s, idle_s = context.seconds(ttl), context.seconds(idle_stop)
    if not is_rented:
        if spend_limit:
            raise UsageError("--spend-limit is for rented machines; nothing is paid here")
        return Limits(time_s=time_s, idle_gpu_s=idle_s, reserve_bytes=settings.reserve_bytes)
    if not ttl and not spend_limit:
        render.say(f"neither --ttl nor --spend-limit is given: {SPEND_LIMIT} USD are the limit")
        spend_limit = SPEND_LIMIT
    try:
        spend = micro_usd(spend_limit.lstrip("$")) if spend_limit else None
    except BadAmount as error:
        raise UsageError(f"--spend-limit: {error}") from None
    if spend == 0:
        raise UsageError("--spend-limit is 0; nothing can be rented for that")
    return Limits(time_s=time_s, spend_micro_usd=spend, idle_gpu_s=idle_s, reserve_bytes=settings.reserve_bytes)


def find(candidates: Sequence[Provider], request: Request) -> list[Offer]:
    """What fits, cheapest first; a vendor that does not answer is told. Raises NoOffer with what to relax."""
    if not candidates[0].is_rented:
        return choose_own(candidates[0], request)
    asked = [Source(one.name, one.catalog) for one in map(as_market, candidates) if one]
    found = market.survey(asked, request)
    for one in found.silent if found.offers else ():
        render.say(render.clean(f"{one.provider}: {' '.join(str(one.error).split())}"))
    return doubtful_last(market.require(found, request).offers, clock_scale(candidates[0]))


def doubtful_last(offers: Sequence[Offer], scale: float) -> list[Offer]:
    """Those that could not be had, did not boot or were not as promised lately are tried after all others."""
    failed = HostMemory.beside(context.settings().state_file).blamed(DOUBT_S / scale)
    doubtful = [one for one in offers if known_as(one) in failed]
    for one in doubtful if len(doubtful) < len(offers) else ():
        why = failed[known_as(one)].failure
        render.say(render.clean(f"tried last: {in_words(one)}: {' '.join(why.split())[:200]}"))
    return [*(one for one in offers if one not in doubtful), *doubtful]


def wait_for(candidates: Sequence[Provider], request: Request) -> list[Offer]:
    """As `find`, asked again until something fits."""
    while True:
        try:
            return find(candidates, request)
        except NoOffer as error:
            pause_s = WAIT_S / clock_scale(candidates[0])
            render.say(f"{str(error).splitlines()[0]}; looking again in {render.duration(pause_s)} (Ctrl-C ends it)")
            time.sleep(pause_s)


def work_rate(settings: Settings, offer: Offer) -> float:
    """FLOP/s that the estimates of steps stand on. A rehearsal's pods are processes of this machine."""
    return flops_here() if settings.rehearsal else flops_per_s(offer) or flops_here()


def vendor_of(offer: Offer, settings: Settings) -> Market:
    found = as_market(context.provider(settings, offer.provider))
    assert found is not None, offer
    return found


def forecast_of(plan: Plan, offer: Offer, settings: Settings) -> Forecast:
    assert plan.job is not None
    work_s = settings.clock_scale * sum(one.estimate_s or 0.0 for one in plan.artifacts)
    return forecast(work_s, offer, plan.job.limits, plan.request.nodes, setup_of(settings))


def setup_of(settings: Settings) -> tuple[float, float, float]:
    """Seconds of the vendor's clock until work begins: low, expected, high.

    Real work takes its real time, which is long on a rehearsal's clock.
    """
    scale = settings.clock_scale
    return (5 * scale, 15 * scale, 60 * scale) if settings.rehearsal else SETUP_S


def show(plan: Plan, offers: Sequence[Offer], settings: Settings, on_failure: str) -> None:
    """The offers, what the first would cost, and what will end it."""
    assert plan.job is not None
    show_offers(plan.request, offers)
    first = offers[0]
    costs = forecast_of(plan, first, settings)
    low, expected, high = map(render.cents, costs.micro_usd)
    cut = ", where a limit ends it" if costs.is_cut else ""
    times = " / ".join(render.duration(one) for one in costs.seconds)
    render.say(f"on the first: {low} / {expected} / {high} USD (low / expected / high{cut}), {times} (estimates)")
    show_ends(plan.job.limits, first, settings, on_failure)


def show_offers(request: Request, offers: Sequence[Offer]) -> None:
    gpu = f"{request.gpu} " if request.gpu else ""
    render.say(f"=== Available {gpu}Instances (sorted by price) ===")
    render.say(render.clean(table.table(offers[:SHOWN], time.time())))
    if len(offers) > SHOWN:
        render.say(f"and {render.count(len(offers) - SHOWN, 'more offer')} (inv offers)")


def show_ends(limits: Limits, offer: Offer, settings: Settings, on_failure: str, stays: bool = False) -> None:
    """What will end a pod made from that offer."""
    limits = replace(limits, micro_usd_per_hour=offer.micro_usd_per_hour)
    rows = [("when", "ended by", "and with the laptop off, at the latest by")]
    ends = ends_of(vendor_of(offer, settings), limits, on_failure, stays)
    render.say(columns([*rows, *((end.what, end.by, end.backstop) for end in ends)]))


def preflight(plan: Plan, offers: Sequence[Offer], settings: Settings, with_missing: bool) -> list[Offer]:
    """The offers that can be paid for, after everything that can be known before money is spent. Raises UsageError."""
    check_work(plan, settings, with_missing)
    return payable(lasting(plan, roomy(plan, offers), settings), plan.request.nodes, settings)


def check_work(plan: Plan, settings: Settings, with_missing: bool) -> None:
    """Whether a rented machine can do it: its store can be reached, its inputs are made. Raises UsageError."""
    if not settings.rehearsal and "://" not in plan.store:
        raise UsageError(
            f"artifacts would go to {plan.store}, which no rented machine can reach; "
            "give a store off the pod: --store hf://user/repo or s3://bucket/folder"
        )
    missing = [one.name for one in plan.artifacts if one.step and not one.name.split("/")[0].endswith("_checkpoints")]
    if (missing or plan.untyped) and not settings.rehearsal and not with_missing:
        first = "" if plan.untyped else "make them here first (the same flags with inv train --prepare) or "
        raise UsageError(
            f"{', '.join([*missing, *plan.untyped])} would be made on the rented machine, while it bills, at the price "
            f"above; {first}do all of it there: {shlex.join(['./inv', *sys.argv[1:], '--with-missing'])}"
        )


def payable(offers: Sequence[Offer], nodes: int, settings: Settings) -> list[Offer]:
    """The offers of the vendors that this account can pay for an hour. Raises OutOfMoney."""
    able: dict[str, str] = {}
    rate = {
        name: min(one.micro_usd_per_hour for one in offers if one.provider == name)
        for name in {one.provider for one in offers}
    }
    for name, least in rate.items():
        try:
            balance = context.provider(settings, name).account().balance_micro_usd
        except SlipwayError as error:
            able[name] = str(error)
            continue
        need = least * nodes  # an hour, which vendors want to see
        if balance is not None and balance < need:
            able[name] = f"{name}: the balance is {render.usd(balance)} USD; an hour costs {render.usd(need)} USD"
    for said in able.values():
        render.say(render.clean(said))
    left = [one for one in offers if one.provider not in able]
    if not left:
        raise OutOfMoney(f"no vendor would rent it to this account: {'; '.join(able.values())}")
    return left


def lasting(plan: Plan, offers: Sequence[Offer], settings: Settings) -> list[Offer]:
    """Those on which time and money last until work begins, at the least. Raises UsageError, with what would do."""
    assert plan.job is not None
    limits, setup_s = plan.job.limits, setup_of(settings)[0]

    def lasts_s(offer: Offer) -> float:
        limit_s = hard_limit_s(replace(limits, micro_usd_per_hour=offer.micro_usd_per_hour))
        return math.inf if limit_s is None else limit_s

    left = [one for one in offers if lasts_s(one) >= setup_s]
    if not left:
        longest = max(offers, key=lasts_s)
        costs = render.cents(math.ceil(setup_s * longest.micro_usd_per_hour * plan.request.nodes / 3600))
        raise UsageError(
            f"the limits end it after {render.duration(lasts_s(longest))} at most, before its work could begin: set-up "
            f"alone takes about {render.duration(setup_s)}, {costs} USD; give more: --spend-limit, --ttl"
        )
    return left


def roomy(plan: Plan, offers: Sequence[Offer]) -> list[Offer]:
    """Those that the model and its checkpoints fit. Raises UsageError, with what would."""
    left = [one for one in offers if not one.gpu_memory_bytes or one.gpu_memory_bytes >= plan.gpu_memory_bytes]
    if not left:
        need, most = render.size(plan.gpu_memory_bytes), render.size(max(one.gpu_memory_bytes for one in offers))
        raise UsageError(f"training takes about {need} of each GPU, and these have {most} at most; take larger ones")
    need_gb = -(-plan.disk_bytes // 10**9)
    small = next((one for one in left if 0 < one.volume_bytes < max(plan.disk_bytes, LARGE_VOLUME_BYTES)), None)
    if small and small.volume_bytes < plan.disk_bytes:
        has = render.size(small.volume_bytes)
        raise UsageError(f"checkpoints take about {need_gb} GB, and volume {small.volume} has {has}; take a larger one")
    if small and plan.disk_bytes >= LARGE_BYTES:
        render.say(f"volume {small.volume} has {render.size(small.volume_bytes)}; for checkpoints of {need_gb} GB, "
                   "data and caches 1 TB is recommended")  # fmt: skip
    fits = [one for one in left if one.volume or not one.disk_bytes or one.disk_bytes >= plan.disk_bytes]
    if not fits:
        raise UsageError(f"checkpoints take about {need_gb} GB of disk, and these have less; add --disk-size {need_gb}")
    return fits


def pick(offers: list[Offer], is_named: bool, yes: bool) -> list[Offer]:
    """The offers in the order in which they are tried: the user's pick first. [] = the user wants none.

    Raises UsageError when nobody can be asked.
    """
    if yes or is_named:
        return offers
    if not sys.stdin.isatty():
        raise UsageError("nobody can be asked here: add --yes, or name --cloud, --region and --instance-type")
    shown = offers[:SHOWN]
    while True:
        print(f"Select instance [1-{len(shown)}] or 'q' to quit: ", end="", file=sys.stderr, flush=True)
        line = sys.stdin.readline()
        said = line.strip().lower()
        if said == "q" or not line:
            return []
        if said.isdecimal() and 1 <= int(said) <= len(shown):
            chosen = shown[int(said) - 1]
            return [chosen, *(one for one in offers if one is not chosen)]


def confirm(yes: bool) -> None:
    """Raises UsageError unless somebody says yes."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise UsageError("nobody can be asked here: add --yes; nothing was changed")
    print("Do this? [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise UsageError("nothing was changed")
