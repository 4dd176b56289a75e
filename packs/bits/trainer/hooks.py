"""Torch hooks of 1.58-bit models: ternary layers, and reading of external weight files."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from packs.bits.records.bitnet_layouts import SCALE, divides, name_of
from packs.bits.trainer.ternary import TernaryLinear, masters, unpack
from store.artifacts import model_files
from trainer.errors import Refused
from trainer.model.hooks import ModelHooks, StoredWeights
from trainer.records.model_config import ModelConfig


class TernaryHooks(ModelHooks):
    """Hooks of the feature `ternary`; see `ModelConfig.ternary`."""

    def make_linear(self, config: ModelConfig, inputs: int, outputs: int) -> nn.Linear | None:
        return TernaryLinear(inputs, outputs, config.ternary) if config.ternary else None

    def weight_reader(self, folder: Path, files: Sequence[Path]) -> StoredWeights:
        return StoredSymbols(folder, files)


class StoredSymbols(StoredWeights):
    """Weight files with master weights, or with symbols and a scale per matrix, under any known tensor names."""

    def __init__(self, folder: Path, files: Sequence[Path]) -> None:
        """Read the scale of each matrix from the files. Raises Refused for several scales of one matrix."""
        from safetensors import safe_open

        self.scales = dict[str, float]()
        is_divisor = divides(model_files.load(folder))
        for file in files:
            for name, stored in model_files.header(file).items():
                if not name.endswith(SCALE):
                    continue
                if math.prod(stored.shape) != 1:
                    raise Refused(
                        f"{file}: {name} has {math.prod(stored.shape)} numbers; only one scale per matrix is supported"
                    )
                with safe_open(file, "pt") as opened:
                    scale = opened.get_tensor(name).item()
                self.scales[name.removesuffix(SCALE)] = 1 / scale if is_divisor and scale else scale

    def convert(self, file: Path, found: Mapping[str, Tensor]) -> dict[str, Tensor]:
        made = {}
        for name, one in found.items():
            if name.endswith(SCALE):
                continue
            scale = self.scales.pop(name.removesuffix(".weight"), None)
            if scale is not None or one.dtype == torch.uint8:
                try:
                    one = masters(unpack(one) if one.dtype == torch.uint8 else one, scale or 0.0)
                except ValueError as error:
                    raise Refused(f"{file}: {name_of(name)} is no ternary matrix: {error}") from None
            made[name_of(name)] = one
        return made

    def unused(self) -> list[str]:
        return [f"{name}{SCALE}" for name in self.scales]
