"""What mid and sft share: conversations drawn by the mixture, on top of the model of the phase before."""

from pathlib import Path
from typing import Any

from data.chat.conversations import Conversations
from data.config import Making
from trainer.config import Keeping, PhaseConfig
from trainer.errors import Refused
from trainer.parallel.process_group import Ranks
from trainer.run import PhaseRun, phase_run

QUESTIONS = ("pydocs", "other")  # kinds that come from one artifact
OURS = ("identity", *QUESTIONS)  # one question and its answer each, which can follow any other


def run(config: PhaseConfig, making: Making, keeping: Keeping, ranks: Ranks, before: str) -> dict[str, Any]:
    """Train from the final checkpoint of `before`, publish; all that the first process knows of the result.

    Where there is an input `init`, that model of somebody else's stands in for `before`.
    """
    before = "init" if "init" in making.inputs else before
    with phase_run(config, making, keeping, ranks, before) as phase:
        mixture = config.mixture or {}
        if not mixture:
            raise Refused(f"{config.phase}: the mixture names nothing; known: identity, pydocs, other, and your own")
        files = {kind: [conversations_of(phase, kind)] for kind in mixture}
        conversations = Conversations(
            files, mixture, phase.tokenizer, config.sequence_len, config.seed, config.turns, OURS
        )
        trained = phase.train(phase.model_from(before), lambda step: conversations.batch(step, config.rows))
        return phase.publish(*trained, {}) if trained else {}


def conversations_of(phase: PhaseRun, kind: str) -> Path:
    """Where those of a kind are: ours, or an input of that name. Raises Refused when there is none."""
    if kind == "identity":
        return phase.input("identity") / "identity_conversations.jsonl"
    if kind in QUESTIONS:
        return phase.input("questions") / f"{kind}.train.jsonl"
    return phase.input(kind) / "conversations.jsonl"
