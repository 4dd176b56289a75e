"""What `inv offers` does: flags into a request, offers into a table."""

import json as json_text
import re
import time
from collections.abc import Sequence
from typing import Any

from infra.errors import UsageError
from infra.market import gpus
from infra.money import dollars, micro_usd
from infra.providers import offers as market
from infra.records import Offer, Request
from scripts.cli import context, render
from scripts.cli.invoke_patch import print_json
from scripts.cli.render import columns

GB = 10**9


def offers(*, provider, all_configs, json, **wanted):
    request = request_for(all_configs=all_configs, **wanted)
    found = market.require(market.survey(market.sources(context.settings(), provider), request), request)
    if json:
        silent = [{"provider": one.provider, "error": str(one.error)} for one in found.silent]
        print_json({"offers": [about(one) for one in found.offers], "considered": len(found.considered),
                    "silent": silent})  # fmt: skip
        return
    print(f"=== Available {f'{request.gpu} ' if request.gpu else ''}Instances (sorted by price) ===")
    print(render.clean(table(found.offers, time.time())))
    for one in found.silent:
        render.say(render.clean(f"{one.provider}: {' '.join(str(one.error).split())}"))


def request_for(
    *, gpu, num_gpus, all_configs, cpus, memory, disk_size, country, city, cloud, region, instance_type,
    min_upload_mbps, min_download_mbps, use_spot, max_price, network, volume,
) -> Request:  # fmt: skip
    """Raises UsageError for flags that mean nothing."""
    for flag, number in (("num-gpus", num_gpus), ("min-upload-mbps", min_upload_mbps),
                         ("min-download-mbps", min_download_mbps)):  # fmt: skip
        if number < 0:
            raise UsageError(f"--{flag} is {number}; it cannot be negative")
    if network not in ("", "best"):
        raise UsageError(f"--network {network}: known: best")
    if all_configs:
        gpu, num_gpus = ",".join(dict.fromkeys(kind for kind, _ in gpus.read_set(gpu))), 0
    gpus.read_set(gpu)
    try:
        most = micro_usd(max_price.lstrip("$")) if max_price else 0
    except ValueError as error:
        raise UsageError(f"--max-price: {error}") from None
    return Request(
        run="new",
        provider="",
        gpu=gpu,
        num_gpus=num_gpus,
        spot=use_spot,
        cpus=at_least("cpus", cpus),
        memory_bytes=at_least("memory", memory) * GB,
        disk_bytes=at_least("disk-size", disk_size) * GB,
        country=country,
        city=city,
        cloud=cloud,
        region=region,
        instance_type=instance_type,
        upload_mbps=min_upload_mbps,
        download_mbps=min_download_mbps,
        network=network,
        volume=volume,
        max_micro_usd_per_hour=most,
    )


def at_least(flag: str, text: str) -> int:
    """`16` and `16+` are the same floor. Raises UsageError."""
    found = re.fullmatch(r"([0-9]{1,9})\+?", text.strip())
    if text and not found:
        raise UsageError(f"--{flag} {text}: expected a whole number, such as 16 or 16+")
    return int(found[1]) if found else 0


def table(found: Sequence[Offer], now: float) -> str:
    """A numbered line for each; what a vendor does not tell is `?`."""
    rows = [("#", "Provider", "Region", "GPUs", "VRAM", "Price/hr", "$/GPU-h", "Spot", "NVLink", "Up/Down Mbps", "Age",
             "Type")]  # fmt: skip
    for number, one in enumerate(found, 1):
        kind = f" {one.gpu}" if one.gpu else ""
        rows.append(
            (
                str(number),
                f"{one.provider}/{one.cloud}" if one.cloud else one.provider,
                one.region or one.country or "any",
                f"{one.num_gpus}x{kind}" if one.num_gpus else "none",
                f"{one.gpu_memory_bytes // GB}GB" if one.gpu_memory_bytes else "?",
                f"${dollars(one.micro_usd_per_hour)}",
                f"${per_gpu(one)}" if one.num_gpus else "",
                "Yes" if one.spot else "No",
                {True: "Yes", False: "No", None: "?"}[one.nvlink],
                f"{mbps(one.upload_mbps)}/{mbps(one.download_mbps)}",
                render.duration(max(0.0, now - one.seen_at)) if one.seen_at else "?",
                one.instance_type or one.place,
            )
        )
    return columns(rows)


def per_gpu(offer: Offer) -> str:
    """Dollars per GPU-hour, rounded up to a tenth of a cent at most."""
    return dollars(-(-offer.micro_usd_per_hour // (1000 * offer.num_gpus)) * 1000)


def mbps(speed: float | None) -> str:
    return "?" if speed is None else f"{speed:.0f}"


def about(one: Offer) -> dict[str, Any]:
    """One offer as JSON; null is what the vendor does not tell. `raw`: all that it tells of that one machine."""
    return {
        "provider": one.provider,
        "offer_id": one.offer_id,
        "cloud": one.cloud or None,
        "region": one.region or None,
        "country": one.country or None,
        "city": one.city or None,
        "instance_type": one.instance_type or None,
        "gpu": one.gpu or None,
        "num_gpus": one.num_gpus,
        "gpu_memory_bytes": one.gpu_memory_bytes or None,
        "cpus": one.cpus or None,
        "memory_bytes": one.memory_bytes or None,
        "disk_bytes": one.disk_bytes or None,
        "usd_per_hour": dollars(one.micro_usd_per_hour),
        "usd_per_gpu_hour": per_gpu(one) if one.num_gpus else None,
        "spot": one.spot,
        "nvlink": one.nvlink,
        "interconnect": one.interconnect or None,
        "upload_mbps": one.upload_mbps,
        "download_mbps": one.download_mbps,
        "seen_at": render.iso(one.seen_at),
        "raw": json_text.loads(one.raw) if one.raw else None,
    }
