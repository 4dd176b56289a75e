"""Read and write Hugging Face model folders; the decoder uses the same parameter names, so weights pass unchanged.

A written folder holds config.json, generation_config.json, safetensors files and the tokenizer files, as transformers
and vLLM load them.
"""

import json
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data.config import ConfigError
from data.tokens import tokenizer as tokenizers
from store.artifacts import model_files, tokenizer_files, vocabulary
from store.artifacts.model_files import INDEX, WEIGHTS
from store.untrusted_input import UnusableDocument
from trainer import tensor_file
from trainer.device import Machine
from trainer.errors import Refused
from trainer.model import changes, hooks
from trainer.model.decoder import Decoder, uninitialized_decoder
from trainer.model.huggingface import (
    EMBEDDING,
    HEAD,
    OURS,
    config_json,
    differences,
    is_spare,
    kind_of,
    model_config,
    only_head,
)
from trainer.records.model_config import ModelConfig

TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")
SHARD_BYTES = 5 * 10**9


def write(
    folder: Path,
    config: ModelConfig,
    weights: Mapping[str, Tensor],
    tokenizer: Path,
    dtype: torch.dtype = torch.float32,
    said: Mapping[str, Any] | None = None,
) -> None:
    """Write a model folder; `folder` must not exist. Raises Refused.

    tokenizer: folder of the tokenizer files to copy. said: extra config.json entries describing the storage format, for
    weights in a form other than plain parameters.
    """
    write_without_weights(folder, config, tokenizer, dtype, said)
    write_weights(folder, weights, dtype)


def write_without_weights(
    folder: Path, config: ModelConfig, tokenizer: Path, dtype: torch.dtype, said: Mapping[str, Any] | None = None
) -> None:
    """Write all files of a model folder except the weights; see `write`."""
    words = tokenizers.load(tokenizer)
    bos, eos, pad = words.named["bos_token"], list(words.stops), words.named["pad_token"]
    pad = eos[0] if pad is None else pad
    folder.mkdir(parents=True)
    shape = config_json(config, str(dtype).removeprefix("torch."), bos, eos)
    _write_json(folder / "config.json", {**shape, "pad_token_id": pad, **(said or {})})
    generation = {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad, "do_sample": False}
    _write_json(folder / "generation_config.json", generation)
    for name in TOKENIZER_FILES:
        if (tokenizer / name).exists():
            shutil.copyfile(_held(tokenizer, name), folder / name)
    try:
        tokenizer_files.copy_template_files(tokenizer, folder)
    except UnusableDocument as error:
        raise Refused(str(error)) from None


def write_weights(folder: Path, weights: Mapping[str, Tensor], dtype: torch.dtype, most: int = SHARD_BYTES) -> None:
    """Write the weights as one safetensors file, or as shards of at most `most` bytes and an index written last.

    A tensor above `most` bytes gets a shard of its own.
    """
    shards: list[dict[str, Tensor]] = []
    size = total = 0
    for name, one in weights.items():
        num_bytes = one.numel() * (dtype if one.is_floating_point() else one.dtype).itemsize
        if not shards or size + num_bytes > most:
            shards.append({})
            size = 0
        shards[-1][name] = one
        size, total = size + num_bytes, total + num_bytes
    if len(shards) == 1:
        tensor_file.write(folder / WEIGHTS, {name: _in(dtype, one) for name, one in shards[0].items()})
        return
    files: dict[str, str] = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        tensor_file.write(folder / file, {name: _in(dtype, one) for name, one in shard.items()})
        files |= dict.fromkeys(shard, file)
    _write_json(folder / INDEX, {"metadata": {"total_size": total}, "weight_map": files})


def _in(dtype: torch.dtype, one: Tensor) -> Tensor:
    return one.to(dtype) if one.is_floating_point() else one


def read_config(folder: Path) -> ModelConfig:
    """Return the shape of the model in `folder`, checking the headers of the weight files, if the folder has weights.

    Raises Refused for a folder without a model, an unsupported model, or weight files not matching config.json.
    """
    try:
        config = model_config(model_files.load(folder))
        files = () if changes.change_in(folder) else model_files.weight_files(folder)
        odd = differences(config, map(model_files.header, files)) if files else []
    except FileNotFoundError:
        raise Refused(f"{folder} is not a model folder: config.json is missing") from None
    except ConfigError as error:
        raise Refused(f"{folder / 'config.json'}: {error}") from None
    except UnusableDocument as error:
        raise Refused(str(error)) from None
    _refuse(folder, odd)
    return config


def check_tokenizer(folder: Path) -> None:
    """Raise Refused when the tokenizer in a model folder differs from the tokenizer of the training."""
    if wrong := vocabulary.problem_in(folder):
        raise Refused(f"{folder}: {wrong}; make the model again with inv train --phase ..., or restore the right file")


