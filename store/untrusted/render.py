"""`python -m store.untrusted.render`: the child that compiles a chat template and renders conversations by it.

First question: the template. Others: the variables, the date and beginnings, as JSON. Answers: "", and the texts; a
block of `{% generation %}` is between BEGIN and END. The environment is that of
`transformers.utils.chat_template_utils`: its options, filters and functions, in a sandbox. See `templates`.
"""

import json
from collections.abc import Callable
from datetime import datetime
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

from store.untrusted.limited import ChildRefusal, answer_all
from store.untrusted.templates import BEGIN, END


class Renderer:
    """The template of this child."""

    def __init__(self) -> None:
        self.template: jinja2.Template | None = None
        self.date: datetime | None = None

    def answer(self, question: bytes) -> bytes:
        if self.template is None:
            self.template = self.compiled(question.decode("utf-8", "surrogatepass"))
            return b""
        said = json.loads(question)
        self.date = datetime.fromisoformat(said["date"]) if said["date"] else None
        variables, messages = said["variables"], said["variables"].get("messages", [])
        texts = [
            rendered(self.template, {**variables, "messages": messages[:count], "add_generation_prompt": asks})
            for count, asks in said["beginnings"]
        ]
        return json.dumps(texts or [rendered(self.template, variables)]).encode()

    def compiled(self, source: str) -> jinja2.Template:
        """Return the template. Raises ChildRefusal."""
        try:
            return environment(self.now).from_string(source)
        except jinja2.TemplateError as error:
            raise ChildRefusal(f"cannot be read: {error}") from None

    def now(self, form: str) -> str:
        return (self.date or datetime.now()).strftime(form)


def rendered(template: jinja2.Template, variables: dict[str, Any]) -> str:
    """Return the text. Raises ChildRefusal."""
    try:
        return template.render(**variables)
    except (MemoryError, RecursionError):
        raise
    except Exception as error:  # a template may do anything that its sandbox allows
        raise ChildRefusal(f"refuses this conversation: {error}") from None


class Generation(Extension):
    """The tag around what the model says by itself."""

    tags = {"generation"}

    def parse(self, parser: Any) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_marked"), [], [], body).set_lineno(line)

    def _marked(self, caller: Callable[[], str]) -> str:
        return f"{BEGIN}{caller()}{END}"


def environment(now: Callable[[str], str]) -> Any:
    made = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols])
    made.filters["tojson"] = as_json
    made.globals["raise_exception"] = refuse
    made.globals["strftime_now"] = now
    return made


def as_json(
    value: Any, ensure_ascii: bool = False, indent: Any = None, separators: Any = None, sort_keys: bool = False
) -> str:
    """Return JSON as `transformers` writes it: Jinja's own filter escapes what HTML would trip over."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def refuse(words: str) -> None:
    raise jinja2.TemplateError(words)


if __name__ == "__main__":
    answer_all(Renderer().answer)
