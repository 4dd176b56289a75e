"""Documents into rows of one length: every row begins with a document, and as few as possible are cut.

In: the lengths of some documents. Out: which of them stand in which row, and how much of each. Called by `loader.py`.
Source: nanochat's data loader ("BOS-aligned best-fit").
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Rows(NamedTuple):
    """Row r holds the pieces from begins[r] to before begins[r + 1]: documents and how many ids of each, from its
    beginning."""

    documents: list[int]
    sizes: list[int]
    begins: list[int]


def fill_rows(lengths: Sequence[int] | np.ndarray, row_len: int) -> Rows:
    """Rows that are each `row_len` long together.

    A row takes the longest document that still fits, again and again; when none does, the shortest one is cut to fill
    it, and its rest is left out. Documents that do not fill a last row are left out.
    """
    bits = len(lengths).bit_length()
    last = (1 << bits) - 1
    # one list, since from it is taken often
    left = np.sort(np.asarray(lengths, np.int64) << bits | np.arange(len(lengths))).tolist()
    made = Rows([], [], [0])
    documents, sizes, begins = made
    room = row_len
    while left:
        at = bisect_right(left, room << bits | last)
        one = left.pop(at - 1 if at else 0)
        size = one >> bits
        documents.append(one & last)
        if size < room:
            sizes.append(size)
            room -= size
        else:
            sizes.append(room)
            begins.append(len(sizes))
            room = row_len
    del documents[begins[-1] :], sizes[begins[-1] :]
    return made
