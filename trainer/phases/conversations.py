"""The training shared by mid and sft: conversations sampled from a mixture, starting from a trained model."""

import logging
from pathlib import Path
from typing import Any

from data.chat.conversation_counts import ConversationCounts
from data.chat.conversations import Conversations
from data.chat.packing import packed
from data.config import TASKS, StepContext
from data.events import emit
from trainer.config import CheckpointOptions, PhaseConfig
from trainer.errors import Refused
from trainer.objectives import Batch
from trainer.objectives.source import Source, StepSource
from trainer.parallel.process_group import Ranks
from trainer.records.phase_registry import KINDS
from trainer.run import PhaseRun, phase_run

log = logging.getLogger(__name__)

OURS = ("identity", "pydocs", "other", *TASKS)  # single question-answer pairs, which may be concatenated


def run(config: PhaseConfig, making: StepContext, keeping: CheckpointOptions, ranks: Ranks) -> dict[str, Any]:
    """Train from the previous phase's model and publish; return facts about the artifact, {} on other processes."""
    with phase_run(config, making, keeping, ranks) as phase:
        trained = phase.train(phase.initial_model(), rows_of(phase))
        return phase.publish(*trained, {}) if trained else {}


def rows_of(phase: PhaseRun) -> Source:
    """Return the batch source of the mixture, packed if configured. Raises Refused for an empty mixture."""
    conversations, config = open_mixture(phase), phase.config
    is_packed = config.is_packed(phase.machine.device.type)

    def batch(step: int) -> Batch:
        ids, targets = conversations.batch(step, config.rows)
        if is_packed:
            return packed(ids, targets, config.sequence_len, conversations.pad)
        return {"ids": ids, "targets": targets}

    return StepSource(batch, conversations.counts)


def open_mixture(phase: PhaseRun, align: int = 1) -> Conversations:
    """Return the conversations of the mixture and report their counts. Raises Refused for an empty mixture.

    align: token alignment of answers.
    """
    config, mixture = phase.config, phase.config.mixture or {}
    if not mixture:
        raise Refused(
            f"{config.phase}: the mixture is empty; known: identity, pydocs, other, and conversations of your own"
        )
    files = {kind: [conversations_of(phase, kind)] for kind in mixture}
    found = Conversations(files, mixture, phase.tokenizer, config.sequence_len, config.seed, config.turns, OURS, align)
    if phase.ranks.is_first:
        report_counts(config.phase, found.counts)
    return found


def report_counts(phase: str, found: ConversationCounts) -> None:
    """Report, before the first step, the conversations dropped or truncated by the row length."""
    words = f"{phase}: {found.words()}"
    if found.without_targets or found.cut_answers:
        words += f"; increase {phase}.sequence_len to keep more"
    log.info("%s", words)
    emit("note", text=words, **({} if found.is_complete else {"alarm": True}))


def conversations_of(phase: PhaseRun, kind: str) -> Path:
    """Return the conversation file for a built-in kind or a user input. Raises Refused for a missing input."""
    if kind == "identity":
        return phase.input("identity") / "identity_conversations.jsonl"
    if KINDS.get(kind) == "questions":
        return phase.input("questions") / f"{kind}.train.jsonl"
    if kind in TASKS:
        return phase.input(kind) / "demonstrations.jsonl"
    return phase.input(kind) / "conversations.jsonl"
