"""Hugging Face folders to and from our decoder; the parameter names are theirs, so weights pass unchanged.

Out: config.json, generation_config.json, model.safetensors and the tokenizer's files: what transformers and vLLM load.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data import tokenizer as tokenizers
from trainer import tensorfile
from trainer.config import ModelConfig
from trainer.errors import Refused
from trainer.model import Decoder

ARCHITECTURES = {"llama": "LlamaForCausalLM", "qwen3": "Qwen3ForCausalLM"}
TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
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


def hugging_face_config(config: ModelConfig, bos: int, eos: list[int], dtype: torch.dtype) -> dict[str, Any]:
    """The content of config.json. The spelling of newer releases stands beside the classic one."""
    kind = "qwen3" if config.qk_norm else "llama"
    extra: dict[str, Any] = {"mlp_bias": False, "pretraining_tp": 1}
    if kind == "qwen3":
        layers = config.num_hidden_layers
        extra = {"use_sliding_window": False, "sliding_window": None, "max_window_layers": layers}
    return {
        **{name: getattr(config, name) for name in SHAPE},
        **extra,
        "architectures": [ARCHITECTURES[kind]],
        "model_type": kind,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "initializer_range": 0.02,
        "rope_theta": config.rope_theta,
        "rope_scaling": None,
        "rope_parameters": {"rope_type": "default", "rope_theta": config.rope_theta},
        "attention_bias": False,
        "attention_dropout": 0.0,
        "use_cache": True,
        "torch_dtype": str(dtype).removeprefix("torch."),
        "bos_token_id": bos,
        "eos_token_id": eos,
        "pad_token_id": eos[0],
    }


def model_config(raw: Mapping[str, Any]) -> ModelConfig:
    """Ours from the content of a config.json. Raises Refused when our decoder cannot be that model."""
    kind = raw.get("model_type")
    if kind not in ARCHITECTURES:
        raise Refused(f"model_type is {kind!r}; this decoder is {' or '.join(ARCHITECTURES)}")
    rope = raw.get("rope_parameters") or raw.get("rope_scaling") or {}
    if rope.get("rope_type", rope.get("type", "default")) != "default":
        raise Refused(f"RoPE scaling {rope} is not supported")
    if raw.get("attention_bias") or raw.get("mlp_bias") or raw.get("use_sliding_window"):
        raise Refused("biases and sliding windows are not supported")
    if raw.get("hidden_act", "silu") != "silu":
        raise Refused(f"hidden_act is {raw['hidden_act']!r}; this decoder has silu")
    default_head = 128 if kind == "qwen3" else raw["hidden_size"] // raw["num_attention_heads"]
    return ModelConfig(
        **{name: raw[name] for name in SHAPE if name in raw},
        head_dim=raw.get("head_dim") or default_head,
        rope_theta=float(rope.get("rope_theta") or raw.get("rope_theta", 10_000.0)),
        qk_norm=kind == "qwen3",
    )


def write(
    folder: Path,
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    tokenizer: Path,
    dtype: torch.dtype = torch.float32,
) -> None:
    """Make `folder`, which must not exist; `tokenizer` is a folder whose files go along."""
    special = tokenizers.load(tokenizer).special
    bos, eos = special(tokenizers.BOS), [special(tokenizers.END), special(tokenizers.BOS)]
    folder.mkdir(parents=True)
    _write_json(folder / "config.json", hugging_face_config(config, bos, eos, dtype))
    generation = {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": eos[0], "do_sample": False}
    _write_json(folder / "generation_config.json", generation)
    for name in TOKENIZER_FILES:
        if (tokenizer / name).exists():
            shutil.copyfile(tokenizer / name, folder / name)
    tensorfile.write(folder / "model.safetensors", {name: one.to(dtype) for name, one in weights.items()})


def read(folder: Path, compute_dtype: torch.dtype = torch.float32) -> Decoder:
    """The model in a Hugging Face folder, with fp32 parameters. Raises Refused in words."""
    if not (folder / "config.json").is_file():
        raise Refused(f"{folder} is no model folder: it has no config.json")
    model = Decoder(model_config(json.loads((folder / "config.json").read_text(encoding="utf-8"))), compute_dtype)
    files = [folder / "model.safetensors"]
    index = folder / "model.safetensors.index.json"
    if index.exists():
        names = json.loads(index.read_text(encoding="utf-8"))["weight_map"].values()
        files = [folder / name for name in sorted(set(names))]
    weights = {name: one.float() for file in files for name, one in tensorfile.read(file).items()}
    if model.config.tie_word_embeddings:
        weights.pop("lm_head.weight", None)
    try:
        model.load_state_dict(weights)
    except RuntimeError as error:
        raise Refused(f"{folder}: {error}") from None
    return model


def folder_of_model(folder: Path) -> Path:
    """The Hugging Face folder: `folder` itself, or `hf/` of a published artifact."""
    return folder / "hf" if (folder / "hf" / "config.json").is_file() else folder


def copy(source: Path, out: Path, dtype: torch.dtype) -> None:
    """The model of `source` as a new Hugging Face folder, in another dtype if asked. Raises Refused."""
    source = folder_of_model(source)
    if out.exists():
        raise Refused(f"{out} exists already")
    model = read(source)
    write(out, model.config, model.state_dict(), source, dtype)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
