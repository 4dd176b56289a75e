"""The check that a training run fits into memory before the start, instead of failing out of memory later.

The input is the pending phases; the result is the problem in words. This check is for local work; offers of vendors are
filtered by `infra.selection.preflight`.
"""

import os
from collections.abc import Iterable

from infra.agent import host
from infra.agent.job import Step
from infra.errors import UsageError
from infra.units import size
from trainer import memory
from trainer.config import PhaseConfig, load_phase
from trainer.plan.phase_needs import needs_of


def phases_of(steps: Iterable[Step]) -> list[PhaseConfig]:
    """Return the configurations of the training steps."""
    return [load_phase(step.config["spec"], step.name) for step in steps if "spec" in step.config and step.together]


def shortage(phases: Iterable[PhaseConfig], num_gpus: int = 1) -> str:
    """Return why the first phase that is too large does not fit on this machine, by an estimate; "" if all fit."""
    gpus = [one["memory_bytes"] for one in host.nvidia()[0] if one["memory_bytes"]]
    ram = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    there = min(gpus, default=0) or ram
    device, what = ("cuda", "each GPU of this machine has") if gpus else ("cpu", "this machine has")
    for phase in phases:
        training = needs_of(phase).training_gpus(phase, num_gpus)
        ways = memory.ways(phase, max(1, training)) if gpus else {"alone": memory.ModelLayout()}
        least = min(memory.estimate(phase, device, **spread).total for spread in ways.values())
        if least > there:
            takes = f"{phase.phase} takes about {size(least)} of memory (an estimate)"
            return f"{takes}, but {what} {size(there)}; use a smaller recipe (--profile smoke), or see: inv fit"
        if gpus and (copied := memory.host_bytes(phase)) > ram:
            takes = f"{phase.phase} copies {size(copied)} into the memory of this machine to write checkpoints"
            return f"{takes}, but this machine has {size(ram)}; use a machine with more memory, or a smaller recipe"
    return ""


def check(phases: Iterable[PhaseConfig], num_gpus: int = 1) -> None:
    """Raise UsageError if a phase does not fit on this machine."""
    if found := shortage(phases, num_gpus):
        raise UsageError(found)
