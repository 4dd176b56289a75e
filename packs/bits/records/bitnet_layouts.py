"""Published models of 1.58 bits in the spelling of our decoder. Light to import: no torch here.

In: a config.json and the headers of weight files, as somebody else wrote them. Out: the same as `transformers` spells
its `bitnet` with masters; `packed.masters` makes those of stored symbols.

- 1bitLLM (`bitnet_b1_58-large` and its like): `llama` by model_type, code of their own beside the weights (class
  BitnetForCausalLM). Masters, SwiGLU, norms of other names in front of `o_proj` and `down_proj`.
- Microsoft (BitNet b1.58 2B4T): `bitnet` of transformers, with relu(x)**2 for silu. Its usual repository holds symbols,
  four rows to a byte, beside one scale for each matrix; the one named bf16 holds masters.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from data.errors import ConfigError
from store.artifacts.model_files import Stored
from store.outside import shown

PER_BYTE = 4  # rows of a matrix that share a byte
SCALE = ".weight_scale"
ALIASES = {"inner_attn_ln": "attn_sub_norm", "ffn_layernorm": "ffn_sub_norm"}  # of 1bitLLM
ONE_BIT_LLM = "BitnetForCausalLM"  # transformers' own class is BitNetForCausalLM
ROUNDED = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}
UNSAID = {"linear_class": "bitlinear", "quantization_mode": "offline"}  # where a config says none
KINDS = (("autobitlinear", "online"), ("autobitlinear", "offline"), ("bitlinear", "offline"))
BITS = {"weight_bits": 1, "input_bits": 8}


def spelt(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config.json of a ternary model in our spelling. Raises ConfigError for a way of rounding not ours."""
    raw = _of_bitnet(raw)
    said = raw.get("quantization_config")
    if said is None:
        return raw
    refuse_rounding(said)
    rest = {name: one for name, one in raw.items() if name != "quantization_config"}
    return {**rest, "ternary": raw.get("ternary", {})}


def _of_bitnet(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a config.json of 1bitLLM as one of `bitnet`, any other as it is. Raises ConfigError for other bits."""
    architectures = raw.get("architectures")
    if raw.get("model_type") != "llama" or not isinstance(architectures, list) or ONE_BIT_LLM not in architectures:
        return raw
    for name, known in BITS.items():
        if (value := raw.get(name, known)) != known:
            raise ConfigError(f"{name} is {shown(value)}; this decoder has {known}")
    # What a Llama's config leaves out has other values than a BitNet's.
    unsaid = {"hidden_act": "silu", "rope_theta": 10_000.0, "rms_norm_eps": 1e-6, "num_key_value_heads": None}
    return {**unsaid, **raw, "model_type": "bitnet", "quantization_config": ROUNDED}


def name_of(name: str) -> str:
    """Return the name of a tensor in our decoder."""
    parts = name.split(".")
    return ".".join(ALIASES.get(part, part) for part in parts)


def refuse_rounding(said: Any) -> None:
    """Raise ConfigError for a `quantization_config` other than those of ternary models."""
    how = {**UNSAID, **said} if isinstance(said, Mapping) else {}
    kind = (how.get("linear_class"), how.get("quantization_mode"))
    if how.get("quant_method") != "bitnet" or kind not in KINDS:
        raise ConfigError(
            f"quantization_config is {shown(said)}; of quantised models only ternary ones can be read: quant_method "
            f"bitnet, linear_class and quantization_mode {', '.join(' '.join(one) for one in KINDS)}"
        )
    if how.get("use_rms_norm"):
        raise ConfigError("quantization_config: norms in front of every matrix (use_rms_norm) are not supported")
    kept = how.get("modules_to_not_convert")
    if kept is not None and kept not in ([], ["lm_head"]):
        raise ConfigError(f"quantization_config: modules_to_not_convert is {shown(kept)}; only lm_head may stay")


def divides(raw: Mapping[str, Any]) -> bool:
    """Return whether a config's stored scales divide the symbols instead of multiplying them, as `bitlinear` has it."""
    said = raw.get("quantization_config")
    return isinstance(said, Mapping) and said.get("linear_class", UNSAID["linear_class"]) == "bitlinear"


def is_stored_rounded(raw: Mapping[str, Any]) -> bool:
    """Return whether a config's files hold symbols and scales, and no masters."""
    said = raw.get("quantization_config")
    return isinstance(said, Mapping) and said.get("quantization_mode", UNSAID["quantization_mode"]) == "offline"


def unpacked(header: Mapping[str, Stored]) -> dict[str, Stored]:
    """Return the tensors of a file as our decoder has them: by its names, without scales, symbols one by one."""
    found = {}
    for name, one in header.items():
        if name.endswith(SCALE):
            continue
        if one.dtype == "U8" and len(one.shape) == 2:
            one = replace(one, shape=(PER_BYTE * one.shape[0], one.shape[1]))
        found[name_of(name)] = one
    return found
