"""Conversion between a Hugging Face `config.json` and `ModelConfig`. No torch import.

`model_config` parses the content of a config.json and raises ConfigError for models the decoder does not support;
`config_json` produces the content. A pack may know a dialect: its function returns the config in the project's
spelling.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import asdict
from itertools import islice
from typing import Any

from data.config import ConfigError, load
from store import packs
from store.artifacts.model_files import TensorHeader
from store.untrusted_input import printable_line
from trainer.records.model_config import BlocksConfig, ModelConfig, NanochatParts, RopeScaling, Ternary

ARCHITECTURES = {
    "llama": "LlamaForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
    "bitnet": "BitNetForCausalLM",
}
OURS, OUR_ARCHITECTURE = "slipway", "SlipwayForCausalLM"  # shapes unknown to transformers
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
IN_BLOCKS = "block_diffusion"  # model_type of block-diffusion models; left-to-right loaders must refuse them
SOFTCAP = "final_logit_softcapping"  # Gemma's key; Llama and Qwen3 in transformers ignore the key
MOST = {  # limits well above any real decoder: an untrusted config must not cause huge allocations
    "vocab_size": 1 << 24,
    "hidden_size": 1 << 18,
    "intermediate_size": 1 << 20,
    "num_hidden_layers": 1 << 12,
    "num_attention_heads": 1 << 12,
    "num_key_value_heads": 1 << 12,
    "max_position_embeddings": 1 << 30,
    "original_max_position_embeddings": 1 << 30,
    "head_dim": 1 << 12,
}
COMMON: dict[str, Any] = {
    **dict.fromkeys(SHAPE[:5]),  # these five are required
    **{"max_position_embeddings": 2048, "rms_norm_eps": 1e-6, "tie_word_embeddings": False, "rope_theta": 10_000.0},
}
UNSAID: dict[str, dict[str, Any]] = {
    "qwen2": {"max_position_embeddings": 32768, "num_key_value_heads": 32},
    "qwen3": {"max_position_embeddings": 32768, "num_key_value_heads": 32},
    "bitnet": {"num_key_value_heads": 5, "rms_norm_eps": 1e-5, "rope_theta": 500_000.0},
}
"""Defaults of `transformers` by model_type, overriding COMMON."""
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
RANGES = {  # exclusive minimum, inclusive maximum
    "rms_norm_eps": (0.0, 1.0),
    "rope_theta": (0.0, 1e12),
    SOFTCAP: (0.0, 1e6),
    **dict.fromkeys(("factor", "low_freq_factor", "high_freq_factor", "attention_factor"), (0.0, 1e6)),
    **dict.fromkeys(("beta_fast", "beta_slow"), (0.0, 1e6)),
}
DIALECTS = "model_layouts"


def kind_of(config: ModelConfig) -> str:
    """Return the model_type in `transformers` for a shape, or OURS for an unsupported shape.

    `bitnet` in transformers has norms before two matrices (o_proj and down_proj), no norms on queries and keys, and a
    total head width equal to the model width.
    """
    if any(one.unsupported_parts(config) for one in config.features):
        return OURS
    is_plain = config.mlp == "swiglu" or config.mlp == "gated_relu2" and config.sub_norm
    if not is_plain or config.embed_norm or config.attention_bias and (config.qk_norm or config.sub_norm):
        return OURS
    if config.sub_norm:
        is_square = config.num_attention_heads * config.head_dim == config.hidden_size
        return "bitnet" if is_square and not config.qk_norm else OURS
    return "qwen3" if config.qk_norm else "qwen2" if config.attention_bias else "llama"


def config_json(config: ModelConfig, dtype: str, bos: int | None, eos: list[int]) -> dict[str, Any]:
    """Return the content of config.json, with the RoPE keys of both old and new transformers releases."""
    kind = kind_of(config)
    extra: dict[str, Any] = {} if kind in ("bitnet", OURS) else {"mlp_bias": False, "pretraining_tp": 1}
    if kind in ("qwen2", "qwen3"):
        layers = config.num_hidden_layers
        extra = {"use_sliding_window": False, "sliding_window": None, "max_window_layers": layers}
    if config.logit_softcap:
        extra[SOFTCAP] = config.logit_softcap
    if kind == OURS:
        extra |= {"qk_norm": config.qk_norm, "sub_norm": config.sub_norm}
        extra |= {"mlp": config.mlp, "embed_norm": config.embed_norm}
        extra["ternary"] = None
    for one in config.features:
        extra |= one.config_json_entries(config, kind == OURS)
    scaling = _written_scaling(config.rope_scaling)
    named = {"architectures": [ARCHITECTURES.get(kind, OUR_ARCHITECTURE)], "model_type": kind}
    if config.blocks is not None:
        named = {"architectures": ["BlockDiffusionForCausalLM"], "model_type": IN_BLOCKS}
        extra[IN_BLOCKS] = {"shape": kind, **asdict(config.blocks)}
    return {
        **{name: getattr(config, name) for name in SHAPE},
        **extra,
        **named,
        "head_dim": config.head_dim,
        "hidden_act": "relu2" if kind == "bitnet" and config.mlp == "gated_relu2" else "silu",
        "initializer_range": 0.02,
        "rope_theta": config.rope_theta,
        "rope_scaling": scaling or None,
        "rope_parameters": {"rope_type": "default", **scaling, "rope_theta": config.rope_theta},
        "attention_bias": config.attention_bias,
        "attention_dropout": 0.0,
        "use_cache": True,
        "torch_dtype": dtype,
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": eos[0] if eos else None,
    }


def model_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Parse the content of a config.json. Raises ConfigError for a model the decoder does not support."""
    raw = normalize_config(raw)
    kind, blocks = raw.get("model_type"), None
    if kind == IN_BLOCKS:
        said = raw.get(IN_BLOCKS)
        if not isinstance(said, Mapping):
            raise ConfigError(f"{IN_BLOCKS} is {printable_line(said)}; it must be an object")
        kind = said.get("shape")
        blocks = load(BlocksConfig, {name: one for name, one in said.items() if name != "shape"}, IN_BLOCKS)
    if type(kind) is not str or kind not in (*ARCHITECTURES, OURS):
        raise ConfigError(f"model_type is {printable_line(kind)}; this decoder is {' or '.join(ARCHITECTURES)}")
    if missing := [name for name in SHAPE[:5] if raw.get(name) is None]:
        raise ConfigError(f"config.json lacks {', '.join(missing)}")
    _refuse_odd(raw)
    rope = _rope(raw)
    has_bias = kind == "qwen2" or kind == OURS and raw.get("attention_bias") is True
    if raw.get("mlp_bias") or raw.get("attention_bias") and not has_bias:
        raise ConfigError("biases are supported only on the queries, keys and values of qwen2")
    if raw.get("use_sliding_window"):
        raise ConfigError("sliding windows are not supported")
    layers = raw.get("layer_types") or []
    if odd := [one for one in layers if one != "full_attention"] if isinstance(layers, list) else [layers]:
        raise ConfigError(f"layer_types has {printable_line(odd[0])}; supported: full_attention")
    if raw.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise ConfigError(f"partial_rotary_factor is {printable_line(raw['partial_rotary_factor'])}; supported: 1")
    act = raw.get("hidden_act", "relu2" if kind == "bitnet" else "silu")
    if act != "silu" and (act, kind) != ("relu2", "bitnet"):
        raise ConfigError(f"hidden_act is {printable_line(act)}; supported: silu, and relu2 for bitnet")
    heads = raw["num_attention_heads"]
    default_head = 128 if kind == "qwen3" else raw["hidden_size"] // heads
    unsaid = {"num_key_value_heads": heads, **COMMON, **UNSAID.get(kind, {})}
    if "num_key_value_heads" in raw:  # null means one per head
        unsaid["num_key_value_heads"] = heads
    shape: dict[str, Any] = {name: unsaid[name] if raw.get(name) is None else raw[name] for name in SHAPE}
    return ModelConfig(
        **shape,
        head_dim=raw.get("head_dim") or default_head,
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta") or unsaid["rope_theta"]),
        rope_scaling=_scaling(rope, shape["max_position_embeddings"]),
        qk_norm=kind == "qwen3" or kind == OURS and raw.get("qk_norm") is True,
        sub_norm=kind == "bitnet" or kind == OURS and raw.get("sub_norm") is True,
        ternary=_ternary(raw),
        nanochat=_nanochat_parts(raw) if kind == OURS else None,
        logit_softcap=float(raw.get(SOFTCAP) or 0.0),
        blocks=blocks,
        attention_bias=has_bias,
        **_ours(raw) if kind == OURS else {"mlp": "swiglu" if act == "silu" else "gated_relu2"},
    )


