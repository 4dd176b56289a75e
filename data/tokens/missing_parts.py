"""Detect parts of a conversation that a chat template leaves out, so that no content is dropped silently.

`find_missing_part` receives a conversation, the rendered text and a function that renders a changed conversation, and
describes the first missing part. A part found in the text, raw or JSON-escaped, counts as present. Otherwise a probe
replaces the part: if the probe appears in the new text, the template writes the part in a transformed form.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

PROBE = "Qz7probeQz7"
THOUGHT = re.compile(r"<think>(.*?)</think>|</?think>", re.DOTALL)
Probed = tuple[str, str, Callable[[], Mapping[str, Any]]]
"""Description of a part, the part, and a function that returns the message with a probe instead of the part."""


def find_missing_part(talk: Any, text: str, is_written: Callable[[Any], bool]) -> str:
    """Return a description of a part of a `Dialogue` missing from its text; "" if the text is complete.

    The reasoning of earlier answers may be missing, as in the prompt for the last answer.
    """
    for at, message in enumerate(talk.messages):
        for what, part, instead in _parts(message, at + 1 == len(talk.messages)):
            if has(text, part):
                continue
            messages = [*talk.messages[:at], instead(), *talk.messages[at + 1 :]]
            if not is_written(replace(talk, messages=messages)):
                return f"{what} of message {at + 1} ({message['role']})"
    for tool in talk.tools or ():
        name = str(tool.get("function", tool).get("name", ""))
        if not has(text, name):
            return f"the tool {name!r}"
    return ""


def has(text: str, part: str) -> bool:
    """Return True if a text contains a part, raw or as a JSON string."""
    return part in text or json.dumps(part, ensure_ascii=False)[1:-1] in text or json.dumps(part)[1:-1] in text


def _parts(message: Mapping[str, Any], is_last: bool) -> Iterator[Probed]:
    content = message.get("content")
    content = content if isinstance(content, str) else ""
    if message["role"] == "assistant":
        if is_last:
            yield from _reasoning(message, content)
        content = THOUGHT.sub("\0", content) if "think>" in content else content
    for piece in content.split("\0"):
        if piece.strip():
            yield "the text", piece.strip(), lambda: {**message, "content": PROBE}
    for at, call in enumerate(message.get("tool_calls") or ()):
        yield from _call(message, at, call["function"])


def _reasoning(message: Mapping[str, Any], content: str) -> Iterator[Probed]:
    if said := str(message.get("reasoning_content") or "").strip():
        yield (
            "the reasoning",
            said,
            lambda: {**message, **dict.fromkeys(("reasoning_content", "thinking", "reasoning"), PROBE)},
        )
    for found in THOUGHT.finditer(content):
        if said := (found[1] or "").strip():
            yield "the reasoning", said, partial(_replaced, message, content, said)


def _replaced(message: Mapping[str, Any], content: str, said: str) -> dict[str, Any]:
    return {**message, "content": content.replace(said, PROBE)}


def _call(message: Mapping[str, Any], at: int, call: Mapping[str, Any]) -> Iterator[Probed]:
    calls: Sequence[Any] = message["tool_calls"]

    def instead(changes: Mapping[str, Any]) -> dict[str, Any]:
        changed = {**calls[at], "function": {**call, **changes}}
        return {**message, "tool_calls": [*calls[:at], changed, *calls[at + 1 :]]}

    yield "the tool call", str(call["name"]), partial(instead, {"name": PROBE})
    for value in _leaves(call.get("arguments")):
        yield "the arguments of a tool call", value, partial(instead, {"arguments": {PROBE: PROBE}})


def _leaves(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield str(name)
            yield from _leaves(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _leaves(one)
    elif isinstance(value, str):
        yield value.strip()
    elif value is not None:
        yield json.dumps(value)
