"""The rendering of untrusted chat templates in a child process with limits.

`Template` takes the template source and variables and returns text. Unreadable reports an invalid template, a refused
conversation, or an exceeded time or memory limit. The limits apply to each rendering, since a template may be harmless
for one conversation and hostile for the next.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from store.artifacts.tokenizer_files import template_of
from store.untrusted.child import ChildFailed, ChildLimits, LimitedChild
from store.untrusted_input import UnusableDocument

BEGIN, END = "\U0010fffb", "\U0010fffc"
"""Private-use characters around a generation block."""
Beginning = tuple[int, bool]  # number of messages, and whether to add the generation prompt
LIMITS = ChildLimits()
ANSWER = "Qz7probeQz7"  # text of a probe answer, found again in the rendered text
Messages = Sequence[Mapping[str, Any]]
PROBE = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


class Template:
    """A chat template, compiled by a child process at the first rendering."""

    def __init__(self, source: str, limits: ChildLimits = LIMITS) -> None:
        self._child = LimitedChild("store.untrusted.render", (), source.encode("utf-8", "surrogatepass"), limits)

    def render(self, variables: Mapping[str, Any], date: datetime | None = None) -> str:
        """Return the text of the template for these variables, on the given date or today. Raise UnusableDocument."""
        return self.render_beginnings(variables, [], date)[0]

    def render_beginnings(
        self, variables: Mapping[str, Any], beginnings: Sequence[Beginning], date: datetime | None = None
    ) -> list[str]:
        """Return a text per beginning of the messages, or a single text of all messages without beginnings.

        A single question covers all beginnings, since the round trip takes longer than most templates. Raise
        UnusableDocument.
        """
        said = {"variables": dict(variables), "date": date.isoformat() if date else "", "beginnings": beginnings}
        try:
            texts: list[str] = json.loads(self._child.ask(json.dumps(said).encode()))
        except ChildFailed as failed:
            raise UnusableDocument(f"the model's chat template {failed}") from None
        return texts


def answer_end(render: Callable[[Messages, bool], str]) -> str:
    """Return the text that a template writes after an answer.

    render: function of messages and of whether to add the generation prompt. Raise UnusableDocument for a template that
    does not write every message once and in order, and as `render` does.
    """
    question = {"role": "user", "content": "x"}
    text = render([question, {"role": "assistant", "content": ANSWER}], False)
    render([question], True)
    if text.count(ANSWER) != 1:
        raise UnusableDocument("the chat template does not write every message once and in order")
    return text.rpartition(ANSWER)[2]


def problem(source: str, named: Mapping[str, str], added: Collection[str] | None) -> str:
    """Return why a model with this chat template cannot be imported, or "".

    named: texts of the named tokens, as `tokenizer_files.named_tokens` returns them. added: texts of the added
    tokens, or None if unknown.
    """
    template, given = Template(source), {**named, "tools": None, "documents": None}

    def render(messages: Messages, asks: bool) -> str:
        text = template.render({**given, "messages": messages, "add_generation_prompt": asks})
        return text.replace(BEGIN, "").replace(END, "")

    try:
        end = answer_end(render)
    except UnusableDocument as error:
        return str(error)
    if added is None or any(one in end for one in added if one):
        return ""
    return f"the chat template ends an answer with {end!r}, and no token marks the end"


def check(folder: Path) -> None:
    """Render a probe conversation with the chat template of a model, if any. Raise UnusableDocument.

    A template that refuses the probe of two messages is accepted, since the engine may accept other conversations.
    """
    source = template_of(folder)
    if not source:
        return
    try:
        Template(source).render({"messages": PROBE, "add_generation_prompt": True})
    except UnusableDocument as error:
        if "refuses this conversation" not in str(error):
            raise UnusableDocument(f"{folder}: {error}") from None
