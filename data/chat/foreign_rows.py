"""Convert published conversation formats to a `Dialogue`, without losing information.

Known formats are OpenAI's messages, ShareGPT's from and value, and Alpaca's instruction, input and output, with tools,
system prompts and masks in separate columns. The result is a `Dialogue` in OpenAI's form, with `weight` 0 for answers
excluded from training, or RowRefused with a reason.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from data.chat.message_parts import ARGUMENTS, read_content
from data.chat.unread_fields import EMPTY, RowRefused, refuse_columns, refuse_unread, unread
from data.tokens.chat_template import REASONING, Dialogue, is_learnt
from store.untrusted_input import printable_line

COLUMNS = ("messages", "conversations", "conversation")
ALPACA = ("instruction", "output")
SYSTEM = ("system", "system_prompt", "system_message", "system_instruction", "system_instructions")
TOOLS = ("tools", "functions")
MASKS = ("weights", "loss_mask", "loss_masks", "train_mask", "assistant_masks", "assistant_mask")
VARIABLES = "chat_template_kwargs"
ROLES = {
    **dict.fromkeys(("user", "human", "prompter"), "user"),
    **dict.fromkeys(("assistant", "gpt", "bot", "model", "chatbot", "chatgpt", "ai"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("tool", "function", "observation", "ipython", "tool_response", "function_response"), "tool"),
    **dict.fromkeys(("function_call", "tool_call"), "call"),
}
FLAGS = ("train", "train_on_turn", "loss", "training", "trainable")
TEXTS = ("content", "value", "text", "message", "parts")
DETAILS = ("train_detail", "training_detail")
FIELDS = ("role", "from", *TEXTS, "refusal", "weight", *FLAGS, *DETAILS)
OF_ANSWERS = (*REASONING, "tool_calls", "function_call")
OF_TOOLS = ("name", "tool_call_id")


def parse_row(row: Any) -> Dialogue:
    """Return the conversation of a row. Raises RowRefused."""
    columns: Mapping[str, Any] = row if isinstance(row, Mapping) else {"messages": row}
    columns = {name: one for name, one in columns.items() if one is not None}
    refuse_columns(columns, READ)
    found = _of_alpaca(columns) if is_alpaca(columns) else _of_messages(columns)
    found = _with_system(found, columns)
    _mask(found, columns)
    _check_turns(found)
    _refuse_empty_answers(found)
    return Dialogue(found, _tools(columns), _variables(columns))


def is_alpaca(row: Mapping[str, Any]) -> bool:
    return not any(name in row for name in COLUMNS) and all(name in row for name in ALPACA)


def dialogue_row(talk: Dialogue) -> dict[str, Any]:
    """Return a dialogue as a row of conversations.jsonl, readable by `read_dialogue`."""
    row: dict[str, Any] = {"messages": list(talk.messages)}
    row |= {"tools": list(talk.tools)} if talk.tools else {}
    return row | ({VARIABLES: dict(talk.variables)} if talk.variables else {})


def read_dialogue(row: Mapping[str, Any]) -> Dialogue:
    """Return the conversation of a row written by `dialogue_row`."""
    return Dialogue(row["messages"], row.get("tools"), row.get(VARIABLES) or {})


def _of_messages(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    columns = [name for name in COLUMNS if _listed(row.get(name))]
    columns = columns[:1] + [name for name in columns[1:] if isinstance(_listed(row[name])[0], Mapping)]
    if not columns:
        raise RowRefused(f"its {next((name for name in COLUMNS if name in row), 'row')} holds no messages")
    found = [
        [
            one
            for number, message in enumerate(map(_parsed, _listed(row[column])), 1)
            for one in _Message(number, message).read()
        ]
        for column in columns
    ]
    if any(one != found[0] for one in found):
        raise RowRefused(f"its {' and '.join(columns)} say different things")
    return found[0]


def unread_fields(row: Any) -> Iterator[str]:
    """Yield the columns and the fields of messages with content that `parse_row` does not use."""
    if isinstance(row, Mapping):
        yield from unread(row, READ if is_alpaca(row) else [name for name in READ if name not in OF_ALPACA])
    messages = row if isinstance(row, list) else next((row[name] for name in COLUMNS if row.get(name)), [])
    for one in _listed(messages):
        if isinstance(one, Mapping):
            role = ROLES.get(str(one.get("role", one.get("from"))).strip().lower())
            known = (*FIELDS, *{"assistant": OF_ANSWERS, "tool": OF_TOOLS}.get(str(role), ()))
            yield from (f"{name} of messages" for name in unread(one, known))


def _of_alpaca(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return Alpaca's columns as messages: the instruction, followed by the input."""
    for name in ("instruction", "input"):
        if isinstance(one := row.get(name, ""), bool) or not isinstance(one, (str, int)):
            raise RowRefused(f"its {name} is {printable_line(one)}, expected text")
    if not isinstance(history := row.get("history") or [], list):
        raise RowRefused(f"its history is {printable_line(history)}, expected pairs of question and answer")
    asked = "\n\n".join(str(row[name]) for name in ("instruction", "input") if str(row.get(name, "")).strip())
    pairs = [*history, (asked, row["output"])]
    if not all(
        isinstance(pair, (list, tuple)) and len(pair) == 2 and all(isinstance(one, str) for one in pair)
        for pair in pairs
    ):
        raise RowRefused("its instruction, input, output or history holds something other than text")
    return [
        {"role": role, "content": text}
        for pair in pairs
        for role, text in zip(("user", "assistant"), pair, strict=True)
    ]


