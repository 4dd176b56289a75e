"""Batches for base training, and held-out text for bits per byte.

A batch is a pure function of the loader's arguments and the step. A checkpoint stores `cursor`: a hash of the data and
a position, enough to resume without replaying earlier steps. Every process of a run builds the same batch and takes its
share of the rows, so a batch does not depend on the number of processes.
"""

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

import numpy as np

from data.errors import DataError, InputError
from data.tokens.best_fit import fill_rows
from data.tokens.shuffle import Shuffle
from data.tokens.stream import Stream
from data.tokens.tokenizer import load

# Number of documents packed together: enough to cut few documents, small enough to pack in milliseconds.
GROUP = 4096
PLACES = 64  # number of recent steps with a cached place


class Loader(ABC):
    """Base class of the loaders, which differ in the way of cutting tokens into rows."""

    def __init__(
        self, paths: Sequence[Path], sequence_len: int, rows: int, seed: int, tokenizer_sha256: str | None = None
    ):
        """Open the shards.

        Raises DataError for shards damaged or made with a different tokenizer, InputError if the tokens do not fill a
        row.
        """
        self.stream = Stream(paths, tokenizer_sha256)
        self.row_len, self.rows, self.seed = sequence_len + 1, rows, seed
        if self.stream.num_tokens < self.row_len:
            raise InputError(f"{self.stream.num_tokens} tokens are too few for a row of {self.row_len}; give more text")

    @abstractmethod
    def batch(self, step: int) -> np.ndarray:
        """Return the ids of a step, int64 (rows, sequence_len + 1).

        Inputs are all ids of a row but the last, targets all but the first.
        """

    def cursor(self, step: int) -> dict[str, Any]:
        """Return the position in the data at the start of `step`, with a hash of the data."""
        return {"data": self.stream.sha256[:12]}

    def resume(self, cursor: Mapping[str, Any]) -> None:
        """Prepare to resume from a cursor. Raises DataError if the cursor belongs to different data."""
        if cursor.get("data") != self.stream.sha256[:12]:
            theirs, ours = cursor.get("data"), self.stream.sha256[:12]
            words = f"the checkpoint was trained on the tokens {theirs}, but the run uses the tokens {ours}"
            raise DataError(f"{words}; to start again, remove this run's checkpoints")

    def documents(self, rows: np.ndarray) -> np.ndarray:
        """Return the document index of each id, counted from 0 in each row; int64, for attention within documents."""
        begins = rows == self.stream.bos
        begins[:, 0] = False
        return np.cumsum(begins, axis=1)


