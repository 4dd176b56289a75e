"""What mid and sft share: conversations drawn by the mixture, on top of the model of the phase before."""

from typing import Any

from data.chat import Conversations
from data.config import Making
from trainer.config import Keeping, PhaseConfig
from trainer.errors import Refused
from trainer.ranks import Ranks
from trainer.run import phase_run


def run(config: PhaseConfig, making: Making, keeping: Keeping, ranks: Ranks, before: str) -> dict[str, Any]:
    """Train from the final checkpoint of `before`, publish; all that the first process knows of the result.

    Where there is an input `init`, that model of somebody else's stands in for `before`.
    """
    before = "init" if "init" in making.inputs else before
    with phase_run(config, making, keeping, ranks, before) as phase:
        questions = phase.input("questions")
        files = {
            "identity": [phase.input("identity") / "identity_conversations.jsonl"],
            "pydocs": [questions / "pydocs.train.jsonl"],
            "other": [questions / "other.train.jsonl"],
        }
        mixture = config.mixture or {}
        if unknown := sorted(set(mixture) - set(files)) or not mixture:
            raise Refused(f"{config.phase}: the mixture names {unknown or 'nothing'}; known: {', '.join(files)}")
        chosen = {kind: files[kind] for kind in mixture}
        conversations = Conversations(chosen, mixture, phase.tokenizer, config.sequence_len, config.seed)
        trained = phase.train(phase.model_from(before), lambda step: conversations.batch(step, config.rows))
        return phase.publish(*trained, {}) if trained else {}
