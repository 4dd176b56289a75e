"""Rounding of matrices in NumPy, for the environment that writes GGUF files without torch."""

import numpy as np

from trainer.records.model_config import ModelConfig

LEAST = 1e-5  # equal to LEAST in packs.bits.trainer.ternary


def rounded(weight: np.ndarray, config: ModelConfig) -> np.ndarray:
    """Return the rounded matrix, as `packs.bits.trainer.ternary.rounded_weight` computes without Haar bands."""
    assert config.ternary is not None
    scale = np.abs(weight).mean(axis=1 if config.ternary.per_row else None, keepdims=True).clip(min=LEAST)
    return (weight / scale).round().clip(-1, 1) * scale
