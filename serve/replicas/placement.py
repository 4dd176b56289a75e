"""Where replicas go: own machines first, then the cheapest spot machine that fits, then what cannot be taken away.

In: a service's `resources`, providers. Out: offers in the order in which they are tried. Reads what is offered; rents
nothing.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from infra.errors import NoOffer, SlipwayError, UsageError
from infra.market import gpus
from infra.market.filters import explain
from infra.money import micro_usd
from infra.providers import Provider, market, offers
from infra.providers.offers import Source
from infra.records import Offer, Request
from infra.settings import MARKET, VENDORS, Settings
from serve.service import Resources, Service

GB = 10**9
# What SkyServe reads of `resources` and we do not, and what holds here instead.
UNREAD = {
    "infra": "--provider says where replicas go",
    "cloud": "--provider says where replicas go",
    "zone": "only `region` narrows where machines stand",
    "any_of": "only what stands beside it is asked for; `accelerators` takes several kinds",
    "ordered": "only what stands beside it is asked for; own machines are tried first, then the cheapest spot ones",
    "disk_tier": "vendors here have one kind of disk; `disk_size` says how much",
    "network_tier": "no vendor here tells what joins its machines; a replica is one machine",
    "job_recovery": "a replica that is lost is always replaced, by whichever machine is next",
    "image_id": "each vendor's own image is booted, and the engine's environment is made in it",
    "labels": "machines carry our own marks only",
}


def candidates(provider: str, settings: Settings) -> tuple[str, ...]:
    """Names of providers, in the order of their turn. `provider`: one of them, "market", or "" for all there are."""
    rented = tuple(name for name, key in VENDORS.items() if getattr(settings, key))
    if provider == MARKET:
        if not rented:
            raise UsageError("provider market: no key is set; put one into the shell or .env")
        return rented
    if provider:
        return (provider,)
    own = ("ssh",) if settings.pools.exists() else ()
    return (*own, *rented) or ("local",)


def find(
    names: Sequence[str], vendor: Callable[[str], Provider], request: Request, wants_spot: bool,
    say: Callable[[str], None],
) -> list[Offer]:  # fmt: skip
    """What fits, in the order in which it is tried. Raises NoOffer, with what each of them says.

    `say` is told who has nothing: an own machine that is silently left out costs the price of a rented one.
    """
    own: list[Offer] = []
    said: list[str] = []
    sources: list[Source] = []
    for name in names:
        provider = vendor(name)
        if rented := market(provider):
            sources.append(Source(name, rented.catalog))
            continue
        try:
            own += provider.offers(replace(request, spot=False, provider=name))
        except SlipwayError as error:
            said.append(f"{name}: {error}")
    found = sorted(own, key=_price)
    for is_spot in (True, False) if wants_spot else (False,):
        if not sources:
            break
        asked = replace(request, spot=is_spot, provider=MARKET)
        survey = offers.survey(sources, asked)
        found += [one for one in survey.offers if one.spot is is_spot]
        said += [f"{one.provider}: {one.error}" for one in survey.silent]
    if sources and not found and survey.considered:
        said.append(explain(asked, survey.considered))
    if not found:
        size = f" and has {request.gpu_memory_bytes / GB:.0f} GB on each GPU" if request.gpu_memory_bytes else ""
        told = "; ".join(said) or f"nothing there satisfies `resources`{size}"
        raise NoOffer(f"no machine for a replica on {', '.join(names)}: {told}\nsee: inv offers")
    for what in said:
        say(f"{request.run}: left out: {what}")
    return found


def unread(service: Service) -> list[tuple[str, str]]:
    """The words about machines in a service file that change nothing here, and what holds instead."""
    said = service.file.resources
    found = [(f"resources.{name}", instead) for name, instead in UNREAD.items() if getattr(said, name) is not None]
    if service.policy.spot_placer:
        instead = "the cheapest spot machine is tried first, and one that failed is tried last for six hours"
        found.append(("service.replica_policy.spot_placer", instead))
    return found


def kind_of(offer: Offer) -> str:
    """For people: how an offer stands in the order."""
    return "own" if not offer.micro_usd_per_hour or offer.place else "spot" if offer.spot else "on-demand"


def request_of(service: Service, run: str, gpu_bytes: int = 0) -> Request:
    """`gpu_bytes`: of each GPU at least. Raises UsageError for words of `resources` that mean nothing here."""
    wanted = service.file.resources
    gpu, num_gpus = _gpus(wanted)
    most = wanted.max_hourly_cost
    return Request(
        run=run,
        gpu=gpu,
        num_gpus=num_gpus,
        gpu_memory_bytes=gpu_bytes,
        cpus=_at_least("cpus", wanted.cpus),
        memory_bytes=_at_least("memory", wanted.memory) * GB,
        disk_bytes=_at_least("disk_size", wanted.disk_size) * GB,
        region=wanted.region or "",
        instance_type=wanted.instance_type or "",
        max_micro_usd_per_hour=0 if most is None else micro_usd(str(most)),
    )


def gpu_of(request: Request) -> str:
    """As `target_qps_per_replica` names it."""
    return f"{request.gpu}:{max(1, request.num_gpus)}" if request.gpu else ""


def _gpus(wanted: Resources) -> tuple[str, int]:
    """`H100:8`, {H100: 8}, or several of which any will do."""
    said = wanted.accelerators
    if not said:
        return "", 0
    kinds: Mapping[str, float | None] = said if isinstance(said, dict) else {}
    several = said if isinstance(said, list) else [said] if isinstance(said, str) else []
    pairs = [(gpu, int(count or 1)) for gpu, count in kinds.items()]
    for one in several:
        gpu, _, count = one.partition(":")
        if count and not re.fullmatch("[0-9]{1,4}", count):
            raise UsageError(f"resources.accelerators: {one!r}; expected KIND or KIND:COUNT")
        pairs.append((gpu, int(count or 1)))
    counts = {count for _, count in pairs}
    text = ",".join(gpu for gpu, _ in pairs) if len(counts) == 1 else ",".join(f"{g}:{n}" for g, n in pairs)
    gpus.read_set(text)
    return text, counts.pop() if len(counts) == 1 else 0


def _at_least(key: str, said: str | float | None) -> int:
    """Of `16+`, `16` and 16. Machines come in sizes, so that a plain number is a floor, too."""
    if said is None:
        return 0
    text = str(said).removesuffix("+").removesuffix("GB")
    try:
        return int(float(text))
    except ValueError:
        raise UsageError(f"resources.{key}: {said!r}; expected a number, or 16+ for at least 16") from None


def _price(offer: Offer) -> tuple[int, str]:
    return offer.micro_usd_per_hour, offer.offer_id
