"""Detect parts of a conversation that a chat template leaves out, so that no content is dropped silently.

`find_missing_part` receives a conversation, the rendered texts, the source of the template and a function that renders
a changed conversation, and describes the first missing part. A part counts as present if the text contains the part,
raw or JSON-escaped, and neither the rest of the conversation nor the template has the same words. Otherwise a probe
replaces the part: if the probe appears in the new text, the template writes the part, possibly in a transformed form.
"""

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import pairwise, zip_longest
from typing import Any

from data.errors import InputError
from store.untrusted.templates import Beginning

PROBE = "Qz7probe{}Qz7"
THOUGHT = re.compile(r"<think>(.*?)</think>|</?think>", re.DOTALL)
# Only ASCII, because Chinese or Japanese sentences have no spaces.
SWITCH = re.compile(r"[\w.+-]+", re.ASCII)
COPIES = ("thinking", "reasoning")
"""Fields that repeat `reasoning_content` for templates with other names of the field."""
Render = Callable[[Any, Sequence[Beginning]], Sequence[str]]
"""Function of a `Dialogue` and of beginnings: the text of each beginning, in one trip to the template."""


@dataclass(frozen=True)
class _Part:
    at: int
    """Index of the message, or of the tool."""
    what: str
    texts: Sequence[str]
    with_probe: Callable[[str], Any]
    """Function that returns the message or the tool with a probe instead of the part."""
    answers: Sequence[int]
    """Indices of the answers whose texts must contain the part."""


@dataclass(frozen=True)
class _Search:
    talk: Any
    texts: Mapping[int, str]
    """The text of a conversation up to each trained answer, by the index of the answer."""
    everything: str
    """All texts of the conversation and the template."""
    render: Render

    def missing(self, field: str, parts: Sequence[Sequence[_Part]]) -> _Part | None:
        """Return the first part of the messages or tools in `field` missing from a text; `parts` is by message."""
        doubtful = [[one for one in some if self._is_doubtful(one)] for some in parts]
        # Each rendering has one probe per message, because many probes cost as much as one.
        for some in zip_longest(*doubtful):
            asked = [one for one in some if one is not None]
            written = self._written(field, asked) if len(asked) > 1 else []
            for one in asked:
                if one not in written and not self._written(field, [one]):
                    return one
        return None

    def _is_doubtful(self, part: _Part) -> bool:
        repeated = any(sum(map(self.everything.count, _spellings(one))) > 1 for one in part.texts)
        return repeated or not self._has(part)

    def _has(self, part: _Part) -> bool:
        return all(has(self.texts[at], one) for at in part.answers for one in part.texts)

    def _written(self, field: str, parts: Sequence[_Part]) -> list[_Part]:
        """Return the parts whose probes appear in every text that must contain the part. Raises InputError."""
        changed = list(getattr(self.talk, field))
        for one in parts:
            changed[one.at] = one.with_probe(PROBE.format(one.at))
        answers = sorted({at for one in parts for at in one.answers})
        try:
            found = self.render(replace(self.talk, **{field: changed}), [(at + 1, False) for at in answers])
        except InputError:
            if len(parts) > 1:  # one of the probes; the caller tries each
                return []
            # A template that refuses the probe reads the part.
            if all(map(self._has, parts)):
                return [*parts]
            raise
        texts = dict(zip(answers, found, strict=True))
        return [one for one in parts if all(PROBE.format(one.at) in texts[at] for at in one.answers)]


def find_missing_part(
    talk: Any, rendered: Mapping[Beginning, str], opened: Mapping[int, str], source: str, render: Render
) -> str:
    """Return a description of a part of a `Dialogue` missing before or in a trained answer; "" if no part is missing.

    The reasoning of earlier answers may be missing, as in the prompt for a later answer. rendered: texts of the
    beginnings before (with the generation prompt) and after each trained answer. opened: texts that replace the texts
    after some answers, by index of the answer, because the caller wrote the reasoning of these answers into the texts.
    """
    answers = [at for at, asks in rendered if asks]
    if not answers:
        return ""
    texts = {at: opened.get(at, rendered[at + 1, False]) for at in answers}
    # A text that continues the text before contains the parts of the text before.
    continued = {after for before, after in pairwise(answers) if texts[after].startswith(texts[before])}

    def needing(at: int) -> list[int]:
        later = [one for one in answers if one >= at]
        return [one for number, one in enumerate(later) if not number or one not in continued]

    def parts(at: int, message: Mapping[str, Any]) -> list[_Part]:
        return [*_parts(at, message, needing(at), at in texts and at not in opened)]

    everything = "\0".join((source, *_leaves([list(map(_without_copies, talk.messages)), talk.tools, talk.variables])))
    search = _Search(talk, texts, everything, render)
    if part := search.missing("messages", [parts(at, one) for at, one in enumerate(talk.messages[: answers[-1] + 1])]):
        return f"{part.what} of message {part.at + 1} ({talk.messages[part.at]['role']})"
    if part := search.missing("tools", [[_tool(at, one, needing(0))] for at, one in enumerate(talk.tools or ())]):
        return part.what
    unused = (name for name in talk.variables if not _is_used(talk, name, rendered, answers, render))
    return next((f"the variable {name}" for name in unused), "")


