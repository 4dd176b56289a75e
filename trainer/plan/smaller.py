"""The smallest change of a phase by which the phase fits into the memory of GPUs that it does not fit into.

In: a phase as it is planned, the memory of each GPU. Out: options as `--set` takes them. What fits is decided by
`trainer.plan.estimates.least_bytes`.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from data.config import ConfigError
from trainer.config import PhaseConfig
from trainer.plan.estimates import least_bytes

SHORTEST = 128  # tokens of a sequence: with fewer, a phase learns something else


def smaller(phase: PhaseConfig, memory_bytes: int, num_gpus: int, nodes: int = 1) -> str:
    """Return the options of the smallest change that fits; "" where none does."""
    for change in _changes(phase):
        try:
            changed = replace(phase, **change)
        except ConfigError:  # a length that the phase does not take
            continue
        if least_bytes(changed, num_gpus, nodes) <= memory_bytes:
            return " ".join(f"--set {phase.phase}.{name}={_text(value)}" for name, value in change.items())
    return ""


def _changes(phase: PhaseConfig) -> Iterator[dict[str, Any]]:
    """Yield changes, those that leave the result as it is before those that shorten sequences."""
    if phase.rl is not None or not phase.fit:  # else the micro-batch is cut by itself
        fewer = [rows for rows in range(phase.micro_rows - 1, 0, -1) if phase.rows % rows == 0]
        yield from ({"micro_rows": rows} for rows in fewer)
        if not phase.recompute:
            yield from ({"recompute": True, "micro_rows": rows} for rows in (phase.micro_rows, *fewer))
    length = phase.sequence_len // 2
    while length >= SHORTEST:
        yield {"sequence_len": length}
        length //= 2


def _text(value: Any) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)
