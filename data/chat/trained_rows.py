"""Cut conversations to the row length, keep those with trained tokens, and count the losses.

From ids, masks and stop tokens, and a row length, `truncate_rows` returns the rows with a trained token, and
`ConversationCounts`. Raises InputError without any such row.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from data.chat.conversation_counts import ConversationCounts
from data.errors import InputError

MOST_REASONS, MOST_PLACES = 5, 5
Row = tuple[np.ndarray, np.ndarray]
"""Ids and mask of a conversation, both int64 (tokens,)."""


@dataclass(frozen=True)
class RefusedConversation:
    """A conversation that the chat template cannot render faithfully."""

    place: str
    """File and row."""
    reason: str


Rendered = Sequence[tuple[Sequence[int], Sequence[int]]]
"""Ids and mask of the rows of one conversation."""


def truncate_rows(
    kind: str, rendered: Iterable[Rendered | RefusedConversation], stops: Collection[int], limit: int
) -> tuple[list[Row], ConversationCounts]:
    """Return the rows with a trained token among the first `limit` ids, cut to `limit`, and the counts.

    Raises InputError if no row has a trained token, or without conversations.
    """
    rows, starts, refused, counts = list[Row](), list[int](), list[RefusedConversation](), Counter[str]()
    for one in rendered:
        counts["conversations"] += 1
        if isinstance(one, RefusedConversation):
            refused.append(one)
            continue
        before = len(rows)
        for some_ids, some_mask in one:
            ids, mask = np.array(some_ids), np.array(some_mask)
            counts.update(answer_counts(ids, mask, stops, limit))
            if mask[1:limit].any():
                rows.append((ids[:limit], mask[:limit]))
            elif mask[1:].any():
                starts.append(int(mask[1:].argmax()) + 1)
        counts["without_targets"] += before == len(rows)
    found = ConversationCounts(refused=len(refused), reasons=tuple(refusal_reasons(refused)), **counts)
    if not found.conversations:
        raise InputError(f"no conversations of kind {kind!r}")
    if not rows:
        raise InputError(_nothing(kind, found, starts, limit))
    return rows, found


def refusal_reasons(refused: Sequence[RefusedConversation]) -> Iterator[str]:
    """Yield up to MOST_REASONS rejection reasons, most frequent first, each with the rejected rows."""
    places: dict[str, list[str]] = {}
    for one in refused:
        places.setdefault(one.reason, []).append(one.place)
    for reason, some in sorted(places.items(), key=lambda pair: -len(pair[1]))[:MOST_REASONS]:
        more = f" and {len(some) - MOST_PLACES:,} more" if len(some) > MOST_PLACES else ""
        yield f"{', '.join(some[:MOST_PLACES])}{more}: {reason}"


def answer_counts(ids: np.ndarray, mask: np.ndarray, stops: Collection[int], limit: int) -> Counter[str]:
    """Return the counts of the trained answers of a row: all, those cut at `limit`, and those without a stop token."""
    ends, counts = answer_ends(ids, mask, stops), Counter[str]()
    if not ends:  # a template may mark an answer without the stop token
        ends = span_ends(mask)
        counts["without_end"] = len(ends)
    return counts + Counter(answers=len(ends), cut_answers=sum(end >= limit for end in ends))


def answer_ends(ids: np.ndarray, mask: np.ndarray, stops: Collection[int]) -> list[int]:
    """Return the position of the last id of each trained answer with a trained stop token."""
    return [at for at in span_ends(mask) if ids[at] in stops]


def span_ends(mask: np.ndarray) -> list[int]:
    """Return the position of the last id of each span of trained ids."""
    is_last = mask.astype(bool)
    is_last[:-1] &= mask[1:] == 0
    ends: list[int] = np.flatnonzero(is_last).tolist()
    return ends


def _nothing(kind: str, found: ConversationCounts, starts: Sequence[int], limit: int) -> str:
    """Return the reason why no row of a kind has a trained token.

    starts: position of the first trained id of each row with trained ids.
    """
    head = f"no answer can be trained in any of the {found.conversations:,} conversations of kind {kind!r}"
    if found.refused == found.conversations:
        return f"{head}: {'; '.join(found.reasons)}"
    if not starts:
        return f"{head}: all answers are excluded from training"
    shortest = min(starts) + 1
    return (
        f"{head}: a row ends after token {limit:,}, but the first answer of the shortest conversation begins at "
        f"token {shortest:,}. Raise sequence_len (--set PHASE.sequence_len={_roomier(shortest)}), or shorten the "
        "questions"
    )


def _roomier(tokens: int) -> int:
    """Return a power of two with space for an answer after `tokens` tokens."""
    return 1 << (tokens + tokens // 4).bit_length()
