"""The placement of a phase on the GPUs that are there: how it is spread, and how many rows each takes at a time.

In: the phase, the `Ranks`, the machine; the estimate of `trainer.memory` decides. Out: the phase with what was chosen,
a way of spreading it; where the estimate was wrong, an error with numbers that would fit.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from data.events import emit
from trainer import memory
from trainer.config import PhaseConfig
from trainer.device import Machine
from trainer.errors import OutOfMemory, Refused
from trainer.parallel.process_group import Ranks

FITTED = ("micro_rows", "recompute")
PASS_TOKENS = 1 << 16  # more at once brings nothing: what a pass costs beside its tokens is a hundredth of it by then


def how(config: PhaseConfig, ranks: Ranks, machine: Machine) -> str:
    """Return `ddp`, `fsdp` or `hybrid`: what the phase says, or the first that fits into the memory of each GPU."""
    if ranks.size == 1:
        return "ddp"
    nodes = ranks.size // ranks.per_node
    if config.parallel == "hybrid" and (nodes == 1 or ranks.per_node == 1):
        raise Refused(
            f"{config.phase}: hybrid cuts a model over the processes of each of several nodes; here are {nodes} nodes "
            f"of {ranks.per_node}; take fsdp or auto"
        )
    if config.parallel != "auto":
        return config.parallel
    if machine.device.type == "cpu":
        return "ddp"
    return memory.parallel(counted(config, machine), gpu_bytes(machine), ranks.per_node, nodes)


def fitted(config: PhaseConfig, ranks: Ranks, machine: Machine, before: Mapping[str, Any]) -> PhaseConfig:
    """Return the phase with as many rows in a pass as fit into the GPU, by estimate; on a CPU as it is.

    A run keeps to what it began with, so that one that was stopped comes to the same bits: `before` is the phase as the
    first process finds it in the newest checkpoint, {} where there is none. A GPU too small for that has it fitted
    anew. Rollouts take memory that no estimate counts: `rl` is as its recipe says.
    """
    if machine.device.type == "cpu" or not config.fit or config.rl is not None:
        return config
    size, nodes = gpu_bytes(machine), ranks.size // ranks.per_node
    most = max(config.micro_rows, PASS_TOKENS // config.sequence_len)
    here = counted(config, machine)
    found = memory.largest(here, size, ranks.per_node, nodes, most)
    chosen = {name: getattr(found.config, name) for name in FITTED} if found.fits else {}
    kept = {name: before[name] for name in FITTED if name in before}
    if len(kept) == len(FITTED):
        if memory.fits(replace(here, **kept), size, ranks.per_node, nodes):
            chosen = kept
        else:
            emit("note", text=f"{config.phase}: {kept} do not fit into this GPU any more; now {chosen}", alarm=True)
    chosen = ranks.tell(chosen)
    if any(getattr(config, name) != value for name, value in chosen.items()):
        words = ", ".join(f"{name} {value}" for name, value in chosen.items())
        emit("note", text=f"{config.phase}: {words}, as fits into {memory.gib(size)} by estimate")
    return replace(config, **chosen)


def is_held(config: PhaseConfig, way: str, ranks: Ranks, machine: Machine) -> bool:
    """Return whether there is room to keep a model that is cut together for all passes of a step, of which it has some.

    Then it travels once, else once for each pass.
    """
    each = -(-config.rows // ranks.size)
    if way == "ddp" or machine.device.type == "cpu" or each <= config.micro_rows:
        return False
    parts = ranks.per_node if way == "hybrid" else ranks.size
    needed = memory.estimate(counted(config, machine), parts=parts, is_held=True).total
    return needed <= memory.USABLE * gpu_bytes(machine)


@contextmanager
def memory_told(config: PhaseConfig, machine: Machine, parallel: str, ranks: Ranks) -> Iterator[None]:
    """Surround what may take more memory than there is. Raises OutOfMemory, with numbers that would fit."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        size = gpu_bytes(machine)
        nodes = ranks.size // ranks.per_node
        words = memory.advice(counted(config, machine), size, parallel, ranks.per_node, nodes)
        raise OutOfMemory(f"the GPU's memory is full: {words} [{str(error).splitlines()[0]}]") from error


def counted(config: PhaseConfig, machine: Machine) -> PhaseConfig:
    """Return the phase as estimates of this machine take it: `auto` is what it comes to here."""
    return replace(config, dtype=str(machine.fast).removeprefix("torch.")) if config.dtype == "auto" else config


def gpu_bytes(machine: Machine) -> int:
    """Return the bytes of memory of the GPU that is computed on."""
    return int(torch.cuda.get_device_properties(machine.device).total_memory)
