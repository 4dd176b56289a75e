"""Forecast of a run's time and cost on an offer: low, expected and high estimates. Pure functions."""

import math
from dataclasses import dataclass, replace

from infra.agent.job import Limits
from infra.agent.limits import hard_limit_s
from infra.market import gpus
from infra.market.expected import SETUP_S
from infra.records import MachineKind, Offer

USEFUL = 0.4  # share of the peak speed in a well-tuned training of this size


@dataclass(frozen=True)
class Forecast:
    """Seconds and micro-USD of all nodes: low, expected, high. `is_cut`: a limit ends the run before the high end."""

    seconds: tuple[float, float, float]
    micro_usd: tuple[int, int, int]
    is_cut: bool


def machine_with(gpu: str, num_gpus: int, nodes: int = 1) -> MachineKind:
    """Return the machine kind with `num_gpus` GPUs per node, with the useful speed from the GPU table."""
    kind, per_gpu = (gpus.meant(gpu), gpus.tflops(gpus.meant(gpu))) if gpu else ("GPU", None)
    name = f"{num_gpus} x {kind}" if nodes == 1 else f"{nodes} nodes of {num_gpus} x {kind}"
    speed = None if per_gpu is None else USEFUL * per_gpu * 1e12 * num_gpus * nodes
    return MachineKind(name=name, flops_per_s=speed)


def forecast(
    work_s: tuple[float, float, float],
    offer: Offer,
    limits: Limits,
    nodes: int = 1,
    setup_s: tuple[float, float, float] = SETUP_S,
) -> Forecast:
    """Return the low, expected and high time and cost of the work on an offer, by the vendor's clock.

    `limits` apply to each pod and cap the times.
    """
    cut_s = hard_limit_s(replace(limits, micro_usd_per_hour=offer.micro_usd_per_hour))
    whole = [setup + work for setup, work in zip(setup_s, work_s, strict=True)]
    seconds = [one if cut_s is None else min(one, cut_s) for one in whole]
    costs = [math.ceil(one * nodes * offer.micro_usd_per_hour / 3600) for one in seconds]
    return Forecast((seconds[0], seconds[1], seconds[2]), (costs[0], costs[1], costs[2]), seconds[2] < whole[2])
