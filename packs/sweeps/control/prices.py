"""Prices of a sweep's pods: from offers of vendors with configured keys, else from the price catalogue.

The catalogue (`infra.market.catalogue`) is used when no vendor can be asked, and states the age of each price.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from flows.planning import estimates
from flows.specs.launch import LaunchSpec
from infra.errors import SlipwayError
from infra.market import catalogue, gpus
from infra.market.step_times import SETUP_S
from infra.records import Offer, Request
from infra.runs.keepers.pod_set import PodEntry
from infra.runs.timing import Say
from infra.selection import choose, registry
from infra.selection.machine_spec import MachineSpec, request_for
from infra.selection.preflight import forecast_of, machine_with
from infra.settings import Settings
from infra.units import count
from packs.sweeps.control.experiment import on_pod
from packs.sweeps.control.plan import SweepPlan
from packs.sweeps.control.pods import machine_of
from packs.sweeps.control.rehearsed import phases_of
from packs.sweeps.control.trials.records import SweepSpec
from trainer.recipes import PUBLISHED

CATALOGUE = "the catalogue of prices"


@dataclass(frozen=True, kw_only=True)
class PodPrice:
    """Price of a kind of pod."""

    gpu: str
    num_gpus: int
    pods: int
    """Number of pods of this kind."""
    micro_usd_per_hour: int | None
    """Price per pod and hour; None without an offer."""
    source: str
    """Source of the price."""

    @property
    def per_gpu(self) -> int | None:
        """Return the price per GPU in micro-dollars per hour, or None."""
        return None if self.micro_usd_per_hour is None else self.micro_usd_per_hour // max(1, self.num_gpus)


@dataclass(frozen=True, kw_only=True)
class SweepPrice:
    """Price of all pods of a sweep."""

    kinds: tuple[PodPrice, ...]

    def total(self, hours: float) -> int | None:
        """Return the price of all pods for `hours` hours in micro-dollars; None if a price is unknown."""
        each = [None if one.micro_usd_per_hour is None else one.micro_usd_per_hour * one.pods for one in self.kinds]
        known = [one for one in each if one is not None]
        return round(sum(known) * hours) if each and len(known) == len(each) else None


def price_sweep(spec: SweepSpec, settings: Settings, tell: Say, only_catalogue: bool = False) -> SweepPrice:
    """Return the prices of the described pods, else of the runs' machines if the sweep states hours."""
    groups: dict[PodEntry, int] = {}
    own = [machine_of(one.spec) for one in spec.trials.values()] if spec.hours[1] else []
    for one in spec.pods or own:
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
    source = found[1] if found else "no vendor offers this machine"
    return PodPrice(gpu=kind, num_gpus=number, pods=pods, source=source, micro_usd_per_hour=found[0] if found else None)


def _offered(request: Request, settings: Settings, tell: Say) -> tuple[int, str] | None:
    """Return the lowest price in today's offers with its source; None when no vendor can be asked."""
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


def of_runs(planned: SweepPlan, real: Mapping[str, LaunchSpec], settings: Settings) -> dict[str, tuple[int, int]]:
    """Return each run's lowest and highest expected cost in micro-dollars, without runs of unknown cost.

    real: the launches replaced by toys, by run; their cost is the cost on the intended machine.
    """
    found: dict[str, tuple[int, int]] = {}
    shared = planned.shared.entries if planned.shared else {}
    for run, one in planned.trials.items():
        own = one.trial.pod or next((lane.host for lane in planned.lanes if run in lane.runs), "")
        offer = one.offer or planned.offers.get(own)
        if offer is None or not offer.micro_usd_per_hour or one.plan.job is None:
            continue
        if planned.spec.pods and planned.spec.hours[1]:  # the pod is rented for the stated hours
            sharing = sum(each.trial.pod == own for each in planned.trials.values())
            low, high = (round(hours * offer.micro_usd_per_hour / sharing) for hours in planned.spec.hours)
            found[run] = low, high
        elif run in real:
            if seconds := _expected_s(real[run], offer, settings):
                found[run] = _cost(offer, seconds[0]), _cost(offer, seconds[1])
        elif one.plan.forecast and own not in shared:
            known = forecast_of(one.plan, offer, settings).micro_usd
            found[run] = known[0], known[2]
    return found


def _expected_s(spec: LaunchSpec, offer: Offer, settings: Settings) -> tuple[float, float] | None:
    """Return the lowest and highest expected seconds of a launch on a rented machine, boot included.

    Returns None for a model other than the profile's, and for a GPU of unknown speed.
    """
    if spec.init and spec.init not in ("hub", PUBLISHED.get(spec.profile or settings.profile)):
        return None
    machine = machine_with(offer.gpu, offer.num_gpus)
    found = estimates.of_phases(list(phases_of(spec, settings.profile)), machine, settings)
    low, _, high = found.range_s
    return (SETUP_S[0] + low, SETUP_S[2] + high) if found.steps else None


def _cost(offer: Offer, seconds: float) -> int:
    return math.ceil(seconds * offer.micro_usd_per_hour / 3600)


def listed(kind: str, number: int, own: Path) -> tuple[int, str] | None:
    """Return the lowest catalogue price for `number` GPUs of a kind in a machine, with its source.

    own: the user's own catalogue file, which may be missing. Returns None for an unlisted machine.
    """
    wanted = gpus.read_set(kind, number)
    prices = [
        (one.offer.micro_usd_per_hour, f"{CATALOGUE}, {one.label}")
        for one in catalogue.read(own)
        for name, many in wanted
        if one.offer.num_gpus == many and gpus.is_asked(name, one.offer.gpu)
    ]
    return min(prices, default=None)


def in_words(kinds: Sequence[PodPrice]) -> str:
    """Format pods: `2 pods of 8 A100`."""
    return ", ".join(
        f"{count(one.pods, 'pod')} {f'of {one.num_gpus} {one.gpu}' if one.num_gpus else 'without a GPU'}"
        for one in kinds
    )
