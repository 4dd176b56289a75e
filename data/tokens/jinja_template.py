"""The Jinja template of an untrusted model as text: the one place where a template is run, in a child with limits.

In: the template, the variables that `transformers` gives it. Out: the text, and which of it stands in its
`{% generation %}` blocks. The date that a template asks for can be fixed, so that a run that goes on tomorrow has the
rows of today.
"""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from data.errors import InputError
from store.outside import Unreadable
from store.untrusted import templates
from store.untrusted.templates import BEGIN, Beginning
from store.untrusted.templates import END as END

HIDDEN = "\U0010fffd"
"""A private character inside of a special token that somebody has only spelt out."""
RESERVED = {BEGIN, END, HIDDEN}
Spans = list[tuple[int, int]]


class JinjaTemplate:
    """A template that is ready to be rendered."""

    def __init__(self, source: str) -> None:
        self.date: datetime | None = None
        self.is_marked = "endgeneration" in source
        self.is_dated = "strftime_now" in source
        self._template = templates.Template(source)

    def render(self, variables: Mapping[str, Any]) -> tuple[str, Spans]:
        """Return the text, and the parts of it that the template marks as the model's own, by place.

        Raises InputError when the template cannot be read, refuses, in its words, or goes beyond its limits.
        """
        return self.render_beginnings(variables, [])[0]

    def render_beginnings(
        self, variables: Mapping[str, Any], beginnings: Sequence[Beginning]
    ) -> list[tuple[str, Spans]]:
        """Return what `render` does, of each beginning of the messages; of all where there is none. As `render`."""
        try:
            texts = self._template.render_beginnings(variables, beginnings, self.date)
        except Unreadable as error:
            raise InputError(str(error)) from None
        return [_without_marks(one) if self.is_marked else (one, []) for one in texts]


def _without_marks(text: str) -> tuple[str, Spans]:
    """Return the text without the marks of generation blocks, and the parts between them."""
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
