"""The phase dlm: train a left-to-right chat model to answer in blocks, on the same conversations."""

from typing import Any

import numpy as np

from data.config import StepContext
from packs.blocks.records.dlm_config import DlmConfig
from packs.blocks.trainer.mask_token import fill_smaller
from packs.blocks.trainer.objective import BlockDiffusion, with_masks
from trainer.config import CheckpointOptions
from trainer.model import export
from trainer.model.decoder import Decoder
from trainer.objectives import Batch
from trainer.objectives.source import StepSource
from trainer.parallel.process_group import Ranks
from trainer.phases.conversations import open_mixture
from trainer.run import phase_run

MASKS = 1  # seed word of mask draws, added to seed and step so that no other draw shares the stream


def run(config: DlmConfig, making: StepContext, keeping: CheckpointOptions, ranks: Ranks) -> dict[str, Any]:
    """Train from the model of the preceding phase and publish; return the result record of the first process."""
    with phase_run(config, making, keeping, ranks) as phase:
        blocks = phase.config.model.blocks
        assert blocks is not None, "a configuration of dlm has them"
        conversations = open_mixture(phase, align=blocks.block_size)

        def batch(step: int) -> Batch:
            chance = np.random.default_rng([config.seed, step, MASKS])
            return with_masks(*conversations.batch(step, config.rows), blocks.block_size, chance)

        rows = export.read_config(export.folder_of_model(phase.input(phase.before))).vocab_size

        def fill(model: Decoder) -> None:
            fill_smaller(model, rows, lambda smaller: phase.load_weights(smaller, phase.before))

        trained = phase.train(
            phase.initial_model(fill), StepSource(batch, conversations.counts), BlockDiffusion(blocks)
        )
        return phase.publish(*trained, {"block_size": blocks.block_size}) if trained else {}
