"""Pack conversations of different lengths into rows of equal length, to avoid computation on padding.

From padded rows of ids and targets, as returned by `Conversations`, `packed` builds fewer, longer rows, with a
conversation number per token. With attention limited to the conversation, and positions counted from its beginning, a
model learns the same from packed and padded rows.
"""

import numpy as np

IGNORED = -1


def packed(ids: np.ndarray, targets: np.ndarray, length: int, pad: int) -> dict[str, np.ndarray]:
    """Return `ids`, `targets` and `documents`, int64 (rows, length), from rows of ids and targets (N, T).

    First-fit by decreasing length. Ids after the last target of a conversation are dropped, because they carry no loss.
    Free space is a separate document without targets.
    """
    counted = targets != IGNORED
    sizes = np.where(counted.any(axis=1), counted.shape[1] - counted[:, ::-1].argmax(axis=1), 0)
    rows, room = list[list[int]](), list[int]()
    for one in np.argsort(-sizes, kind="stable").tolist():
        size = int(sizes[one])
        if not size:
            break
        at = next((row for row, free in enumerate(room) if free >= size), len(rows))
        if at == len(rows):
            rows.append([])
            room.append(length)
        rows[at].append(one)
        room[at] -= size
    shape = (max(1, len(rows)), length)
    found = {"ids": np.full(shape, pad, np.int64), "targets": np.full(shape, IGNORED, np.int64)}
    found["documents"] = np.zeros(shape, np.int64)
    for row, some in enumerate(rows):
        start = 0
        for number, one in enumerate(some):
            part = slice(start, start + int(sizes[one]))
            found["ids"][row, part], found["targets"][row, part] = ids[one, : sizes[one]], targets[one, : sizes[one]]
            found["documents"][row, part] = number
            start = part.stop
        found["documents"][row, start:] = len(some)
    return found