def _ours(raw: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields specific to model_type OURS. Raises ConfigError."""
    mlp, embed_norm = raw.get("mlp", "swiglu"), raw.get("embed_norm", False)
    if type(mlp) is not str or type(embed_norm) is not bool:
        raise ConfigError(
            f"mlp is {printable_line(mlp)}, embed_norm is {printable_line(embed_norm)}; mlp must be a text, and "
            "embed_norm true or false"
        )
    return {"mlp": mlp, "embed_norm": embed_norm}


def _rope(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the RoPE settings of a config. Raises ConfigError when the two spellings contradict each other.

    Old transformers releases write `rope_scaling`, new releases `rope_parameters`.
    """
    found: list[Mapping[str, Any]] = []
    for name in ("rope_parameters", "rope_scaling"):
        if one := raw.get(name):
            if not isinstance(one, Mapping):
                raise ConfigError(f"RoPE scaling is {printable_line(one)}; it must be an object")
            if any(isinstance(value, Mapping) for value in one.values()):
                raise ConfigError(
                    f"{name} is {printable_line(dict(one))}; different positions per kind of layer are not supported"
                )
            _refuse_odd(one)
            found.append(one)
    positions = raw.get("max_position_embeddings") or 2048
    if len(found) > 1 and _scaling(found[0], positions) != _scaling(found[1], positions):
        raise ConfigError(
            f"rope_parameters is {printable_line(dict(found[0]))} and rope_scaling {printable_line(dict(found[1]))}; "
            "both must be equal, because other programs read only one. Remove the wrong entry from config.json"
        )
    thetas = {float(one["rope_theta"]) for one in (raw, *found) if one.get("rope_theta") is not None}
    if len(thetas) > 1:
        raise ConfigError(
            f"rope_theta is {' and '.join(f'{one:g}' for one in sorted(thetas))}; only a single value is allowed"
        )
    return found[0] if found else {}


def _ternary(raw: Mapping[str, Any]) -> Ternary | None:
    """Parse the `ternary` entry of a config. Raises ConfigError for an invalid entry or `quantization_config`."""
    if (said := raw.get("quantization_config")) is not None:
        kinds = ", ".join(packs.words(DIALECTS))
        raise ConfigError(f"quantization_config is {printable_line(said)}; supported quantised models: {kinds}")
    how = raw.get("ternary")
    if how is None:
        return None
    is_known = isinstance(how, Mapping) and not set(how) - {"per_row", "haar"}
    if not is_known or any(type(one) is not bool for one in how.values()):
        raise ConfigError(f"ternary is {printable_line(how)}; it must be null or an object with per_row and haar")
    return Ternary(**how)


def _nanochat_parts(raw: Mapping[str, Any]) -> NanochatParts | None:
    """Parse the `nanochat` entry of a config. Raises ConfigError for an invalid entry."""
    said = raw.get("nanochat")
    if said is None:
        return None
    if not isinstance(said, Mapping):
        raise ConfigError(f"nanochat is {printable_line(said)}; it must be null or an object")
    return load(NanochatParts, said, "nanochat")


def _refuse_odd(said: Mapping[str, Any]) -> None:
    """Raise ConfigError for a value with a wrong type or outside MOST and RANGES; ignore null values."""
    for name, value in said.items():
        if value is None or (name == SOFTCAP and value == 0):
            continue
        if name in MOST and not (type(value) is int and 1 <= value <= MOST[name]):
            raise ConfigError(f"{name} is {printable_line(value)}; it must be a whole number from 1 to {MOST[name]}")
        if name in RANGES:
            least, most = RANGES[name]
            if type(value) not in (int, float) or not least < value <= most:
                raise ConfigError(
                    f"{name} is {printable_line(value)}; it must be a number above {least:g}, at most {most:g}"
                )
        if name in ("tie_word_embeddings", "truncate") and type(value) is not bool:
            raise ConfigError(f"{name} is {printable_line(value)}; it must be true or false")


def shapes(config: ModelConfig) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield the name and shape of every parameter in the files of a model."""
    d, f, hd = config.hidden_size, config.intermediate_size, config.head_dim
    q, kv = config.num_attention_heads * hd, config.num_key_value_heads * hd
    yield "model.embed_tokens.weight", (config.vocab_size, d)
    if not config.tie_word_embeddings:
        yield "lm_head.weight", (config.vocab_size, d)
    yield "model.norm.weight", (d,)
    if config.embed_norm:
        yield "model.embed_norm.weight", (d,)
    for layer in range(config.num_hidden_layers):
        at = f"model.layers.{layer}"
        yield f"{at}.input_layernorm.weight", (d,)
        yield f"{at}.post_attention_layernorm.weight", (d,)
        for name, shape in (("q", (q, d)), ("k", (kv, d)), ("v", (kv, d)), ("o", (d, q))):
            yield f"{at}.self_attn.{name}_proj.weight", shape
            if config.attention_bias and name != "o":
                yield f"{at}.self_attn.{name}_proj.bias", shape[:1]
        if config.qk_norm:
            yield f"{at}.self_attn.q_norm.weight", (hd,)
            yield f"{at}.self_attn.k_norm.weight", (hd,)
        if config.sub_norm:
            yield f"{at}.self_attn.attn_sub_norm.weight", (q,)
            yield f"{at}.mlp.ffn_sub_norm.weight", (f,)
        for name, shape in (("gate", (f, d)), ("up", (f, d)), ("down", (d, f)))[not config.has_gate :]:
            yield f"{at}.mlp.{name}_proj.weight", shape
    for feature in config.features:
        yield from feature.added_shapes(config)


def differences(config: ModelConfig, headers: Iterable[Mapping[str, TensorHeader]]) -> list[str]:
    """Compare file headers with a config; return differences as text, [] for a match. Reads no tensors."""
    for feature in config.features:
        headers = map(feature.to_decoder_layout, headers)
    names = [(name, one.shape) for header in headers for name, one in header.items()]
    found = dict(names)
    twice = [
        f"{name} is stored in two files" for name, count in Counter(name for name, _ in names).items() if count > 1
    ]
    if only_head(config, found):
        found[EMBEDDING] = found.pop(HEAD)
    stored = {name: shape for name, shape in found.items() if not is_spare(name, config)}
    # Bound the number of expected names: an untrusted config may claim any number of layers.
    wanted = dict(islice(shapes(config), len(stored) + 100))
    odd = twice + [f"{name} is unknown" for name in stored if name not in wanted]
    odd += [f"{name} is missing" for name in wanted if name not in stored]
    both = ((name, stored[name], shape) for name, shape in wanted.items() if name in stored)
    return odd + [f"{name} is {there} instead of {shape}" for name, there, shape in both if there != shape]


def only_head(config: ModelConfig, names: Collection[str]) -> bool:
    """Return whether tied weights are stored only under the name of the head, as some safetensors writers do."""
    return config.tie_word_embeddings and HEAD in names and EMBEDDING not in names


def is_spare(name: str, config: ModelConfig) -> bool:
    """Return whether a tensor is redundant: a copy of a tied embedding, or values derived from config.json."""
    return (name == "lm_head.weight" and config.tie_word_embeddings) or name.endswith("rotary_emb.inv_freq")


def _scaling(rope: Mapping[str, Any], positions: int) -> RopeScaling | None:
    kind = rope.get("rope_type", rope.get("type", "default"))
    if rope.get("partial_rotary_factor") not in (None, 1, 1.0):
        raise ConfigError(f"RoPE scaling {printable_line(dict(rope))}: partial rotation is not supported")
    if kind == "default":
        return None
    if kind not in ("linear", "llama3", "yarn"):
        raise ConfigError(f"RoPE scaling {printable_line(dict(rope))} is not supported; known: linear, llama3, yarn")
    if rope.get("mscale") or rope.get("mscale_all_dim"):
        raise ConfigError(f"RoPE scaling {printable_line(dict(rope))}: mscale is not supported")
    if rope.get("factor") is None:
        raise ConfigError(f"RoPE scaling {printable_line(dict(rope))} lacks a factor")
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


def words_of_dialect(raw: Mapping[str, Any]) -> list[str]:
    """Return the words by which a pack may recognize a config.json: architecture classes and quantization method."""
    said, classes = raw.get("quantization_config"), raw.get("architectures")
    found = [said.get("quant_method")] if isinstance(said, Mapping) else []
    return [one for one in [*(classes if isinstance(classes, list) else []), *found] if isinstance(one, str)]


def normalize_config(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config.json in the project's spelling, unchanged if no pack knows the dialect.

    Raises ConfigError if a pack knows but cannot read the config, or with the name of a missing pack.
    """
    known = packs.entries(DIALECTS)
    for word in words_of_dialect(raw):
        if said := packs.missing_pack_message(DIALECTS, word):
            raise ConfigError(said)
        if word in known:
            found: Mapping[str, Any] = packs.load(known[word])(raw)
            return found
    return raw
