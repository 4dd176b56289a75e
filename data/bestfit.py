"""Documents into rows of one length: every row begins with a document, and as few as possible are cut.

In: the lengths of some documents. Out: which of them stand in which row, and how much of each. Called by `loader.py`.
Source: nanochat's data loader ("BOS-aligned best-fit").
"""

from bisect import bisect_right
from collections.abc import Sequence


def fill_rows(lengths: Sequence[int], row_len: int) -> list[list[tuple[int, int]]]:
    """Rows of (document, how many of its ids, from its beginning), each `row_len` long together.

    A row takes the longest document that still fits, again and again; when none does, the shortest one is cut to fill
    it, and its rest is left out. Documents that do not fill a last row are left out.
    """
    order = sorted(range(len(lengths)), key=lengths.__getitem__)
    sizes = [lengths[one] for one in order]
    rows: list[list[tuple[int, int]]] = []
    while True:
        row: list[tuple[int, int]] = []
        room = row_len
        while room and sizes:
            at = max(0, bisect_right(sizes, room) - 1)
            size = min(sizes.pop(at), room)
            row.append((order.pop(at), size))
            room -= size
        if room:
            return rows
        rows.append(row)
