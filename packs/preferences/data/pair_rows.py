"""Read pairs of answers in published formats, without losing information.

A row has `chosen` and `rejected`, or a single `completion` with a `label` (true for a wanted answer). Each is a text or
a list of messages, after the messages of `prompt`, or including them. `PairReader.read` returns the row for
conversations.jsonl: `messages` before the answers, and the answers as lists of messages.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import takewhile
from typing import Any

from data.chat.foreign_rows import SYSTEM, TOOLS, VARIABLES, dialogue_row, parse_row
from data.chat.imported import RowReader
from data.chat.unread_fields import RowRefused, refuse_columns, unread
from data.tokens.chat_template import Dialogue
from store.untrusted_input import printable_line

ENDS = ("chosen", "rejected")
PROMPTS = ("prompt", "question", "instruction")
SHARED = (*SYSTEM, *TOOLS, VARIABLES)
Messages = Sequence[Mapping[str, Any]]


class PairReader(RowReader):
    """The reader of pairs, and of single judged answers."""

    columns = (*ENDS, "completion")
    known = (*ENDS, "completion", "label", *PROMPTS, *SHARED)

    def is_readable(self, row: Any) -> bool:
        return isinstance(row, Mapping) and ("completion" in row or all(name in row for name in ENDS))

    def read(self, row: Any) -> dict[str, Any]:
        if not isinstance(row, Mapping):
            raise RowRefused(f"it is {printable_line(row)}, expected an object with chosen and rejected")
        columns = {name: one for name, one in row.items() if one not in (None, "", [])}
        refuse_columns(columns, self.known)
        if "completion" in columns and not any(name in columns for name in ENDS):
            return _of_single(columns)
        if missing := [name for name in ENDS if name not in columns]:
            raise RowRefused(f"it has no {' and no '.join(missing)}")
        return _of_pair(columns)

    def unread_fields(self, row: Any) -> Iterator[str]:
        # The column messages of published pairs repeats the chosen conversation.
        return (name for name in unread(row, self.known) if name != "messages")


def _of_pair(row: Mapping[str, Any]) -> dict[str, Any]:
    prompt = _prompt(row)
    whole = [all(_has_prompt(row[name]) for name in ENDS), any(_has_prompt(row[name]) for name in ENDS)]
    if whole[0] != whole[1]:
        raise RowRefused("only one of chosen and rejected begins with the question")
    if not whole[0] and not prompt:
        raise RowRefused(f"it has no prompt: chosen and rejected have only answers; known: {', '.join(PROMPTS)}")
    chosen, rejected = (_dialogue(row, [] if whole[0] else prompt, name) for name in ENDS)
    pairs = zip(chosen.messages, rejected.messages, strict=False)
    before = len([*takewhile(lambda pair: pair[0] == pair[1], pairs)])
    if before == max(len(chosen.messages), len(rejected.messages)):
        raise RowRefused("chosen and rejected are equal")
    rest = [list(one.messages[before:]) for one in (chosen, rejected)]
    if any(not one or one[0]["role"] != "assistant" for one in rest):
        raise RowRefused("chosen and rejected differ in a question, and not in an answer")
    asked = chosen.messages[:before]
    if whole[0] and isinstance(said := _first(row), str) and said.strip() not in map(_text, asked):
        raise RowRefused(f"its prompt is none of the messages of chosen: {printable_line(said)}")
    return {**_before(chosen, asked), "chosen": rest[0], "rejected": rest[1]}


def _of_single(row: Mapping[str, Any]) -> dict[str, Any]:
    if row.get("label") not in (True, False):
        raise RowRefused(f"its label is {printable_line(row.get('label'))}; known: true for a wanted answer, and false")
    prompt = _prompt(row)
    if not prompt:
        raise RowRefused(f"it has no prompt; known: {', '.join(PROMPTS)}")
    found = _dialogue(row, prompt, "completion")
    return {
        **_before(found, found.messages[:-1]),
        "completion": [found.messages[-1]],
        "label": bool(row["label"]),
    }


def _dialogue(row: Mapping[str, Any], prompt: Messages, name: str) -> Dialogue:
    """Return the conversation that ends with the answer in a column. Raises RowRefused."""
    said = row[name]
    answer = [{"role": "assistant", "content": said}] if isinstance(said, str) else said
    if not isinstance(answer, (list, Mapping)):
        raise RowRefused(f"its {name} is {printable_line(said)}, expected text or messages")
    answer = answer if isinstance(answer, list) else [answer]
    try:
        found = parse_row({"messages": [*prompt, *answer], **{one: row[one] for one in SHARED if one in row}})
    except RowRefused as error:
        raise RowRefused(f"{name}: {error}") from None
    if found.messages[-1]["role"] != "assistant":
        raise RowRefused(f"{name}: the last message is by {found.messages[-1]['role']}, and not an answer")
    return found


def _first(row: Mapping[str, Any]) -> Any:
    """Return the value of the first column of a prompt, or None."""
    return next((row[name] for name in PROMPTS if name in row), None)


def _prompt(row: Mapping[str, Any]) -> Messages:
    """Return the messages of a prompt; [] without a prompt. Raises RowRefused."""
    said = _first(row)
    if isinstance(said, str):
        return [{"role": "user", "content": said}]
    if said is not None and not isinstance(said, (list, Mapping)):
        raise RowRefused(f"its prompt is {printable_line(said)}, expected text or messages")
    return said if isinstance(said, list) else [said] if said else []


def _has_prompt(said: Any) -> bool:
    """Return whether a list of messages begins before the answer."""
    first = said[0] if isinstance(said, list) and said else said
    role = first.get("role", first.get("from")) if isinstance(first, Mapping) else "assistant"
    return str(role).strip().lower() in ("user", "human", "prompter", "system", "developer")


def _before(talk: Dialogue, messages: Messages) -> dict[str, Any]:
    """Return the fields of a row without the answers."""
    return dialogue_row(Dialogue(messages, talk.tools, talk.variables))


def _text(message: Mapping[str, Any]) -> str:
    content: str | Sequence[Mapping[str, str]] = message.get("content") or ""
    return (content if isinstance(content, str) else "".join(part["text"] for part in content)).strip()
