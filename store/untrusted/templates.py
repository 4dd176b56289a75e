"""Chat templates of untrusted models, rendered in a child process with limits.

In: the text of a template, variables. Out: text. Raises Unreadable in words: the template is no template, refuses these
variables, or takes more time or memory than a template may. A template that is harmless on one conversation may be
hostile on the next, so the limits hold for each.
"""

import json
from collections.abc import Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

from store.artifacts.chat_template import template_of
from store.outside import Unreadable
from store.untrusted.child import ChildFailed, ChildLimits, LimitedChild

BEGIN, END = "\U0010fffb", "\U0010fffc"
"""Private characters around a generation block."""
Beginning = tuple[int, bool]  # the number of messages, and whether the next answer is asked for
LIMITS = ChildLimits()
PROBE = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]


class Template:
    """A chat template. It is read by a child at its first rendering."""

    def __init__(self, source: str, limits: ChildLimits = LIMITS) -> None:
        self._child = LimitedChild("store.untrusted.render", (), source.encode("utf-8", "surrogatepass"), limits)

    def render(self, variables: Mapping[str, Any], date: datetime | None = None) -> str:
        """Return the text that the template makes of these variables, on that day or today. Raises Unreadable."""
        return self.render_beginnings(variables, [], date)[0]

    def render_beginnings(
        self, variables: Mapping[str, Any], beginnings: Sequence[Beginning], date: datetime | None = None
    ) -> list[str]:
        """Return the text of each beginning of the messages; of all variables as they are, where there is none.

        All at once: a question takes longer on its way than most templates. Raises Unreadable.
        """
        said = {"variables": dict(variables), "date": date.isoformat() if date else "", "beginnings": beginnings}
        try:
            texts: list[str] = json.loads(self._child.ask(json.dumps(said).encode()))
        except ChildFailed as failed:
            raise Unreadable(f"the model's chat template {failed}") from None
        return texts


def check(folder: Path) -> None:
    """Try the chat template of a model, where it has one. Raises Unreadable.

    One that refuses a conversation of two messages is no reason: the engine answers what it can.
    """
    source = template_of(folder)
    if not source:
        return
    try:
        Template(source).render({"messages": PROBE, "add_generation_prompt": True})
    except Unreadable as error:
        if "refuses this conversation" not in str(error):
            raise Unreadable(f"{folder}: {error}") from None
