"""Pack documents into rows of equal length: each row begins with a document, and few documents are cut.

From document lengths, `fill_rows` returns the pieces of documents in each row. Source: nanochat's data loader
("BOS-aligned best-fit").
"""

from bisect import bisect_right
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class FilledRows(NamedTuple):
    """Packed rows: row r holds the pieces begins[r] to begins[r + 1] - 1.

    A piece is a document number and a size in ids, counted from the beginning of the document. All int64.
    """

    documents: np.ndarray
    sizes: np.ndarray
    begins: np.ndarray


def fill_rows(lengths: Sequence[int] | np.ndarray, row_len: int) -> FilledRows:
    """Return rows with exactly `row_len` ids each.

    A row takes the longest remaining document that fits, repeatedly. If no document fits, the shortest document is cut
    to fill the row, and the rest of the document is dropped. Documents that do not fill a last row are dropped.
    """
    bits = len(lengths).bit_length()
    last = (1 << bits) - 1
    # Pack length and document number into an integer, in a plain list, because removals are frequent.
    left = np.sort(np.asarray(lengths, np.int64) << bits | np.arange(len(lengths))).tolist()
    taken: list[int] = []
    ends: list[int] = []
    limit = full = row_len << bits | last  # greatest integer that fits into an empty row
    while left:
        if at := bisect_right(left, limit):
            one = left.pop(at - 1)
            taken.append(one)
            limit -= one & ~last
            if limit > last:  # the row has free space
                continue
        else:
            taken.append(left.pop(0))
        ends.append(len(taken))
        limit = full
    begins = np.array([0, *ends], np.int64)
    words = np.array(taken[: begins[-1]], np.int64)
    sizes = words >> bits
    if ends:
        # Cut the excess off the last document of each row.
        sizes[begins[1:] - 1] -= np.add.reduceat(sizes, begins[:-1]) - row_len
    return FilledRows(words & last, sizes, begins)
