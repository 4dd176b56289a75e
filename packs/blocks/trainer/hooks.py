"""Torch hooks of block-decoding models: decoding, and the likelihood of text."""

from collections.abc import Collection, Iterator, Sequence

import torch
from torch import Tensor

from packs.blocks.trainer.block_decoding import Decoding
from packs.blocks.trainer.block_likelihood import block_nats
from trainer.model.decoder import Decoder
from trainer.model.hooks import ModelHooks
from trainer.records.model_config import ModelConfig


class BlocksHooks(ModelHooks):
    """Hooks of the feature `blocks`; see `ModelConfig.blocks`."""

    def align(self, config: ModelConfig) -> int:
        return config.blocks.block_size if config.blocks else 1

    def decode(
        self,
        model: Decoder,
        prompts: Sequence[Sequence[int]],
        stop: Collection[int],
        max_new: int,
        temperature: float,
        top_k: int,
        generator: torch.Generator | None,
    ) -> Iterator[list[list[int]]]:
        return iter(Decoding(model, prompts, stop, max_new, temperature, top_k, generator))

    def nats(self, model: Decoder, ids: Tensor, targets: Tensor) -> Tensor:
        return block_nats(model, ids, targets)
