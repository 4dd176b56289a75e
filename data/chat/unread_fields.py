"""Columns and message fields of foreign rows that no reader uses: refused if the name has a meaning, else reported.

A name in any spelling (`loss_weight`, `lossWeight`) is split into words.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from store.untrusted_input import printable_line

LEFT_OUT = {"mask", "masked", "masks", "ignore", "ignored"}
LEARNT = {"train", "trained", "trainable", "training", "loss", "learn"}
MASK = LEFT_OUT | LEARNT
OF_ROWS = {"is", "do", "to", "on", "for", "from", "in", "row", "sample", "example", "data"}  # beside a flag of a row
WEIGHT = {"weight", "weights"}
REASONING = {"reasoning", "thinking", "thought", "thoughts", "think", "cot", "rationale", "scratchpad"}
TOOLS = {"tools", "functions"}
MEDIA = {"image", "images", "audio", "audios", "video", "videos", "attachment", "attachments"}
WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+")
EMPTY: tuple[Any, ...] = (None, "", [], {})
CALLS = ("tool_calls", "function_call")


class RowRefused(ValueError):
    """A row unusable for training in the intended way; the message gives the reason."""


def unread(row: Mapping[str, Any], known: Iterable[str]) -> Iterator[str]:
    """Yield the names of fields with content that are not `known`."""
    return (name for name, value in row.items() if name not in known and value not in EMPTY)


def words_of(name: str) -> set[str]:
    return {word.lower() for word in WORD.findall(name)}


def may_have_meaning(name: str) -> bool:
    """Return whether `refuse_columns` refuses a column of this name, depending on the values."""
    return bool(words_of(name) & (MEDIA | MASK | WEIGHT | TOOLS))


def refuse_columns(row: Mapping[str, Any], known: Iterable[str]) -> None:
    """Raise RowRefused for an unread column of pictures or sound, of flags for the messages, or of tools."""
    for name in unread(row, known):
        value, words = row[name], words_of(name)
        if words & MEDIA and not isinstance(value, (bool, int, float)):
            raise RowRefused(f"it has {name}; only text can be learnt")
        if words & (MASK | WEIGHT) and _are_flags(value):
            raise RowRefused(f"its {name} is {printable_line(value)}; rename the column to loss_mask, or remove it")
        if words & MASK and _leaves_out(words, value):
            raise RowRefused(f"its {name} is {printable_line(value)}, which leaves the row out")
        if words & TOOLS and isinstance(value, list) and all(isinstance(one, (Mapping, str)) for one in value):
            raise RowRefused(f"its {name} is {printable_line(value)}; rename the column to tools, or remove it")


def _are_flags(value: Any) -> bool:
    if not isinstance(value, list):
        return False
    return all(_are_flags(one) if isinstance(one, list) else isinstance(one, (bool, int, float)) for one in value)


def _leaves_out(words: set[str], value: Any) -> bool:
    """Return True for a flag that excludes a row; 0 and 1 are flags in a name of one word, else often numbers."""
    is_flag = isinstance(value, bool) or type(value) is int and value in (0, 1) and len(words) == 1
    return is_flag and words <= MASK | OF_ROWS and bool(value) is bool(words & LEFT_OUT)


def refuse_media(number: int, part: Mapping[str, Any]) -> None:
    """Raise RowRefused for a medium beside the text of a part."""
    if name := next((name for name in unread(part, ()) if words_of(name) & MEDIA), ""):
        raise RowRefused(f"message {number} has a part with {name}; only text can be learnt")


def refuse_unread(number: int, message: Mapping[str, Any], known: Iterable[str], reasons: bool) -> None:
    """Raise RowRefused for an unread field of message `number` that is a mask, a reasoning or a medium.

    reasons: whether a known field has the reasoning; other forms of the reasoning beside it are reported only.
    """
    for name in unread(message, known):
        words = words_of(name)
        told = f"message {number} has {name}: {printable_line(message[name])}"
        if words & MASK:
            raise RowRefused(f"{told}; write weight: 0 in an answer that is not to be learnt")
        if words & REASONING and not reasons:
            raise RowRefused(f"{told}; write the reasoning of an answer into reasoning_content")
        if words & MEDIA:
            raise RowRefused(f"{told}; only text can be learnt")
        if words & TOOLS:
            raise RowRefused(f"{told}; write the tools into the column tools")
        if name in CALLS:
            raise RowRefused(f"{told}; only answers have tool calls")
        if name == "recipient" and message[name] not in ("all", "user", "assistant"):
            raise RowRefused(f"{told}; write the call into tool_calls")
        if name == "channel" and message[name] != "final":
            raise RowRefused(f"{told}; write the text of other channels into reasoning_content")
