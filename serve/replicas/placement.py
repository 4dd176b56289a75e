"""Placement of replicas: own machines first, then the cheapest fitting spot machine, then on-demand machines.

    `resources` of a service, providers -> offers, in the order of the attempts

Offers are selected as for a run (`infra.selection.choose`). This module reads offers and rents nothing.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace

from infra.errors import NoOffer, OutOfMoney, SlipwayError, UsageError
from infra.market import accelerators, gpus
from infra.market.filters import explain
from infra.providers import container_images, market, offers
from infra.providers.offers import OfferSource
from infra.records import Offer, Request
from infra.selection import choose, registry
from infra.selection.choose import Tell
from infra.selection.machine_spec import disk_needed, disk_of_environments
from infra.settings import MARKET, VENDORS, Settings, is_rented
from infra.units import BadAmount, amount, micro_usd
from serve import own_image
from serve.engines import OWN_RUN
from serve.file_refusals import collecting
from serve.own_image import ImageUse
from serve.policy.service_state import Version
from serve.service import ReplicaResources, Service

GB = 10**9
# Keys of `resources` that only SkyServe reads, and the rule that holds here instead.
UNREAD = {
    "infra": "--provider names the vendor of the replicas",
    "cloud": "--provider names the vendor of the replicas",
    "zone": "only `region` limits the place of the machines",
    "any_of": "only the `accelerators` of the alternatives are used; `use_spot` of `resources` tries spot machines "
    "first, then on-demand machines",
    "ordered": "only the `accelerators` are used; own machines are tried first, then, with `use_spot` of `resources`, "
    "the cheapest spot machines",
    "disk_tier": "vendors have a single kind of disk; `disk_size` sets the size",
    "network_tier": "no vendor reports the network between machines; a replica is a single machine",
    "job_recovery": "a lost replica is always replaced, on the next machine that fits",
    "image_id": "the image of the vendor is booted, and the environment of the engine is made in the image",
    "labels": "machines carry only Slipway's own marks",
    "local_disk": "vendors do not publish the kind of disks; `disk_size` sets the size",
    "autostop": "a replica ends when the load needs fewer replicas, and at the end of the service",
    "priority": "no replica waits in a queue",
    "priority_class": "no replica waits in a queue",
}
# Keys of the file beside `resources` that only SkyServe reads.
UNREAD_OF_FILE = {
    "config": "the settings name the accounts and clouds (inv config)",
    "inputs": "no estimate counts the egress of data",
    "outputs": "no estimate counts the egress of data",
    "event_callback": "no callback runs; inv serve.status shows the states of the replicas",
}


def candidates(provider: str, settings: Settings) -> tuple[str, ...]:
    """Return the names of providers, in the order of the attempts.

    `provider`: a provider's name, "market", or "" for all available providers.
    """
    if provider:
        return registry.names(settings, provider)
    rented = tuple(name for name, key in VENDORS.items() if getattr(settings, key))
    own = ("ssh",) if settings.pools.exists() else ()
    return (*own, *rented) or ("local",)


def find(names: Sequence[str], request: Request, wants_spot: bool, settings: Settings, tell: Tell) -> list[Offer]:
    """Return the offers that fit and are affordable, in the order of the attempts; recent failures come last.

    `tell` receives the reason for every provider left out: an own machine skipped in silence costs the price of a
    rented machine. Raises NoOffer with the message of each provider, OutOfMoney.
    """
    own: list[Offer] = []
    said: list[str] = []
    sources: list[OfferSource] = []
    scale = 1.0
    for name in names:
        provider = registry.provider(settings, name)
        if rented := market(provider):
            sources.append(OfferSource(name, rented.catalog))
            scale = rented.clock_scale
            continue
        try:
            own += provider.offers(replace(request, spot=False, provider=name))
        except SlipwayError as error:
            said.append(f"{name}: {str(error).removeprefix(f'{name}: ')}")
    found = sorted(own, key=_price)
    for is_spot in (True, False) if wants_spot else (False,):
        if not sources:
            break
        asked = replace(request, spot=is_spot, provider=MARKET)
        survey = offers.survey(sources, asked)
        found += [one for one in survey.offers if one.spot is is_spot]
        said += [f"{one.provider}: {one.error}" for one in survey.failures]
    if sources and not found and survey.considered:
        said.append(explain(asked, survey.considered))
    if not found:
        size = f" and has {request.gpu_memory_bytes / GB:.0f} GB on each GPU" if request.gpu_memory_bytes else ""
        told = "; ".join(said) or f"no offer satisfies `resources`{size}"
        raise NoOffer(f"no machine for a replica on {', '.join(names)}: {told}\nsee: inv offers")
    for what in said:
        tell(f"{request.run}: left out: {what}")

    def tell_of_run(what: str) -> None:
        tell(f"{request.run}: {what}")

    ordered = choose.doubtful_last(found, settings, scale, tell_of_run)
    return choose.payable(ordered, 1, settings, tell_of_run)


def ways_of(version: Version, settings: Settings) -> tuple[ImageUse, ...]:
    """Return the ways of the replicas of a version; engines of Slipway use no image. Raises UsageError."""
    names = candidates(version.provider, settings)
    if version.engine != OWN_RUN:
        return (ImageUse(candidates=names),)
    return own_image.ways(version.service, names, bool(settings.rehearsal))


def find_in_ways(
    found: Sequence[ImageUse], request: Request, wants_spot: bool, settings: Settings, tell: Tell
) -> list[tuple[ImageUse, list[Offer]]]:
    """Return the ways that have offers, each with the offers as of `find`; the best offer comes first.

    `request`: without the image. Raises NoOffer, OutOfMoney.
    """
    ready: list[tuple[ImageUse, list[Offer]]] = []
    problems: list[NoOffer | OutOfMoney] = []
    for one in found:
        try:
            asked = replace(request, image=one.booted)
            ready.append((one, find(one.candidates, asked, wants_spot, settings, tell)))
        except (NoOffer, OutOfMoney) as error:
            problems.append(error)
    if not ready:
        raise problems[0] if len(problems) == 1 else NoOffer("\n".join(map(str, problems)))
    for problem in problems:
        tell(f"{request.run}: left out: {problem}")
    return sorted(ready, key=lambda one: rank(one[1][0]))


def rank(offer: Offer) -> tuple[bool, bool, int]:
    """Return the rank of an offer among those of different ways: own machines, spot machines, then by price."""
    return is_rented(offer.provider), not offer.spot, offer.micro_usd_per_hour


def ignored_settings(service: Service, is_own_run: bool = False) -> list[tuple[str, str]]:
    """Return the keys of a service file that have no effect here, each with the rule that holds instead."""
    file = service.file
    is_image_used = is_own_run and bool(container_images.name_of(file.resources.image_id))
    found = [(name, instead) for name, instead in UNREAD_OF_FILE.items() if getattr(file, name) is not None]
    for name, instead in UNREAD.items():
        if getattr(file.resources, name) is not None and not (name == "image_id" and is_image_used):
            found.append((f"resources.{name}", instead))
    if file.service.load_balancing_policy not in (None, "least_load"):
        found.append(("service.load_balancing_policy", "the gateway sends each request to the least loaded replica"))
    if service.policy.spot_placer:
        instead = "the cheapest spot machine is tried first, and a failed machine is tried last for six hours"
        found.append(("service.replica_policy.spot_placer", instead))
    return found


def unread_refusals(service: Service) -> Iterator[str]:
    """Yield a refusal for each key of `resources` without which a replica would get an unfit machine."""
    said = service.file.resources
    for key in ("any_of", "ordered"):
        for number, one in enumerate(getattr(said, key) or (), 1):
            for name in ("cpus", "memory", "disk_size", "instance_type", "max_hourly_cost"):
                if getattr(one, name) is not None:
                    yield (
                        f"resources.{key} {number}: {name}: all replicas have the same limits; move {name} from {key} "
                        "to resources, or add --provider skypilot"
                    )


def refusals(service: Service, typed: Collection[str] = ()) -> list[str]:
    """Return the refusals of the values in `resources`, each by itself. typed: keys with a flag in place of a value."""
    said, found = service.file.resources, list[str]()
    for key in ("accelerators", "cpus", "memory", "disk_size", "max_hourly_cost"):
        if key not in typed:
            several = {"any_of": said.any_of, "ordered": said.ordered} if key == "accelerators" else {}
            alone = ReplicaResources(**{key: getattr(said, key), **several})
            with collecting(found):
                request_of(replace(service, file=replace(service.file, resources=alone)), "")
    return found


def kind_of(offer: Offer) -> str:
    """Return the kind of an offer for people: own, spot or on-demand."""
    return "own" if not offer.micro_usd_per_hour or offer.place else "spot" if offer.spot else "on-demand"


def request_of(service: Service, run: str, gpu_bytes: int = 0) -> Request:
    """Return the request for the machine of a replica.

    `gpu_bytes`: minimum memory of each GPU. Raises UsageError for unusable values in `resources`.
    """
    wanted = service.file.resources
    gpu, num_gpus = _gpus(wanted)
    shared = service.slipway.engine.num_gpus
    if gpu_bytes and not gpu and shared > 1:  # One GPU of any machine is enough otherwise.
        num_gpus = shared
    return Request(
        run=run,
        gpu=gpu,
        num_gpus=num_gpus,
        gpu_memory_bytes=gpu_bytes,
        cpus=_at_least("cpus", wanted.cpus),
        memory_bytes=_at_least("memory", wanted.memory) * GB,
        disk_bytes=_at_least("disk_size", wanted.disk_size) * GB,
        work_disk_bytes=_disk_of(gpu_bytes * max([1, num_gpus, *(count for _, count in gpus.read_set(gpu))])),
        region=wanted.region or "",
        instance_type=wanted.instance_type or "",
        max_micro_usd_per_hour=_price_limit(wanted.max_hourly_cost),
    )


def _disk_of(weights_bytes: int) -> int:
    """Return the disk bytes of a replica whose model has at most `weights_bytes` bytes; 0 = unknown."""
    return disk_needed(disk_of_environments(("serve-cuda",), "cuda"), weights_bytes) if weights_bytes else 0


def gpu_of(request: Request) -> str:
    """Return the GPU as written in `target_qps_per_replica`, such as A100:1; "" without a GPU."""
    return f"{request.gpu}:{max(1, request.num_gpus)}" if request.gpu else ""


def _gpus(wanted: ReplicaResources) -> tuple[str, int]:
    """Return kinds and count of `H100:8`, {H100: 8}, a list, or all alternatives; count 0 if the counts differ.

    Raises UsageError.
    """
    ways = [one.accelerators or wanted.accelerators for one in wanted.any_of or wanted.ordered or ()]
    try:
        read = [accelerators.read(said or []) for said in ways or [wanted.accelerators]]
    except UsageError as error:
        raise UsageError(f"resources.{error}") from None
    pairs = list(dict.fromkeys(pair for each in read for pair in each))
    if not pairs:
        return "", 0
    counts = {count for _, count in pairs}
    text = ",".join(gpu for gpu, _ in pairs) if len(counts) == 1 else ",".join(f"{g}:{n}" for g, n in pairs)
    gpus.read_set(text)
    return text, counts.pop() if len(counts) == 1 else 0


def _at_least(key: str, said: str | float | None) -> int:
    """Return the number in `16+`, 16 or `512Mi`. Machines come in sizes, so a plain number is a minimum as well."""
    if said is None:
        return 0
    return amount(said, f"resources.{key}")


def _price_limit(most: float | None) -> int:
    """Return the highest price per hour in micro-USD; 0 for any price. Raises UsageError."""
    try:
        return 0 if most is None else micro_usd(str(most))
    except BadAmount as error:
        raise UsageError(f"resources.max_hourly_cost: {error}") from None


def _price(offer: Offer) -> tuple[int, str]:
    return offer.micro_usd_per_hour, offer.offer_id
