"""Render the Jinja template of an untrusted model, in a child process with limits.

From a template and the variables of `transformers`, `render` returns the text and the spans of `{% generation %}`
blocks. The current date of a template can be fixed, so that a run resumed on a later day renders the same rows. All
templates are rendered through this module.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from data.errors import InputError
from store.untrusted import templates
from store.untrusted.templates import BEGIN, Beginning
from store.untrusted.templates import END as END
from store.untrusted_input import UnusableDocument

HIDDEN = "\U0010fffd"
"""Private-use character that breaks up special tokens spelled out in a message."""
RESERVED = {BEGIN, END, HIDDEN}
Spans = list[tuple[int, int]]


class JinjaTemplate:
    """A template ready to render."""

    def __init__(self, source: str) -> None:
        self.source = source
        self.date: datetime | None = None
        self.is_marked = "endgeneration" in source
        self.is_dated = "strftime_now" in source
        self._template = templates.Template(source)

    def render(self, variables: Mapping[str, Any]) -> tuple[str, Spans]:
        """Return the rendered text, and the spans of generation blocks in the text.

        Raises InputError if the template is invalid, raises an exception, or exceeds its limits.
        """
        return self.render_beginnings(variables, [])[0]

    def render_beginnings(
        self, variables: Mapping[str, Any], beginnings: Sequence[Beginning]
    ) -> list[tuple[str, Spans]]:
        """Return the result of `render` for each prefix of the messages, or for all messages if `beginnings` is empty.

        Raises as `render` does.
        """
        try:
            texts = self._template.render_beginnings(variables, beginnings, self.date)
        except UnusableDocument as error:
            raise InputError(str(error)) from None
        return [_without_marks(one) if self.is_marked else (one, []) for one in texts]


def _without_marks(text: str) -> tuple[str, Spans]:
    """Return the text without the markers of generation blocks, and the spans of the blocks."""
    pieces, spans, begun, size = list[str](), Spans(), None, 0
    for piece in text.replace(END, f"{BEGIN}{END}").split(BEGIN):
        if piece.startswith(END):
            spans += [(begun, size)] if begun is not None else []
            begun, piece = None, piece[1:]
        elif pieces:
            begun = size
        pieces.append(piece)
        size += len(piece)
    return "".join(pieces), spans
