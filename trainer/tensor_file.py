"""Reading and writing of safetensors files; a file is hashed during writing and synced to disk on return.

The format is an 8-byte header length, a JSON header, then the tensor bytes. Writing the format here avoids a second
copy of the tensors in memory. Source: the safetensors format description.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

KINDS = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.int64: "I64",
    torch.uint8: "U8",
}
BLOCK_BYTES = 1 << 20


@dataclass(frozen=True)
class WrittenFile:
    """A written file: name, size in bytes and sha256."""

    path: str
    size: int
    sha256: str


def write(path: Path, tensors: Mapping[str, Tensor], rest: Callable[[], None] = lambda: None) -> WrittenFile:
    """Write tensors to the new file `path` and sync. `rest` is called after every block. Raises OSError."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    ordered = sorted(tensors.items(), key=lambda one: (-one[1].element_size(), one[0]))  # aligned and deterministic
    for name, tensor in ordered:
        header[name] = {
            "dtype": KINDS[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [offset, offset + tensor.nbytes],
        }
        offset += tensor.nbytes
    words = json.dumps(header).encode()
    words += b" " * (-len(words) % 8)
    digest = hashlib.sha256()
    with open(path, "xb", buffering=0) as file:
        _write_all(file.fileno(), digest, memoryview(len(words).to_bytes(8, "little") + words), rest)
        for _, tensor in ordered:
            _write_all(file.fileno(), digest, _bytes_of(tensor), rest)
        os.fsync(file.fileno())
    return WrittenFile(path.name, 8 + len(words) + offset, digest.hexdigest())


def read(path: Path) -> dict[str, Tensor]:
    from safetensors.torch import load_file

    return load_file(path)


class JoinedTensors(Mapping[str, Tensor]):
    """A lazy mapping of the tensors of several files, concatenating same-named tensors along the first dimension.

    Files are memory-mapped and tensors are read on access, so a large model need not fit into memory.
    """

    def __init__(self, paths: Sequence[Path]) -> None:
        from safetensors import safe_open

        self._at: dict[str, list[Any]] = {}
        for path in paths:
            file = safe_open(path, "pt")
            names = file.keys()
            for name in names:
                self._at.setdefault(name, []).append(file)

    def __getitem__(self, name: str) -> Tensor:
        parts = [file.get_tensor(name) for file in self._at[name]]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def __iter__(self) -> Iterator[str]:
        return iter(self._at)

    def __len__(self) -> int:
        return len(self._at)


def sha256(path: Path, from_disk: bool = False, rest: Callable[[], None] = lambda: None) -> str:
    """Return the sha256 of a file in hexadecimal digits.

    from_disk: drop the file from the page cache first, to hash the bytes on disk (for synced files). rest: called after
    every block.
    """
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        if from_disk and hasattr(os, "posix_fadvise"):
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        while block := file.read(BLOCK_BYTES):
            digest.update(block)
            rest()
    return digest.hexdigest()


def _bytes_of(tensor: Tensor) -> memoryview:
    return tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data


def _write_all(descriptor: int, digest: "hashlib._Hash", data: memoryview, rest: Callable[[], None]) -> None:
    for start in range(0, len(data), BLOCK_BYTES):
        block = data[start : start + BLOCK_BYTES]
        digest.update(block)
        while block:
            block = block[os.write(descriptor, block) :]
        rest()
