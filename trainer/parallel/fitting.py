"""The largest micro-batch and the fastest layout that fit into a GPU, and the settings to use after a failure.

`PhaseConfig` and the memory of a GPU -> `largest` -> `Fit`, by the estimates of `trainer.memory`.
"""

from dataclasses import dataclass, replace
from typing import Any

from trainer.config import PhaseConfig
from trainer.memory import USABLE, Memory, estimate, gib, ways

SIZES = tuple(gb << 30 for gb in (16, 24, 32, 40, 48, 80, 96, 141, 180, 192, 288))  # memory sizes of rentable GPUs
SPARE = 0.85  # usable share after an out-of-memory error: the estimate was too low


@dataclass(frozen=True)
class Fit:
    """The result of `largest`: the phase with the largest fitting micro-batch and an unchanged effective batch."""

    config: PhaseConfig
    memory: Memory
    fits: bool  # False: a single row with recomputation does not fit; `memory` is for that row
    parallel: str = "ddp"  # layout of the model over the GPUs
    gpus: int = 1

    @property
    def accumulation(self) -> int:
        """Return the number of gradient accumulation passes per GPU and step."""
        return -(-self.config.rows // self.gpus // self.config.micro_rows)


def fastest_layout(config: PhaseConfig, memory_bytes: int, per_node: int, nodes: int = 1) -> str:
    """Return the fastest layout fitting into `memory_bytes` per GPU, or the smallest layout when none fits."""
    found = ways(config, per_node, nodes)
    fitting = [way for way, spread in found.items() if estimate(config, **spread).total <= USABLE * memory_bytes]
    return fitting[0] if fitting else list(found)[-1]


def fits(config: PhaseConfig, memory_bytes: int, per_node: int, nodes: int = 1) -> bool:
    """Return whether the phase fits unchanged into `memory_bytes` per GPU in any allowed layout."""
    spreads = ways(config, per_node, nodes).values()
    return any(estimate(config, **spread).total <= USABLE * memory_bytes for spread in spreads)


def largest(config: PhaseConfig, memory_bytes: int, per_node: int = 1, nodes: int = 1, most: int = 1 << 30) -> Fit:
    """Return the largest micro-batch of `config` fitting into `memory_bytes` per GPU, at most `most` rows.

    Shard the model, and then recompute activations, only when a single row does not fit. Micro-batch sizes are divisors
    of `rows`, so the effective batch stays unchanged.
    """
    gpus = per_node * nodes
    sizes = [number for number in range(config.rows, 0, -1) if config.rows % number == 0]
    sizes = [number for number in sizes if number <= min(most, -(-config.rows // gpus))]
    for recompute in dict.fromkeys((config.recompute, True)):
        for way, spread in ways(config, per_node, nodes).items():
            for micro_rows in sizes:
                tried = replace(config, micro_rows=micro_rows, recompute=recompute)
                memory = estimate(tried, **spread)
                if memory.total <= USABLE * memory_bytes:
                    return Fit(tried, memory, True, way, gpus)
    return Fit(tried, memory, False, way, gpus)


def advice(config: PhaseConfig, memory_bytes: int, way: str, per_node: int = 1, nodes: int = 1) -> str:
    """Return settings, with estimated sizes, that avoid an out-of-memory error on a GPU of `memory_bytes`.

    way: the layout in use, a key of `ways`.
    """
    spread = ways(replace(config, parallel="auto"), per_node, nodes).get(way, {})

    def needs(**change: Any) -> int:
        return estimate(replace(config, **change), **spread).total

    now, phase = needs(), config.phase
    said = f"{phase} needs an estimated {gib(now)} with micro_rows {config.micro_rows}; the GPU has {gib(memory_bytes)}"
    fewer = [rows for rows in range(config.micro_rows - 1, 0, -1) if config.rows % rows == 0]
    fits = [rows for rows in fewer if needs(micro_rows=rows) <= SPARE * memory_bytes]
    least = fits[0] if fits else 1
    ways_out = [f"--set {phase}.micro_rows={least} ({gib(needs(micro_rows=least))})"] if fewer else []
    if not config.recompute:
        rows = config.micro_rows if needs(recompute=True) <= SPARE * memory_bytes else least
        words = f"--set {phase}.recompute=true" + (
            f" --set {phase}.micro_rows={rows}" if rows < config.micro_rows else ""
        )
        ways_out.append(f"{words} ({gib(needs(recompute=True, micro_rows=rows))}, a third slower)")
    if config.rl is not None and config.rl.engine == "embedded":
        rows, each = config.rl.side_by_side, cache_bytes(config)
        ways_out.append(
            f"--set {phase}.rl.side_by_side={max(1, rows // 2)} (fewer answers at a time; caches take "
            f"{gib(max(1, rows // 2) * each)} instead of {gib(rows * each)})"
        )
    larger = next((size for size in SIZES if size > memory_bytes * 1.1 and now <= SPARE * size), 0)
    if larger:
        ways_out.append(f"a GPU with {gib(larger)}")
    if way == "ddp" and "fsdp" in config.layouts and per_node * nodes > 1:
        ways_out.append(f"--set {phase}.parallel=fsdp ({gib(estimate(config, parts=per_node * nodes).total)} each)")
    return f"{said}. Use {', or '.join(ways_out) or 'a smaller model'}"


def cache_bytes(config: PhaseConfig) -> int:
    """Return the bytes of the KV cache of a sequence of `sequence_len` tokens."""
    model = config.model
    numbers = 2 * model.num_hidden_layers * model.num_key_value_heads * model.head_dim * config.sequence_len
    return numbers * (4 if config.dtype == "float32" else 2)