def has(text: str, part: str) -> bool:
    """Return True if a text contains a part, raw or as a JSON string."""
    return any(one in text for one in _spellings(part))


def is_content(value: Any) -> bool:
    """Return True for a variable with words for the model, False for a switch such as enable_thinking.

    A text of a single word, such as the reasoning_effort "high", is a switch.
    """
    if isinstance(value, str):
        return bool(value.strip()) and SWITCH.fullmatch(value.strip()) is None
    return isinstance(value, (list, tuple, Mapping)) and bool(value)


def _spellings(part: str) -> set[str]:
    return {part, json.dumps(part, ensure_ascii=False)[1:-1], json.dumps(part)[1:-1]}


def _without_copies(message: Mapping[str, Any]) -> dict[str, Any]:
    reasoning = message.get("reasoning_content")
    return {name: one for name, one in message.items() if name not in COPIES or one != reasoning}


def _is_used(talk: Any, name: str, rendered: Mapping[Beginning, str], answers: Sequence[int], render: Render) -> bool:
    """Return True for a switch, and for a variable with content if the text of each answer depends on the variable."""
    value = talk.variables[name]
    if not is_content(value):
        return True
    changed = replace(talk, variables={**talk.variables, name: _with_probe(value, PROBE.format(""))})
    beginnings = [one for at in answers for one in ((at, True), (at + 1, False))]
    try:
        texts = dict(zip(beginnings, render(changed, beginnings), strict=True))
    except InputError:
        return True
    return all(any(texts[one] != rendered[one] for one in ((at, True), (at + 1, False))) for at in answers)


def _parts(at: int, message: Mapping[str, Any], answers: Sequence[int], with_reasoning: bool) -> Iterator[_Part]:
    content = message.get("content")
    content = content if isinstance(content, str) else ""
    if message["role"] == "assistant":
        if with_reasoning:
            yield from _reasoning(at, message, content)
        content = THOUGHT.sub("\0", content) if "think>" in content else content
    if texts := [piece.strip() for piece in content.split("\0") if piece.strip()]:
        yield _Part(at, "the text", texts, lambda probe: {**message, "content": probe}, answers)
    for number, call in enumerate(message.get("tool_calls") or ()):
        yield from _call(at, message, number, call["function"], answers)


def _reasoning(at: int, message: Mapping[str, Any], content: str) -> Iterator[_Part]:
    if said := str(message.get("reasoning_content") or "").strip():
        names = ("reasoning_content", *COPIES)
        yield _Part(at, "the reasoning", [said], lambda probe: {**message, **dict.fromkeys(names, probe)}, [at])
    for found in THOUGHT.finditer(content):
        if said := (found[1] or "").strip():
            around = content[: found.start(1)], content[found.end(1) :]
            yield _Part(at, "the reasoning", [said], partial(_between, message, *around), [at])


def _between(message: Mapping[str, Any], before: str, after: str, probe: str) -> dict[str, Any]:
    return {**message, "content": f"{before}{probe}{after}"}


def _call(
    at: int, message: Mapping[str, Any], number: int, call: Mapping[str, Any], answers: Sequence[int]
) -> Iterator[_Part]:
    calls: Sequence[Any] = message["tool_calls"]

    def changed(name: str, value: Any) -> dict[str, Any]:
        one = {**calls[number], "function": {**call, name: value}}
        return {**message, "tool_calls": [*calls[:number], one, *calls[number + 1 :]]}

    yield _Part(at, "the tool call", [str(call["name"])], lambda probe: changed("name", probe), answers)
    given = call.get("arguments")
    if texts := list(_leaves(given)):
        yield _Part(
            at,
            "the arguments of a tool call",
            texts,
            lambda probe: changed("arguments", _with_probe(given, probe)),
            answers,
        )


def _tool(at: int, tool: Mapping[str, Any], answers: Sequence[int]) -> _Part:
    inner = tool.get("function", tool)
    name = str(inner.get("name", ""))

    def with_probe(probe: str) -> dict[str, Any]:
        named = {**inner, "name": probe}
        return {**tool, "function": named} if "function" in tool else named

    return _Part(at, f"the tool {name!r}", [name], with_probe, answers)


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
