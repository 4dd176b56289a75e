"""Choice of the machine shared by the runs of a sweep, and the highest cost of these pods.

    runs without a chosen machine -> plans -> cheapest offer fitting every run -> runs with the machine set
    runs on pods -> highest cost of each pod, from which the common limit follows

`packs.sweeps.control.plan` handles runs on separate machines.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import partial

from flows.planning.estimates import phases_of
from flows.planning.machine_choice import MachineChoice
from infra.market.step_times import is_measured
from infra.records import Offer
from infra.runs.timing import Say
from infra.selection import choose, registry
from infra.selection.preflight import billed, billed_s, setup_of
from infra.settings import Settings
from packs.sweeps.control.limit import HighCost
from packs.sweeps.control.plan import SweepPlan, plan_of, request_of, settings_of
from packs.sweeps.control.pods import common_flags
from packs.sweeps.control.trials.records import SweepSpec


def with_machine(spec: SweepSpec, pack: int, settings: Settings, tell: Say) -> SweepSpec:
    """Return the sweep with the shared machine set in every run, unless the user has chosen a machine.

    pack: number of runs per pod, each with an equal part of the GPUs. Raises SlipwayError.
    """
    if spec.pods or ":" in common_flags(spec).gpu:
        return spec
    candidates, first = registry.candidates(settings), next(iter(spec.trials.values()))
    request, named = request_of(first, settings_of(first, settings), candidates)
    plans = [plan_of(one, settings, candidates) for one in spec.trials.values()]
    phases = tuple(phase for one in plans if one.job for phase in phases_of(one.job.steps))
    if not phases:
        return spec
    ask = partial(choose.find, candidates, settings=settings, tell=tell)
    fit = MachineChoice(phases=phases, ask=ask, named=named)
    found = fit.narrow(
        request,
        [
            replace(one, num_gpus=one.num_gpus // pack, micro_usd_per_hour=one.micro_usd_per_hour // pack)
            for one in ask(replace(request, num_gpus=request.num_gpus * pack))
            if one.num_gpus % pack == 0
        ],
    )
    if found.reason:
        tell(f"each run: {found.reason}")
    gpu, number = found.request.gpu, found.request.num_gpus
    trials = {run: replace(one, spec=replace(one.spec, gpu=gpu, num_gpus=number)) for run, one in spec.trials.items()}
    return replace(spec, trials=trials)


def highs_of(planned: SweepPlan, offers: Mapping[str, Offer], settings: Settings) -> list[HighCost | None]:
    """Return the highest cost of each pod with runs; None for a pod with unknown work or price."""
    found: list[HighCost | None] = []
    for name in planned.shared.entries if planned.shared else ():
        lanes = [[planned.trials[run].plan for run in lane.runs] for lane in planned.lanes if lane.host == name]
        due = [one for plans in lanes for one in plans if one.job is not None]
        if not due:
            continue
        known = [each for each in map(billed, due) if each is not None]
        if name not in offers or len(known) < len(due):
            found.append(None)
            continue
        work_s = max(sum(billed_s(one, settings)[2] for one in plans if one.job) for plans in lanes)
        cost = math.ceil((setup_of(settings)[2] + work_s) * offers[name].micro_usd_per_hour / 3600)
        found.append(HighCost(cost, all(is_measured(each.steps) for each in known)))
    return found
