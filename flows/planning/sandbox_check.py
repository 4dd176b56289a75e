"""Check that the code in answers can be held on this machine, before work begins that needs the sandbox.

In: the phases that are due. Out: what is wrong here, in words; for a rented machine a requirement (`Request.sandbox`),
which its acceptance test looks for, as neither its kernel nor what its container forbids is known before the boot.
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


def note(phases: Iterable[PhaseConfig]) -> str:
    """Return what a plan says of a machine that others choose; "" where no phase needs a sandbox."""
    names = [one.phase for one in phases if needs_sandbox(one)]
    if not names:
        return ""
    return (
        f"{names[0]} runs code that the model writes: a machine with neither Landlock (Linux 5.13) nor bubblewrap is "
        "given back after its boot, before any work"
    )


def check(phases: Iterable[PhaseConfig]) -> None:
    """Raise UsageError where this machine has no sandbox for a phase that needs one."""
    for phase in phases:
        if needs_sandbox(phase) and not jail.kind():
            raise UsageError(f"{phase.phase}: {jail.refusal()}. Nothing has begun")
