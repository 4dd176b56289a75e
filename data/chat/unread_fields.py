"""Columns and message fields of foreign rows that no reader uses: refused if the name has a meaning, else reported.

A name in any spelling (`loss_weight`, `lossWeight`) is split into words.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from data.chat.message_parts import RowRefused
from store.untrusted_input import printable_line

MASK = {"mask", "masked", "masks", "ignore", "ignored", "train", "trained", "trainable", "training", "loss", "learn"}
REASONING = {"reasoning", "thinking", "thought", "thoughts", "think", "cot"}
MEDIA = {"image", "images", "audio", "audios", "video", "videos", "attachment", "attachments"}
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
EMPTY: tuple[Any, ...] = (None, "", [], {})


def unread(row: Mapping[str, Any], known: Iterable[str]) -> Iterator[str]:
    """Yield the names of fields with content that are not `known`."""
    return (name for name, value in row.items() if name not in known and value not in EMPTY)


def refuse_media(row: Mapping[str, Any]) -> None:
    """Raise RowRefused for a row with a column of pictures or sound."""
    if found := next((name for name in MEDIA if row.get(name) not in EMPTY), ""):
        raise RowRefused(f"it has {found}; only text can be learnt")


def refuse_unread(number: int, message: Mapping[str, Any], known: Iterable[str], reasons: bool) -> None:
    """Raise RowRefused for an unread field of message `number` that is a mask, a reasoning or a medium.

    reasons: whether a known field has the reasoning; other forms of the reasoning beside it are reported only.
    """
    for name in unread(message, known):
        words = {word.lower() for word in WORD.findall(name)}
        told = f"message {number} has {name}: {printable_line(message[name])}"
        if words & MASK:
            raise RowRefused(f"{told}; write weight: 0 in an answer that is not to be learnt")
        if words & REASONING and not reasons:
            raise RowRefused(f"{told}; write the reasoning of an answer into reasoning_content")
        if words & MEDIA:
            raise RowRefused(f"{told}; only text can be learnt")
