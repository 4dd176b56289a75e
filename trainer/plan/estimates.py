"""How long steps take and how much memory they need, by estimates.

In: a step and what the machine does of useful work; the GPUs that are asked for. Out: seconds; bytes of each GPU.
"""

from collections.abc import Mapping

from data.config import (
    TalkSpec,
)
from infra.records import Request
from trainer import memory
from trainer.config import PhaseConfig
from trainer.reuse import Node


def ways_of(phase: PhaseConfig, request: Request) -> dict[str, int]:
    """Return how a model may be spread over the GPUs that are asked for -> bytes that it takes of each, an estimate."""
    found = memory.ways(phase, max(1, request.num_gpus), request.nodes)
    return {way: memory.estimate(phase, **spread).total for way, spread in found.items()}


def told(found: Mapping[str, int]) -> str:
    """Return the same in words; "" where there is nothing to choose."""
    if list(found) == ["ddp"]:
        return ""
    sizes = [f"{way} with {size / 1e9:.0f} GB on each GPU" for way, size in found.items()]
    return f"several GPUs: {', else '.join(sizes)} (parallel in a profile's file chooses)"


STATE_BYTES = 12  # of a parameter in a checkpoint: itself and AdamW's two moments, float32
DATA_STEP_S = {"text": 3.0, "tokenizer": 2.0, "tokens": 3.0, "identity": 1.0, "questions": 1.0, "problems": 1.0}
TALK_STEP_S = 5.0  # without the network
IMPORT_STEP_S, IMPORT_PARAMS_PER_S = 4.0, 1e8  # torch; reading and writing them, not the network
PHASE_START_S = 4.0  # torch, the inputs, the first compiled step
CHAT_TOKENS, TURN_TOKENS = 64, 34  # of a usual conversation, padding included; of one that shares its row with others


def estimate_s(node: Node, flops_per_s: float) -> float:
    """Return the seconds that a step takes on a machine that does so much useful work.

    It is an estimate, and shown as one.
    """
    if not isinstance(node.spec, PhaseConfig):
        if isinstance(node.spec, TalkSpec):
            return TALK_STEP_S
        return DATA_STEP_S.get(node.words[-1]) or IMPORT_STEP_S + node.spec.model.num_params / IMPORT_PARAMS_PER_S
    config = node.spec
    row = config.sequence_len
    if not config.reads_text:
        row = min(row, CHAT_TOKENS if config.turns == 1 else TURN_TOKENS)
    passes = 1 + config.num_frozen / 3
    return PHASE_START_S + passes * 6.0 * config.model.num_params * config.steps * config.rows * row / flops_per_s
