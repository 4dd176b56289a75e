"""Batches for base training, and the held-out text for its measure.

A batch is a pure function of what the loader was made of and of the step: the position in the data that a
checkpoint keeps is the step, and `about()` is what it must be compared with on the way back.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from data.errors import InputError
from data.tokenizer import load
from data.tokens import Stream


class Windows:
    """Pieces of `sequence_len + 1` ids, each epoch in another order and cut at another offset."""

    def __init__(self, paths: Sequence[Path], sequence_len: int, seed: int, tokenizer_sha256: str | None = None):
        """Raises DataError for damaged or foreign shards, InputError when there are too few tokens for one window."""
        self.stream = Stream(paths, tokenizer_sha256)
        self.sequence_len, self.seed = sequence_len, seed
        self.num_tokens = self.stream.num_tokens
        if self.num_tokens < sequence_len + 1:
            raise InputError(f"{self.num_tokens} tokens are too few for one window of {sequence_len + 1}")
        # one window fewer than would fit leaves room to shift them all
        self.num_windows = max(1, (self.num_tokens - sequence_len) // sequence_len)
        self._epoch = lru_cache(maxsize=2)(self._order)  # a batch may span two epochs

    def batch(self, step: int, rows: int, rank: int = 0, world: int = 1) -> np.ndarray:
        """The ids of one step for one rank, int64 (rows, sequence_len + 1); `rows` is per rank."""
        first = (step * world + rank) * rows
        return np.stack([self._window(number) for number in range(first, first + rows)])

    def about(self) -> dict[str, Any]:
        """What, together with a step, says which data comes next."""
        return {
            "seed": self.seed,
            "sequence_len": self.sequence_len,
            "num_tokens": self.num_tokens,
            "tokenizer_sha256": self.stream.tokenizer_sha256,
        }

    def _window(self, number: int) -> np.ndarray:
        epoch, place = divmod(number, self.num_windows)
        order, offset = self._epoch(epoch)
        return self.stream.read(offset + int(order[place]) * self.sequence_len, self.sequence_len + 1)

    def _order(self, epoch: int) -> tuple[np.ndarray, int]:
        chance = np.random.default_rng([self.seed, epoch])
        room = self.num_tokens - 1 - self.num_windows * self.sequence_len
        return chance.permutation(self.num_windows), int(chance.integers(min(self.sequence_len, room + 1)))


def heldout(
    paths: Sequence[Path], tokenizer_folder: Path, sequence_len: int, rows: int = 32
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Batches that predict every held-out token exactly once.

    Yields (ids, targets, bytes): both int64 (<= rows, sequence_len); a target of -1 is not counted (specials,
    which are no text, and what fills the last row up); `bytes` is the UTF-8 length of the text in the targets.
    Bits per byte = summed nats / ln 2 / summed bytes.
    """
    tokenizer = load(tokenizer_folder)
    stream, widths = Stream(paths, tokenizer.sha256), tokenizer.token_bytes()
    span = rows * sequence_len
    for start in range(0, stream.num_tokens - 1, span):
        piece = stream.read(start, span + 1)
        targets = np.where(widths[piece[1:]] > 0, piece[1:], -1)
        num_bytes = int(widths[piece[1:]].sum())
        short = -len(targets) % sequence_len
        ids = np.pad(piece[:-1], (0, short))
        targets = np.pad(targets, (0, short), constant_values=-1)
        yield ids.reshape(-1, sequence_len), targets.reshape(-1, sequence_len), num_bytes
