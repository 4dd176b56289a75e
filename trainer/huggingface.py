"""What a Hugging Face `config.json` says, as our records, and back. Light to import: no torch here.

In: the content of a config.json. Out: a `ModelConfig`, or ConfigError where our decoder cannot be that model. Called by
`export`, and by plans that begin from a model of somebody else.
"""

from collections.abc import Mapping
from typing import Any

from data.config import ConfigError
from trainer.config import ModelConfig, RopeScaling

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
SHAPE = (
    "vocab_size",
    "hidden_size",
    "intermediate_size",
    "num_hidden_layers",
    "num_attention_heads",
    "num_key_value_heads",
    "max_position_embeddings",
    "rms_norm_eps",
    "tie_word_embeddings",
)
SOFTCAP = "final_logit_softcapping"  # Gemma's spelling; transformers' Llama and Qwen3 do not read it


def written(config: ModelConfig, dtype: str, bos: int | None, eos: list[int]) -> dict[str, Any]:
    """The content of config.json. The spelling of newer releases stands beside the classic one."""
    kind = "qwen3" if config.qk_norm else "llama"
    extra: dict[str, Any] = {"mlp_bias": False, "pretraining_tp": 1}
    if kind == "qwen3":
        layers = config.num_hidden_layers
        extra = {"use_sliding_window": False, "sliding_window": None, "max_window_layers": layers}
    if config.logit_softcap:
        extra[SOFTCAP] = config.logit_softcap
    scaling = _written_scaling(config.rope_scaling)
    return {
        **{name: getattr(config, name) for name in SHAPE},
        **extra,
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "rope_theta": config.rope_theta,
        "rope_scaling": scaling or None,
        "rope_parameters": {"rope_type": "default", **scaling, "rope_theta": config.rope_theta},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_cache": True,
        "torch_dtype": dtype,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": eos[0] if eos else None,
    }


def model_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Ours from the content of a config.json. Raises ConfigError when our decoder cannot be that model."""
    kind = raw.get("model_type")
    if kind not in ARCHITECTURES:
        raise ConfigError(f"model_type is {kind!r}; this decoder is {' or '.join(ARCHITECTURES)}")
    if missing := [name for name in SHAPE[:5] if name not in raw]:
        raise ConfigError(f"config.json lacks {', '.join(missing)}")
    if raw.get("attention_bias") or raw.get("mlp_bias") or raw.get("use_sliding_window"):
        raise ConfigError("biases and sliding windows are not supported")
    if raw.get("hidden_act", "silu") != "silu":
        raise ConfigError(f"hidden_act is {raw['hidden_act']!r}; this decoder has silu")
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    heads = raw["num_attention_heads"]
    for name, value in raw.items():
        if name in SHAPE[:7] and value is not None and (type(value) is not int or value < 1):
            raise ConfigError(f"{name} is {value!r}; it must be a whole number above 0")
    default_head = 128 if kind == "qwen3" else raw["hidden_size"] // heads
    positions = 32768 if kind == "qwen3" else 2048
    shape: dict[str, Any] = {"max_position_embeddings": positions, "num_key_value_heads": heads, "rms_norm_eps": 1e-6}
    shape["tie_word_embeddings"] = False
    shape |= {name: raw[name] for name in SHAPE if raw.get(name) is not None}
    return ModelConfig(
        **shape,
        head_dim=raw.get("head_dim") or default_head,
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or 10_000.0),
        rope_scaling=_scaling(rope, shape["max_position_embeddings"]),
        qk_norm=kind == "qwen3",
        logit_softcap=float(raw.get(SOFTCAP) or 0.0),
    )


def _scaling(rope: Mapping[str, Any], positions: int) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if kind == "default":
        return None
    if kind not in ("linear", "llama3", "yarn"):
        raise ConfigError(f"RoPE scaling {dict(rope)} is not supported; known: linear, llama3, yarn")
    if rope.get("mscale") or rope.get("mscale_all_dim") or rope.get("partial_rotary_factor", 1.0) != 1.0:
        raise ConfigError(f"RoPE scaling {dict(rope)}: mscale and partial rotation are not supported")
    if not isinstance(rope.get("factor"), (int, float)):
        raise ConfigError(f"RoPE scaling {dict(rope)} says no factor")
    names = ("low_freq_factor", "high_freq_factor", "beta_fast", "beta_slow", "attention_factor", "truncate")
    given = {name: rope[name] for name in names if rope.get(name) is not None}
    before = 0 if kind == "linear" else int(rope.get("original_max_position_embeddings") or positions)
    return RopeScaling(kind=kind, factor=float(rope["factor"]), original_max_position_embeddings=before, **given)


def _written_scaling(scaling: RopeScaling | None) -> dict[str, Any]:
    if scaling is None:
        return {}
    names: tuple[str, ...] = ()
    if scaling.kind != "linear":
        names = ("original_max_position_embeddings",)
    if scaling.kind == "llama3":
        names += ("low_freq_factor", "high_freq_factor")
    if scaling.kind == "yarn":
        names += ("beta_fast", "beta_slow", "truncate")
        names += ("attention_factor",) if scaling.attention_factor is not None else ()
    return {"rope_type": scaling.kind, "factor": scaling.factor, **{name: getattr(scaling, name) for name in names}}
