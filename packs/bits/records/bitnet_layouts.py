"""Config and tensor layouts of published 1.58-bit models, translated to the layout of our decoder. No torch.

The functions translate an external config.json and the headers of weight files to the `bitnet` layout of `transformers`
with master weights. `ternary.masters` computes master weights from stored symbols.

- 1bitLLM (`bitnet_b1_58-large` and similar): model_type `llama`, custom code beside the weights (class
  BitnetForCausalLM). Master weights, SwiGLU, norms of different names in front of `o_proj` and `down_proj`.
- Microsoft (BitNet b1.58 2B4T): `bitnet` of transformers, with relu(x)**2 in place of silu. The main repository holds
  symbols, four rows to a byte, with a scale per matrix; the bf16 repository holds master weights.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from data.errors import ConfigError
from store.artifacts.model_files import TensorHeader
from store.untrusted_input import printable_line

PER_BYTE = 4  # matrix rows packed into a byte
SCALE = ".weight_scale"
ALIASES = {"inner_attn_ln": "attn_sub_norm", "ffn_layernorm": "ffn_sub_norm"}  # names of 1bitLLM
ONE_BIT_LLM = "BitnetForCausalLM"  # the class of transformers is BitNetForCausalLM
ROUNDED = {"quant_method": "bitnet", "linear_class": "autobitlinear", "quantization_mode": "online"}
UNSAID = {"linear_class": "bitlinear", "quantization_mode": "offline"}  # defaults of transformers for absent keys
KINDS = (("autobitlinear", "online"), ("autobitlinear", "offline"), ("bitlinear", "offline"))
BITS = {"weight_bits": 1, "input_bits": 8}


def in_our_layout(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return an external config.json of a ternary model in our layout. Raises ConfigError for unsupported rounding."""
    raw = _of_bitnet(raw)
    said = raw.get("quantization_config")
    if said is None:
        return raw
    refuse_rounding(said)
    rest = {name: one for name, one in raw.items() if name != "quantization_config"}
    return {**rest, "ternary": raw.get("ternary", {})}


def _of_bitnet(raw: Mapping[str, Any]) -> Mapping[str, Any]:
    """Convert a 1bitLLM config.json to a `bitnet` config; return other configs unchanged.

    Raises ConfigError for unsupported bit widths.
    """
    architectures = raw.get("architectures")
    if raw.get("model_type") != "llama" or not isinstance(architectures, list) or ONE_BIT_LLM not in architectures:
        return raw
    for name, known in BITS.items():
        if (value := raw.get(name, known)) != known:
            raise ConfigError(f"{name} is {printable_line(value)}; this decoder has {known}")
    # Defaults of a Llama config differ from the defaults of a BitNet config.
    unsaid = {"hidden_act": "silu", "rope_theta": 10_000.0, "rms_norm_eps": 1e-6, "num_key_value_heads": None}
    return {**unsaid, **raw, "model_type": "bitnet", "quantization_config": ROUNDED}


def name_of(name: str) -> str:
    """Translate the name of a tensor to the name in our decoder."""
    parts = name.split(".")
    return ".".join(ALIASES.get(part, part) for part in parts)


def refuse_rounding(said: Any) -> None:
    """Raise ConfigError for a `quantization_config` outside the supported ternary kinds."""
    how = {**UNSAID, **said} if isinstance(said, Mapping) else {}
    kind = (how.get("linear_class"), how.get("quantization_mode"))
    if how.get("quant_method") != "bitnet" or kind not in KINDS:
        raise ConfigError(
            f"quantization_config is {printable_line(said)}; Slipway reads only ternary quantised models: "
            "quant_method bitnet, linear_class and quantization_mode "
            f"{', '.join(' '.join(one) for one in KINDS)}"
        )
    if how.get("use_rms_norm"):
        raise ConfigError("quantization_config: use_rms_norm (a norm before each matrix) is not supported")
    kept = how.get("modules_to_not_convert")
    if kept is not None and kept not in ([], ["lm_head"]):
        raise ConfigError(
            f"quantization_config: modules_to_not_convert is {printable_line(kept)}; only lm_head is supported"
        )


def divides(raw: Mapping[str, Any]) -> bool:
    """Return whether symbols are divided by the stored scale (`bitlinear`) and not multiplied."""
    said = raw.get("quantization_config")
    return isinstance(said, Mapping) and said.get("linear_class", UNSAID["linear_class"]) == "bitlinear"


def is_stored_rounded(raw: Mapping[str, Any]) -> bool:
    """Return whether the weight files hold symbols and scales in place of master weights."""
    said = raw.get("quantization_config")
    return isinstance(said, Mapping) and said.get("quantization_mode", UNSAID["quantization_mode"]) == "offline"


def unpacked(header: Mapping[str, TensorHeader]) -> dict[str, TensorHeader]:
    """Return the tensor headers of a file in our layout: our names, no scales, unpacked symbol shapes."""
    found = {}
    for name, one in header.items():
        if name.endswith(SCALE):
            continue
        if one.dtype == "U8" and len(one.shape) == 2:
            one = replace(one, shape=(PER_BYTE * one.shape[0], one.shape[1]))
        found[name_of(name)] = one
    return found
