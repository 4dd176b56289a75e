"""Documents into rows of one length: every row begins with a document, and as few as possible are cut.

In: the lengths of some documents. Out: which of them stand in which row, and how much of each. Source: nanochat's data
loader ("BOS-aligned best-fit").
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class FilledRows(NamedTuple):
    """The rows: row r holds the pieces from begins[r] to before begins[r + 1].

    A piece is a document and how many ids of it, from its beginning. All int64.
    """

    documents: np.ndarray
    sizes: np.ndarray
    begins: np.ndarray


def fill_rows(lengths: Sequence[int] | np.ndarray, row_len: int) -> FilledRows:
    """Return rows that are each `row_len` long together.

    A row takes the longest document that still fits, again and again; when none does, the shortest one is cut to fill
    it, and its rest is left out. Documents that do not fill a last row are left out.
    """
    bits = len(lengths).bit_length()
    last = (1 << bits) - 1
    # length and number in one word, in one list, since from it is taken often
    left = np.sort(np.asarray(lengths, np.int64) << bits | np.arange(len(lengths))).tolist()
    taken: list[int] = []
    ends: list[int] = []
    limit = full = row_len << bits | last  # no word above it fits
    while left:
        if at := bisect_right(left, limit):
            one = left.pop(at - 1)
            taken.append(one)
            limit -= one & ~last
            if limit > last:  # there is room left
                continue
        else:
            taken.append(left.pop(0))
        ends.append(len(taken))
        limit = full
    begins = np.array([0, *ends], np.int64)
    words = np.array(taken[: begins[-1]], np.int64)
    sizes = words >> bits
    if ends:
        sizes[begins[1:] - 1] -= np.add.reduceat(sizes, begins[:-1]) - row_len  # the excess is cut off the last one
    return FilledRows(words & last, sizes, begins)
