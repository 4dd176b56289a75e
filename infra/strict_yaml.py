"""Strict YAML reader for untrusted input: no code execution, size limits, no duplicate keys."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

import yaml

from infra.errors import UsageError

MOST_BYTES = 256 << 10
MOST_DEPTH = 16
MOST_ALIASES = 64
MOST_DIGITS = 40  # characters of a number
MOST_NODES = 20_000  # nodes of a document, with aliased nodes counted each time

Place = tuple[str | int, ...]  # keys and positions, from the top of a document


class Loader(yaml.SafeLoader):
    """Loader of a document without duplicate keys and huge numbers. `texts`: keys with scalars kept as written."""

    def __init__(self, text: str, texts: Sequence[str] = ()) -> None:
        super().__init__(text)
        self.texts = texts

    def flatten_mapping(self, node: yaml.MappingNode) -> None:
        """Replace merge keys; make texts of the numbers, dates and booleans of the keys in `texts`."""
        super().flatten_mapping(node)
        node.value = [(key, _as_written(value) if key.value in self.texts else value) for key, value in node.value]

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse duplicate keys: YAML requires unique keys, but PyYAML keeps the last value."""
        if isinstance(node, yaml.MappingNode):
            seen = set()
            for key, _ in node.value:
                word = key.value if isinstance(key, yaml.ScalarNode) else None
                if word in seen:
                    raise yaml.MarkedYAMLError(problem=f"{word!r} is given twice", problem_mark=key.start_mark)
                seen.add(word)
        return super().construct_mapping(node, deep)

    def construct_number(self, node: yaml.ScalarNode) -> int | float:
        """Refuse numbers with thousands of digits, which Python refuses to print or to read."""
        if isinstance(node, yaml.ScalarNode) and len(node.value) > MOST_DIGITS:
            raise yaml.MarkedYAMLError(problem=f"a number of {len(node.value)} digits", problem_mark=node.start_mark)
        return self.construct_yaml_float(node) if node.tag.endswith("float") else self.construct_yaml_int(node)


def _as_written(node: yaml.Node) -> yaml.Node:
    """Return a number, a date or a boolean as a text; any other node unchanged."""
    if isinstance(node, yaml.ScalarNode) and node.tag.rpartition(":")[2] in ("bool", "float", "int", "timestamp"):
        return yaml.ScalarNode("tag:yaml.org,2002:str", node.value, node.start_mark, node.end_mark)
    return node


for _kind in ("int", "float"):
    Loader.add_constructor(f"tag:yaml.org,2002:{_kind}", Loader.construct_number)


@dataclass(frozen=True)
class YamlDocument:
    """A document of a file: value and line numbers."""

    value: Any
    lines: dict[Place, int] = field(default_factory=dict)
    """Line of each place, counted from 1: the key's line if the value is below the key."""
    texts: dict[Place, str] = field(default_factory=dict)
    """Scalars as written: `1.90`, and not 1.9."""

    def line(self, *place: str | int) -> int:
        """Return the line of a place, or of the nearest known parent."""
        while place and place not in self.lines:
            place = place[:-1]
        return self.lines.get(place, 1)


def without_dates(said: Any) -> Any:
    """Return a value of YAML with texts in place of dates, which JSON does not have."""
    if isinstance(said, dict):
        return {str(key) if isinstance(key, date) else key: without_dates(one) for key, one in said.items()}
    if isinstance(said, list):
        return [without_dates(one) for one in said]
    return str(said) if isinstance(said, date) else said


def documents(path: Path) -> list[YamlDocument]:
    """Return all non-empty documents of a file. Raises as `read`, and for a self-containing document."""
    text = content(path)
    if not text.strip():
        return []
    made: list[YamlDocument] = []
    try:
        refuse_bombs(path, text)
        for node, said in zip(yaml.compose_all(text, yaml.SafeLoader), yaml.load_all(text, Loader), strict=True):
            if node is not None and said is not None:
                document = YamlDocument(said)
                _note_places(path, node, (), document, [])
                made.append(document)
    except UsageError:
        raise
    except Exception as error:
        raise UsageError(f"{path}{at(error)}: {what(error)}") from None
    return made


def _note_places(path: Path, node: yaml.Node, at: Place, found: YamlDocument, above: list[int]) -> None:
    found.lines.setdefault(at, node.start_mark.line + 1)
    if id(node) in above:
        raise UsageError(f"{path}: line {node.start_mark.line + 1}: this value contains itself")
    if len(found.lines) > MOST_NODES:
        raise UsageError(f"{path}: the file has more than {MOST_NODES} values")
    if isinstance(node, yaml.ScalarNode):
        found.texts[at] = node.value
    elif isinstance(node, yaml.SequenceNode):
        for number, one in enumerate(node.value):
            _note_places(path, one, (*at, number), found, [*above, id(node)])
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            place = (*at, key.value if isinstance(key, yaml.ScalarNode) else str(key.tag))
            found.lines[place] = key.start_mark.line + 1
            _note_places(path, value, place, found, [*above, id(node)])


def read(path: Path, texts: Sequence[str] = ()) -> Any:
    """Return the content of a file, with the scalars of the keys in `texts` as written: 0042 and not 34.

    Raises FileNotFoundError, and UsageError with the place of a problem if known.
    """
    return parse(path, content(path), texts)


def content(path: Path) -> str:
    """Return the text of a file. Raises FileNotFoundError, and UsageError for a long file or a file without UTF-8."""
    with path.open("rb") as file:
        raw = file.read(MOST_BYTES + 1)
    if len(raw) > MOST_BYTES:
        raise UsageError(f"{path}: the file is longer than {MOST_BYTES >> 10} KiB")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{path}: {error}") from None


def parse(path: Path, text: str, texts: Sequence[str] = ()) -> Any:
    """Return the content of a YAML text; `path` names the text in errors, `texts` as in `read`. Raises UsageError."""
    try:
        refuse_bombs(path, text)
        return Loader(text, texts).get_single_data()
    except UsageError:
        raise
    except Exception as error:  # PyYAML raises built-in exceptions for many scalars: `!!int ""`, `!!bool x`
        raise UsageError(f"{path}{at(error)}: {what(error)}") from None


def at(error: Exception) -> str:
    """Return the place of a PyYAML error as ` line 3 column 5`; "" without a place."""
    mark = getattr(error, "problem_mark", None)
    return f" line {mark.line + 1} column {mark.column + 1}" if mark else ""


def what(error: Exception) -> str:
    """Return the problem of an error, without the place."""
    if isinstance(error, yaml.MarkedYAMLError):
        return " ".join(f"{error.context or ''} {error.problem or ''}".split())
    said = str(error) if isinstance(error, (yaml.YAMLError, ValueError)) else f"this value cannot be read: {error!r}"
    return " ".join(said.split())


def refuse_bombs(path: Path, text: str) -> None:
    """Raise UsageError for a text with more levels or aliases than MOST_DEPTH and MOST_ALIASES."""
    depth = aliases = 0
    for event in yaml.parse(text, Loader=yaml.SafeLoader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        aliases += isinstance(event, yaml.AliasEvent)
        if depth > MOST_DEPTH or aliases > MOST_ALIASES:
            what = f"{MOST_DEPTH} levels" if depth > MOST_DEPTH else f"{MOST_ALIASES} aliases"
            raise UsageError(f"{path}: line {getattr(event.start_mark, 'line', 0) + 1}: more than {what}")