@dataclass
class _Message:
    """A message in a foreign format; `read` converts the message to a list of OpenAI messages."""

    number: int
    said: Any
    before: list[dict[str, Any]] = field(default_factory=list)

    def read(self) -> list[dict[str, Any]]:
        if not isinstance(self.said, Mapping):
            raise RowRefused(f"message {self.number} is {printable_line(self.said)}, expected an object")
        said = {name: one for name, one in self.said.items() if one is not None}
        spelt = said.get("role", said.get("from"))
        role, other = (ROLES.get(str(one).strip().lower()) for one in (spelt, said.get("from", spelt)))
        if role is not None and role != other:
            raise RowRefused(f"message {self.number} is by {spelt} and from {printable_line(said['from'])}")
        if role is None:
            raise RowRefused(f"message {self.number} is by {printable_line(spelt)}; known: {', '.join(ROLES)}")
        known = (*FIELDS, *(OF_ANSWERS if role == "assistant" else ()), *(OF_TOOLS if role == "tool" else ()))
        reasons = role == "assistant" and any(said.get(name) for name in REASONING)
        refuse_unread(self.number, said, known, reasons)
        given = {name: said[name] for name in TEXTS if name in said}
        if refusal := said.get("refusal"):
            if any(given.values()) or role != "assistant" or not isinstance(refusal, str):
                raise RowRefused(f"message {self.number} has the refusal {printable_line(refusal)} beside its content")
            given = {"refusal": refusal}
        content, *others = [read_content(self.number, one) for one in given.values() or (None,)]
        if any(one != content for one in others):
            raise RowRefused(f"message {self.number} has different texts: {printable_line(given)}")
        if role == "call":
            calls = self._calls(_parsed(content.text))
            found: dict[str, Any] = {"role": "assistant", **({"tool_calls": calls} if calls else {"content": ""})}
            return [found | self._weight(said, "assistant")]
        found = {"role": role} | ({"content": content.content} if content.content is not None else {})
        if role == "assistant":
            found |= self._of_answer(said, content.reasoning, content.calls)
            if "</think>" in content.text and any(found.get(name) for name in REASONING):
                raise RowRefused(f"message {self.number} has reasoning in its content and in a field of its own")
        elif content.calls or content.reasoning:
            raise RowRefused(f"message {self.number} by {spelt} has tool calls or reasoning, which only answers have")
        if role == "tool":
            found |= {name: said[name] for name in ("name", "tool_call_id") if said.get(name)}
        if content.results:
            rest = [found] if content.content else []
            return [*({"role": "tool", **one} for one in content.results), *rest]
        if "content" not in found and "tool_calls" not in found:
            raise RowRefused(f"message {self.number} by {spelt} has no content")
        return [found | self._weight(said, role)]

    def _of_answer(self, said: Mapping[str, Any], reasoning: str, calls: list[Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for name in REASONING:
            if (one := said.get(name)) not in (None, ""):
                if not isinstance(one, str):
                    raise RowRefused(f"message {self.number}: its {name} is {printable_line(one)}, expected text")
                found[name] = one
        if len({*found.values(), *([reasoning] if reasoning else ())}) > 1:
            raise RowRefused(f"message {self.number} has two kinds of reasoning, and they differ")
        if reasoning:
            found["reasoning_content"] = reasoning
        given, others = self._calls(calls), self._calls(_filled(said.get("tool_calls")))
        if given and others and [one["function"] for one in given] != [one["function"] for one in others]:
            raise RowRefused(f"message {self.number} has different tool calls in its content and in tool_calls")
        given = given or others
        older = self._calls(_filled(said.get("function_call")))
        given += [one for one in older if one["function"] not in [each["function"] for each in given]]
        return found | ({"tool_calls": given} if given else {})

    def _calls(self, given: Any) -> list[dict[str, Any]]:
        """Return tool calls in OpenAI's form, with parsed arguments."""
        calls = []
        for one in given if isinstance(given, list) else [given]:
            call = one.get("function", one) if isinstance(one, Mapping) else None
            name = call.get("name") if isinstance(call, Mapping) else None
            if not isinstance(call, Mapping) or not isinstance(name, str) or not name.strip():
                raise RowRefused(
                    f"message {self.number} has the tool call {printable_line(one)}, which names no function"
                )
            fields = {**one, **call}
            arguments, *others = [_parsed(fields[key]) for key in ARGUMENTS if fields.get(key) not in EMPTY] or [{}]
            if any(other != arguments for other in others):
                raise RowRefused(f"message {self.number} has different arguments of {name}: {printable_line(one)}")
            if not isinstance(arguments, Mapping):
                raise RowRefused(
                    f"message {self.number}: the arguments of {name} are {printable_line(arguments)}, no object"
                )
            marked = {"id": one["id"]} if one.get("id") else {}
            calls.append({**marked, "type": "function", "function": {"name": name, "arguments": dict(arguments)}})
        return calls

    def _weight(self, said: Mapping[str, Any], role: str) -> dict[str, int]:
        """Return `weight` 0 for an answer excluded from training, else {}. Raises RowRefused for invalid flags."""
        if spans := next((name for name in DETAILS if said.get(name)), ""):
            raise RowRefused(
                f"message {self.number} has {spans}: parts of an answer cannot be left out, only all of it"
            )
        given = {name: said[name] for name in ("weight", *FLAGS) if name in said}
        wanted = {name: _flag(self.number, name, one) for name, one in given.items()}
        if len(set(wanted.values())) > 1:
            raise RowRefused(f"message {self.number} is to be learnt and not to be learnt: {printable_line(given)}")
        if role != "assistant" and any(wanted.values()):
            raise RowRefused(f"message {self.number} has {printable_line(given)}, and only answers are learnt")
        return {"weight": 0} if role == "assistant" and not all(wanted.values()) else {}


def _flag(number: int, name: str, said: Any) -> bool:
    if said not in (0, 1, True, False):
        raise RowRefused(f"message {number}: its {name} is {printable_line(said)}; known: 0 and 1")
    return bool(said)


def _with_system(messages: list[dict[str, Any]], row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the messages with the system prompt of a column in front. Raises RowRefused for conflicting prompts."""
    given = dict.fromkeys(one for name in SYSTEM if isinstance(one := row.get(name), str) and one.strip())
    if odd := next((name for name in SYSTEM if not isinstance(row.get(name, ""), str)), ""):
        raise RowRefused(f"its {odd} is {printable_line(row[odd])}, expected text")
    if messages[0]["role"] == "system":
        given = {one: None for one in given if one.strip() != str(messages[0].get("content")).strip()}
        if given:
            raise RowRefused("its column with a system prompt and its first message say different things")
    if len(given) > 1:
        raise RowRefused("two of its columns have different system prompts")
    return [*({"role": "system", "content": one} for one in given), *messages]


def _mask(messages: Sequence[dict[str, Any]], row: Mapping[str, Any]) -> None:
    """Set message weights from a mask column. Raises RowRefused for a mask of the wrong length or type."""
    if "weight" in row and row["weight"] not in (1, True):
        raise RowRefused(
            f"its weight is {printable_line(row['weight'])}; whole conversations cannot be weighted, only drawn"
        )
    for name in (one for one in MASKS if one in row):
        flags, answers = row[name], [one for one in messages if one["role"] == "assistant"]
        count = len(flags) if isinstance(flags, list) else -1
        if count not in (len(messages), len(answers)) or any(one not in (0, 1, True, False) for one in flags):
            raise RowRefused(
                f"its {name} is {printable_line(flags)}; expected 0 or 1 for each message, or for each answer"
            )
        for message, flag in zip(messages if count == len(messages) else answers, flags, strict=True):
            if message["role"] == "assistant" and not flag:
                message["weight"] = 0
            elif message["role"] != "assistant" and flag:
                raise RowRefused(f"its {name} wants a message by {message['role']} learnt; only answers are")
    said = row.get("mask")
    if isinstance(said, str) and ROLES.get(said.strip().lower()) != "user":
        raise RowRefused(f"its mask is {printable_line(said)}; known: User, since only answers are learnt")
    if said is not None and not isinstance(said, str):
        raise RowRefused(f"its mask is {printable_line(said)}, which is no role")


def _tools(row: Mapping[str, Any]) -> list[dict[str, Any]] | None:
    """Return the tools in OpenAI's form, or None."""
    given = [one for name in TOOLS if row.get(name) not in (None, "") for one in _listed(_parsed(row[name]))]
    found = []
    for one in map(_parsed, given):
        inner = one.get("function", one) if isinstance(one, Mapping) else None
        if not isinstance(inner, Mapping) or not isinstance(inner.get("name"), str):
            raise RowRefused(f"its tools hold {printable_line(one)}, which names no function")
        tool = dict(one) if "function" in one else {"type": "function", "function": dict(one)}
        found += [tool] if tool not in found else []
    return found or None


def _variables(row: Mapping[str, Any]) -> dict[str, Any]:
    said = row.get(VARIABLES) or {}
    if not isinstance(said, Mapping) or {"messages", "tools", "add_generation_prompt"} & said.keys():
        raise RowRefused(f"its {VARIABLES} are {printable_line(said)}")
    return {name: one for name, one in said.items() if one is not None}


def _check_turns(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise RowRefused unless user and assistant alternate, tools answer calls, and an answer exists."""
    talk = messages[1:] if messages[0]["role"] == "system" else messages
    before = "assistant"
    for number, one in enumerate(talk, 1 + len(messages) - len(talk)):
        if one["role"] not in AFTER[before]:
            after = f"follows one by {before}" if number > 1 + len(messages) - len(talk) else "is the first"
            raise RowRefused(f"message {number} by {one['role']} {after}; roles out of turn")
        before = one["role"]
    if not any(one["role"] == "assistant" for one in talk):
        raise RowRefused("it has no answer")


def _refuse_empty_answers(messages: Sequence[Mapping[str, Any]]) -> None:
    """Raise RowRefused for a trained answer without text, reasoning and tool calls."""
    for number, one in enumerate(messages, 1):
        content = one.get("content")
        text = content if isinstance(content, str) else "".join(part["text"] for part in content or ())
        if is_learnt(one) and not text.strip() and not any(one.get(name) for name in ("tool_calls", *REASONING)):
            raise RowRefused(
                f"message {number} is an empty answer; write weight: 0 in an answer that is not to be learnt"
            )


OF_ALPACA = (*ALPACA, "input", "history")
READ = (*COLUMNS, *OF_ALPACA, *SYSTEM, *TOOLS, *MASKS, "weight", "mask", VARIABLES)
"""Columns of a row that `parse_row` uses."""
AFTER = {"assistant": ("user", "tool"), "user": ("assistant",), "tool": ("assistant", "tool", "user")}


def _parsed(said: Any) -> Any:
    """Return the value of a JSON string; any other value unchanged."""
    if not isinstance(said, str):
        return said
    try:
        return json.loads(said)
    except (ValueError, RecursionError):
        return said


def _is_empty(value: Any) -> bool:
    """Return True for an empty value, and for an object with empty values only."""
    return value in EMPTY or isinstance(value, Mapping) and all(map(_is_empty, value.values()))


def _filled(said: Any) -> list[Any]:
    return [one for one in _listed(said) if not _is_empty(one)]


def _listed(said: Any) -> list[Any]:
    said = _parsed(said)
    return said if isinstance(said, list) else [] if said in (None, "") else [said]
