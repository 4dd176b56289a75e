"""Detect parts of a conversation that a chat template leaves out, so that no content is dropped silently.

`find_missing_part` receives a conversation, the rendered text, the source of the template and a function that renders a
changed conversation, and describes the first missing part. A part counts as present if the text contains the part, raw
or JSON-escaped, and neither the rest of the conversation nor the template has the same words. Otherwise a probe
replaces the part: if the probe appears in the new text, the template writes the part, possibly in a transformed form.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import zip_longest
from typing import Any

from data.errors import InputError

PROBE = "Qz7probe{}Qz7"
THOUGHT = re.compile(r"<think>(.*?)</think>|</?think>", re.DOTALL)
Render = Callable[[Any, bool], str]
"""Function of a `Dialogue`, and of whether to add the generation prompt."""


@dataclass(frozen=True)
class _Part:
    at: int
    """Index of the message, or of the tool."""
    what: str
    texts: Sequence[str]
    with_probe: Callable[[str], Any]
    """Function that returns the message or the tool with a probe instead of the part."""


def find_missing_part(talk: Any, text: str, source: str, render: Render, has_reasoning: bool) -> str:
    """Return a description of a part of a `Dialogue` missing from its text; "" if the text is complete.

    The reasoning of earlier answers may be missing, as in the prompt for the last answer. has_reasoning: whether the
    caller wrote the reasoning of the last answer into the text.
    """
    everything = "\0".join((source, *_leaves([talk.messages, talk.tools, talk.variables])))

    def missing(field: str, parts: Sequence[Sequence[_Part]]) -> _Part | None:
        doubtful = [[one for one in some if _is_doubtful(one, text, everything)] for some in parts]
        # Each rendering has one probe per message, because many probes cost as much as one.
        for some in zip_longest(*doubtful):
            asked = [one for one in some if one is not None]
            written = _written(talk, field, asked, render) if len(asked) > 1 else []
            for one in asked:
                if one not in written and not _is_written(talk, field, one, text, render):
                    return one
        return None

    last = None if has_reasoning else len(talk.messages) - 1
    if part := missing("messages", [[*_parts(at, one, at == last)] for at, one in enumerate(talk.messages)]):
        return f"{part.what} of message {part.at + 1} ({talk.messages[part.at]['role']})"
    if part := missing("tools", [[_tool(at, one)] for at, one in enumerate(talk.tools or ())]):
        return part.what
    return next((f"the variable {name}" for name in talk.variables if not _is_used(talk, name, source, render)), "")


def has(text: str, part: str) -> bool:
    """Return True if a text contains a part, raw or as a JSON string."""
    return any(one in text for one in _spellings(part))


def is_content(value: Any) -> bool:
    """Return True for a variable with words for the model, False for a switch such as enable_thinking."""
    return bool(value.strip() if isinstance(value, str) else isinstance(value, (list, tuple, Mapping)) and value)


def _spellings(part: str) -> set[str]:
    return {part, json.dumps(part, ensure_ascii=False)[1:-1], json.dumps(part)[1:-1]}


def _is_doubtful(part: _Part, text: str, everything: str) -> bool:
    return any(not has(text, one) or sum(map(everything.count, _spellings(one))) > 1 for one in part.texts)


def _probed(talk: Any, field: str, parts: Sequence[_Part]) -> Any:
    changed = list(getattr(talk, field))
    for one in parts:
        changed[one.at] = one.with_probe(PROBE.format(one.at))
    return replace(talk, **{field: changed})


def _written(talk: Any, field: str, parts: Sequence[_Part], render: Render) -> list[_Part]:
    try:
        text = render(_probed(talk, field, parts), False)
    except InputError:  # one of the probes; the caller tries each
        return []
    return [one for one in parts if PROBE.format(one.at) in text]


def _is_written(talk: Any, field: str, part: _Part, text: str, render: Render) -> bool:
    try:
        return PROBE.format(part.at) in render(_probed(talk, field, [part]), False)
    except InputError:
        # A template that refuses the probe reads the part.
        if all(has(text, one) for one in part.texts):
            return True
        raise


def _is_used(talk: Any, name: str, source: str, render: Render) -> bool:
    """Return True for a switch, and for a variable with content if the text depends on the variable."""
    value = talk.variables[name]
    if not is_content(value) or isinstance(value, str) and len(value.split()) == 1 and name in source:
        return True
    changed = replace(talk, variables={**talk.variables, name: _with_probe(value, PROBE.format(""))})
    try:
        return any(render(talk, asks) != render(changed, asks) for asks in (False, True))
    except InputError:
        return True


def _parts(at: int, message: Mapping[str, Any], is_last: bool) -> Iterator[_Part]:
    content = message.get("content")
    content = content if isinstance(content, str) else ""
    if message["role"] == "assistant":
        if is_last:
            yield from _reasoning(at, message, content)
        content = THOUGHT.sub("\0", content) if "think>" in content else content
    if texts := [piece.strip() for piece in content.split("\0") if piece.strip()]:
        yield _Part(at, "the text", texts, lambda probe: {**message, "content": probe})
    for number, call in enumerate(message.get("tool_calls") or ()):
        yield from _call(at, message, number, call["function"])


def _reasoning(at: int, message: Mapping[str, Any], content: str) -> Iterator[_Part]:
    if said := str(message.get("reasoning_content") or "").strip():
        names = ("reasoning_content", "thinking", "reasoning")
        yield _Part(at, "the reasoning", [said], lambda probe: {**message, **dict.fromkeys(names, probe)})
    for found in THOUGHT.finditer(content):
        if said := (found[1] or "").strip():
            around = content[: found.start(1)], content[found.end(1) :]
            yield _Part(at, "the reasoning", [said], partial(_between, message, *around))


def _between(message: Mapping[str, Any], before: str, after: str, probe: str) -> dict[str, Any]:
    return {**message, "content": f"{before}{probe}{after}"}


def _call(at: int, message: Mapping[str, Any], number: int, call: Mapping[str, Any]) -> Iterator[_Part]:
    calls: Sequence[Any] = message["tool_calls"]

    def changed(name: str, value: Any) -> dict[str, Any]:
        one = {**calls[number], "function": {**call, name: value}}
        return {**message, "tool_calls": [*calls[:number], one, *calls[number + 1 :]]}

    yield _Part(at, "the tool call", [str(call["name"])], lambda probe: changed("name", probe))
    given = call.get("arguments")
    if texts := list(_leaves(given)):
        yield _Part(
            at, "the arguments of a tool call", texts, lambda probe: changed("arguments", _with_probe(given, probe))
        )


def _tool(at: int, tool: Mapping[str, Any]) -> _Part:
    inner = tool.get("function", tool)
    name = str(inner.get("name", ""))

    def with_probe(probe: str) -> dict[str, Any]:
        named = {**inner, "name": probe}
        return {**tool, "function": named} if "function" in tool else named

    return _Part(at, f"the tool {name!r}", [name], with_probe)


def _with_probe(value: Any, probe: str) -> Any:
    """Return a value with a probe in place of each text, number and empty list, and with the same keys."""
    if isinstance(value, Mapping) and value:
        return {name: _with_probe(one, probe) for name, one in value.items()}
    return [_with_probe(one, probe) for one in value] if isinstance(value, (list, tuple)) and value else probe


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
