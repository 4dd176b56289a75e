"""The compile cache of a run, and the base class of keepers, which keep compiled kernels beyond a run.

`KernelKeeper(work)` -> `restore(folder)`, before the first compilation -> `keep(folder)`, after the first step
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from store import packs
from trainer.config import PhaseConfig
from trainer.device import Machine
from trainer.parallel.process_group import Ranks
from trainer.speed import compile_cache, kernels_of_node


@dataclass(frozen=True)
class KernelWork:
    """The work of a run that determines the kernels."""

    config: PhaseConfig
    machine: Machine
    parallel: str
    """Layout over the processes: `ddp`, `fsdp` or `hybrid`."""
    ranks: Ranks
    store: str
    """Store of the run, as a folder or URI."""


class KernelKeeper:
    """A keeper of one run, on each process; no method raises, because a run can always compile."""

    def __init__(self, work: KernelWork) -> None:
        """Begin to look for kernels in the background, while the run loads the model and the data."""
        self.work = work

    def restore(self, folder: Path) -> None:
        """Add kernels of earlier runs to the compile cache `folder`; called only if the run compiles."""

    def keep(self, folder: Path) -> None:
        """Keep the kernels in the compile cache `folder`.

        The first process calls `keep` after the first step and after the last step, while no thread compiles.
        """


class RunKernels:
    """The compile cache of a run, with the keepers of all installed packs."""

    def __init__(self, work: KernelWork) -> None:
        self.is_first, self.is_shared = work.ranks.is_first, work.machine.device.type == "cuda"
        self.rank, self.folder, self.is_compiled = work.ranks.rank, Path(), False
        found = packs.entries("kernel_keepers").values() if work.config.trains else ()
        self.keepers: tuple[KernelKeeper, ...] = tuple(packs.load(where)(work) for where in found)

    @contextmanager
    def cache(self, of_run: Path, of_node: Path) -> Iterator[None]:
        """Set the compile cache inside the block: shared per node on GPUs, per process on a CPU."""
        self.folder = of_node / "kernels" if self.is_shared else of_run / f".kernels-{self.rank}"
        with kernels_of_node(self.folder) if self.is_shared else compile_cache(self.folder):
            yield

    @contextmanager
    def restored(self, is_compiled: bool) -> Iterator[None]:
        """Restore kernels before the block, and keep new kernels after the block, if the model is compiled."""
        self.is_compiled = is_compiled
        for keeper in self.keepers if is_compiled else ():
            keeper.restore(self.folder)
        yield
        self.keep()

    def keep(self) -> None:
        for keeper in self.keepers if self.is_compiled and self.is_first else ():
            keeper.keep(self.folder)
