"""Statistics of a shard folder: lengths, scores, duplicates, frequent lines, samples; one pass with constant memory.

Counts of large sets are estimated from a sample by hash, or are lower bounds; each result states its kind and error.
"""

import hashlib
import heapq
import math
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from data.errors import InputError
from data.events import emit
from data.manifest import read_manifest, shard_folders
from data.text.batches import open_pieces
from data.text.documents import InputFile

MOST_DOCUMENTS = 2_000_000
MOST_HASHES = 1_000_000
MOST_LINES = 200_000
MOST_SITES = 50_000
NUM_SAMPLES = 12
TOP = 15
EXCERPT = 2_000
LINE = 160
FINE = math.log(1.02)  # lengths have a resolution of 2 %
SCORES = {"language_score": 1.0, "score": 5.0}
"""Columns plotted if present, with the maximum value."""
BINS = 50


@dataclass
class FrequencyCounter:
    """Counter of the most frequent items among very many; counts are at most `lost` too low."""

    limit: int
    counts: Counter[str] = field(default_factory=Counter)
    lost: int = 0

    def add(self, some: list[str]) -> None:
        self.counts.update(some)
        while len(self.counts) > self.limit:
            least = sorted(self.counts.values())[len(self.counts) // 2]
            self.lost += least
            self.counts = Counter({one: count - least for one, count in self.counts.items() if count > least})

    def most_common(self) -> list[tuple[str, int]]:
        found = sorted(self.counts.items(), key=lambda pair: (-pair[1], pair[0]))[:TOP]
        return [(one, count + self.lost) for one, count in found if count > 1 or self.lost]


@dataclass
class DuplicateCounter:
    """Counter of repeated documents: all documents, or those with a hash divisible by 2**shift."""

    limit: int
    shift: int = 0
    counts: dict[int, int] = field(default_factory=dict)
    words: dict[int, str] = field(default_factory=dict)
    """First words of the most repeated documents."""
    floor: int = 1

    def add(self, digest: int, text: str) -> None:
        if digest & ((1 << self.shift) - 1):
            return
        count = self.counts[digest] = self.counts.get(digest, 0) + 1
        if count > self.floor:
            self.words[digest] = text[:LINE]
            if len(self.words) > 1000:
                kept = heapq.nlargest(500, self.words, key=lambda one: self.counts[one])
                self.words = {one: self.words[one] for one in kept}
                self.floor = self.counts[kept[-1]]
        while len(self.counts) > self.limit:
            self.shift += 1
            mask = (1 << self.shift) - 1
            self.counts = {one: count for one, count in self.counts.items() if not one & mask}
            self.words = {one: words for one, words in self.words.items() if not one & mask}

    @property
    def share(self) -> float:
        """Return the share of documents that are duplicates of earlier documents."""
        return 1 - len(self.counts) / max(1, sum(self.counts.values()))

    def most_common(self) -> list[tuple[str, int]]:
        found = sorted(((self.counts[one], words) for one, words in self.words.items()), reverse=True)
        return [(words, count) for count, words in found[:TOP]]


@dataclass
class Quality:
    """Statistics shown in a report."""

    manifests: dict[str, dict[str, Any]]
    documents: int = 0
    characters: int = 0
    num_bytes: int = 0
    shards_read: int = 0
    lengths: Counter[int] = field(default_factory=Counter)
    """Number of documents by floor(log(characters) / FINE)."""
    scores: dict[str, Counter[int]] = field(default_factory=dict)
    """Number of documents by column and bin."""
    languages: Counter[str] = field(default_factory=Counter)
    repeated: DuplicateCounter = field(default_factory=lambda: DuplicateCounter(MOST_HASHES))
    lines: FrequencyCounter = field(default_factory=lambda: FrequencyCounter(MOST_LINES))
    sites: FrequencyCounter = field(default_factory=lambda: FrequencyCounter(MOST_SITES))
    samples: dict[int, tuple[str, int]] = field(default_factory=dict)
    """Samples with the lowest hashes, by hash: the beginning of a document, and its number of characters."""

    def length_at(self, share: float) -> int:
        """Return the length quantile in characters: `share` of the documents are shorter."""
        wanted, below = share * self.documents, 0
        for at in sorted(self.lengths):
            below += self.lengths[at]
            if below >= wanted:
                return round(math.exp((at + 0.5) * FINE))
        return 0

    def add(self, text: bytes, columns: dict[str, Any]) -> None:
        words = text.decode()
        digest = int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
        self.documents += 1
        self.characters += len(words)
        self.num_bytes += len(text)
        self.lengths[int(math.log(max(1, len(words))) / FINE)] += 1
        self.repeated.add(digest, words)
        self.lines.add([line[:LINE] for line in words.split("\n") if line and not line.isspace()])
        if len(self.samples) < NUM_SAMPLES or digest < max(self.samples):
            self.samples[digest] = words[:EXCERPT], len(words)
            if len(self.samples) > NUM_SAMPLES:
                del self.samples[max(self.samples)]
        for name, most in SCORES.items():
            if isinstance(value := columns.get(name), (int, float)) and math.isfinite(value):
                at = min(BINS - 1, max(0, int(value / most * BINS)))
                self.scores.setdefault(name, Counter())[at] += 1
        if language := columns.get("language"):
            self.languages[str(language)[:LINE]] += 1
        if url := columns.get("url"):
            self.sites.add([_site(str(url))])


def measure(folder: Path) -> Quality:
    """Measure the shards of `folder` and its parts.

    Raises DataError for a folder without a manifest, InputError for a manifest without documents.
    """
    manifests = {str(part.relative_to(folder)): read_manifest(part, finished=False) for part in shard_folders(folder)}
    manifests = {"" if name == "." else name: one for name, one in manifests.items()}
    found, wanted = Quality(manifests), sum(one["total_lines"] for one in manifests.values())
    if not wanted:
        raise InputError(f"{folder}: the manifest lists no shard; a report needs at least a single shard")
    for path in _spread(folder, manifests, wanted):
        for text, columns in _documents(path):
            found.add(text, columns)
        found.shards_read += 1
        emit("progress", done=found.documents, total=min(wanted, MOST_DOCUMENTS), unit="documents")
    return found


def _spread(folder: Path, manifests: dict[str, dict[str, Any]], documents: int) -> list[Path]:
    """Return all shards, or an evenly spaced subset with about MOST_DOCUMENTS documents."""
    paths = [folder / name / shard["name"] for name, one in manifests.items() for shard in one["shards"]]
    wanted = max(1, min(len(paths), len(paths) * MOST_DOCUMENTS // documents))
    return [paths[at * len(paths) // wanted] for at in range(wanted)]


def _documents(path: Path) -> Iterator[tuple[bytes, dict[str, Any]]]:
    pieces = open_pieces(InputFile(str(path)), (*SCORES, "language", "url"))
    for piece in range(pieces.count):
        for batch in pieces.read(piece):
            names = list(batch.columns)
            rows = zip(*batch.columns.values(), strict=True) if names else iter(lambda: (), None)
            for text, row in zip(batch.texts, rows, strict=False):
                yield text, dict(zip(names, row, strict=True))


def _site(url: str) -> str:
    try:
        return (urlsplit(url).hostname or url)[:LINE]
    except ValueError:  # an invalid URL counts as a site
        return url[:LINE]
