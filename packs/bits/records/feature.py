"""Torch-free part of 1.58-bit models: shape checks, config entries, tensor names and stored layouts."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from data.errors import ConfigError
from packs.bits.records.bitnet_layouts import ROUNDED, is_stored_rounded, name_of, unpacked
from packs.bits.records.notes import notes
from store.artifacts.model_files import TensorHeader
from trainer.records.model_config import ModelConfig, ModelFeature


class TernaryFeature(ModelFeature):
    """The model feature `ternary`; see `ModelConfig.ternary`."""

    about = "has matrices of 1.58 bits"
    fields = ("ternary", "sub_norm")
    engine = "llama.cpp"
    gguf_type = "tq2_0"
    gguf_matrix = "packs.bits.trainer.arrays:rounded"
    hooks = "packs.bits.trainer.hooks:TernaryHooks"
    float8_problem = "matrices of 1.58 bits are multiplied in bfloat16 or float32 only"
    has_masters = True

    def check(self, config: ModelConfig) -> None:
        """Raise ConfigError for parts of the shape that cannot be combined with ternary matrices."""
        if config.attention_bias or not config.has_gate or config.embed_norm:
            raise ConfigError("a ternary model must have gated MLPs, and neither biases nor a norm after the embedding")
        if config.ternary and config.ternary.haar and (config.hidden_size % 2 or config.intermediate_size % 2):
            sides = f"hidden_size {config.hidden_size} and intermediate_size {config.intermediate_size}"
            raise ConfigError(f"ternary.haar pairs neighboring columns; {sides} must both be even")

    def copy_feature(self, config: ModelConfig, other: ModelConfig) -> ModelConfig:
        """Return `config` with the ternary settings of `other`."""
        return replace(config, ternary=other.ternary, sub_norm=config.sub_norm or other.sub_norm)

    def unsupported_parts(self, config: ModelConfig) -> tuple[str, ...]:
        parts = {"one ternary scale for each row": "per_row", "Haar bands": "haar"}
        return tuple(said for said, name in parts.items() if getattr(config.ternary, name))

    def config_json_entries(self, config: ModelConfig, is_ours: bool) -> Mapping[str, Any]:
        """Return the entries for config.json. Weight files hold masters, which readers round on load (`online`)."""
        return {"ternary": asdict(config.ternary)} if is_ours and config.ternary else {"quantization_config": ROUNDED}

    def gguf_problem(self, config: ModelConfig, kind: str) -> str:
        if config.ternary and config.ternary.haar and kind == self.gguf_type:
            return "llama.cpp does not support ternary weights in Haar bands"
        return ""

    def plan_notes(self, phases: Sequence[Any], init: Any) -> tuple[str, ...]:
        return notes(phases, init)

    def saved_values_per_token(self, config: ModelConfig) -> int:
        """Return the number of rounded matrix inputs per token that the backward pass keeps."""
        heads = config.num_attention_heads * config.head_dim
        return 3 * config.hidden_size + heads + (config.intermediate_size if config.sub_norm else 0)

    def has_coded_weights(self, raw: Mapping[str, Any]) -> bool:
        return is_stored_rounded(raw)

    def decoder_name(self, name: str) -> str:
        return name_of(name)

    def to_decoder_layout(self, header: Mapping[str, TensorHeader]) -> Mapping[str, TensorHeader]:
        return unpacked(header)
