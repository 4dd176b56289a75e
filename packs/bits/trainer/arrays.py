"""Rounding of a matrix without torch, for the environment in which GGUF files are written."""

import numpy as np

from trainer.records.model_config import ModelConfig

LEAST = 1e-5  # the same as in packs.bits.trainer.ternary


def rounded(weight: np.ndarray, config: ModelConfig) -> np.ndarray:
    """Return the rounded matrix, as `packs.bits.trainer.ternary.rounded_weight` has it."""
    assert config.ternary is not None
    scale = np.abs(weight).mean(axis=1 if config.ternary.per_row else None, keepdims=True).clip(min=LEAST)
    return (weight / scale).round().clip(-1, 1) * scale
