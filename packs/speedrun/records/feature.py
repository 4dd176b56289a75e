"""Torch-free part of models with windows, value embeddings, smear, scaled residuals and backout."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from data.errors import ConfigError
from trainer.records.fields import check_bounds
from trainer.records.model_config import ModelConfig, ModelFeature, NanochatParts


def parts_of(config: ModelConfig) -> NanochatParts:
    """Return the parts of a model that has this feature."""
    assert config.nanochat is not None, "only models with nanochat parts reach this pack"
    return config.nanochat


def has_values(config: ModelConfig, layer: int) -> bool:
    """Return True if a layer has value embeddings: every second layer, counted back from the last."""
    return parts_of(config).value_channels > 0 and layer % 2 == (config.num_hidden_layers - 1) % 2


def is_windowed(config: ModelConfig, layer: int) -> bool:
    """Return True if a layer reads a window of earlier tokens only."""
    windows = parts_of(config).windows
    return layer < config.num_hidden_layers - 1 and windows[layer % len(windows)] == "S"


def window_of(config: ModelConfig, layer: int) -> int:
    """Return the number of earlier tokens that a layer reads: layers `L` read as many as the model has positions."""
    return parts_of(config).window if is_windowed(config, layer) else config.max_position_embeddings


class NanochatFeature(ModelFeature):
    """The model feature `nanochat`; see `ModelConfig.nanochat`."""

    about = "has parts of nanochat's speedrun"
    engine = "torch"
    hooks = "packs.speedrun.trainer.hooks:NanochatHooks"

    def check(self, config: ModelConfig) -> None:
        """Raise ConfigError for an unknown pattern of windows, for odd sizes, and beside other features."""
        parts = parts_of(config)
        if config.ternary is not None or config.blocks is not None:
            raise ConfigError("nanochat cannot be combined with ternary matrices or with decoding in blocks")
        if not parts.windows or set(parts.windows) - {"L", "S"}:
            raise ConfigError(f"nanochat.windows is {parts.windows!r}; expected the letters L and S, such as SSSL")
        if "S" in parts.windows and parts.window < 1:
            raise ConfigError(f"nanochat.windows is {parts.windows}, so nanochat.window must be at least 1 token")
        check_bounds(parts, "window value_channels smear_channels", 0)
        for name in ("value_channels", "smear_channels"):
            if getattr(parts, name) > config.hidden_size:
                raise ConfigError(
                    f"nanochat.{name} is {getattr(parts, name)}; a gate reads at most hidden_size {config.hidden_size} "
                    "channels"
                )
        if not self.unsupported_parts(config):
            raise ConfigError("nanochat has no part; set a part, or nanochat to null")

    def unsupported_parts(self, config: ModelConfig) -> tuple[str, ...]:
        parts = parts_of(config)
        found = {
            "sliding windows": "S" in parts.windows,
            "value embeddings": parts.value_channels,
            "smear": parts.smear_channels,
            "scaled residuals": parts.scales,
            "backout": parts.backout,
        }
        return tuple(said for said, has in found.items() if has)

    def config_json_entries(self, config: ModelConfig, is_ours: bool) -> Mapping[str, Any]:
        return {"nanochat": asdict(parts_of(config))}

    def added_shapes(self, config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
        parts, layers = parts_of(config), config.num_hidden_layers
        if parts.smear_channels:
            yield "model.smear_gate.weight", (1, parts.smear_channels)
            yield "model.smear_scale", (1,)
        if parts.scales:
            yield "model.residual_scales", (layers,)
            yield "model.embed_scales", (layers,)
        if parts.backout:
            yield "model.backout_scale", (1,)
        for layer in range(layers):
            if has_values(config, layer):
                yield (
                    f"model.value_embeds.{layer}.weight",
                    (
                        config.vocab_size,
                        config.num_key_value_heads * config.head_dim,
                    ),
                )
                yield (
                    f"model.layers.{layer}.self_attn.value_gate.weight",
                    (config.num_key_value_heads, parts.value_channels),
                )

    def gguf_problem(self, config: ModelConfig, kind: str) -> str:
        return f"llama.cpp does not support {', '.join(self.unsupported_parts(config))}"

    def attended(self, config: ModelConfig, layer: int, length: int) -> int:
        return min(window_of(config, layer), length)

    def saved_values_per_token(self, config: ModelConfig) -> int:
        """Return the number of values per token that the backward pass keeps beside a block: inputs of products."""
        parts, values = parts_of(config), config.num_key_value_heads * config.head_dim
        return (config.hidden_size if parts.scales else 0) + (values if parts.value_channels else 0)
