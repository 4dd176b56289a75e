"""Requirements of a phase beyond memory: GPUs, environments, and a sandbox for foreign code.

The methods take the configuration of a phase and the requested machine, and return launcher arguments, errors and
notes. Most phases use the base class; a phase with other requirements names a subclass in the phase's record
(`Phase.needs`). Light to import: no torch.
"""

from infra.records import Request
from store import packs
from trainer.config import PhaseConfig
from trainer.records.phase_registry import PHASES


class PhaseNeeds:
    """Requirements of a phase that trains on every GPU of the machine and runs no code from outside Slipway."""

    def min_gpus(self, config: PhaseConfig) -> int:
        """Return the minimum number of GPUs of a machine for the phase."""
        return 1

    def training_gpus(self, config: PhaseConfig, num_gpus: int) -> int:
        """Return how many of the machine's `num_gpus` GPUs train."""
        return num_gpus

    def check(self, config: PhaseConfig, request: Request) -> None:
        """Raise UsageError if the requested machine cannot run the phase."""

    def environments(self, config: PhaseConfig, torch: str) -> tuple[str, ...]:
        """Return the environments needed besides the training environment. torch: the build of PyTorch."""
        return config.environments

    def spread_words(self, config: PhaseConfig, num_gpus: int) -> tuple[str, ...]:
        """Return the arguments for `trainer.spread` that divide the machine's GPUs; () if all GPUs train."""
        return ()

    def gpu_split_note(self, config: PhaseConfig, num_gpus: int) -> str:
        """Return the division of the GPUs in words, for a plan; "" if all GPUs train."""
        return ""

    def foreign_code(self, config: PhaseConfig) -> str:
        """Return the source of code from outside Slipway in the phase, in words; "" = none."""
        return ""

    def sandbox(self, config: PhaseConfig) -> str:
        """Return the check of the sandbox for the code run by the phase; "" if the phase needs no sandbox.

        The check is a function `() -> str` as "module:attribute". The function returns why the caller's machine has no
        working sandbox, or "" with a working sandbox.
        """
        return ""


def needs_of(config: PhaseConfig) -> PhaseNeeds:
    """Return the requirements of a phase."""
    where = PHASES[config.phase].needs
    found: PhaseNeeds = packs.load(where)() if where else PhaseNeeds()
    return found
