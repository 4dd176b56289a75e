"""The files of a model as `transformers` keeps them, looked at before anything of their size is allocated.

In: a folder that anybody may have made. Out: the JSON beside the weights; which files hold weights, none of them from
outside of the folder; what each file says of its tensors. Called by `trainer.export`, `serve.room`, `serve.models` and
`scripts.initial`.

Source: the safetensors format: 8 bytes of length, then a JSON header, then the tensors' bytes.
"""

import math
import os
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from store import outside
from store.outside import Unreadable

CONFIG, WEIGHTS, INDEX = "config.json", "model.safetensors", "model.safetensors.index.json"
CONFIG_BYTES = outside.MIB
HEADER_BYTES = 64 * outside.MIB  # of an index, or of a header
HEADER_VALUES = 4_000_000
WIDTHS = {
    **{"F64": 8, "I64": 8, "U64": 8, "C64": 8, "F32": 4, "I32": 4, "U32": 4, "BF16": 2, "F16": 2, "I16": 2, "U16": 2},
    **{"F8_E4M3": 1, "F8_E5M2": 1, "F8_E8M0": 1, "I8": 1, "U8": 1, "BOOL": 1},
}


@dataclass(frozen=True)
class Stored:
    """A tensor as its file describes it."""

    dtype: str
    shape: tuple[int, ...]
    num_bytes: int


def held(folder: Path, name: str) -> Path:
    """The file `name` at the top of a model's folder. Raises Unreadable when a link leads elsewhere.

    In the cache of the hub's own client each is a link into the repository's `blobs`: that is inside, too.
    """
    if not 0 < len(name.encode()) < 256 or any(one in name for one in "/\\\0") or name in (".", ".."):
        raise Unreadable(f"{outside.shown(name)} is no name of a file in {folder}")
    if folder.parent.name == "snapshots":
        blob = os.path.realpath(folder / name)
        if os.path.dirname(blob) == os.path.realpath(folder.parent.parent / "blobs"):
            return folder / name
    outside.within(folder, name)
    return folder / name


def load(folder: Path, name: str = CONFIG) -> dict[str, Any]:
    """A small JSON file of a model. Raises Unreadable, FileNotFoundError."""
    try:
        return outside.load(held(folder, name), CONFIG_BYTES)
    except FileNotFoundError:
        raise
    except (Unreadable, OSError) as error:
        raise Unreadable(f"{folder / name}: {error}") from None


def weight_files(folder: Path) -> list[Path]:
    """The files that hold its weights, by name. Raises Unreadable when one is missing or lies elsewhere."""
    names: set[str] = {WEIGHTS}
    try:
        if (folder / INDEX).exists():
            index = outside.load(held(folder, INDEX), HEADER_BYTES, HEADER_VALUES)
            said = outside.typed(index, "weight_map", dict)
            if not said or (odd := [one for one in said.values() if type(one) is not str]):
                raise Unreadable(f"its weight_map names {outside.shown(odd[0]) if said else 'no file'}")
            names = set(said.values())
        files = [held(folder, name) for name in sorted(names)]
    except (Unreadable, OSError) as error:
        raise Unreadable(f"{folder / INDEX} is no index of weights: {error}; fetch it again") from None
    if missing := [file.name for file in files if not file.is_file()]:
        raise Unreadable(f"{folder} lacks {', '.join(missing[:5])}; weights are read from safetensors files only")
    return files


def header(file: Path) -> dict[str, Stored]:
    """The tensors of a safetensors file, by name; none of them is read. Raises Unreadable."""
    try:
        with outside.opened(file) as opened:
            room = os.fstat(opened.fileno()).st_size - 8
            (length,) = struct.unpack("<Q", opened.read(8))
            if length > min(room, HEADER_BYTES):
                raise Unreadable(f"its header would have {length} bytes")
            said = outside.mapping(opened.read(length), HEADER_BYTES, HEADER_VALUES)
        return {name: _stored(name, one, room - length) for name, one in said.items() if name != "__metadata__"}
    except (Unreadable, struct.error, OSError) as error:
        raise Unreadable(f"{file} is damaged or not a safetensors file: {error}; fetch it again") from None


def _stored(name: str, said: Any, room: int) -> Stored:
    if type(said) is not dict:
        raise Unreadable(f"{outside.shown(name)} is {outside.shown(said)}")
    dtype, shape = outside.typed(said, "dtype", str), outside.typed(said, "shape", list)
    places = outside.typed(said, "data_offsets", list)
    if len(places) != 2 or any(type(one) is not int or one < 0 for one in (*shape, *places)):
        raise Unreadable(f"{outside.shown(name)} has shape {outside.shown(shape)} at {outside.shown(places)}")
    start, stop = places
    size = math.prod(shape) * WIDTHS[dtype] if dtype in WIDTHS else stop - start
    if not start <= stop <= room or stop - start != size:
        raise Unreadable(f"{outside.shown(name)} would need {size} bytes and has {start} to {stop} of {room}")
    return Stored(dtype, tuple(shape), stop - start)
