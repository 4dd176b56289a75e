"""Shapes of models from a few numbers. Light to import."""

import math

from trainer.records.model_config import ModelConfig


def llama(vocab_size: int, width: int, layers: int, heads: int, inner: int) -> ModelConfig:
    """Return a Llama shape with tied embeddings, head dimension 64 and a key/value head per attention head."""
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=64,
    )


def qwen3(width: int, layers: int, heads: int, inner: int) -> ModelConfig:
    """Return the shape of the small Qwen3 models: tied embeddings, eight key/value heads, head dimension 128."""
    return ModelConfig(
        vocab_size=151_936,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        qk_norm=True,
    )


def dial_shape(depth: int) -> ModelConfig:
    """Return the shape of nanochat's dial at `depth`: width 64 per layer, head dimension 128."""
    width = 64 * depth
    heads = math.ceil(width / 128)
    return ModelConfig(
        vocab_size=65_536,
        hidden_size=width,
        intermediate_size=64 * round(8 * width / 3 / 64),
        num_hidden_layers=depth,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=128,
        qk_norm=True,
        tie_word_embeddings=False,
    )
