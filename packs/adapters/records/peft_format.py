"""The file `adapter_config.json` of PEFT: settings of an adapter in both directions. No torch.

Source: LoraConfig of peft 0.21. Settings that compute something else than W + scaling * B A are refused.
"""

from collections.abc import Mapping
from typing import Any

from data.errors import ConfigError
from packs.adapters.records.lora_config import MATRICES, AdapterConfig
from store import untrusted_input
from store.untrusted_input import printable_line

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # of tensor names
# Settings with which peft computes something else, and the values that are supported.
PLAIN: Mapping[str, tuple[Any, ...]] = {
    "bias": ("none",),
    "fan_in_fan_out": (False,),
    "use_dora": (False,),
    "lora_bias": (False,),
    "modules_to_save": (None, []),
    "rank_pattern": ({}, None),
    "alpha_pattern": ({}, None),
    "layer_replication": (None,),
    "trainable_token_indices": (None,),
    "target_parameters": (None, []),
    "use_qalora": (False,),
    "use_bdlora": (None, False),
    "arrow_config": (None,),
    "alora_invocation_tokens": (None,),
    "kasa_config": (None,),
    "megatron_config": (None,),
}


def to_peft(adapter: AdapterConfig, base: str, revision: str) -> dict[str, Any]:
    """Return the content of adapter_config.json for an adapter of the model `base`."""
    return {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "revision": revision or None,
        "inference_mode": True,
        "r": adapter.rank,
        "lora_alpha": adapter.alpha,
        "lora_dropout": adapter.dropout,
        "target_modules": [*adapter.targets],
        "use_rslora": adapter.rslora,
        "bias": "none",
        "fan_in_fan_out": False,
        "init_lora_weights": True,
        "modules_to_save": None,
    }


def read_adapter(said: Mapping[str, Any]) -> AdapterConfig:
    """Return the settings in adapter_config.json. Raises ConfigError for an unsupported adapter, UnusableDocument."""
    if (kind := said.get("peft_type")) != "LORA":
        raise ConfigError(f"{CONFIG}: peft_type is {printable_line(kind)}; supported: LORA")
    for name, supported in PLAIN.items():
        if name in said and said[name] not in supported:
            raise ConfigError(f"{CONFIG}: {name} is {printable_line(said[name])}, which is not supported")
    return AdapterConfig(
        rank=untrusted_input.typed(said, "r", int),
        alpha=number(said, "lora_alpha"),
        dropout=number(said, "lora_dropout", 0.0),
        targets=targets_in(said),
        rslora=untrusted_input.typed(said, "use_rslora", bool, False),
    )


def targets_in(said: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the target matrices: named in a list, or `all-linear`. Raises ConfigError for others."""
    found = said.get("target_modules")
    if found == "all-linear":
        return MATRICES
    if type(found) is not list or any(type(one) is not str for one in found):
        raise ConfigError(f"{CONFIG}: target_modules is {printable_line(found)}; supported: a list of names")
    return tuple(sorted(found, key=lambda one: MATRICES.index(one) if one in MATRICES else -1))


def number(said: Mapping[str, Any], name: str, usual: float | None = None) -> float:
    found = said.get(name, usual)
    if type(found) not in (int, float):
        raise ConfigError(f"{CONFIG}: {name} is {printable_line(found)}; expected a number")
    return float(found)