class Windows(Loader):
    """Cut rows as fixed windows across document borders, with a new order and offset in each epoch."""

    def __init__(
        self, paths: Sequence[Path], sequence_len: int, rows: int, seed: int, tokenizer_sha256: str | None = None
    ):
        super().__init__(paths, sequence_len, rows, seed, tokenizer_sha256)
        # One window less than the maximum leaves room for the offset of each epoch.
        self.num_windows = max(1, (self.stream.num_tokens - sequence_len) // sequence_len)
        self._epoch = lru_cache(maxsize=2)(self._order)  # a batch may span two epochs

    def batch(self, step: int) -> np.ndarray:
        numbers = np.arange(step * self.rows, (step + 1) * self.rows)
        epochs, places = np.divmod(numbers, self.num_windows)
        starts = np.empty(self.rows, np.int64)
        for epoch in np.unique(epochs).tolist():
            order, offset = self._epoch(epoch)
            ours = epochs == epoch
            starts[ours] = offset + order[places[ours]] * (self.row_len - 1)
        return self.stream.windows(starts, self.row_len)

    def cursor(self, step: int) -> dict[str, Any]:
        epoch, place = divmod(step * self.rows, self.num_windows)
        return {**super().cursor(step), "epoch": epoch, "window": place}

    def _order(self, epoch: int) -> tuple[Shuffle, int]:
        chance = np.random.default_rng([self.seed, epoch])
        order = Shuffle(self.num_windows, chance)
        room = self.stream.num_tokens - 1 - self.num_windows * (self.row_len - 1)
        return order, int(chance.integers(min(self.row_len - 1, room + 1)))


@dataclass(frozen=True)
class RowPosition:
    """Position of the next row: row `row` of group `group` in epoch `epoch`."""

    epoch: int = 0
    group: int = 0
    row: int = 0


@dataclass(frozen=True)
class PackedGroup:
    """The packed rows of a group, in shuffled order."""

    starts: np.ndarray
    """int64 (pieces,): offset of each piece in the token stream"""
    lengths: np.ndarray
    """int64 (pieces,): length of each piece"""
    rows: np.ndarray
    """int64 (rows + 1,): the first piece of each row, and the number of pieces"""

    def __len__(self) -> int:
        return len(self.rows) - 1


class BestFit(Loader):
    """Fill rows with whole documents if possible, with a new document order in each epoch.

    The documents of an epoch are split into groups, packed independently, so a position is a few numbers without
    leftover state.
    """

    def __init__(
        self, paths: Sequence[Path], sequence_len: int, rows: int, seed: int, tokenizer_sha256: str | None = None
    ):
        super().__init__(paths, sequence_len, rows, seed, tokenizer_sha256)
        self.num_groups = max(1, round(self.stream.num_documents / GROUP))
        self._epoch = lru_cache(maxsize=2)(self._order)
        self._group = lru_cache(maxsize=4)(self._pack_group)
        self._places = {0: RowPosition()}
        # Guards `_places`: a thread may read the cursor while a second thread builds batches.
        self._lock = Lock()

    def batch(self, step: int) -> np.ndarray:
        starts, lengths = [], []
        place, missing = self._place(step), self.rows
        while missing:
            packed = self._group(place.epoch, place.group)
            rows = min(missing, len(packed) - place.row)
            pieces = slice(packed.rows[place.row], packed.rows[place.row + rows])
            starts.append(packed.starts[pieces])
            lengths.append(packed.lengths[pieces])
            missing -= rows
            place = self._advance(place, rows)
        ids = self.stream.read_pieces(np.concatenate(starts), np.concatenate(lengths))
        return ids.reshape(self.rows, self.row_len)

    def cursor(self, step: int) -> dict[str, Any]:
        return {**super().cursor(step), "step": step, **asdict(self._place(step))}

    def resume(self, cursor: Mapping[str, Any]) -> None:
        super().resume(cursor)
        names = ("step", "epoch", "group", "row")
        numbers = [one for name in names if type(one := cursor.get(name)) is int and one >= 0]
        if len(numbers) < len(names):
            raise DataError(f"the checkpoint has the invalid data position {cursor}; remove this run's checkpoints")
        with self._lock:
            self._places[numbers[0]] = RowPosition(*numbers[1:])

    def _place(self, step: int) -> RowPosition:
        """Return the place at the start of a step, computed from the nearest earlier step with a known place."""
        with self._lock:
            known = max(one for one in self._places if one <= step)
            place = self._places[known]
            for at in range(known, step):
                place = self._advance(place, self.rows)
                self._places[at + 1] = place
                for old in sorted(self._places)[1:-PLACES]:
                    del self._places[old]
            return place

    def _advance(self, place: RowPosition, rows: int) -> RowPosition:
        epoch, group, row = place.epoch, place.group, place.row + rows
        empty = 0
        while row >= (size := len(self._group(epoch, group))):
            row -= size
            epoch, group = (epoch, group + 1) if group + 1 < self.num_groups else (epoch + 1, 0)
            empty = 0 if size else empty + 1
            if empty > self.num_groups:
                raise InputError(f"no {GROUP} documents fill a row of {self.row_len} ids; use packing windows")
        return RowPosition(epoch, group, row)

    def _pack_group(self, epoch: int, group: int) -> PackedGroup:
        first, last = (self.stream.num_documents * at // self.num_groups for at in (group, group + 1))
        starts, lengths = self.stream.document_ranges(self._epoch(epoch)[np.arange(first, last)])
        rows = fill_rows(lengths, self.row_len)
        begins, counts = rows.begins, np.diff(rows.begins)
        # Shuffle the rows: best-fit packing returns rows with the longest documents first.
        order = np.random.default_rng([self.seed, epoch, group]).permutation(len(counts))
        ends = np.cumsum(counts[order])
        moved = begins[:-1][order] - (ends - counts[order])  # shift of the pieces of each row
        pieces = np.arange(len(rows.sizes)) + np.repeat(moved, counts[order])
        return PackedGroup(starts[rows.documents[pieces]], rows.sizes[pieces], np.concatenate([[0], ends]))

    def _order(self, epoch: int) -> Shuffle:
        return Shuffle(self.stream.num_documents, np.random.default_rng([self.seed, epoch]))


LOADERS: dict[str, type[Loader]] = {"windows": Windows, "best-fit": BestFit}


def heldout(
    paths: Sequence[Path], tokenizer_folder: Path, sequence_len: int, rows: int = 32, most: int | None = None
) -> Iterator[tuple[np.ndarray, np.ndarray, int]]:
    """Yield batches that predict every held-out token, or the first `most`, exactly once.

    Yields (ids, targets, bytes): ids and targets are int64 (<= rows, sequence_len). Targets of -1 are ignored: special
    tokens, which have no text, and padding of the last row. `bytes` is the UTF-8 length of the text in the targets.
    Bits per byte = summed nats / ln 2 / summed bytes.
    """
    tokenizer = load(tokenizer_folder)
    stream, widths = Stream(paths, tokenizer.sha256), tokenizer.token_bytes()
    span = rows * sequence_len
    end = stream.num_tokens - 1 if most is None else min(most, stream.num_tokens - 1)
    for start in range(0, end, span):
        piece = stream.read(start, min(span, end - start) + 1)
        targets = np.where(widths[piece[1:]] > 0, piece[1:], -1)
        num_bytes = int(tokenizer.bytes_behind(piece[:-1], piece[1:]).sum())
        short = -len(targets) % sequence_len
        ids = np.pad(piece[:-1], (0, short))
        targets = np.pad(targets, (0, short), constant_values=-1)
        yield ids.reshape(-1, sequence_len), targets.reshape(-1, sequence_len), num_bytes
