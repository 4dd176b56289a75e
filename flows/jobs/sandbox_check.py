"""Check that the code in answers can be held on this machine, before work begins that needs the sandbox.

In: the phases that are due here. Out: what is wrong, in words. On a machine that is rented the phase itself looks,
before it trains: neither its kernel nor what its container forbids is known before.
"""

from collections.abc import Iterable

from infra.errors import UsageError
from trainer.config import PhaseConfig
from trainer.rewards import jail

RUNS_CODE = ("mbpp",)  # tasks whose answers are programs, which are run


def needs_sandbox(phase: PhaseConfig) -> bool:
    """Return whether a phase runs the code in answers, and the user has not said that it may do so unheld."""
    tasks = set(phase.mixture or {}) & set(RUNS_CODE)
    return phase.rl is not None and bool(tasks) and not phase.rl.reward and not phase.rl.unsafe_rewards


def check(phases: Iterable[PhaseConfig]) -> None:
    """Raise UsageError where this machine has no sandbox for a phase that needs one."""
    for phase in phases:
        if needs_sandbox(phase) and not jail.kind():
            raise UsageError(f"{phase.phase}: {jail.refusal()}. Nothing has begun")
