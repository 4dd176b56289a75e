"""Torch-free part of models with windows, value embeddings, smear, scaled residuals and backout."""

from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

from data.errors import ConfigError
from trainer.records.fields import check_bounds
from trainer.records.model_config import ModelConfig, ModelFeature, Paths


def paths_of(config: ModelConfig) -> Paths:
    """Return the parts of a model that has this feature."""
    assert config.paths is not None, "only models with paths reach this pack"
    return config.paths


def has_values(config: ModelConfig, layer: int) -> bool:
    """Return True if a layer has value embeddings: every second layer, counted back from the last."""
    return paths_of(config).value_channels > 0 and layer % 2 == (config.num_hidden_layers - 1) % 2


def is_windowed(config: ModelConfig, layer: int) -> bool:
    """Return True if a layer reads a window of earlier tokens only."""
    windows = paths_of(config).windows
    return layer < config.num_hidden_layers - 1 and windows[layer % len(windows)] == "S"


class PathsFeature(ModelFeature):
    """The model feature `paths`; see `ModelConfig.paths`."""

    about = "has parts of nanochat's speedrun"
    engine = "torch"
    hooks = "packs.speedrun.trainer.hooks:PathsHooks"

    def check(self, config: ModelConfig) -> None:
        """Raise ConfigError for an unknown pattern of windows, for odd sizes, and beside other features."""
        paths = paths_of(config)
        if config.ternary is not None or config.blocks is not None:
            raise ConfigError("paths cannot be combined with ternary matrices or with decoding in blocks")
        if not paths.windows or set(paths.windows) - {"L", "S"}:
            raise ConfigError(f"paths.windows is {paths.windows!r}; expected the letters L and S, such as SSSL")
        if "S" in paths.windows and paths.window < 1:
            raise ConfigError(f"paths.windows is {paths.windows}, so paths.window must be at least 1 token")
        check_bounds(paths, "window value_channels smear_channels", 0)
        for name in ("value_channels", "smear_channels"):
            if getattr(paths, name) > config.hidden_size:
                raise ConfigError(
                    f"paths.{name} is {getattr(paths, name)}; a gate reads at most hidden_size {config.hidden_size} "
                    "channels"
                )
        if not self.unsupported_parts(config):
            raise ConfigError("paths has no part; set a part, or paths to null")

    def unsupported_parts(self, config: ModelConfig) -> tuple[str, ...]:
        paths = paths_of(config)
        parts = {
            "sliding windows": "S" in paths.windows,
            "value embeddings": paths.value_channels,
            "smear": paths.smear_channels,
            "scaled residuals": paths.scales,
            "backout": paths.backout,
        }
        return tuple(said for said, has in parts.items() if has)

    def config_json_entries(self, config: ModelConfig, is_ours: bool) -> Mapping[str, Any]:
        return {"paths": asdict(paths_of(config))}

    def added_shapes(self, config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
        paths, layers = paths_of(config), config.num_hidden_layers
        if paths.smear_channels:
            yield "model.smear_gate.weight", (1, paths.smear_channels)
            yield "model.smear_scale", (1,)
        if paths.scales:
            yield "model.residual_scales", (layers,)
            yield "model.embed_scales", (layers,)
        if paths.backout:
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
                    (config.num_key_value_heads, paths.value_channels),
                )

    def gguf_problem(self, config: ModelConfig, kind: str) -> str:
        return f"llama.cpp does not support {', '.join(self.unsupported_parts(config))}"

    def saved_values_per_token(self, config: ModelConfig) -> int:
        """Return the number of values per token that the backward pass keeps beside a block: inputs of products."""
        paths, values = paths_of(config), config.num_key_value_heads * config.head_dim
        return (config.hidden_size if paths.scales else 0) + (values if paths.value_channels else 0)
