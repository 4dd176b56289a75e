"""The phase mid: first training on conversations, about the persona and the contents of the documents."""

from typing import Any

from data.config import StepContext
from trainer.config import CheckpointOptions, PhaseConfig
from trainer.parallel.process_group import Ranks
from trainer.phases import conversations


def run(config: PhaseConfig, making: StepContext, keeping: CheckpointOptions, ranks: Ranks) -> dict[str, Any]:
    """Train on conversations and publish; see `conversations.run`."""
    return conversations.run(config, making, keeping, ranks)
