"""Parser for the table of SkyPilot's optimizer, which returns the offers. Pure.

The API server returns only this text. A cost covers one hour of all nodes, in US dollars rounded to whole cents.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

from infra.errors import NoOffer
from infra.market.filters import format_offer
from infra.records import Offer
from infra.units import micro_usd, per_hour
from packs.skypilot.control.task import OWN

COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
COLUMNS = ("INFRA", "INSTANCE", "vCPUs", "Mem(GB)", "GPUS", "COST ($)", "CHOSEN")
CHOSEN, SPOT = "✔", "[Spot]"
GB = 10**9


@dataclass(frozen=True)
class OptimizerChoice:
    """Offer chosen by the optimizer, and the alternatives."""

    chosen: Offer
    alternatives: Sequence[Offer] = ()

    @property
    def for_limits(self) -> Offer:
        """Return the chosen offer at the highest price, because SkyPilot may rent each alternative after a failure."""
        every = (self.chosen, *self.alternatives)
        return replace(
            self.chosen,
            is_own=all(one.is_own for one in every),
            micro_usd_per_hour=max(one.micro_usd_per_hour for one in every),
        )

    @property
    def note(self) -> str:
        """Return the sentence about the price in the limits; "" if the price is that of the chosen offer."""
        if self.for_limits == self.chosen:
            return ""
        return (
            f"the price and the limits count {per_hour(self.for_limits.micro_usd_per_hour)}, the dearest machine that "
            f"SkyPilot may rent; SkyPilot would choose now: {format_offer(self.chosen)}. For a lower price, name the "
            "cloud (infra) or a price (max_hourly_cost)"
        )


def read(text: str, nodes: int, provider: str, now: float) -> OptimizerChoice:
    """Parse the table into offers, each priced per node. Raises NoOffer when no row is marked as chosen."""
    lines = [COLOURS.sub("", line).strip() for line in text.splitlines()]
    heads = [number for number, line in enumerate(lines) if tuple(re.split(r"\s{2,}", line)) == COLUMNS]
    rows = [re.split(r"\s{2,}", line) for line in lines[heads[-1] + 1 :]] if heads else []
    found = [(one[-1] == CHOSEN, _offer(one, nodes, provider, now)) for one in rows if len(one) in (6, 7)]
    chosen = [offer for is_chosen, offer in found if is_chosen]
    if not chosen:
        said = " ".join(lines)[-300:]
        raise NoOffer(f"{provider}: the optimizer chose no machine; the output was: {said or 'nothing'}")
    return OptimizerChoice(chosen[0], [offer for is_chosen, offer in found if not is_chosen])


def _offer(cells: Sequence[str], nodes: int, provider: str, now: float) -> Offer:
    infra, instance, cpus, memory, gpus, cost = cells[:6]
    where = re.fullmatch(r"(\S+)(?: \((.*)\))?", infra)
    cloud, region = (where[1].lower(), where[2] or "") if where else (infra.lower(), "")
    kind, _, number = gpus.partition(":")
    instance_type = "" if instance == "-" else instance.replace(SPOT, "")
    is_own = cloud in OWN
    price = 0 if is_own else -(-micro_usd(cost) // nodes)
    return Offer(
        provider=provider,
        offer_id="/".join(filter(None, (cloud, region, instance_type))),
        region=region,
        gpu="" if kind == "-" else kind,
        num_gpus=0 if kind == "-" else int(float(number or 1)),
        cloud=cloud,
        cpus=_whole(cpus),
        memory_bytes=_whole(memory) * GB,
        micro_usd_per_hour=price,
        is_own=is_own,
        spot=SPOT in instance,
        instance_type=instance_type,
        seen_at=now,
    )


def _whole(said: str) -> int:
    return 0 if said == "-" else int(float(said))
