"""Part of the GPU benchmark: training steps of block diffusion, which takes longest of all parts to compile."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from bench.gpu.setup import Bench, talk_of
from packs.blocks.records.dlm_config import DlmConfig
from packs.blocks.trainer.objective import BlockDiffusion, with_masks
from trainer.objectives import Batch


def measured(bench: Bench) -> Iterator[tuple[str, Mapping[str, Any], str]]:
    config = bench.phase("dlm", turns=1)
    assert isinstance(config, DlmConfig) and config.blocks is not None
    blocks = replace(config.blocks, mask_id=1)
    config = replace(config, rows=config.micro_rows * 2)
    make = talk_of(config, is_packed=False)

    def batch(step: int) -> Batch:
        one = make(step)
        short = -one["ids"].shape[1] % blocks.block_size
        ids, targets = (
            np.pad(one[name], ((0, 0), (0, short)), constant_values=fill)
            for name, fill in (("ids", 0), ("targets", -1))
        )
        return with_masks(ids, targets, blocks.block_size, np.random.default_rng([5, step]))

    yield "dlm", bench.trained(config, batch, 4, BlockDiffusion(blocks)), ""
