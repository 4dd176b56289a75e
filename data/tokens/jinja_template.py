"""The Jinja template of somebody else's model as text: the one place where a template is run.

In: the template, the variables that `transformers` gives it. Out: the text, and which of it stands in its
`{% generation %}` blocks. The environment is that of `transformers.utils.chat_template_utils`: its options, filters and
functions, in a sandbox. The date that a template asks for can be fixed, so that a run that goes on tomorrow has the
rows of today.
"""

import json
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

from data.errors import DataError, InputError

BEGIN, END, HIDDEN = "\U0010fffb", "\U0010fffc", "\U0010fffd"
"""Private characters: around a generation block, and inside of a special token that somebody has only spelt out."""
RESERVED = {BEGIN, END, HIDDEN}
Spans = list[tuple[int, int]]


class JinjaTemplate:
    """A template that is ready to be rendered."""

    def __init__(self, source: str) -> None:
        """Compile the template. Raises DataError when it is none."""
        import jinja2

        self.date: datetime | None = None
        self.is_marked = "endgeneration" in source
        self.is_dated = "strftime_now" in source
        try:
            self._template = _environment(self._now).from_string(source)
        except (jinja2.TemplateError, RecursionError) as error:
            raise DataError(f"the chat template cannot be read: {error}") from None

    def render(self, variables: Mapping[str, Any]) -> tuple[str, Spans]:
        """Return the text, and the parts of it that the template marks as the model's own, by place.

        Raises InputError when the template refuses, in its words.
        """
        try:
            text = self._template.render(**variables)
        except Exception as error:  # a template may do anything that its sandbox allows
            raise InputError(f"the model's chat template refuses this conversation: {error}") from None
        return _without_marks(text) if self.is_marked else (text, [])

    def _now(self, form: str) -> str:
        return (self.date or datetime.now()).strftime(form)


def _environment(now: Callable[[str], str]) -> Any:
    from jinja2 import nodes
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """The tag around what the model says by itself."""

        tags = {"generation"}

        def parse(self, parser: Any) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

        def _marked(self, caller: Callable[[], str]) -> str:
            return f"{BEGIN}{caller()}{END}"

    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = _as_json
    made.globals["raise_exception"] = _refuse
    made.globals["strftime_now"] = now
    return made


def _as_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return JSON as `transformers` writes it: Jinja's own filter escapes what HTML would trip over."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def _refuse(words: str) -> None:
    import jinja2

    raise jinja2.TemplateError(words)


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
