"""The code of packs in torch that computes with models of one feature, such as matrices of 1.58 bits.

ModelConfig.features  ->  ModelFeature.hooks  ->  of(config): the decoder and the reader of files ask each
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

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

    def stored(self, folder: Path, files: Sequence[Path]) -> StoredWeights | None:
        """Return the weights of a model folder. Raises Refused."""
        return None


def of(config: ModelConfig) -> list[ModelHooks]:
    """Return the code for each feature of a model."""
    return [packs.load(one.hooks)() for one in config.features]
