"""Estimates of the operations, the fixed time and the GPU memory of steps.

The functions take a phase, or the program of a step without training, and the requested GPUs. They return operations
(FLOP), seconds independent of the machine's speed, and bytes per GPU; `infra.market.expected.estimate` converts these
to times.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

from infra.records import Request
from trainer import memory
from trainer.config import PhaseConfig
from trainer.fingerprints import digest
from trainer.plan.phase_needs import needs_of
from trainer.records.fields import what_counts
from trainer.records.phase_registry import KINDS


def least_bytes(phase: PhaseConfig, num_gpus: int, nodes: int = 1) -> int:
    """Return the least GPU memory in bytes for a phase on machines of `num_gpus` GPUs, as `inv fit` counts.

    A training reduces the micro-batch down to one row, and recomputes activations, before failing
    (`trainer.parallel.placement`); rl, and a phase with `fit: false`, are estimated as written.
    """
    if phase.rl is None and phase.fit:
        tried = [replace(phase, micro_rows=1, recompute=one) for one in {phase.recompute, True}]
    else:
        tried = [phase]
    training = needs_of(phase).training_gpus(phase, num_gpus)
    spreads = memory.ways(phase, max(1, training), nodes).values()
    least = min(memory.estimate(one, **spread).total for one in tried for spread in spreads)
    return math.ceil(least / memory.USABLE)


def ways_of(phase: PhaseConfig, request: Request) -> dict[str, int]:
    """Return the possible layouts of a model over the requested GPUs, with the estimated bytes per GPU."""
    training = needs_of(phase).training_gpus(phase, request.num_gpus)
    found = memory.ways(phase, max(1, training), request.nodes)
    return {way: memory.estimate(phase, **spread).total for way, spread in found.items()}


def told(found: Mapping[str, int]) -> str:
    """Return the layouts of `ways_of` in words; "" if plain data parallelism (ddp) is the only layout."""
    if list(found) == ["ddp"]:
        return ""
    sizes = [f"{way} with {size / 1e9:.0f} GB on each GPU" for way, size in found.items()]
    return f"several GPUs: {', else '.join(sizes)} (to choose, set parallel in a profile file)"


STATE_BYTES = 12  # bytes per parameter in a checkpoint: the parameter and AdamW's two moments, float32
# Seconds per data step, without network time.
DATA_STEP_S = {
    "text": 3.0,
    "tokenizer": 2.0,
    "tokens": 3.0,
    "identity": 1.0,
    "questions": 1.0,
    "problems": 1.0,
    "talk": 5.0,
}
IMPORT_STEP_S, IMPORT_PARAMS_PER_S = 4.0, 1e8  # torch import; then reading and writing, without network time
PHASE_START_S = 4.0  # torch import, loading the inputs, the first compiled step
CHAT_TOKENS, TURN_TOKENS = 64, 34  # tokens of a usual padded conversation; of a conversation in a shared row
# Settings of a phase without effect on the time of a step: length, data and numeric hyperparameters.
TIMELESS = set("phase steps seed schedule optimizer adopted mixture fit".split())


def constant_s(words: Sequence[str], params: int = 0) -> float:
    """Return the seconds of a step without training; the last word of `words` is the step's program.

    params: number of parameters of the imported model.
    """
    return DATA_STEP_S.get(words[-1]) or IMPORT_STEP_S + params / IMPORT_PARAMS_PER_S


def operations(config: PhaseConfig) -> float:
    """Return the approximate operations (FLOP) of a phase.

    Each token takes six per parameter for each view of the trained model, and two per parameter for each frozen model.
    """
    passes = config.views + config.num_frozen / 3
    return passes * 6.0 * config.model.num_params * config.steps * tokens_of_step(config)


def tokens_of_step(config: PhaseConfig) -> float:
    """Return the approximate tokens of a step.

    The project's own conversations are short; foreign conversations have unknown lengths and count as full rows. For
    rl, the tokens are answers of full length with a share of the prompt.
    """
    if config.reads_text or config.rl is not None:
        return config.rows * config.row_len
    if set(config.mixture or ()) - KINDS.keys():
        return math.ceil(config.rows / config.turns) * config.row_len
    return config.rows * min(config.row_len, CHAT_TOKENS if config.turns == 1 else TURN_TOKENS)


def shape(config: PhaseConfig) -> str:
    """Return a digest of the settings that determine the pace of a phase; settings at the default are left out."""
    found: dict[str, Any] = {"muon": config.optimizer.muon_lr > 0}
    for one in fields(config):
        value = getattr(config, one.name)
        if one.name not in TIMELESS and value != one.default:
            found[one.name] = what_counts(value)
    return digest(found)
