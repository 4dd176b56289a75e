"""What `inv offers` does: what can be rented now."""

import json as json_text
import time
from typing import Any

from infra.money import dollars
from infra.providers import offers as market
from infra.records import Offer
from infra.selection.request import request_for
from scripts.cli import context, offers_table, render
from scripts.cli.invoke_patch import print_json
from scripts.market.flags import OffersFlags


def offers(spec: OffersFlags) -> None:
    request = request_for(spec)
    found = market.require(market.survey(market.sources(context.settings(), spec.provider), request), request)
    if spec.json:
        silent = [{"provider": one.provider, "error": str(one.error)} for one in found.silent]
        print_json({"offers": [about(one) for one in found.offers], "considered": len(found.considered),
                    "silent": silent})  # fmt: skip
        return
    print(f"=== Available {f'{request.gpu} ' if request.gpu else ''}Instances (sorted by price) ===")
    print(render.clean(offers_table.table(found.offers, time.time())))
    for one in found.silent:
        render.say(render.clean(f"{one.provider}: {' '.join(str(one.error).split())}"))


def about(one: Offer) -> dict[str, Any]:
    """Return one offer as JSON; null is what the vendor does not tell. `raw`: all that it tells of that one machine."""
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
        "usd_per_gpu_hour": offers_table.per_gpu(one) if one.num_gpus else None,
        "spot": one.spot,
        "nvlink": one.nvlink,
        "interconnect": one.interconnect or None,
        "upload_mbps": one.upload_mbps,
        "download_mbps": one.download_mbps,
        "seen_at": render.iso(one.seen_at),
        "raw": json_text.loads(one.raw) if one.raw else None,
    }
