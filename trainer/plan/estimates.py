"""The amount of work of steps, and the memory that they need: what estimates are made of.

In: a phase, or the program of another step; the GPUs that are asked for. Out: operations, seconds that do not depend on
the machine's speed, bytes of each GPU. `infra.market.expected.estimate` makes times of them.
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
    """Return the memory that each GPU of a machine with so many has to have for a phase, as `inv fit` counts.

    A training cuts its micro-batch down to one row, and recomputes, before it fails (`trainer.parallel.placement`); rl,
    and a phase with `fit: false`, are taken as written.
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
    """Return the possible layouts of a model over the requested GPUs, with estimated bytes on each."""
    training = needs_of(phase).training_gpus(phase, request.num_gpus)
    found = memory.ways(phase, max(1, training), request.nodes)
    return {way: memory.estimate(phase, **spread).total for way, spread in found.items()}


def told(found: Mapping[str, int]) -> str:
    """Return the same in words; "" where there is nothing to choose."""
    if list(found) == ["ddp"]:
        return ""
    sizes = [f"{way} with {size / 1e9:.0f} GB on each GPU" for way, size in found.items()]
    return f"several GPUs: {', else '.join(sizes)} (parallel in a profile's file chooses)"


STATE_BYTES = 12  # bytes of a parameter in a checkpoint: itself and AdamW's two moments, float32
# Without the network.
DATA_STEP_S = {"text": 3.0, "tokenizer": 2.0, "tokens": 3.0, "identity": 1.0, "questions": 1.0, "problems": 1.0,
               "talk": 5.0}  # fmt: skip
IMPORT_STEP_S, IMPORT_PARAMS_PER_S = 4.0, 1e8  # torch; reading and writing them, not the network
PHASE_START_S = 4.0  # torch, the inputs, the first compiled step
CHAT_TOKENS, TURN_TOKENS = 64, 34  # of a usual conversation, with padding; of one that shares its row
# Settings of a phase that change neither its length nor the time of a step: data, and sizes of numbers.
TIMELESS = set("phase steps seed schedule optimizer adopted mixture fit".split())


def constant_s(words: Sequence[str], params: int = 0) -> float:
    """Return the seconds of a step that trains nothing: the last of its words is its program.

    params: of the model that it brings in.
    """
    return DATA_STEP_S.get(words[-1]) or IMPORT_STEP_S + params / IMPORT_PARAMS_PER_S


def operations(config: PhaseConfig) -> float:
    """Return the operations (FLOP) of a phase, roughly: six for each parameter and token, two where nothing learns."""
    passes = config.views + config.num_frozen / 3
    return passes * 6.0 * config.model.num_params * config.steps * tokens_of_step(config)


def tokens_of_step(config: PhaseConfig) -> float:
    """Return the tokens of a step, roughly: conversations of ours are short, of others nobody knows and rows are full.

    Of rl they are answers of full length with their share of the prompt.
    """
    if config.reads_text or config.rl is not None:
        return config.rows * config.row_len
    if set(config.mixture or ()) - KINDS.keys():
        return math.ceil(config.rows / config.turns) * config.row_len
    return config.rows * min(config.row_len, CHAT_TOKENS if config.turns == 1 else TURN_TOKENS)


def shape(config: PhaseConfig) -> str:
    """Return a digest of the settings of a phase that its pace depends on, those at their defaults left out."""
    found: dict[str, Any] = {"muon": config.optimizer.muon_lr > 0}
    for one in fields(config):
        value = getattr(config, one.name)
        if one.name not in TIMELESS and value != one.default:
            found[one.name] = what_counts(value)
    return digest(found)
