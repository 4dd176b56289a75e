"""The files of PEFT: settings of an adapter in both directions, and the tensors that a file describes. No torch.

Source: LoraConfig of peft 0.21. Settings that compute something else than W + scaling * B A are refused.
"""

import hashlib
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from data.errors import ConfigError
from packs.adapters.records.lora_config import MATRICES, AdapterConfig
from store import untrusted_input
from store.artifacts import model_files
from store.artifacts.model_files import TensorHeader
from store.untrusted_input import UnusableDocument, printable_line

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
PREFIX = "base_model.model."  # of tensor names
TENSOR = re.compile(
    re.escape(PREFIX) + r"model\.layers\.(\d{1,6})\.(?:self_attn|mlp)\.(\w+)\.lora_([AB])\.weight", re.ASCII
)
FLOATS = ("F32", "BF16", "F16")
SHOWN = 3  # names in a message
# Top byte of a float whose exponent may be all ones, and the bit that decides in the byte below; 0 = decided.
OF_HALF = (*range(0x7C, 0x80), *range(0xFC, 0x100))
HIGHEST = {"F32": (4, (0x7F, 0xFF), 0x80), "BF16": (2, (0x7F, 0xFF), 0x80), "F16": (2, OF_HALF, 0)}
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
    "init_lora_weights": (True, False, None, "gaussian", "eva", "orthogonal"),  # others change W at the start
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
    """Return the target matrices: `all-linear`, or a list of names or paths of modules. Raises ConfigError for others.

    `peft` writes a path for each module of a model when a training names all of them; `shape_of` finds absent ones.
    """
    found = said.get("target_modules")
    if found == "all-linear":
        return MATRICES
    if type(found) is not list or any(type(one) is not str for one in found):
        raise ConfigError(f"{CONFIG}: target_modules is {printable_line(found)}; supported: a list of names")
    names = {one.rpartition(".")[2] for one in found}
    return tuple(sorted(names, key=lambda one: (MATRICES.index(one) if one in MATRICES else -1, one)))


def number(said: Mapping[str, Any], name: str, usual: float | None = None) -> float:
    found = said.get(name, usual)
    if type(found) not in (int, float):
        raise ConfigError(f"{CONFIG}: {name} is {printable_line(found)}; expected a number")
    return float(found)


def shape_of(adapter: AdapterConfig, header: Mapping[str, TensorHeader]) -> tuple[int, dict[str, list[int]]]:
    """Return the number of blocks, and the inputs and outputs of each adapted matrix, by the tensors of an adapter.

    Raises ConfigError for unknown tensors, and for tensors that do not fit the settings or one another.
    """
    found: dict[tuple[int, str, str], TensorHeader] = {}
    odd = []
    for name, one in header.items():
        parts = TENSOR.fullmatch(name)
        if parts is None or parts[2] not in MATRICES:
            odd.append(name)
        else:
            found[int(parts[1]), parts[2], parts[3]] = one
    if odd or not found:
        raise ConfigError(
            f"{WEIGHTS}: the adapter changes {listed(odd) if odd else 'no matrix'}; known: the matrices "
            f"{', '.join(MATRICES)} of each block"
        )
    if other := sorted({name for _, name, _ in found} ^ {*adapter.targets}):
        raise ConfigError(f"{WEIGHTS} and {CONFIG} disagree about the matrices {', '.join(other)}")
    layers = 1 + max(layer for layer, _, _ in found)
    sides: dict[str, list[int]] = {}
    for name in adapter.targets:
        for layer in range(layers):
            a, b = found.get((layer, name, "A")), found.get((layer, name, "B"))
            if a is None or b is None:
                raise ConfigError(f"{WEIGHTS}: {name} of block {layer} is missing; supported: the same in every block")
            if odd := [one.dtype for one in (a, b) if one.dtype not in FLOATS]:
                raise ConfigError(f"{WEIGHTS}: {name} of block {layer} is {odd[0]}; supported: {', '.join(FLOATS)}")
            wanted = [*a.shape[1:], *b.shape[:1]]
            if (a.shape[:1], b.shape[1:]) != ((adapter.rank,), (adapter.rank,)) or len(wanted) != 2:
                raise ConfigError(
                    f"{WEIGHTS}: {name} of block {layer} is {a.shape} and {b.shape}; {CONFIG} says rank {adapter.rank}"
                )
            if sides.setdefault(name, wanted) != wanted:
                raise ConfigError(f"{WEIGHTS}: {name} of block {layer} has another shape than in block 0")
    return layers, sides


def read_files(folder: Path) -> tuple[Mapping[str, Any], Mapping[str, TensorHeader]]:
    """Return the content of adapter_config.json and the header of the tensors in a folder; read every number.

    Raises UnusableDocument for a missing or damaged file, and for numbers that are not finite.
    """
    try:
        said, weights = model_files.load(folder, CONFIG), model_files.held(folder, WEIGHTS)
        header = model_files.header(weights) if weights.is_file() else {}
    except FileNotFoundError:
        said, header = {}, {}
    if not said or not header:
        missing = WEIGHTS if said else CONFIG
        raise UnusableDocument(
            f"{folder} is not a whole adapter: {missing} is missing; save the adapter again with peft"
        )
    if odd := not_finite(weights, header):
        raise UnusableDocument(f"{WEIGHTS}: {listed(odd)} has numbers that are not finite")
    return said, header


def check_files(folder: Path) -> None:
    """Raise UnusableDocument for an adapter in `folder` that a model must not get: see `read_files` and `shape_of`."""
    said, header = read_files(folder)
    try:
        shape_of(read_adapter(said), header)
    except ConfigError as error:
        raise UnusableDocument(f"{folder}: {error}") from None


def not_finite(file: Path, header: Mapping[str, TensorHeader]) -> list[str]:
    """Return the names of tensors with infinite or undefined numbers."""
    odd = []
    with untrusted_input.opened(file) as opened:
        start = 8 + int.from_bytes(opened.read(8), "little")
        opened.seek(8)
        places = untrusted_input.mapping(opened.read(start - 8), model_files.HEADER_BYTES, model_files.HEADER_VALUES)
        for name, one in header.items():
            opened.seek(start + places[name]["data_offsets"][0])
            if one.dtype in HIGHEST and not is_finite(one.dtype, opened.read(one.num_bytes)):
                odd.append(name)
    return odd


def is_finite(dtype: str, data: bytes) -> bool:
    """Return whether no float in little-endian bytes has an exponent of ones."""
    width, tops, bit = HIGHEST[dtype]
    highest, next_highest = data[width - 1 :: width], data[width - 2 :: width]
    for top in tops:
        at = highest.find(top)
        while at >= 0:
            if not bit or next_highest[at] & bit:
                return False
            at = highest.find(top, at + 1)
    return True


def content_digest(folder: Path) -> str:
    """Return a digest of the files of an adapter. Raises UnusableDocument, OSError."""
    found = hashlib.sha256()
    for name in (CONFIG, WEIGHTS):
        if (folder / name).is_file():
            with untrusted_input.opened(folder / name) as opened:
                while block := opened.read(1 << 20):
                    found.update(block)
    return found.hexdigest()[:12]


def listed(names: list[str]) -> str:
    """Return the first names for a message."""
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{', '.join(untrusted_input.printable(one) for one in sorted(names)[:SHOWN])}{more}"
