"""The watch over a provider: notes about a catalog."""

from typing import Any

from infra.market import gpus
from infra.records import Offer, Request
from packs.drill.control.evidence import Slice
from packs.drill.control.watch import Watch

WHOLE = "NVIDIA RTX PRO 6000 Blackwell Server Edition"


class Catalog:
    """A vendor that offers these kinds of GPU."""

    def __init__(self, *kinds: str) -> None:
        self.offers = [Offer(provider="v", offer_id=one, instance_type=one, gpu=gpus.name(one)) for one in kinds]

    def catalog(self, request: Request) -> list[Offer]:
        return self.offers

    def now(self) -> float:
        return 0.0


def noted_slices(*kinds: str) -> list[Slice]:
    market: Any = Catalog(*kinds)
    watch = Watch(market)
    watch.read_price(market.offers[0], Request(run="x"))
    return list(watch.slices.values())


def test_slice_with_a_name_of_its_own_counts_as_no_whole_gpu():
    """The table of GPUs names slices, too: a slice requested by its own name is no mistake."""
    kind = f"{WHOLE} MIG 1g.24gb"
    assert noted_slices(WHOLE, kind) == [Slice(kind=kind, whole="")]


def test_slice_that_counts_as_a_whole_gpu_is_noted_with_the_name_of_the_gpu():
    kind = f"{WHOLE} MIG 1g.24gb"
    market: Any = Catalog(WHOLE)
    market.offers = [Offer(provider="v", offer_id=kind, instance_type=kind, gpu="RTXPRO6000")]
    watch = Watch(market)
    watch.read_price(market.offers[0], Request(run="x"))
    assert [one.whole for one in watch.slices.values()] == ["RTXPRO6000"]
