"""Hugging Face folders to and from our decoder; the parameter names are theirs, so weights pass unchanged.

Out: config.json, generation_config.json, safetensors files and the tokenizer's: what transformers and vLLM load.
"""

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data.config import ConfigError
from data.tokens import tokenizer as tokenizers
from store.artifacts import chat_template, model_files, vocabulary
from store.artifacts.model_files import INDEX, WEIGHTS
from store.outside import Unreadable
from trainer import tensor_file
from trainer.device import Machine
from trainer.errors import Refused
from trainer.model import hooks
from trainer.model.decoder import Decoder, unfilled
from trainer.model.huggingface import (
    EMBEDDING,
    HEAD,
    OURS,
    differences,
    is_spare,
    kind_of,
    model_config,
    odd_parts,
    only_head,
    written,
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
    """Make `folder`, which must not exist; `tokenizer` is a folder whose files go along. Raises Refused.

    said: entries of config.json that say how the weights are stored, where these are not the parameters.
    """
    words = tokenizers.load(tokenizer)
    bos, eos, pad = words.named["bos_token"], list(words.stops), words.named["pad_token"]
    pad = eos[0] if pad is None else pad
    folder.mkdir(parents=True)
    shape = written(config, str(dtype).removeprefix("torch."), bos, eos)
    _write_json(folder / "config.json", {**shape, "pad_token_id": pad, **(said or {})})
    generation = {"bos_token_id": bos, "eos_token_id": eos, "pad_token_id": pad, "do_sample": False}
    _write_json(folder / "generation_config.json", generation)
    for name in TOKENIZER_FILES:
        if (tokenizer / name).exists():
            shutil.copyfile(_held(tokenizer, name), folder / name)
    try:
        chat_template.copy_template_files(tokenizer, folder)
    except Unreadable as error:
        raise Refused(str(error)) from None
    write_weights(folder, weights, dtype)


def write_weights(folder: Path, weights: Mapping[str, Tensor], dtype: torch.dtype, most: int = SHARD_BYTES) -> None:
    """Write one file, or several of at most `most` bytes with an index, written last.

    A larger tensor has a file of its own.
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
    """Return the shape of the model in `folder`. Of the weights only the headers are read.

    Raises Refused when it holds no model, one that our decoder cannot be, or one whose files are of another.
    """
    try:
        config = model_config(model_files.load(folder))
        odd = differences(config, map(model_files.header, model_files.weight_files(folder)))
    except FileNotFoundError:
        raise Refused(f"{folder} is not a model folder: it has no config.json") from None
    except ConfigError as error:
        raise Refused(f"{folder / 'config.json'}: {error}") from None
    except Unreadable as error:
        raise Refused(str(error)) from None
    _refuse(folder, odd)
    return config


def check_tokenizer(folder: Path) -> None:
    """Raise Refused when the tokenizer beside a model is not the one that it was trained with."""
    if wrong := vocabulary.problem_in(folder):
        raise Refused(f"{folder}: {wrong}; make the model again: inv train --phase ..., or put the right file there")


def read(folder: Path, compute_dtype: torch.dtype = torch.float32) -> Decoder:
    """Return the model in a Hugging Face folder, with fp32 parameters. Raises Refused in words."""
    model = unfilled(read_config(folder), compute_dtype, "cpu")
    load(model, folder)
    return model


def opened(folder: Path, machine: Machine) -> Decoder:
    """Open the model in a Hugging Face folder where this machine computes, to answer and not to learn.

    It is in the fast dtype of a GPU, on a CPU in float32. Masters stay float32, since how they are rounded hangs on
    their last bits. Raises Refused in words.
    """
    is_gpu = machine.device.type != "cpu"
    model = read(folder, machine.fast if is_gpu else torch.float32).eval().requires_grad_(False)
    if not is_gpu:
        return model
    return model.to(machine.device) if model.config.has_masters else model.to(machine.device, machine.fast)


def load(model: Decoder, folder: Path) -> None:
    """Load the weights of a Hugging Face folder, one file in memory at a time. Raises Refused in words."""
    wanted, seen, odd, head = model.state_dict(), set[str](), list[str](), None
    files = _weight_files(folder)
    is_only_head = only_head(model.config, {name for file in files for name in model_files.header(file)})
    stored = [found for one in hooks.of(model.config) if (found := one.stored(folder, files)) is not None]
    for file in files:
        tensors = _tensors(file)
        for each in stored:
            tensors = each.tensors(file, tensors)
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
            f"{folder}: config.json says tie_word_embeddings, but the lm_head.weight beside it is not the embedding; "
            "programs differ in which of the two they take: set tie_word_embeddings to false, or remove the tensor"
        )


def _refuse(folder: Path, odd: list[str]) -> None:
    if odd:
        raise Refused(f"{folder}: {'; '.join(odd[:5])}{f' and {len(odd) - 5} more' if len(odd) > 5 else ''}")


def _held(folder: Path, name: str) -> Path:
    try:
        return model_files.held(folder, name)
    except Unreadable as error:
        raise Refused(f"{folder / name}: {error}") from None


def _weight_files(folder: Path) -> list[Path]:
    try:
        return model_files.weight_files(folder)
    except Unreadable as error:
        raise Refused(str(error)) from None


def _tensors(file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError

    try:
        return tensor_file.read(file)
    except SafetensorError as error:
        raise Refused(f"{file} is damaged or not a safetensors file: {error}; fetch it again") from None


def folder_of_model(folder: Path) -> Path:
    """Return the Hugging Face folder: `folder` itself, or `hf/` of a published artifact."""
    return folder / "hf" if (folder / "hf" / "config.json").is_file() else folder


def copy(source: Path, out: Path, dtype: torch.dtype, masters: Mapping[str, Tensor] | None = None) -> None:
    """Copy the model of `source` to a new Hugging Face folder, in another dtype if asked. Raises Refused.

    masters: its parameters in full precision, where they are known; its Hugging Face folder holds them rounded.
    """
    source = folder_of_model(source)
    check_tokenizer(source)
    if out.exists():
        raise Refused(f"{out} exists already")
    config = read_config(source)
    if kind_of(config) == OURS:
        raise Refused(
            f"{source} cannot be exported: no class of transformers has its shape ({odd_parts(config)}); it can be "
            "trained on, evaluated and talked to here: inv chat"
        )
    write(out, config, masters or read(source).state_dict(), source, dtype)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=1) + "\n", encoding="utf-8")
