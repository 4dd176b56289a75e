"""The flag `--cold`, and the part of a plan about kernels of earlier runs."""

import os
from dataclasses import dataclass, replace

from flows.planning.estimates import phases_of
from flows.specs.work import TRAINING
from infra.flags import Typed, flag
from infra.records import Inventory, Offer, Plan
from infra.settings import OWN_MACHINES, Settings


@dataclass(frozen=True, kw_only=True)
class KernelFlags:
    cold: bool = flag(
        False, "compile every kernel again: use no kernels of earlier runs, and keep none in the store", group=TRAINING
    )


def with_kernels(plan: Plan, spec: Typed, settings: Settings, there: Inventory, offer: Offer | None) -> Plan:
    """Return the plan with the mode of the job for kernels, and with notes on the kernels in the store."""
    assert plan.job is not None, "only plans with work have parts"
    device = "cuda" if plan.request.num_gpus else "cpu"
    threads = max(2, os.cpu_count() or 1)
    compiled = [one for one in phases_of(plan.job.steps) if one.should_compile(device, threads)]
    if not compiled:
        return plan
    from packs.kernels.control import expected_gain  # few trainings on this machine compile

    is_own = settings.provider in OWN_MACHINES
    mode, notes = expected_gain.mode_and_notes(compiled, spec.added_record(KernelFlags).cold, is_own, settings, there)
    job = replace(plan.job, environ={**plan.job.environ, **mode})
    return replace(plan, job=job, notes=(*plan.notes, *notes))
