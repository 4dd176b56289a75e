"""Conversations cut to the length of a row: which have something to learn there, and what was counted.

In: ids, mask and stop tokens of each conversation, the length of a row. Out: the rows with a target, and `TalkCounts`;
the refusal where there is none.
"""

from collections.abc import Collection, Iterable, Sequence

import numpy as np

from data.chat.talk_counts import TalkCounts
from data.errors import InputError

Row = tuple[np.ndarray, np.ndarray]
"""Ids and mask of a conversation, both int64 (tokens,)."""


def fitted(
    kind: str, rendered: Iterable[tuple[list[int], list[int]]], stops: Collection[int], limit: int
) -> tuple[list[Row], TalkCounts]:
    """Return the conversations that have a target among their first `limit` ids, cut to those, and what was counted.

    Raises InputError when there is none.
    """
    rows, starts, total, num_answers, num_cut = list[Row](), list[int](), 0, 0, 0
    for some_ids, some_mask in rendered:
        ids, mask = np.array(some_ids), np.array(some_mask)
        ends = answer_ends(ids, mask, stops)
        total, num_answers = total + 1, num_answers + len(ends)
        num_cut += sum(end >= limit for end in ends)
        if mask[1:limit].any():
            rows.append((ids[:limit], mask[:limit]))
        elif mask[1:].any():
            starts.append(int(mask[1:].argmax()) + 1)
    if not total:
        raise InputError(f"no conversations of kind {kind!r}")
    if not rows:
        raise InputError(_nothing(kind, total, starts, limit))
    return rows, TalkCounts(total, total - len(rows), num_answers, num_cut)


def answer_ends(ids: np.ndarray, mask: np.ndarray, stops: Collection[int]) -> list[int]:
    """Return the places of the last id of each answer that is to be learnt."""
    is_last = mask.astype(bool)
    is_last[:-1] &= mask[1:] == 0
    return [at for at in np.flatnonzero(is_last).tolist() if ids[at] in stops]


def _nothing(kind: str, total: int, starts: Sequence[int], limit: int) -> str:
    """Return why no row of a kind has a target.

    starts: the place of the first learnt id of each conversation that has one.
    """
    head = f"nothing can be learnt from any of the {total:,} conversations of kind {kind!r}"
    if not starts:
        return f"{head}: all of their answers are marked as not to be learnt"
    shortest = min(starts) + 1
    return (
        f"{head}: a row ends behind token {limit:,}, and the first answer begins at token {shortest:,} of the shortest "
        f"conversation; raise sequence_len (--set PHASE.sequence_len={_roomier(shortest)}), or shorten the "
        "questions"
    )


def _roomier(tokens: int) -> int:
    """Return a power of two with room for an answer behind so many tokens."""
    return 1 << (tokens + tokens // 4).bit_length()
