"""The command `inv offers`: machines available for rent now."""

import json as json_text
import sys
import time
from dataclasses import dataclass
from typing import Any

from infra.errors import MissingKey, UsageError
from infra.flags import flag, nondefault_flags
from infra.market import catalogue
from infra.market.filters import satisfying
from infra.providers import by_name
from infra.providers import offers as market
from infra.providers.offers import Survey
from infra.records import Offer, Request
from infra.selection.machine_spec import MACHINE, MachineSpec, request_for
from infra.settings import VENDORS, Settings
from infra.units import dollars
from scripts.cli import context, render
from scripts.cli.command import BEGIN, command
from scripts.cli.flags import LISTED, Output
from scripts.cli.render import print_json
from scripts.market import offers_table
from store import terminal


@dataclass(frozen=True, kw_only=True)
class OffersFlags(Output, MachineSpec):
    provider: str = flag(
        "", f"ask only runpod, lium, shadeform, ssh (own machines){LISTED}, or an extension", group=MACHINE
    )
    save: bool = flag(
        False,
        "save today's prices of all vendors with a key as the catalogue; without keys, the catalogue is shown",
    )


@command(record=OffersFlags, world=BEGIN, example="inv offers --gpu H100,H200 --num-gpus 8")
def offers(spec: OffersFlags) -> None:
    """List machines that can be rented now, by price.

    The command asks every vendor with a key, and also lists own machines.
    """
    request = request_for(spec)
    settings = context.settings()
    by_name.use_filter(request.machine_filter, settings)
    if spec.save and (given_flags := sorted(nondefault_flags(spec, but=("json", "provider", "save")))):
        raise UsageError(f"--save saves the prices of all machines. Leave out --{given_flags[0]}")
    try:
        asked = market.sources(settings, spec.provider)
    except MissingKey as error:
        if spec.save:
            raise
        show_catalogue(spec, request, settings, str(error))
        return
    with terminal.show_while(f"asking {', '.join(one.name for one in asked)} for offers"):
        seen = market.survey(asked, request)
    found = market.require(seen, request)
    if spec.save:
        save(found, settings)
    notes = by_name.account_notes(settings, [one.name for one in asked])
    if spec.json:
        silent = [{"provider": one.provider, "error": str(one.error)} for one in found.failures]
        print_json(
            {
                "offers": [about(one) for one in found.offers],
                "considered": len(found.considered),
                "silent": silent,
                **{name: one.document for name, one in notes.items()},
            }
        )
        return
    print(f"=== Available {f'{request.gpu} ' if request.gpu else ''}Instances (sorted by price) ===")
    print(render.clean(offers_table.table(found.offers, time.time(), sys.stdout)))
    for one in found.failures:
        render.say(render.clean(f"{one.provider}: {' '.join(str(one.error).split())}"))
    for line in (line for one in notes.values() for line in one.lines):
        render.say(line)


def show_catalogue(spec: OffersFlags, request: Request, settings: Settings, why: str) -> None:
    """Print dated catalogue prices if no vendor has a key. Raises NoOffer."""
    priced = catalogue.read(catalogue.file_beside(settings.state_file), spec.provider)
    marks = {id(one.offer): one for one in priced}
    every = tuple(one.offer for one in priced)
    found = market.require(Survey(tuple(satisfying(request, every)), every, ()), request)
    lines = [marks[id(one)] for one in found.offers]
    if spec.json:
        shown = [{**about(one.offer), "as_of": one.as_of, "illustrative": one.is_illustrative} for one in lines]
        print_json({"offers": shown, "considered": len(every), "silent": [], "not_offered_now": why})
        return
    print("=== Catalogue prices; none of these machines is offered now ===")
    print(render.clean(offers_table.catalogue_table(lines)))
    render.say(why)


def save(found: Survey, settings: Settings) -> None:
    """Save the prices of the vendors that answered to the catalogue."""
    silent = {one.provider for one in found.failures}
    vendors = {one.provider for one in found.considered if one.provider in VENDORS} - silent
    file = catalogue.file_beside(settings.state_file)
    kept = catalogue.save(file, found.considered, vendors, time.time())
    render.say(f"{render.count(kept, 'price')} of {', '.join(sorted(vendors)) or 'no vendor'} saved in {file}")


def about(one: Offer) -> dict[str, Any]:
    """Return an offer as JSON; null for values the vendor omits. `raw`: the vendor's full record."""
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
        "disk_usd_per_hour": dollars(one.disk_micro_usd_per_hour),
        "usd_per_gpu_hour": offers_table.per_gpu(one) if one.num_gpus else None,
        "spot": one.spot,
        "nvlink": one.nvlink,
        "interconnect": one.interconnect or None,
        "upload_mbps": one.upload_mbps,
        "download_mbps": one.download_mbps,
        "seen_at": render.iso(one.seen_at),
        "raw": json_text.loads(one.raw) if one.raw else None,
    }
