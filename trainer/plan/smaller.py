"""Search for the smallest change with which a phase fits into a given GPU memory.

The search takes a planned phase and the memory of each GPU, and returns options in the form of `--set`.
`trainer.plan.estimates.least_bytes` decides whether a phase fits.
"""

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from data.config import ConfigError
from trainer.config import PhaseConfig
from trainer.plan.estimates import least_bytes

SHORTEST = 128  # minimum sequence length in tokens: below, a phase learns something different


def smaller(phase: PhaseConfig, memory_bytes: int, num_gpus: int, nodes: int = 1) -> str:
    """Return the options of the smallest change that fits; "" if no change suffices."""
    for change in _changes(phase):
        try:
            changed = replace(phase, **change)
        except ConfigError:  # invalid sequence length for the phase
            continue
        if least_bytes(changed, num_gpus, nodes) <= memory_bytes:
            return " ".join(f"--set {phase.phase}.{name}={_text(value)}" for name, value in change.items())
    return ""


def _changes(phase: PhaseConfig) -> Iterator[dict[str, Any]]:
    """Yield possible changes: first changes without effect on the result, then shorter sequences."""
    if phase.rl is not None or not phase.fit:  # otherwise the trainer reduces the micro-batch itself
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
