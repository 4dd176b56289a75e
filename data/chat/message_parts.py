"""Read the content of a message in a foreign format: a text, or typed parts.

The content is split into text, reasoning, tool calls and tool results. Other types, such as images, raise RowRefused
with the type.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from data.chat.unread_fields import RowRefused, refuse_media
from store.untrusted_input import printable_line

TEXT = {"text", "input_text", "output_text", "refusal"}
REASONING = {"thinking", "reasoning", "reasoning_text"}
CALLS = {"tool_use", "tool_call", "tool-call", "function_call"}
RESULTS = {"tool_result", "tool-result", "function_call_output"}
ARGUMENTS = ("arguments", "parameters", "args", "input", "kwargs", "params", "inputs", "partial_json")
OURS = {"text", "python", "python_output"}  # parts of an answer in nanochat's format


@dataclass
class Content:
    """The content of a message."""

    content: str | list[dict[str, str]] | None = None
    """A text, nanochat's parts, or None without text."""
    reasoning: str = ""
    calls: list[dict[str, Any]] = field(default_factory=list)
    results: list[dict[str, Any]] = field(default_factory=list)
    """Tool results, as messages without a role."""

    @property
    def text(self) -> str:
        return self.content if isinstance(self.content, str) else ""


def read_content(number: int, said: Any) -> Content:
    """Return the content of message `number`. Raises RowRefused for content that is not text."""
    if said is None or isinstance(said, str):
        return Content(None if said is None else _whole(said))
    if isinstance(said, Mapping):
        said = [said]
    if not isinstance(said, list):
        raise RowRefused(f"message {number}: its content is {printable_line(said)}, expected text or parts")
    parts = [{"type": "text", "text": one} if isinstance(one, str) else one for one in said]
    if any(isinstance(one, Mapping) and one.get("type") in OURS - TEXT for one in parts):
        return Content([_of_ours(number, one) for one in parts])
    found, texts = Content(), list[str]()
    for part in parts:
        _read_part(number, part, found, texts)
    if texts or not (found.calls or found.results or found.reasoning):
        found.content = "".join(texts)
    return found


def _read_part(number: int, part: Any, found: Content, texts: list[str]) -> None:
    if not isinstance(part, Mapping):
        raise RowRefused(f"message {number} has the part {printable_line(part)}")
    part = {name: one for name, one in part.items() if one is not None}
    kind = part.get("type", "text" if "text" in part else next(iter(part), "nothing"))
    said = next((part[name] for name in ("text", kind, "content") if isinstance(part.get(name), str)), None)
    if kind in TEXT:
        refuse_media(number, part)
    if said is not None and (kind in REASONING or kind in TEXT and part.get("thought") is True):
        found.reasoning += _whole(said)
    elif kind in TEXT and said is not None:
        texts.append(_whole(said))
    elif kind in CALLS:
        given = {name: part[name] for name in ARGUMENTS if name in part}
        inner = part[kind] if isinstance(part.get(kind), Mapping) else None
        call = part.get("function") or inner or {"name": part.get("name", part.get("toolName")), **given}
        found.calls.append({"id": part.get("id", part.get("toolCallId", part.get("call_id"))), "function": call})
    elif kind in RESULTS:
        result = next((part[name] for name in ("content", "output", "result") if name in part), "")
        text = read_content(number, result).content if isinstance(result, (str, list)) else json.dumps(result)
        call = next((part[name] for name in ("tool_use_id", "toolCallId", "call_id") if name in part), None)
        found.results.append({"content": text, **({"tool_call_id": call} if call else {})})
    else:
        raise RowRefused(f"message {number} has a part of type {printable_line(kind)}; only text can be learnt")


def _of_ours(number: int, part: Any) -> dict[str, str]:
    if not isinstance(part, Mapping) or part.get("type") not in OURS or not isinstance(part.get("text"), str):
        raise RowRefused(f"message {number} mixes python parts with {printable_line(part)}")
    return {**part, "text": _whole(part["text"])}


def _whole(text: str) -> str:
    """Return a text with unpaired surrogates replaced, because they have no UTF-8 form."""
    return text.encode("utf-8", "replace").decode()
