"""Placement of a phase on the available GPUs: the parallel layout and the micro-batch size, from `trainer.memory`.

`PhaseConfig`, `Ranks` and `Machine` -> `with_fitting_micro_batch` and `choose_layout` -> `PhaseConfig` and layout.
After an out-of-memory error, `explain_out_of_memory` raises an error listing settings that fit.
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
from trainer.parallel import fitting
from trainer.parallel.process_group import Ranks

FITTED = ("micro_rows", "recompute")
PASS_TOKENS = 1 << 16  # larger passes gain nothing: fixed costs per pass are 1 % at this size


def choose_layout(config: PhaseConfig, ranks: Ranks, machine: Machine) -> str:
    """Return `ddp`, `fsdp` or `hybrid`: the configured layout, or for `auto` the first layout fitting into GPU memory.

    Raises Refused for `hybrid` without several nodes of several processes.
    """
    if ranks.size == 1:
        return "ddp"
    nodes = ranks.size // ranks.per_node
    if config.parallel == "hybrid" and (nodes == 1 or ranks.per_node == 1):
        raise Refused(
            f"{config.phase}: parallel=hybrid needs several nodes with several processes each; this run has {nodes} "
            f"nodes with {ranks.per_node} processes. Use fsdp or auto"
        )
    if config.parallel != "auto":
        return config.parallel
    if machine.device.type == "cpu":
        return "ddp"
    return fitting.fastest_layout(counted(config, machine), gpu_bytes(machine), ranks.per_node, nodes)


def with_fitting_micro_batch(
    config: PhaseConfig, ranks: Ranks, machine: Machine, before: Mapping[str, Any]
) -> PhaseConfig:
    """Return the phase with the largest micro-batch fitting into the GPU by estimate; unchanged on a CPU.

    A resumed run keeps the micro-batch of its start and so ends with the same bits. before: the configuration in the
    newest checkpoint, given on the first process, {} without one. Fit again when the GPU is too small for the old
    values. The phase rl is unchanged, because the estimates do not include rollouts.
    """
    if machine.device.type == "cpu" or not config.fit or config.rl is not None:
        return config
    size, nodes = gpu_bytes(machine), ranks.size // ranks.per_node
    most = max(config.micro_rows, PASS_TOKENS // config.sequence_len)
    here = counted(config, machine)
    found = fitting.largest(here, size, ranks.per_node, nodes, most)
    chosen = {name: getattr(found.config, name) for name in FITTED} if found.fits else {}
    kept = {name: before[name] for name in FITTED if name in before}
    if len(kept) == len(FITTED):
        if fitting.fits(replace(here, **kept), size, ranks.per_node, nodes):
            chosen = kept
        else:
            emit(
                "note",
                text=f"{config.phase}: {kept} of the earlier start do not fit into this GPU; the trainer uses {chosen}",
                alarm=True,
            )
    chosen = ranks.broadcast(chosen)
    if any(getattr(config, name) != value for name, value in chosen.items()):
        words = ", ".join(f"{name} {value}" for name, value in chosen.items())
        emit("note", text=f"{config.phase}: {words}: the largest that fit into {memory.gib(size)} by estimate")
    return replace(config, **chosen)


def is_held(config: PhaseConfig, way: str, ranks: Ranks, machine: Machine) -> bool:
    """Return whether to keep a sharded model gathered for all passes of a step, gathering once per step.

    False for `ddp`, on a CPU, with a single pass per step, or when the gathered parameters exceed GPU memory.
    """
    each = -(-config.rows // ranks.size)
    if way == "ddp" or machine.device.type == "cpu" or each <= config.micro_rows:
        return False
    parts = ranks.per_node if way == "hybrid" else ranks.size
    needed = memory.estimate(counted(config, machine), parts=parts, is_held=True).total
    return needed <= memory.USABLE * gpu_bytes(machine)


@contextmanager
def explain_out_of_memory(config: PhaseConfig, machine: Machine, parallel: str, ranks: Ranks) -> Iterator[None]:
    """Convert a CUDA out-of-memory error inside the block to OutOfMemory with settings that fit."""
    try:
        yield
    except torch.OutOfMemoryError as error:
        size = gpu_bytes(machine)
        nodes = ranks.size // ranks.per_node
        words = fitting.advice(counted(config, machine), size, parallel, ranks.per_node, nodes)
        raise OutOfMemory(f"the GPU's memory is full: {words} [{str(error).splitlines()[0]}]") from error


def counted(config: PhaseConfig, machine: Machine) -> PhaseConfig:
    """Return the phase for memory estimates, with dtype `auto` resolved to the machine's fast dtype."""
    return replace(config, dtype=str(machine.fast).removeprefix("torch.")) if config.dtype == "auto" else config


def gpu_bytes(machine: Machine) -> int:
    """Return the total memory of the machine's GPU in bytes."""
    return int(torch.cuda.get_device_properties(machine.device).total_memory)
