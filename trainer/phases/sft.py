"""The phase sft: further training on the conversations of mid, with a decaying learning rate."""

from typing import Any

from data.config import StepContext
from trainer.config import CheckpointOptions, PhaseConfig
from trainer.parallel.process_group import Ranks
from trainer.phases import conversations


def run(config: PhaseConfig, making: StepContext, keeping: CheckpointOptions, ranks: Ranks) -> dict[str, Any]:
    """Train on conversations and publish; see `conversations.run`."""
    return conversations.run(config, making, keeping, ranks)
