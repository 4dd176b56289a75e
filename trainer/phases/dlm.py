"""dlm: a model that answers from left to right learns to answer in blocks, on the same conversations."""

from typing import Any

import numpy as np

from data.config import Making
from trainer.config import Keeping, PhaseConfig
from trainer.objectives import Batch
from trainer.objectives.blocks import BlockDiffusion, with_masks
from trainer.objectives.source import Made
from trainer.parallel.process_group import Ranks
from trainer.phases.conversations import talk_of
from trainer.run import phase_run

MASKS = 1  # beside the seed and the step, so that masks are no numbers that something else has drawn


def run(config: PhaseConfig, making: Making, keeping: Keeping, ranks: Ranks) -> dict[str, Any]:
    """Train from the model of the phase before, publish; all that the first process knows of the result."""
    with phase_run(config, making, keeping, ranks) as phase:
        blocks = phase.config.model.blocks
        assert blocks is not None, "a configuration of dlm has them"
        conversations = talk_of(phase, align=blocks.block_size)

        def batch(step: int) -> Batch:
            chance = np.random.default_rng([config.seed, step, MASKS])
            return with_masks(*conversations.batch(step, config.rows), blocks.block_size, chance)

        trained = phase.train(phase.first_model(), Made(batch, conversations.counts), BlockDiffusion(blocks))
        return phase.publish(*trained, {"block_size": blocks.block_size}) if trained else {}