def read(folder: Path, compute_dtype: torch.dtype = torch.float32) -> Decoder:
    """Load the model of a Hugging Face folder on the CPU with fp32 parameters. Raises Refused."""
    model = uninitialized_decoder(read_config(folder), compute_dtype, "cpu")
    load(model, folder)
    return model


def load_for_inference(folder: Path, machine: Machine) -> Decoder:
    """Load the model of a Hugging Face folder for inference on the device of this machine. Raises Refused.

    Use the fast dtype on a GPU and float32 on a CPU. Master weights stay float32, because their rounding depends on the
    last bits.
    """
    is_gpu = machine.device.type != "cpu"
    model = read(folder, machine.fast if is_gpu else torch.float32).eval().requires_grad_(False)
    if not is_gpu:
        return model
    return model.to(machine.device) if model.config.has_masters else model.to(machine.device, machine.fast)


def load(model: Decoder, folder: Path) -> None:
    """Load the weights of a Hugging Face folder into a model, one file in memory at a time. Raises Refused.

    For a stored change of a model, load the changed model and apply the change.
    """
    if change := changes.change_in(folder):
        base = changes.base_of(folder)
        load_changed(model, change, folder, base, lambda: load(model, base))
        return
    wanted, seen, odd, head = model.state_dict(), set[str](), list[str](), None
    files = _weight_files(folder)
    is_only_head = only_head(model.config, {name for file in files for name in model_files.header(file)})
    stored = [
        found for one in hooks.feature_hooks(model.config) if (found := one.weight_reader(folder, files)) is not None
    ]
    for file in files:
        tensors = _tensors(file)
        for each in stored:
            tensors = each.convert(file, tensors)
        for name, one in tensors.items():
            if is_only_head and name == HEAD:
                name = EMBEDDING
            if is_spare(name, model.config):
                head = one if name == "lm_head.weight" else head
                continue
            if name not in wanted:
                odd.append(f"{name} is unknown")
            elif one.shape != wanted[name].shape:
                odd.append(f"{name} is {tuple(one.shape)} instead of {tuple(wanted[name].shape)}")
            else:
                wanted[name].copy_(one)
                seen.add(name)
    odd += [f"{name} is unknown" for each in stored for name in each.unused()]
    _refuse(folder, odd + [f"{name} is missing" for name in wanted if name not in seen])
    if head is not None and (head.shape != model.head.shape or not torch.equal(head.to(model.head.dtype), model.head)):
        raise Refused(
            f"{folder}: config.json sets tie_word_embeddings, but lm_head.weight differs from the embedding, and "
            "programs differ in the tensor that they use. Set tie_word_embeddings to false, or remove the tensor"
        )


def load_changed(
    model: Decoder, change: changes.ModelChange, folder: Path, base: Path, load_base: Callable[[], None]
) -> None:
    """Load a model with `load_base` and apply the change in `folder`. Raises Refused for a change of another model.

    base: folder of the changed model.
    """
    if (given := read_config(base)) != (wanted := read_config(folder)):
        raise Refused(f"{folder} changes a model of another shape than {base}: {wanted} instead of {given}")
    changes.check_base(folder, base)
    load_base()
    change.apply(model, folder)


def _refuse(folder: Path, odd: list[str]) -> None:
    if odd:
        raise Refused(f"{folder}: {'; '.join(odd[:5])}{f' and {len(odd) - 5} more' if len(odd) > 5 else ''}")


def _held(folder: Path, name: str) -> Path:
    try:
        return model_files.held(folder, name)
    except UnusableDocument as error:
        raise Refused(f"{folder / name}: {error}") from None


def _weight_files(folder: Path) -> list[Path]:
    try:
        return model_files.weight_files(folder)
    except UnusableDocument as error:
        raise Refused(str(error)) from None


def _tensors(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError

    try:
        return tensor_file.read(file)
    except SafetensorError as error:
        raise Refused(f"{file} is damaged or not a safetensors file: {error}. Download the file again") from None


def folder_of_model(folder: Path) -> Path:
    """Return the Hugging Face folder: `hf/` inside a published artifact, else `folder`."""
    return folder / "hf" if (folder / "hf" / "config.json").is_file() else folder


def copy(source: Path, out: Path, dtype: torch.dtype, masters: Mapping[str, Tensor] | None = None) -> None:
    """Copy the model of `source` to the new Hugging Face folder `out` in `dtype`. Raises Refused.

    masters: full-precision parameters, if known; the Hugging Face folder of `source` holds rounded weights.
    """
    source = folder_of_model(source)
    check_tokenizer(source)
    if out.exists():
        raise Refused(f"{out} exists already")
    config = read_config(source)
    if kind_of(config) == OURS:
        raise Refused(
            f"{source} cannot be exported: no class of transformers has this shape ({config.unsupported_parts}). "
            "Slipway's own engine can run the model with inv chat, or as a service: inv serve.up --engine torch"
        )
    write(out, config, masters or read(source).state_dict(), source, dtype)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
