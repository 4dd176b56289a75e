"""The subset of GraphQL used by vendor clients: a single operation, arguments, variables, nested selections.

    parse -> validate -> project

As in every server, a query is validated completely before execution: an unknown field or an invalid input rejects the
whole query.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

import msgspec

TYPE_NAME = "__typename"
UNREADABLE, INVALID, BAD_INPUT = "GRAPHQL_PARSE_FAILED", "GRAPHQL_VALIDATION_FAILED", "BAD_USER_INPUT"
T = TypeVar("T", bound=msgspec.Struct)
TOKEN = re.compile(
    r"""\s*(?:\#[^\n]*\s*)*(?P<word>[A-Za-z_]\w*|\$\w+|"(?:[^"\\]|\\.)*"|-?\d+(?:\.\d+)?|[{}()\[\]:!,=])"""
)


class QueryError(Exception):
    """Raised for a failed query; the message is the vendor's text in `errors`."""


class Malformed(QueryError):
    """Raised for a query rejected before execution. `code` is Apollo's error class."""

    def __init__(self, words: str, code: str) -> None:
        super().__init__(words)
        self.code = code


@dataclass(frozen=True)
class Field:
    """A field of a type. `of` is the type of the value ("" = scalar), `takes` the type of the argument `input`."""

    of: str = ""
    takes: type[msgspec.Struct] | None = None
    is_optional: bool = False  # the argument may be omitted


@dataclass(frozen=True)
class Schema:
    """The fields of each type; Query and Mutation are the root types."""

    types: Mapping[str, Mapping[str, Field]]

    def validate(self, kind: str, selections: tuple["Selection", ...]) -> None:
        """Raise Malformed for selections that a server would reject. `kind` is query or mutation."""
        self._validate(kind.title(), selections)

    def _validate(self, name: str, selections: tuple["Selection", ...]) -> None:
        for one in selections:
            if one.name == TYPE_NAME:
                continue
            known = self.types[name].get(one.name)
            if known is None:
                raise Malformed(f'Cannot query field "{one.name}" on type "{name}".', INVALID)
            if known.of and not one.fields:
                raise Malformed(f'Field "{one.name}" of type "{known.of}" must have a selection of subfields.', INVALID)
            if one.fields and not known.of:
                raise Malformed(f'Field "{one.name}" must not have a selection since it has no subfields.', INVALID)
            for argument in one.arguments:
                if known.takes is None or argument != "input":
                    raise Malformed(f'Unknown argument "{argument}" on field "{name}.{one.name}".', INVALID)
            if known.takes is not None and (one.arguments or not known.is_optional):
                given(one.arguments, known.takes)
            if known.of:
                self._validate(known.of, one.fields)


def given(arguments: Mapping[str, Any], kind: type[T]) -> T:
    """Return the argument `input` as `kind`. Raises Malformed."""
    try:
        return msgspec.convert(arguments.get("input"), kind)
    except msgspec.ValidationError as error:
        raise Malformed(f'Variable "$input" got invalid value; {error}', BAD_INPUT) from None


@dataclass(frozen=True)
class Selection:
    """A selected field."""

    name: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    fields: tuple["Selection", ...] = ()


def parse(query: str, variables: Mapping[str, Any]) -> tuple[str, tuple[Selection, ...]]:
    """Parse a query; return ("query" or "mutation", selections). Raises Malformed."""
    parser = _Parser(query, variables)
    kind = "query"
    if parser.next != "{":
        kind = parser.expect()
        while parser.next != "{":  # skip the name and the declarations of variables
            parser.expect()
    selections = parser.selections()
    if kind not in ("query", "mutation") or parser.next:
        raise Malformed(f"Syntax Error: Unexpected {parser.next or kind!r}", UNREADABLE)
    return kind, selections


def project(value: Any, selections: tuple[Selection, ...], schema: Schema, name: str) -> Any:
    """Reduce a value of type `name` to the selected fields; call functions in the value with the field's arguments.

    Raises QueryError if such a function raises QueryError.
    """
    if isinstance(value, list):
        return [project(one, selections, schema, name) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        one.name: name
        if one.name == TYPE_NAME
        else project(_value(value, one), one.fields, schema, schema.types[name][one.name].of)
        for one in selections
    }


def _value(value: Mapping[str, Any], one: Selection) -> Any:
    found: Any | Callable[..., Any] = value.get(one.name)
    return found(one.arguments) if callable(found) else found


class _Parser:
    def __init__(self, text: str, variables: Mapping[str, Any]) -> None:
        self._variables = variables
        self._words: list[str] = []
        at = 0
        while text[at:].strip():
            found = TOKEN.match(text, at)
            if found is None:
                raise Malformed(f"Syntax Error: Unexpected {text[at:].strip()[:1]!r}", UNREADABLE)
            at = found.end()
            if found["word"] != ",":
                self._words.append(found["word"])

    @property
    def next(self) -> str:
        return self._words[0] if self._words else ""

    def expect(self, wanted: str = "") -> str:
        if not self._words or (wanted and self._words[0] != wanted):
            raise Malformed(f"Syntax Error: Expected {wanted or 'more'}, found {self.next or '<EOF>'}", UNREADABLE)
        return self._words.pop(0)

    def selections(self) -> tuple[Selection, ...]:
        found = []
        self.expect("{")
        while self.next != "}":
            name = self.expect()
            arguments = self._pairs("(", ")") if self.next == "(" else {}
            fields = self.selections() if self.next == "{" else ()
            found.append(Selection(name, arguments, fields))
        if not found:
            raise Malformed("Syntax Error: Expected Name, found }", UNREADABLE)
        self.expect("}")
        return tuple(found)

    def _pairs(self, opening: str, closing: str) -> dict[str, Any]:
        pairs = {}
        self.expect(opening)
        while self.next != closing:
            name = self.expect()
            self.expect(":")
            pairs[name] = self._literal()
        self.expect(closing)
        return pairs

    def _literal(self) -> Any:
        if self.next == "{":
            return self._pairs("{", "}")
        word = self.expect()
        if word == "[":
            items = []
            while self.next != "]":
                items.append(self._literal())
            self.expect("]")
            return items
        if word.startswith("$"):
            if word[1:] not in self._variables:
                raise Malformed(f'Variable "{word}" was not provided.', BAD_INPUT)
            return self._variables[word[1:]]
        if word[0] in '"-0123456789' or word in ("true", "false", "null"):
            return json.loads(word)
        return word  # an enumeration value
