"""Memory-mapped token shards, accessed as a long sequence of ids.

From files in the format of `token_file.py`, a `Stream` returns ids from any offset, and the offsets of documents.
"""

import hashlib
import mmap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from data.errors import DataError
from data.tokens.token_file import Header, read_header

DTYPES: dict[int, np.dtype] = {2: np.dtype("<u2"), 4: np.dtype("<u4")}
STARTS = np.dtype("<u8")
# Maximum mapped pages of the files, because mapped pages may count as memory of this process.
MAPPED_BYTES = 64 << 20
FAULT_BYTES = 64 << 10  # bytes mapped by the system per page fault


@dataclass(frozen=True)
class TokenShard:
    """A memory-mapped token file."""

    path: Path
    header: Header
    ids: np.ndarray
    """uint16 or uint32 (tokens,)"""
    starts: np.ndarray
    """uint64 (documents + 1,)"""
    pages: mmap.mmap


def open_shard(path: Path, tokenizer_sha256: str | None = None) -> TokenShard:
    """Map a file. Raises DataError as `read_header`, and for damaged document offsets."""
    header = read_header(path, tokenizer_sha256)
    with open(path, "rb") as file:
        pages = mmap.mmap(file.fileno(), header.num_bytes, prot=mmap.PROT_READ)
    ids = np.frombuffer(pages, DTYPES[header.width], header.num_tokens, header.body)
    starts = np.frombuffer(pages, STARTS, header.num_documents + 1, header.index)
    if starts[0] != 0 or starts[-1] != header.num_tokens:
        raise DataError(f"{path}: the document offsets are damaged; make the tokens again")
    return TokenShard(path, header, ids, starts, pages)


class Stream:
    """Several token shards as a long sequence of ids; pages are released early to keep memory use low."""

    def __init__(self, paths: Sequence[Path], tokenizer_sha256: str | None = None):
        """Open the shards. Raises DataError for a damaged shard, and for shards from different tokenizers."""
        if not paths:
            raise DataError("no token shards found")
        self.shards = [open_shard(Path(path), tokenizer_sha256) for path in paths]
        first = self.shards[0].header
        for one in self.shards[1:]:
            if (one.header.tokenizer_sha256, one.header.width) != (first.tokenizer_sha256, first.width):
                raise DataError(f"{one.path}: made by a different tokenizer than {self.shards[0].path}")
        self.vocab_size = min(one.header.vocab_size for one in self.shards)
        self.tokenizer_sha256, self.bos, self.width = first.tokenizer_sha256, first.bos, first.width
        self._raw = [memoryview(one.ids.data).cast("B") for one in self.shards]
        self.sha256 = hashlib.sha256("".join(one.header.sha256 for one in self.shards).encode()).hexdigest()
        self.ends = np.cumsum([len(one.ids) for one in self.shards])
        self.begins = self.ends - [len(one.ids) for one in self.shards]
        self.num_tokens = int(self.ends[-1])
        self.document_ends = np.cumsum([one.header.num_documents for one in self.shards])
        self.num_documents = int(self.document_ends[-1])
        self._mapped = 0
        self._is_small = sum(one.header.num_bytes for one in self.shards) <= MAPPED_BYTES

    def read(self, start: int, count: int) -> np.ndarray:
        """Return ids start .. start + count - 1, fewer at the end of the stream; int64."""
        parts = list(self._parts(start, min(start + count, self.num_tokens)))
        ids = np.concatenate(parts).astype(np.int64) if parts else np.empty(0, np.int64)
        self._count(1, ids.size * 4)
        return self._check_ids(ids)

    def windows(self, starts: np.ndarray, length: int) -> np.ndarray:
        """Return `length` ids from each offset, int64 (len(starts), length); all ids must lie in the stream."""
        first, last = (np.searchsorted(self.ends, places, side="right") for places in (starts, starts + length - 1))
        if (first == last).all():
            return self.read_pieces(starts, np.full(len(starts), length)).reshape(-1, length)
        return np.stack([self.read(start, length) for start in starts.tolist()])

    def read_pieces(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """Return the concatenated pieces at `starts` with `lengths`, none crossing the end of a file; int64."""
        where = np.searchsorted(self.ends, starts, side="right")
        first = (starts - self.begins[where]) * self.width
        spans = zip(where.tolist(), first.tolist(), (first + lengths * self.width).tolist(), strict=True)
        # A join of memoryviews is twice as fast as numpy slices, independent of the number of files.
        joined = b"".join([self._raw[at][begin:end] for at, begin, end in spans])
        ids = np.frombuffer(joined, DTYPES[self.width]).astype(np.int64)
        self._count(len(starts), ids.size * 4)
        return self._check_ids(ids)

    def _check_ids(self, ids: np.ndarray) -> np.ndarray:
        """Return `ids`. Raises DataError for an id outside the vocabulary, which would overflow an embedding table."""
        if ids.size and ids.max() >= self.vocab_size:
            raise DataError(f"{self.shards[0].path.parent}: id {ids.max()} of {self.vocab_size}; make the tokens again")
        return ids

    def document_ranges(self, documents: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the offsets of documents and the lengths including <|bos|>; both int64 (len(documents),)."""
        starts, lengths = np.empty(len(documents), np.int64), np.empty(len(documents), np.int64)
        some = MAPPED_BYTES // FAULT_BYTES // 4
        for low in range(0, len(documents), some):
            numbers = documents[low : low + some]
            where = np.searchsorted(self.document_ends, numbers, side="right")
            for at in np.unique(where):
                shard, rows = self.shards[at], np.flatnonzero(where == at)
                inside = numbers[rows] - (int(self.document_ends[at]) - shard.header.num_documents)
                begins = shard.starts[inside].astype(np.int64)
                ends = shard.starts[inside + 1].astype(np.int64)
                if (begins < 0).any() or (ends < begins).any() or (ends > shard.header.num_tokens).any():
                    raise DataError(f"{shard.path}: the document offsets are damaged; make the tokens again")
                starts[low + rows] = begins + self.begins[at]
                lengths[low + rows] = ends - begins
            self._count(len(numbers), 0)
        return starts, lengths

    def _parts(self, start: int, stop: int) -> Iterator[np.ndarray]:
        at = int(np.searchsorted(self.ends, start, side="right"))
        while start < stop:
            first, end = int(self.begins[at]), int(self.ends[at])
            yield self.shards[at].ids[start - first : min(stop, end) - first]
            start, at = min(stop, end), at + 1

    def _count(self, places: int, num_bytes: int) -> None:
        """Count mapped bytes, and release all pages once the count exceeds MAPPED_BYTES.

        Pages in the system's cache can be mapped again at once.
        """
        self._mapped += places * FAULT_BYTES + num_bytes
        if self._mapped > MAPPED_BYTES and not self._is_small:
            self._mapped = 0
            for shard in self.shards:
                shard.pages.madvise(mmap.MADV_DONTNEED)
