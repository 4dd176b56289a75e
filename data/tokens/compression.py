"""Measure text compression by a tokenizer, compared with the tokenizers of GPT-2 and GPT-4.

From a tokenizer, text shards with a held-out part, and an optional folder of peer tokenizers, `measure` returns bytes
and words per kind of text, and per tokenizer the tokens, bytes per token, tokens per word, and share of vocabulary
used. Without any peer file, the baseline is one token per byte. The network is used only with `download`.
"""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from data.errors import DataError
from data.events import emit
from data.shards.shards import read, shard_paths
from data.tokens.sample_texts import KINDS
from data.tokens.tokenizer import encode_flat, load
from store import local_files

BATCH = 256  # number of documents encoded together
HELD_OUT_BYTES = 32 << 20  # limit of held-out text, enough for stable figures
ADDRESS = "https://openaipublic.blob.core.windows.net/encodings"
Encode = Callable[[list[str]], np.ndarray]


@dataclass(frozen=True, kw_only=True)
class CompressionSpec:
    """Text and a tokenizer -> figures."""

    peers: str = ""
    """Folder of the peers' .tiktoken files; "" = tiktoken's own cache."""
    download: bool = False
    """Download missing files."""


@dataclass(frozen=True)
class Peer:
    """A published tokenizer for comparison."""

    file: str
    sha256: str
    vocab_size: int
    pattern: str


PEERS = {
    "gpt-2": Peer(
        "r50k_base.tiktoken",
        "306cd27f03c1a714eca7108e03d66b7dc042abe8c258b44c199a7ed9838dd930",
        50_257,
        r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    ),
    "gpt-4": Peer(
        "cl100k_base.tiktoken",
        "223921b76ee99bde995b7ff738513eef100fb51d18c93597a113bcffe865b2a7",
        100_277,
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
        r"|\s+(?!\S)|\s",
    ),
}
"""Source: tiktoken, openai_public.py."""


def measure(spec: CompressionSpec, tokenizer_folder: Path, text: Path, partial: bool = False) -> dict[str, Any]:
    """Return the figures of each kind of text.

    partial: accept an unfinished text folder, and use the complete shards. Raises DataError.
    """
    ours = load(tokenizer_folder)
    encoders: dict[str, tuple[int, Encode]] = {"ours": (ours.vocab_size, ours.encode_joined)}
    absent = {}
    for name, peer in PEERS.items():
        try:
            encoders[name] = (peer.vocab_size, _open(peer, Path(spec.peers or cache_folder()), spec.download))
        except DataError as error:
            absent[name] = str(error)
    if len(absent) == len(PEERS):
        encoders["bytes"] = (256, lambda texts: np.frombuffer("".join(texts).encode(), np.uint8))
    kinds = {name: make() for name, make in KINDS.items()}
    if held_out := shard_paths(text, "val", partial):
        kinds["held out"] = _first(read(held_out), HELD_OUT_BYTES)
    found = {}
    for done, (name, texts) in enumerate(kinds.items(), 1):
        found[name] = _of_kind(texts, encoders)
        emit("progress", done=done, total=len(kinds), unit="kinds")
    return {
        "tokenizer_sha256": ours.sha256,
        "vocabularies": {name: size for name, (size, _) in encoders.items()},
        "kinds": found,
        "absent": absent,
    }


def _of_kind(texts: Iterable[str], encoders: dict[str, tuple[int, Encode]]) -> dict[str, Any]:
    num_bytes = num_words = 0
    counts = {name: np.zeros(size, np.int64) for name, (size, _) in encoders.items()}
    rows = iter(texts)
    while batch := list(islice(rows, BATCH)):
        num_bytes += sum(len(text.encode()) for text in batch)
        num_words += sum(len(text.split()) for text in batch)
        for name, (size, encode) in encoders.items():
            counts[name] += np.bincount(encode(batch), minlength=size)
    by = {name: _figures(count, num_bytes, num_words) for name, count in counts.items()}
    return {"bytes": num_bytes, "words": num_words, "by": by}


def _figures(count: np.ndarray, num_bytes: int, num_words: int) -> dict[str, Any]:
    """Return the figures of a tokenizer on text of this size; `count` int64 (vocab_size,)."""
    tokens = int(count.sum())
    return {
        "tokens": tokens,
        "bytes_per_token": round(num_bytes / max(1, tokens), 3),
        "tokens_per_word": round(tokens / max(1, num_words), 3),
        "vocabulary_used": round(int(np.count_nonzero(count)) / len(count), 4),
    }


def cache_folder() -> str:
    """Return tiktoken's cache folder."""
    named = os.environ.get("TIKTOKEN_CACHE_DIR") or os.environ.get("DATA_GYM_CACHE_DIR")
    return named or os.path.join(tempfile.gettempdir(), "data-gym-cache")


def _open(peer: Peer, folder: Path, download: bool) -> Encode:
    """Return the peer's encoder. Raises DataError for a missing file, or a wrong digest."""
    import fastokens

    address = f"{ADDRESS}/{peer.file}"
    cached = folder / hashlib.sha1(address.encode()).hexdigest()  # tiktoken's cache name of the file
    path = next((path for path in (folder / peer.file, cached) if path.is_file()), None)
    if path is None and download:
        path = _fetch(address, cached)
    if path is None:
        raise DataError(f"no {peer.file} in {folder}")
    seen = hashlib.sha256(path.read_bytes()).hexdigest()
    if seen != peer.sha256:
        raise DataError(f"{path}: sha256 {seen[:12]}, but {peer.sha256[:12]} was published")
    encoder = fastokens.Tokenizer.from_tiktoken(str(path), pattern=peer.pattern, special_tokens={})
    return lambda texts: encode_flat(encoder, texts)[0]


def _fetch(address: str, target: Path) -> Path:
    from data.text.remote import open_remote

    with open_remote(address) as file:
        local_files.replace(target, file.read())
    return target


def _first(texts: Iterator[str], num_bytes: int) -> Iterator[str]:
    for text in texts:
        yield text
        num_bytes -= len(text.encode())
        if num_bytes <= 0:
            return
