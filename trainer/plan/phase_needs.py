"""The needs of a phase beyond its memory: GPUs, environments, and whether code runs that Slipway has not written.

In: the configuration of a phase, the machine that is asked for. Out: words of a launcher, refusals, notes. Light to
import: no torch. Most phases need nothing more; a phase with more names its class in its record (`Phase.needs`).
"""

from infra.records import Request
from store import packs
from trainer.config import PhaseConfig
from trainer.records.phase_registry import PHASES


class PhaseNeeds:
    """The needs of a phase that trains on every GPU of its machine and runs no code but Slipway's."""

    def fewest_gpus(self, config: PhaseConfig) -> int:
        """Return the fewest GPUs of a machine on which the phase can run."""
        return 1

    def training_gpus(self, config: PhaseConfig, num_gpus: int) -> int:
        """Return how many of the GPUs of a machine train."""
        return num_gpus

    def check(self, config: PhaseConfig, request: Request) -> None:
        """Raise UsageError where the machine that is asked for cannot run the phase."""

    def environments(self, config: PhaseConfig, torch: str) -> tuple[str, ...]:
        """Return the environments beside the one of the training. torch: the build of PyTorch."""
        return ()

    def spread_words(self, config: PhaseConfig, num_gpus: int) -> tuple[str, ...]:
        """Return the words by which `trainer.spread` divides the GPUs of a machine; () where all train."""
        return ()

    def note(self, config: PhaseConfig, num_gpus: int) -> str:
        """Return which GPUs do what, in words for a plan; "" where all train."""
        return ""

    def foreign_code(self, config: PhaseConfig) -> str:
        """Return what brings code that Slipway has not written to the phase, in words; "" = nothing does."""
        return ""

    def sandbox(self, config: PhaseConfig) -> str:
        """Return the check of the sandbox that holds the code which the phase runs; "" where the phase needs none.

        A function `() -> str` as "module:attribute": why the machine of the caller has no sandbox, "" where it has one.
        """
        return ""


def needs_of(config: PhaseConfig) -> PhaseNeeds:
    """Return the needs of a phase."""
    where = PHASES[config.phase].needs
    found: PhaseNeeds = packs.load(where)() if where else PhaseNeeds()
    return found
