"""The files of a model in `transformers` format, with all sizes checked before any allocation.

The functions take a folder from an untrusted source and return the JSON beside the weights, the paths of weight files
(never outside the folder), and the tensor descriptions in the header of each file.

Source: the safetensors format: 8 bytes of header length, a JSON header, then the bytes of the tensors.
"""

import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from store import untrusted_input
from store.untrusted_input import UnusableDocument

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
CHANGED = "changed_model.json"  # names the model that the folder changes, in a folder without a whole model
CONFIG_BYTES = untrusted_input.MIB
HEADER_BYTES = 64 * untrusted_input.MIB  # maximum size of an index or header
HEADER_VALUES = 4_000_000
POSITIVE = (
    *("vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "head_dim"),
    *("num_key_value_heads", "max_position_embeddings"),
)
MOST = 1 << 30
WIDTHS = {
    **{"F64": 8, "I64": 8, "U64": 8, "C64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "I16": 2, "U16": 2},
    **{"F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "BOOL": 1},
}


@dataclass(frozen=True)
class TensorHeader:
    """The description of a tensor in a safetensors header."""

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


def held(folder: Path, name: str) -> Path:
    """Return the path of the file `name` in a model folder. Raise UnusableDocument if a link leads outside.

    In the cache of `huggingface_hub` each file is a link into the `blobs` folder of the repository, which is allowed.
    """
    if not 0 < len(name.encode()) < 256 or any(one in name for one in "/\\\0") or name in (".", ".."):
        raise UnusableDocument(f"{untrusted_input.printable_line(name)} is not a valid file name in {folder}")
    if folder.parent.name == "snapshots":
        blob = os.path.realpath(folder / name)
        if os.path.dirname(blob) == os.path.realpath(folder.parent.parent / "blobs"):
            return folder / name
    untrusted_input.resolve_within(folder, name)
    return folder / name


def load(folder: Path, name: str = CONFIG) -> dict[str, Any]:
    """Return the content of a small JSON file of a model. Raise UnusableDocument or FileNotFoundError."""
    try:
        return untrusted_input.load(held(folder, name), CONFIG_BYTES, integer=untrusted_input.clamped)
    except FileNotFoundError:
        raise
    except (UnusableDocument, OSError) as error:
        raise UnusableDocument(f"{folder / name}: {error}") from None


def weight_files(folder: Path) -> list[Path]:
    """Return the weight files of a model, by name.

    Raise UnusableDocument if a file is missing or outside the folder.
    """
    names: set[str] = {WEIGHTS}
    try:
        if (folder / INDEX).exists():
            index = untrusted_input.load(held(folder, INDEX), HEADER_BYTES, HEADER_VALUES)
            said = untrusted_input.typed(index, "weight_map", dict)
            if not said or (odd := [one for one in said.values() if type(one) is not str]):
                raise UnusableDocument(
                    f"the weight_map names {untrusted_input.printable_line(odd[0]) if said else 'no file'}"
                )
            names = set(said.values())
        files = [held(folder, name) for name in sorted(names)]
    except (UnusableDocument, OSError) as error:
        raise UnusableDocument(
            f"{folder / INDEX} is not a valid index of weights: {error}; fetch the file again"
        ) from None
    if missing := [file.name for file in files if not file.is_file()]:
        raise UnusableDocument(f"{folder} lacks {', '.join(missing[:5])}; weights are read from safetensors files only")
    return files


def header(file: Path) -> dict[str, TensorHeader]:
    """Return the tensor descriptions of a safetensors file by name, without reading tensors. Raise UnusableDocument."""
    try:
        with untrusted_input.opened(file) as opened:
            room = os.fstat(opened.fileno()).st_size - 8
            (length,) = struct.unpack("<Q", opened.read(8))
            if length > min(room, HEADER_BYTES):
                raise UnusableDocument(f"the header would have {length} bytes")
            said = untrusted_input.mapping(opened.read(length), HEADER_BYTES, HEADER_VALUES)
        return {name: _stored(name, one, room - length) for name, one in said.items() if name != "__metadata__"}
    except (UnusableDocument, struct.error, OSError) as error:
        raise UnusableDocument(f"{file} is damaged or not a safetensors file: {error}; fetch the file again") from None


def _stored(name: str, said: Any, room: int) -> TensorHeader:
    if type(said) is not dict:
        raise UnusableDocument(f"{untrusted_input.printable_line(name)} is {untrusted_input.printable_line(said)}")
    dtype, shape = untrusted_input.typed(said, "dtype", str), untrusted_input.typed(said, "shape", list)
    places = untrusted_input.typed(said, "data_offsets", list)
    if len(places) != 2 or any(type(one) is not int or one < 0 for one in (*shape, *places)):
        raise UnusableDocument(
            f"{untrusted_input.printable_line(name)} has shape {untrusted_input.printable_line(shape)} at "
            f"{untrusted_input.printable_line(places)}"
        )
    start, stop = places
    size = math.prod(shape) * WIDTHS[dtype] if dtype in WIDTHS else stop - start
    if not start <= stop <= room or stop - start != size:
        raise UnusableDocument(
            f"{untrusted_input.printable_line(name)} needs {size} bytes, but has {start} to {stop} of {room}"
        )
    return TensorHeader(dtype, tuple(shape), stop - start)


def check(folder: Path) -> dict[str, Any]:
    """Return the config of any model after checking the sizes that loaders trust.

    Sizes must be integers from 1 to MOST, `rope_theta`, `rms_norm_eps` and `factor` must be above 0 and below 1e15, and
    the embedding table must have the shape in the config. Raise UnusableDocument.
    """
    try:
        config = load(folder)
    except FileNotFoundError:
        raise UnusableDocument(f"{folder} has no {CONFIG}") from None
    check_sizes(config)
    files = sorted(held(folder, one.name) for one in folder.iterdir() if one.name.endswith(".safetensors"))
    if (folder / INDEX).exists():
        files = sorted({*files, *weight_files(folder)})
    text = _part(config, "text_config") or config
    words, width = text.get("vocab_size"), text.get("hidden_size")
    for file in files:
        for name, one in header(file).items():
            is_table = name.endswith("embed_tokens.weight") and one.dtype in ("F64", "F32", "BF16", "F16")
            if is_table and len(one.shape) == 2 and words and one.shape[0] < words:
                raise UnusableDocument(f"{file.name}: {name} has {one.shape[0]} rows, {CONFIG} says {words}")
            if is_table and width and one.shape[-1:] != (width,):
                raise UnusableDocument(f"{file.name}: {name} is {one.shape}, {CONFIG} says {width} wide")
    return config


def check_sizes(config: dict[str, Any]) -> None:
    """Raise UnusableDocument if a size or number in the config of a model is out of bounds."""
    for part in filter(None, (config, _part(config, "text_config"))):
        for key in POSITIVE:
            if (value := part.get(key)) is not None and not (type(value) is int and 0 < value <= MOST):
                raise UnusableDocument(
                    f"{key} is {untrusted_input.printable_line(value)}; it must be a whole number from 1 to {MOST}"
                )
        for at in filter(None, (part, _part(part, "rope_parameters"), _part(part, "rope_scaling"))):
            for key in ("rope_theta", "rms_norm_eps", "factor"):
                value = at.get(key)
                if value is not None and not (type(value) in (int, float) and 0 < value < 1e15):
                    raise UnusableDocument(
                        f"{key} is {untrusted_input.printable_line(value)}; it must be a number above 0"
                    )


def _part(config: dict[str, Any], key: str) -> dict[str, Any]:
    value = config.get(key)
    if value is not None and type(value) is not dict:
        raise UnusableDocument(f"{key} is {untrusted_input.printable_line(value)}, expected an object")
    return value or {}
