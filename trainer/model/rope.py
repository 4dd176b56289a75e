"""Rotary position embeddings (RoPE) with linear, llama3 and YaRN scaling.

`rotations` maps positions to cos and sin for attention. Sources: Su et al., arXiv 2104.09864 (RoPE); Peng et al., arXiv
2309.00071 (YaRN); Llama 3.1's published code (llama3); spelling and edge cases: `transformers.modeling_rope_utils`.
"""

import math

import torch
from torch import Tensor

from trainer.records.model_config import ModelConfig, RopeScaling


def rotations(index: Tensor, config: ModelConfig, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return cos and sin (B, 1, T, D) in `dtype` for positions `index` (B, T); angles are computed in fp32."""
    half = torch.arange(0, config.head_dim, 2, dtype=torch.float32, device=index.device)
    frequencies, magnitude = config.rope_theta ** (-half / config.head_dim), 1.0
    if config.rope_scaling is not None:
        frequencies, magnitude = scaled(frequencies, config, config.rope_scaling)
    angles = index[:, None, :, None].float() * frequencies  # (B, 1, T, D/2)
    angles = torch.cat((angles, angles), dim=-1)
    return (angles.cos() * magnitude).to(dtype), (angles.sin() * magnitude).to(dtype)


def scaled(frequencies: Tensor, config: ModelConfig, scaling: RopeScaling) -> tuple[Tensor, float]:
    """Return scaled frequencies (D/2,) and the factor for cos and sin."""
    slow = frequencies / scaling.factor
    if scaling.kind == "linear":
        return slow, 1.0
    before = scaling.original_max_position_embeddings
    if scaling.kind == "llama3":
        turns = before * frequencies / (2 * math.pi)  # rotations within the trained context
        low, high = scaling.low_freq_factor, scaling.high_freq_factor
        share = ((turns - low) / (high - low)).clamp(0, 1)
        return slow + share * (frequencies - slow), 1.0
    ends = [
        config.head_dim * math.log(before / (turn * 2 * math.pi)) / (2 * math.log(config.rope_theta))
        for turn in (scaling.beta_fast, scaling.beta_slow)
    ]
    first, last = (math.floor(ends[0]), math.ceil(ends[1])) if scaling.truncate else ends
    first, last = max(first, 0), min(last, config.head_dim - 1)
    if first == last:
        last += 0.001  # avoid division by zero: the ramp becomes a step
    share = ((torch.arange(len(frequencies), device=frequencies.device) - first) / (last - first)).clamp(0, 1)
    magnitude = scaling.attention_factor
    if magnitude is None:
        magnitude = 0.1 * math.log(scaling.factor) + 1 if scaling.factor > 1 else 1.0
    return frequencies + share * (slow - frequencies), magnitude
