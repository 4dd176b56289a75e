"""Filters of offers: select matching offers, and explain a failed search with the closest offers and hints.

Functions from requests and offers to offers and text. Each filter carries the flag of its condition. The user's own
filter runs within this process; an exception or a timeout of that code becomes a UsageError with its location.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from infra.errors import UsageError
from infra.market import gpus
from infra.records import Offer, Request
from infra.units import dollars, per_hour
from store.extensions import ExtensionError, used
from store.extensions.run import call_with_timeout, error_with_line, function

FABRICS = ("infiniband", "efa", "tcpx", "roce")
BANDWIDTH = ("--min-upload-mbps", "--min-download-mbps")
CLOSEST = 3
LONGEST_S = 10.0  # seconds per machine


@dataclass(frozen=True)
class Filter:
    """A condition of a request."""

    flag: str  # the flag as typed: `--max-price 20.00`
    accepts: Callable[[Offer], bool]
    relax: Callable[[Sequence[Offer]], str]  # returns the flag to admit at least a part of the given offers


def satisfying(request: Request, offers: Sequence[Offer]) -> list[Offer]:
    """Return the offers accepted by all filters, cheapest first."""
    wishes = filters(request)
    return sorted((one for one in offers if all(wish.accepts(one) for wish in wishes)), key=rank)


def rank(offer: Offer) -> tuple[int, str, str]:
    """Return the sort key of an offer: price, then provider and id for a stable order at equal prices."""
    return offer.micro_usd_per_hour, offer.provider, offer.offer_id


def filters(request: Request) -> list[Filter]:
    """Return the filters of a request, in the order of the flags."""
    wished = gpus.read_set(request.gpu, request.num_gpus)
    found = []
    if request.gpu:
        found.append(_kind(request.gpu, tuple(gpu for gpu, _ in wished)))
    if request.without_gpu:
        found.append(Filter("--gpu none", lambda offer: not offer.num_gpus, lambda _: "leave out --gpu none"))
    if request.num_gpus or any(count for _, count in wished):
        found.append(_count(wished, request.num_gpus))
    size = 10**9
    found += [
        *_floor("--gpu-memory", request.gpu_memory_bytes / size, lambda offer: offer.gpu_memory_bytes / size),
        *_floor("--cpus", request.cpus, lambda offer: offer.cpus),
        *_floor("--memory", request.memory_bytes / size, lambda offer: offer.memory_bytes / size),
        *_floor("--disk-size", request.disk_bytes / size, lambda offer: offer.disk_bytes / size),
        *_word("--country", request.country, lambda offer: offer.country),
        *_word("--city", request.city, lambda offer: offer.city),
        *_word("--cloud", request.cloud, lambda offer: offer.cloud),
        *_word("--region", request.region, lambda offer: offer.region),
        *_word("--instance-type", request.instance_type, lambda offer: offer.instance_type),
        *_speed("--min-upload-mbps", request.upload_mbps, lambda offer: offer.upload_mbps),
        *_speed("--min-download-mbps", request.download_mbps, lambda offer: offer.download_mbps),
    ]
    if request.volume:
        found.append(
            Filter(
                f"--volume {request.volume}",
                lambda offer: offer.volume == request.volume,
                lambda _: "leave out --volume",
            )
        )
    if request.network:
        found.append(
            Filter(
                "network_tier: best",
                lambda offer: offer.interconnect.lower() in FABRICS,
                lambda _: "leave out network_tier (vendors do not publish the network of their machines)",
            )
        )
    flag, other = ("--use-spot", "leave out --use-spot") if request.spot else ("without --use-spot", "--use-spot")
    found.append(Filter(flag, lambda offer: offer.spot == request.spot, lambda _: other))
    if request.max_micro_usd_per_hour:
        found.append(
            Filter(
                f"--max-price {dollars(request.max_micro_usd_per_hour)}",
                lambda offer: offer.micro_usd_per_hour <= request.max_micro_usd_per_hour,
                lambda offers: f"--max-price {dollars(min(one.micro_usd_per_hour for one in offers))}",
            )
        )
    if request.machine_filter:  # last, to run the user's code on few offers
        found.append(
            Filter(
                f"--machine-filter {request.machine_filter}",
                lambda offer: is_taken_by_own(request.machine_filter, offer),
                lambda _: "leave out --machine-filter",
            )
        )
    return found


def explain(request: Request, offers: Sequence[Offer]) -> str:
    """Explain why no offer matches: failures per filter, the closest offers, and which flags to relax."""
    if not offers:
        return "the vendors offer no machines at all"
    wishes = filters(request)
    failed = {one: [wish for wish in wishes if not wish.accepts(one)] for one in offers}
    lines = [f"none of {len(offers)} offers matches"]
    for wish in wishes:
        count = sum(wish in bad for bad in failed.values())
        if count:
            lines.append(f"  {count} of {len(offers)} fail {wish.flag}")
    # Rank offers with a failed price or bandwidth before offers with a different GPU kind.
    near = sorted(offers, key=lambda one: (_distance(failed[one]), failed[one][0].flag.startswith("--gpu "), rank(one)))
    lines += [
        f"  {kind} is not in the table of GPUs; did you mean {meant}?"
        for kind, meant in gpus.typos(request.gpu).items()
    ]
    lines.append("closest")
    lines += [f"  {format_offer(one)}: fails {_flags(failed[one])}" for one in near[:CLOSEST]]
    fewest = [one for one in near if _distance(failed[one]) == _distance(failed[near[0]])]
    ways = dict.fromkeys(_flags(failed[one]) for one in fewest)
    alike = ([one for one in fewest if _flags(failed[one]) == way] for way in list(ways)[:CLOSEST])
    lines.append("try: " + "; or ".join(" and ".join(wish.relax(same) for wish in failed[same[0]]) for same in alike))
    return "\n".join(lines)


def _distance(wishes: Sequence[Filter]) -> int:
    """Return the number of failed conditions; upload and download bandwidth count once."""
    return len({"bandwidth" if wish.flag.startswith(BANDWIDTH) else wish.flag for wish in wishes})


def _flags(wishes: Sequence[Filter]) -> str:
    return ", ".join(wish.flag for wish in wishes)


def format_offer(offer: Offer) -> str:
    """Return an offer as a line of text."""
    what = f"{offer.num_gpus} x {offer.gpu}" if offer.num_gpus else "no GPU"
    names = [offer.provider, offer.cloud, offer.region, offer.instance_type]
    where = " ".join(dict.fromkeys(name for name in names if name))
    return f"{where}, {what}, {per_hour(offer.micro_usd_per_hour)}{' spot' if offer.spot else ''}"


def _kind(text: str, kinds: Sequence[str]) -> Filter:
    def relax(offers: Sequence[Offer]) -> str:
        names = dict.fromkeys(one.gpu for one in sorted(offers, key=rank) if one.gpu)
        return f"--gpu {','.join(list(names)[:CLOSEST]) or '(none)'}"

    return Filter(f"--gpu {text}", lambda offer: any(gpus.is_asked(kind, offer.gpu) for kind in kinds), relax)


def _count(wished: Sequence[tuple[str, int]], num_gpus: int) -> Filter:
    def accepts(offer: Offer) -> bool:
        counts = [count for kind, count in wished if gpus.is_asked(kind, offer.gpu)]
        counts = counts or [count for _, count in wished] or [num_gpus]
        # Part of an own machine may be used; a rented machine is paid for as a whole, so the count must match exactly.
        return any(offer.num_gpus >= count if offer.place else offer.num_gpus == count or not count for count in counts)

    def relax(offers: Sequence[Offer]) -> str:
        counts = sorted({one.num_gpus for one in offers})
        return " or ".join(f"--num-gpus {count}" for count in counts[:CLOSEST])

    flags = " or ".join(dict.fromkeys(str(count) for _, count in wished if count)) or str(num_gpus)
    return Filter(f"--num-gpus {flags}", accepts, relax)


def _floor(flag: str, least: float, of: Callable[[Offer], float]) -> list[Filter]:
    """Return a minimum filter, or none for 0; an unknown value (0) fails."""

    def relax(offers: Sequence[Offer]) -> str:
        most = max(of(one) for one in offers)
        return f"{flag} {math.floor(most)}" if most >= 1 else f"leave out {flag} (not published for these offers)"

    return [Filter(f"{flag} {least:g}", lambda offer: of(offer) >= least, relax)] if least else []


def _speed(flag: str, least: float, of: Callable[[Offer], float | None]) -> list[Filter]:
    """Return a filter for a minimum speed in megabits per second, or none for 0; an unknown speed fails."""

    def relax(offers: Sequence[Offer]) -> str:
        fastest = math.floor(max(of(one) or 0 for one in offers))
        return f"{flag} {fastest}" if fastest else f"leave out {flag}: the speed of these offers is unknown"

    return [Filter(f"{flag} {least:g}", lambda offer: (of(offer) or 0) >= least, relax)] if least else []


def _word(flag: str, wanted: str, of: Callable[[Offer], str]) -> list[Filter]:
    def relax(offers: Sequence[Offer]) -> str:
        words = dict.fromkeys(of(one) for one in sorted(offers, key=rank) if of(one))
        return (
            " or ".join(f"{flag} {word}" for word in list(words)[:CLOSEST])
            or f"leave out {flag} (not published for these offers)"
        )

    return [Filter(f"{flag} {wanted}", lambda offer: of(offer).lower() == wanted.lower(), relax)] if wanted else []


def is_taken_by_own(name: str, offer: Offer) -> bool:
    """Return whether the named filter accepts the machine. Raises UsageError."""
    extension = used(name)
    if extension is None:
        raise UsageError(f"--machine-filter {name}: SLIPWAY_EXTENSIONS lists no extension of this name")
    facts = json.loads(offer.raw) if offer.raw else {}
    said, error = call_with_timeout(lambda: function(extension, "filter")(offer, facts), f"filter {name}", LONGEST_S)
    if error:
        why = str(error) if isinstance(error, ExtensionError) else error_with_line(extension, error)
        raise UsageError(f"--machine-filter {name}: {why} (for {offer.provider} {offer.offer_id})") from error
    if not said:
        raise UsageError(f"--machine-filter {name}: no answer in {LONGEST_S:g} s ({extension.where})")
    if not isinstance(said[0], bool):
        raise UsageError(
            f"--machine-filter {name}: {extension.place('filter')}: returned {said[0]!r:.100}; expected True or False"
        )
    return said[0]
