"""The code of packs in torch that computes with models of one feature, such as matrices of 1.58 bits.

ModelConfig.features  ->  ModelFeature.hooks  ->  of(config): the decoder and the reader of files ask each
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from store import packs
from trainer.records.model_config import ModelConfig


class StoredWeights:
    """The weights of a model in files whose names or numbers are not those of our decoder."""

    def tensors(self, file: Path, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the tensors of a file as our decoder has them. Raises Refused."""
        raise NotImplementedError

    def unused(self) -> list[str]:
        """Return the names of what belongs to none of the tensors that were asked for."""
        return []


class ModelHooks:
    """The differences of models with one feature; None = as in other models."""

    def matrix(self, config: ModelConfig, inputs: int, outputs: int) -> nn.Linear | None:
        """Return a matrix inside a block."""
        return None

    def align(self, config: ModelConfig) -> int:
        """Return the number of tokens at whose multiples an answer begins."""
        return 1

    def decoding(
        self, model: Any, prompts: Sequence[Sequence[int]], stop: Collection[int], max_new: int, temperature: float,
        top_k: int, generator: torch.Generator | None,
    ) -> Iterator[list[list[int]]] | None:  # fmt: skip
        """Yield the new final ids of each prompt after each forward pass of the `Decoder`; a stop is the last one."""
        return None

    def nats(self, model: Any, ids: Tensor, targets: Tensor) -> Tensor | None:
        """Return what each target costs under the `Decoder`, fp32 (B, T), 0 where it is -1; ids and targets (B, T)."""
        return None

    def stored(self, folder: Path, files: Sequence[Path]) -> StoredWeights | None:
        """Return the weights of a model folder. Raises Refused."""
        return None


def align(config: ModelConfig) -> int:
    """Return the number of tokens at whose multiples an answer of such a model begins."""
    return max((one.align(config) for one in of(config)), default=1)


def of(config: ModelConfig) -> list[ModelHooks]:
    """Return the code for each feature of a model."""
    return [packs.load(one.hooks)() for one in config.features]
