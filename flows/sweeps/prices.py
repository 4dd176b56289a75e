"""The prices of a sweep's pods: by offers of vendors whose keys are set, else by the catalogue.

The catalogue is `infra.market.catalogue`; it is asked where no vendor can be, and says how old each price is.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flows.sweeps.experiment import on_pod
from flows.sweeps.records import SweepSpec
from infra.errors import SlipwayError
from infra.market import catalogue, gpus
from infra.providers import registry
from infra.records import Request
from infra.runs.pod_set import PodEntry
from infra.runs.timing import Say
from infra.selection import choose
from infra.selection.machine_spec import MachineSpec
from infra.selection.request import request_for
from infra.settings import Settings
from infra.units import count

CATALOGUE = "the catalogue of prices"


@dataclass(frozen=True, kw_only=True)
class PodPrice:
    """The price of one kind of pod."""

    gpu: str
    num_gpus: int
    pods: int
    """Number of pods of this kind."""
    micro_usd_per_hour: int | None
    """Price of one pod; None where nobody offers it."""
    source: str
    """Source of the price."""

    @property
    def per_gpu(self) -> int | None:
        """Return micro-dollars for one GPU and hour."""
        return None if self.micro_usd_per_hour is None else self.micro_usd_per_hour // max(1, self.num_gpus)


@dataclass(frozen=True, kw_only=True)
class SweepPrice:
    """The price of all pods of a sweep."""

    kinds: tuple[PodPrice, ...]

    def total(self, hours: float) -> int | None:
        """Return the price of all pods for so many hours; None where one of them has no price."""
        each = [None if one.micro_usd_per_hour is None else one.micro_usd_per_hour * one.pods for one in self.kinds]
        known = [one for one in each if one is not None]
        return round(sum(known) * hours) if each and len(known) == len(each) else None


def of(spec: SweepSpec, settings: Settings, tell: Say, only_catalogue: bool = False) -> SweepPrice:
    """Return the prices of the pods that a sweep describes; () of kinds where it describes none."""
    groups: dict[PodEntry, int] = {}
    for one in spec.pods:
        alike = replace(one, name="pod")
        groups[alike] = groups.get(alike, 0) + 1
    return SweepPrice(
        kinds=tuple(_priced(one, number, settings, tell, only_catalogue) for one, number in groups.items())
    )


def _priced(one: PodEntry, pods: int, settings: Settings, tell: Say, only_catalogue: bool) -> PodPrice:
    asked = on_pod(one)
    machine = MachineSpec(**{key: value for key, value in asked.items() if key in MachineSpec.__dataclass_fields__})
    kind, number = one.gpu_type or "", one.gpu_count
    found: tuple[int, str] | None = None
    if not only_catalogue and not settings.sources["provider"].startswith("default: no"):
        found = _offered(request_for(machine), settings, tell)
    if found is None:
        found = listed(kind, number, catalogue.file_beside(settings.state_file))
    source = found[1] if found else "nobody offers it"
    return PodPrice(gpu=kind, num_gpus=number, pods=pods, source=source,
                    micro_usd_per_hour=found[0] if found else None)  # fmt: skip


def _offered(request: Request, settings: Settings, tell: Say) -> tuple[int, str] | None:
    """Return the lowest price that a vendor asks today, and whose it is; None where no vendor can be asked."""
    try:
        candidates = registry.candidates(settings)
        if not candidates[0].is_rented:
            return None
        offers = choose.find(candidates, request, settings, tell)
    except SlipwayError as error:
        tell(f"no offers: {str(error).splitlines()[0]}; priced by {CATALOGUE}")
        return None
    first = offers[0]
    where = "the rehearsal" if settings.rehearsal else "today"
    return first.micro_usd_per_hour, f"{first.provider}, {where}"


def listed(kind: str, number: int, own: Path) -> tuple[int, str] | None:
    """Return the lowest price in the catalogue for so many GPUs of a kind in one machine, and of when it is.

    `own`: the file of the user's own catalogue, which need not be there.
    """
    wanted = gpus.read_set(kind, number)
    prices = [
        (one.offer.micro_usd_per_hour, f"{CATALOGUE}, {one.mark}")
        for one in catalogue.read(own)
        for name, many in wanted
        if one.offer.num_gpus == many and gpus.is_asked(name, one.offer.gpu)
    ]
    return min(prices, default=None)


def in_words(kinds: Sequence[PodPrice]) -> str:
    """Return pods in words: `2 pods of 8 A100`."""
    return ", ".join(
        f"{count(one.pods, 'pod')} {f'of {one.num_gpus} {one.gpu}' if one.num_gpus else 'without a GPU'}"
        for one in kinds
    )
