"""The child process that reads the pickles of a nanochat checkpoint and writes a Hugging Face folder.

Run as `python -m packs.imports.trainer.child`. stdin holds {"weights", "tokenizer", "out", "model"}, with "" for no
weights or no tokenizer. The process writes config.json with model.safetensors, and the tokenizer files, then prints
{"problem"} on stdout; "" means success.
"""

import json
import os
import pickle
import resource
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data.config import ConfigError, load
from data.errors import DataError
from data.single_writer import PARENT, exit_with_parent
from data.tokens import bpe
from data.tokens.tokenizer import PATTERN, SPECIALS
from store import untrusted_input
from trainer import tensor_file
from trainer.config import ModelConfig
from trainer.model.huggingface import config_json, shapes

ROOM_BYTES = 2 << 30  # on top of the imports and three copies of the file
CPU_S = 3600
TOKENIZER_BYTES = 64 * untrusted_input.MIB
UNSEEN = "_orig_mod."  # prefix of names in torch.compile modules
NAMES = {
    "attn.c_q": "self_attn.q_proj",
    "attn.c_k": "self_attn.k_proj",
    "attn.c_v": "self_attn.v_proj",
    "attn.c_proj": "self_attn.o_proj",
    "mlp.c_fc": "mlp.up_proj",
    "mlp.c_proj": "mlp.down_proj",
    "attn.ve_gate": "self_attn.value_gate",
}
OUTSIDE = {
    "transformer.wte.weight": "model.embed_tokens.weight",
    "smear_gate.weight": "model.smear_gate.weight",
    "smear_lambda": "model.smear_scale",
    "backout_lambda": "model.backout_scale",
    "resid_lambdas": "model.residual_scales",
    "x0_lambdas": "model.embed_scales",
}
PADDED_TO = 64  # rows of embeddings and head are a multiple of this number
SHARPNESS = 1.2  # nanochat of 2026 multiplies queries and keys after their norms


class UnsupportedModel(Exception):
    """The file is not a model or tokenizer supported by our decoder."""


def main() -> None:
    """Convert the files named in the JSON document on stdin, and print the result."""
    exit_with_parent(os.environ.pop(PARENT, ""))
    asked = json.loads(sys.stdin.read())
    out = Path(asked["out"])
    limit(Path(asked["weights"] or asked["tokenizer"]).stat().st_size)
    try:
        if asked["weights"]:
            model = load(ModelConfig, asked["model"], "model")
            tensors = converted(read(Path(asked["weights"])), model)
            tensor_file.write(out / "model.safetensors", tensors)
            (out / "config.json").write_text(json.dumps(config_json(model, "float32", None, [])), encoding="utf-8")
        if asked["tokenizer"]:
            bpe.save(bpe.assemble(words_of(Path(asked["tokenizer"]))), out)
        problem = ""
    except (UnsupportedModel, ConfigError, DataError, OSError, MemoryError) as error:
        problem = " ".join(f"{error}".split()) or type(error).__name__
    print(json.dumps({"problem": problem}))


def limit(num_bytes: int) -> None:
    """Limit memory, CPU time, core dumps and file sizes of this process for a file of `num_bytes` bytes."""
    with open("/proc/self/statm", encoding="ascii") as file:
        taken = int(file.read().split()[0]) * resource.getpagesize()
    most = taken + 3 * num_bytes + ROOM_BYTES
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_S, CPU_S))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (3 * num_bytes + ROOM_BYTES,) * 2)  # bfloat16 grows to float32


def read(path: Path) -> dict[str, Tensor]:
    """Return the tensors of a checkpoint, memory-mapped. Raises UnsupportedModel."""
    try:
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, EOFError, ValueError, KeyError) as error:
        raise UnsupportedModel(
            f"the file cannot be loaded as tensors only: {str(error).splitlines()[0][:300]}"
        ) from None
    if not isinstance(found, dict) or not all(
        type(one) is str and type(value) is Tensor for one, value in found.items()
    ):
        raise UnsupportedModel("the file holds values other than tensors by name")
    return {name.removeprefix(UNSEEN): one for name, one in found.items()}


