"""Token shards: text as numbers, memory-mapped, each document after a <|bos|>.

A `.bin` file is a header and then the ids, little-endian uint16 (uint32 for a vocabulary over 65536):

    magic 8s | version u32 | bytes per id u32 | vocab u32 | zero u32 | tokens u64 | documents u64 | tokenizer sha256 32s
"""

import os
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from data.errors import DataError
from data.report import emit
from data.shards import read, shard_paths
from data.tokenizer import BOS, Tokenizer, load

MAGIC, VERSION = b"SLIPWAYT", 1
HEADER = struct.Struct("<8sIIIIQQ32s")
DTYPES: dict[int, np.dtype] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
BATCH = 512


@dataclass(frozen=True)
class TokenShard:
    """One file of ids, mapped rather than read."""

    path: Path
    ids: np.ndarray
    """uint16 or uint32 (tokens,)"""
    documents: int
    vocab_size: int
    tokenizer_sha256: str


def write(paths: Sequence[Path], tokenizer: Tokenizer, target: Path) -> tuple[int, int]:
    """Tokenize text shards into `target`, which appears when it is whole; (tokens, documents). Flat memory."""
    width = 2 if tokenizer.vocab_size <= 1 << 16 else 4
    draft = target.with_name(f".{target.name}.draft")
    bos, num_tokens, num_documents = tokenizer.special(BOS), 0, 0
    with open(draft, "wb") as file:
        file.write(bytes(HEADER.size))
        texts = read(list(paths))
        while batch := list(islice(texts, BATCH)):
            ids = [one for row in tokenizer.encode_batch(batch) for one in (bos, *row)]
            file.write(np.array(ids, dtype=DTYPES[width]).tobytes())
            num_tokens += len(ids)
            num_documents += len(batch)
            emit("progress", done=num_documents, unit="documents", tokens=num_tokens)
        digest = bytes.fromhex(tokenizer.sha256)
        file.seek(0)
        file.write(HEADER.pack(MAGIC, VERSION, width, tokenizer.vocab_size, 0, num_tokens, num_documents, digest))
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, target)
    return num_tokens, num_documents


def open_shard(path: Path, tokenizer_sha256: str | None = None) -> TokenShard:
    """Map one file. Raises DataError when it is not whole or not of this tokenizer."""
    try:
        with open(path, "rb") as file:
            magic, version, width, vocab, _, tokens, documents, digest = HEADER.unpack(file.read(HEADER.size))
    except (OSError, struct.error) as error:
        raise DataError(f"{path}: no token shard: {error}") from None
    if magic != MAGIC or version != VERSION or width not in DTYPES:
        raise DataError(f"{path}: no token shard of version {VERSION}")
    if path.stat().st_size != HEADER.size + tokens * width:
        raise DataError(f"{path}: {path.stat().st_size} bytes, its header promises {HEADER.size + tokens * width}")
    if tokenizer_sha256 and digest.hex() != tokenizer_sha256:
        raise DataError(f"{path}: made by tokenizer {digest.hex()[:12]}, not by {tokenizer_sha256[:12]}")
    # an empty file cannot be mapped
    ids = np.memmap(path, DTYPES[width], "r", HEADER.size, (tokens,)) if tokens else np.empty(0, DTYPES[width])
    return TokenShard(path, ids, documents, vocab, digest.hex())


def make(text: Path, tokenizer_folder: Path, folder: Path) -> dict[str, Any]:
    """Write `train-00000.bin`, ... and `val-00000.bin`, ..., one for each text shard; what they hold."""
    tokenizer = load(tokenizer_folder)
    folder.mkdir(parents=True, exist_ok=True)
    about: dict[str, Any] = {"vocab_size": tokenizer.vocab_size, "tokenizer_sha256": tokenizer.sha256}
    for part in ("train", "val"):
        written = [
            write([path], tokenizer, folder / f"{part}-{number:05d}.bin")
            for number, path in enumerate(shard_paths(text, part))
        ]
        about[f"{part}_tokens"] = sum(tokens for tokens, _ in written)
        about[f"{part}_documents"] = sum(documents for _, documents in written)
    return about


class Stream:
    """Several token shards as one long row of ids."""

    def __init__(self, paths: Sequence[Path], tokenizer_sha256: str | None = None):
        """Raises DataError when a shard is damaged, or when two come from different tokenizers."""
        if not paths:
            raise DataError("no token shards to read")
        self.shards = [open_shard(Path(path), tokenizer_sha256) for path in paths]
        for one in self.shards[1:]:
            if one.tokenizer_sha256 != self.shards[0].tokenizer_sha256:
                raise DataError(f"{one.path}: made by another tokenizer than {self.shards[0].path}")
        self.tokenizer_sha256 = self.shards[0].tokenizer_sha256
        self.ends = np.cumsum([len(one.ids) for one in self.shards])
        self.num_tokens = int(self.ends[-1])

    def read(self, start: int, count: int) -> np.ndarray:
        """Ids start .. start + count - 1, fewer at the end of the stream; int64."""
        parts = list(self._parts(start, min(start + count, self.num_tokens)))
        return np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)

    def _parts(self, start: int, stop: int) -> Iterator[np.ndarray]:
        at = int(np.searchsorted(self.ends, start, side="right"))
        while start < stop:
            end = int(self.ends[at])
            first = end - len(self.shards[at].ids)
            yield self.shards[at].ids[start - first : min(stop, end) - first]
            start, at = min(stop, end), at + 1
