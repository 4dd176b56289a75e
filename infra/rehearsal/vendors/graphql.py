"""A subset of GraphQL that clients of a vendor write: one operation, arguments, variables, nested selections."""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

TOKEN = re.compile(
    r"""\s*(?:\#[^\n]*\s*)*(?P<word>[A-Za-z_]\w*|\$\w+|"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?|[{}()\[\]:!,=])"""
)


class Wrong(Exception):
    """The query is wrong; the message is what the vendor would put into `errors`."""


@dataclass(frozen=True)
class Selection:
    """A field that is asked for."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    fields: tuple["Selection", ...] = ()


def parse(query: str, variables: Mapping[str, Any]) -> tuple[str, tuple[Selection, ...]]:
    """Return ("query" or "mutation", what it selects). Raises Wrong."""
    parser = _Parser(query, variables)
    kind = "query"
    if parser.next != "{":
        kind = parser.take()
        while parser.next != "{":  # the name, and the declaration of variables
            parser.take()
    selections = parser.selections()
    if kind not in ("query", "mutation") or parser.next:
        raise Wrong(f"Syntax Error: Unexpected {parser.next or kind!r}")
    return kind, selections


def project(value: Any, fields: tuple[Selection, ...], kind: str) -> Any:
    """Return of a value only what was asked for; functions in it are called with the arguments. Raises Wrong."""
    if isinstance(value, list):
        return [project(one, fields, kind) for one in value]
    if not isinstance(value, dict):
        return value
    if not fields:
        raise Wrong(f'Field of type "{kind}" must have a selection of subfields.')
    return {one.name: project(_value(value, one, kind), one.fields, one.name) for one in fields}


def _value(value: Mapping[str, Any], one: Selection, kind: str) -> Any:
    if one.name not in value:
        raise Wrong(f'Cannot query field "{one.name}" on type "{kind}".')
    found: Any | Callable[..., Any] = value[one.name]
    return found(one.arguments) if callable(found) else found


class _Parser:
    def __init__(self, text: str, variables: Mapping[str, Any]) -> None:
        self._variables = variables
        self._words: list[str] = []
        at = 0
        while text[at:].strip():
            found = TOKEN.match(text, at)
            if found is None:
                raise Wrong(f"Syntax Error: Unexpected {text[at:].strip()[:1]!r}")
            at = found.end()
            if found["word"] != ",":
                self._words.append(found["word"])

    @property
    def next(self) -> str:
        return self._words[0] if self._words else ""

    def take(self, wanted: str = "") -> str:
        if not self._words or (wanted and self._words[0] != wanted):
            raise Wrong(f"Syntax Error: Expected {wanted or 'more'}, found {self.next or '<EOF>'}")
        return self._words.pop(0)

    def selections(self) -> tuple[Selection, ...]:
        found = []
        self.take("{")
        while self.next != "}":
            name = self.take()
            arguments = self._pairs("(", ")") if self.next == "(" else {}
            fields = self.selections() if self.next == "{" else ()
            found.append(Selection(name, arguments, fields))
        self.take("}")
        return tuple(found)

    def _pairs(self, opening: str, closing: str) -> dict[str, Any]:
        pairs = {}
        self.take(opening)
        while self.next != closing:
            name = self.take()
            self.take(":")
            pairs[name] = self._literal()
        self.take(closing)
        return pairs

    def _literal(self) -> Any:
        if self.next == "{":
            return self._pairs("{", "}")
        word = self.take()
        if word == "[":
            items = []
            while self.next != "]":
                items.append(self._literal())
            self.take("]")
            return items
        if word.startswith("$"):
            if word[1:] not in self._variables:
                raise Wrong(f'Variable "{word}" was not provided.')
            return self._variables[word[1:]]
        if word[0] in '"-0123456789' or word in ("true", "false", "null"):
            return json.loads(word)
        return word  # an enumeration's