def converted(tensors: Mapping[str, Tensor], model: ModelConfig) -> dict[str, Tensor]:
    """Return the tensors under our names in float32, with gains for norms, which nanochat lacks.

    The gains are 1, and for queries and keys of 2026 the factor of nanochat. Rows that only pad the vocabulary are left
    out, because nanochat computes no logits of these rows. nanochat rotates queries and keys in the opposite direction,
    from the second half of a head to the first. Swapping the halves of each head gives our rotation. Raises
    UnsupportedModel for tensors that do not match the shape of `model`.
    """
    found: dict[str, Tensor] = {}
    wanted = dict(shapes(model))
    padded = -(-model.vocab_size // PADDED_TO) * PADDED_TO
    for name, tensor in tensors.items():
        ours = our_name(name)
        if not tensor.is_floating_point():
            raise UnsupportedModel(f"{untrusted_input.printable_line(name)} is {tensor.dtype}")
        if ours.endswith(("q_proj.weight", "k_proj.weight")) and tensor.dim() == 2:
            heads = tensor.shape[0] // model.head_dim
            if heads * model.head_dim == tensor.shape[0]:
                halves = tensor.view(heads, 2, model.head_dim // 2, tensor.shape[1])
                tensor = halves.flip(1).reshape(tensor.shape)
        if ours in wanted and tensor.shape[:1] == (padded,) and wanted[ours][0] == model.vocab_size:
            tensor = tensor[: model.vocab_size]
        found[ours] = tensor.float().contiguous()
    for name, shape in wanted.items():
        if name not in found and name.endswith("norm.weight"):
            is_sharp = model.nanochat is not None and name.endswith(("q_norm.weight", "k_norm.weight"))
            found[name] = torch.full(shape, SHARPNESS if is_sharp else 1.0)
    odd = [f"{name} is missing" for name in wanted if name not in found]
    odd += [f"{untrusted_input.printable_line(name)} is unknown" for name in found if name not in wanted]
    odd += [
        f"{name} is {tuple(found[name].shape)} instead of {shape}"
        for name, shape in wanted.items()
        if name in found and tuple(found[name].shape) != shape
    ]
    if odd:
        raise UnsupportedModel(
            f"{'; '.join(odd[:5])}: Slipway converts models of nanochat as of October 2025, and as of March to July "
            "2026; models of other versions have other parts"
        )
    return found


def our_name(name: str) -> str:
    """Return our name for a tensor name of nanochat; return unknown names unchanged."""
    if name in OUTSIDE:
        return OUTSIDE[name]
    if name.startswith("value_embeds."):
        return f"model.{name}"
    head, _, rest = name.removeprefix("transformer.h.").partition(".")
    part = rest.removesuffix(".weight")
    is_in_block = name.startswith("transformer.h.") and head.isdecimal() and part in NAMES
    return f"model.layers.{head}.{NAMES[part]}.weight" if is_in_block else name


class Encoding:
    """Stand-in for the tiktoken class of the same name; keeps the pickled state."""

    def __setstate__(self, state: Any) -> None:
        self.state = state


class OnlyEncodings(pickle.Unpickler):
    """An unpickler that resolves a single class, so that a pickle cannot run code."""

    def find_class(self, module: str, name: str) -> type:
        if (module, name) == ("tiktoken.core", "Encoding"):
            return Encoding
        raise pickle.UnpicklingError(f"it names {module}.{name}")


def words_of(path: Path) -> list[bytes]:
    """Return the bytes of each token id except the special tokens.

    Raises UnsupportedModel for an incompatible tokenizer.
    """
    try:
        with untrusted_input.opened(path) as file:
            if os.fstat(file.fileno()).st_size > TOKENIZER_BYTES:
                raise UnsupportedModel(f"{path} is larger than {TOKENIZER_BYTES} bytes")
            state = OnlyEncodings(file).load().state
        ranks, special, pattern = state["mergeable_ranks"], state["special_tokens"], state["pat_str"]
        words = sorted(ranks, key=lambda word: ranks[word])
        is_whole = [ranks[word] for word in words] == list(range(len(words)))
        is_whole = is_whole and all(type(word) is bytes for word in words)
    except UnsupportedModel:
        raise
    except Exception as error:  # a pickle may raise any exception
        raise UnsupportedModel(f"{path} is not a tokenizer of nanochat: {str(error)[:200]}") from None
    if not is_whole or special != {name: len(words) + at for at, name in enumerate(SPECIALS)}:
        raise UnsupportedModel(f"{path}: expected the ids of words, followed by the ids of {', '.join(SPECIALS)}")
    if pattern != PATTERN:
        raise UnsupportedModel(
            f"{path}: the tokenizer splits text by {untrusted_input.printable_line(pattern)}; Slipway splits by "
            f"{PATTERN}"
        )
    return words


if __name__ == "__main__":
    main()
