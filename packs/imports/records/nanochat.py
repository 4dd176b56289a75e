"""Inspection of nanochat checkpoint folders without reading the weights. Light to import: no torch.

A folder holds `model_<step>.pt` and `meta_<step>.json`; the tokenizer lies in the folder or in the usual place of
nanochat. `model_of` returns a `ModelConfig`, or raises ConfigError for a model unsupported by our decoder. Source:
model and checkpoint manager of nanochat as of October 2025, and as of March to July 2026, whose models have the feature
`nanochat`. A meta file names no version: versions in between have other tensors, which the conversion refuses by name.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data.errors import ConfigError
from store import untrusted_input
from trainer.records.model_config import ModelConfig, NanochatParts
from trainer.records.model_formats import ModelFormat

SIZES = {  # limits well above any real model: the planner computes the shape of each layer
    **dict.fromkeys(("sequence_len", "vocab_size"), 1 << 24),
    **dict.fromkeys(("n_layer", "n_head", "n_kv_head"), 1 << 12),
    "n_embd": 1 << 18,
}
SOFTCAP = 15.0
LONGEST = 1000  # letters of a pattern of windows
VALUE_CHANNELS, SMEAR_CHANNELS = 12, 24
EPSILON = 2.0**-23  # PyTorch's default in rms_norm
TILE = 128  # windows are multiples of this number
WEIGHTS = re.compile(r"model_(\d{1,9})\.pt")


def newest(folder: Path) -> str:
    """Return the name of the newest weights file; "" for a folder without nanochat weights."""
    found = [one for path in folder.glob("model_*.pt") if (one := WEIGHTS.fullmatch(path.name))]
    return max(found, key=lambda one: int(one[1]))[0] if found else ""


def model_of(folder: Path, file: str) -> ModelConfig:
    """Return the model shape from the meta file beside `file`. Raises ConfigError."""
    path = folder / file.replace("model_", "meta_").replace(".pt", ".json")
    try:
        said = untrusted_input.load(path, untrusted_input.MIB).get("model_config")
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path}: {error}; nanochat writes this file beside {file}") from None
    if not isinstance(said, Mapping) or any(type(said.get(name)) is not int for name in SIZES):
        raise ConfigError(
            f"{path}: model_config is {untrusted_input.printable_line(said)}; expected whole numbers for "
            f"{', '.join(SIZES)}"
        )
    if odd := [name for name in SIZES if not 1 <= said[name] <= SIZES[name]]:
        raise ConfigError(f"{path}: {odd[0]} is {said[odd[0]]}; expected a whole number from 1 to {SIZES[odd[0]]}")
    parts = _parts(path, said)
    if said["n_embd"] % said["n_head"]:
        raise ConfigError(f"{path}: {said['n_head']} heads do not divide n_embd {said['n_embd']}")
    return ModelConfig(
        vocab_size=said["vocab_size"],
        hidden_size=said["n_embd"],
        intermediate_size=4 * said["n_embd"],
        num_hidden_layers=said["n_layer"],
        num_attention_heads=said["n_head"],
        num_key_value_heads=said["n_kv_head"],
        head_dim=said["n_embd"] // said["n_head"],
        max_position_embeddings=said["sequence_len"],
        rope_theta=100_000.0 if parts else 10_000.0,
        rms_norm_eps=EPSILON if parts else 1e-6,
        qk_norm=True,
        tie_word_embeddings=False,
        logit_softcap=SOFTCAP,
        mlp="relu2",
        embed_norm=True,
        nanochat=parts,
    )


def _parts(path: Path, said: Mapping[str, Any]) -> NanochatParts | None:
    """Return the parts of nanochat's model of 2026; None for a model of October 2025, which has no `window_pattern`."""
    if odd := [name for name, value in said.items() if name not in (*SIZES, "window_pattern") and value]:
        raise ConfigError(
            f"{path}: {', '.join(map(untrusted_input.printable_line, odd))}: this version of nanochat is not supported"
        )
    pattern = said.get("window_pattern")
    if pattern is None:
        return None
    if not isinstance(pattern, str) or not 1 <= len(pattern) <= LONGEST or set(pattern.upper()) - {"S", "L"}:
        raise ConfigError(
            f"{path}: window_pattern is {untrusted_input.printable_line(pattern)}; expected the letters S and L"
        )
    return NanochatParts(
        windows=pattern.upper(),
        window=-(-said["sequence_len"] // (4 * TILE)) * TILE,  # a quarter of the context, rounded up to whole tiles
        value_channels=VALUE_CHANNELS,
        smear_channels=SMEAR_CHANNELS,
        scales=True,
        backout=True,
    )


def tokenizer_of(folder: Path) -> Path | None:
    """Return the path of the pickled tokenizer, or None without a tokenizer.

    The file lies in `folder`, in `folder`/tokenizer, or in tokenizer/ beside the folders of all phases.
    """
    above = folder.absolute().parents
    places = (folder, folder / "tokenizer", *[one / "tokenizer" for one in above[1:2]])
    return next((path for place in places if (path := place / "tokenizer.pkl").is_file()), None)


def content_of(folder: Path, file: str) -> str:
    """Return a digest of the checkpoint: meta file by content; weights and tokenizer by name, size and mtime."""
    found = hashlib.sha256((folder / file.replace("model_", "meta_").replace(".pt", ".json")).read_bytes())
    for path in filter(None, (folder / file, tokenizer_of(folder))):
        stat = path.stat()
        found.update(repr((path.name, stat.st_size, stat.st_mtime_ns)).encode())
    return found.hexdigest()[:12]


FORMAT = ModelFormat(
    about="a checkpoint of nanochat (model_*.pt and meta_*.json)",
    find=newest,
    shape=model_of,
    tokenizer=tokenizer_of,
    content=content_of,
    convert="packs.imports.trainer.convert:convert",
    tokenizer_file="tokenizer.pkl",
    tokenizer_places="tokenizer.pkl, in the folder or in tokenizer/ beside the folders of the phases",
    convert_tokenizer="packs.imports.trainer.convert:convert_tokenizer",
)
