"""Torch hooks of packs for model features, such as 1.58-bit matrices.

`ModelConfig.features` -> `ModelFeature.hooks` -> `feature_hooks`; the decoder and the file reader call each hook.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from store import packs
from trainer.records.model_config import ModelConfig


class StoredWeights:
    """A reader for weight files with names or values different from the decoder's parameters."""

    def convert(self, file: Path, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Convert the tensors of a file to decoder parameters. Raises Refused."""
        raise NotImplementedError

    def unused(self) -> list[str]:
        """Return the names of stored tensors used by no converted parameter."""
        return []


class ModelHooks:
    """The overrides for models with one feature; None means the default behavior."""

    def make_linear(self, config: ModelConfig, inputs: int, outputs: int) -> nn.Linear | None:
        """Return the linear layer for a matrix inside a block, or None for the default."""
        return None

    def make_trunk(self, config: ModelConfig) -> nn.Module | None:
        """Return the embedding, blocks and final norm, a `trainer.model.decoder.Trunk`, or None for the default."""
        return None

    def initialize(self, model: Any, generator: torch.Generator) -> None:
        """Initialize the parameters of the feature, after the initialization of all parameters of the decoder."""

    def rates(self, model: Any, config: Any) -> Mapping[str, float]:
        """Return the learning rates of parameters of the feature, by name; AdamW updates the other ones at `config.lr`.

        config: `trainer.config.OptimizerConfig`.
        """
        return {}

    def cached_layers(self, config: ModelConfig) -> int:
        """Return the number of layers that a KV cache holds in addition to the layers of the model."""
        return 0

    def align(self, config: ModelConfig) -> int:
        """Return the token alignment of answers: an answer begins at a multiple of this number."""
        return 1

    def decode(
        self,
        model: Any,
        prompts: Sequence[Sequence[int]],
        stop: Collection[int],
        max_new: int,
        temperature: float,
        top_k: int,
        generator: torch.Generator | None,
    ) -> Iterator[list[list[int]]] | None:
        """Yield the new final ids per prompt after each forward pass, the stop id last, or None for the default."""
        return None

    def nats(self, model: Any, ids: Tensor, targets: Tensor) -> Tensor | None:
        """Return the nats of each target, fp32 (B, T), 0 for targets of -1, or None for the default.

        ids, targets: (B, T).
        """
        return None

    def weight_reader(self, folder: Path, files: Sequence[Path]) -> StoredWeights | None:
        """Return the weight reader for a model folder, or None for the default. Raises Refused."""
        return None


def align(config: ModelConfig) -> int:
    """Return the token alignment of answers for a model: the maximum over features, at least 1."""
    return max((one.align(config) for one in feature_hooks(config)), default=1)


def feature_hooks(config: ModelConfig) -> list[ModelHooks]:
    """Return the hooks of each feature of a model."""
    return [packs.load(one.hooks)() for one in config.features]
