"""Random permutation of sets too large for a list.

`Shuffle` maps positions to numbers, given a size and a random generator.
"""

import numpy as np

TABLE = 1 << 22  # up to this size a list (32 MB) is fastest
ROUNDS = 6


class Shuffle:
    """The numbers below `size` in random order: a list, or above TABLE a permutation cipher.

    The cipher is a Feistel network over the next power of four, iterated until the result is below `size` (cycle
    walking). Source: Black and Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002.
    """

    def __init__(self, size: int, chance: np.random.Generator, table: int = TABLE):
        self.size = size
        self.list = chance.permutation(size) if size <= table else None
        self.keys = [] if size <= table else chance.integers(1 << 32, size=ROUNDS, dtype=np.uint64).tolist()
        half = (max(2, (size - 1).bit_length()) + 1) // 2
        self.half, self.mask = np.uint64(half), np.uint64((1 << half) - 1)

    def __getitem__(self, places: np.ndarray) -> np.ndarray:
        """Return the numbers at the given positions, int64."""
        if self.list is not None:
            return self.list[places]
        found = self._cipher(np.asarray(places).astype(np.uint64))
        while len(outside := np.flatnonzero(found >= self.size)):
            found[outside] = self._cipher(found[outside])
        return found.astype(np.int64)

    def _cipher(self, words: np.ndarray) -> np.ndarray:
        left, right = words >> self.half, words & self.mask
        for key in self.keys:
            left, right = right, left ^ (_mix(right ^ np.uint64(key)) & self.mask)
        return left << self.half | right


def _mix(words: np.ndarray) -> np.ndarray:
    """Return words mixed so that every output bit depends on all 64 input bits. Source: splitmix64's finaliser."""
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))
