"""Plain data across the sandbox boundary: numbers, texts and collections of these, encoded as JSON.

The answer process may write anything. `read` therefore accepts no object of a class of the answer, no text longer than
MOST_BYTES, and no value nested deeper than DEEPEST. Instances of subclasses become instances of the base class; an
iterator becomes an iterator over a list. Standard library only: both sides of a sandbox import this file.
"""

import json
import sys
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any

MOST_BYTES, MOST_ITEMS, DEEPEST = 1 << 18, 20_000, 60
CHANGEABLE = (list, dict, set, bytearray, deque)
VIEWS = {"keys": type({}.keys()), "values": type({}.values()), "items": type({}.items())}


class NotPlainData(ValueError):
    """A value outside plain data, or beyond a size limit."""


def write(value: Any) -> str:
    """Return a value as text. Raises NotPlainData."""
    try:
        text = json.dumps(_tree(value, 0))
    except NotPlainData:
        raise
    except Exception as error:  # raised by a hostile subclass, or for an int with too many digits
        raise NotPlainData(f"{type(error).__name__}: {error}"[:200]) from None
    if len(text) > MOST_BYTES:
        raise NotPlainData(f"a value of {len(text)} characters; at most {MOST_BYTES} are allowed")
    return text


def read(text: Any) -> Any:
    """Return the value of a text from an untrusted process. Raises NotPlainData."""
    if not isinstance(text, str) or len(text) > MOST_BYTES:
        raise NotPlainData("not a text, or a text that is too long")
    try:
        return _built(json.loads(text, parse_constant=_no_constant), 0)
    except NotPlainData:
        raise
    except Exception as error:  # e.g. RecursionError, or TypeError for a set of lists
        raise NotPlainData(f"{type(error).__name__}: {error}"[:200]) from None


def _no_constant(name: str) -> Any:
    raise NotPlainData(f"{name} is not a JSON number")


def _tree(value: Any, depth: int) -> Any:
    """Return a value as JSON: [kind, content], or the value itself for the types of JSON."""
    if depth > DEEPEST:
        raise NotPlainData(f"deeper than {DEEPEST}")
    if value is None or value is True or value is False:
        return value
    for kind, base, content in WRITERS:
        if isinstance(value, base):
            return content(value) if kind == "" else [kind, content(value, depth + 1)]
    for kind, module, name, content in LIBRARY:
        its_class: Any = getattr(sys.modules.get(module), name, None)  # the module of an existing value is loaded
        if its_class is not None and isinstance(value, its_class):
            return [kind, content(value)]
    raise NotPlainData(f"a value of the type {type(value).__name__}")


def _several(values: Any, depth: int) -> list[Any]:
    found = [_tree(one, depth) for one in islice(values, MOST_ITEMS + 1)]
    if len(found) > MOST_ITEMS:
        raise NotPlainData(f"more than {MOST_ITEMS} items")
    return found


def _pairs(value: Any, depth: int) -> list[Any]:
    found = [[_tree(key, depth), _tree(one, depth)] for key, one in islice(dict.items(value), MOST_ITEMS + 1)]
    if len(found) > MOST_ITEMS:
        raise NotPlainData(f"more than {MOST_ITEMS} items")
    return found


# Call the methods of the base class, such as str.__str__(value), instead of overrides in a subclass of the answer.
WRITERS: tuple[tuple[str, type, Callable[..., Any]], ...] = (
    ("", str, lambda one: str.__str__(one)),
    ("", int, lambda one: int.__int__(one)),
    ("float", float, lambda one, _: float.__repr__(one)),
    ("complex", complex, lambda one, _: [repr(float(one.real)), repr(float(one.imag))]),
    ("bytes", bytes, lambda one, _: bytes(one).hex()),
    ("bytearray", bytearray, lambda one, _: bytes(one).hex()),
    ("list", list, lambda one, depth: _several(list.__iter__(one), depth)),
    ("tuple", tuple, lambda one, depth: _several(tuple.__iter__(one), depth)),
    ("set", set, lambda one, depth: _several(set.__iter__(one), depth)),
    ("frozenset", frozenset, lambda one, depth: _several(frozenset.__iter__(one), depth)),
    ("dict", dict, _pairs),
    ("deque", deque, lambda one, depth: _several(deque.__iter__(one), depth)),
    ("range", range, lambda one, _: [one.start, one.stop, one.step]),
    ("keys", VIEWS["keys"], _several),
    ("values", VIEWS["values"], _several),
    ("items", VIEWS["items"], _several),
    ("iterator", Iterator, _several),
)
LIBRARY: tuple[tuple[str, str, str, Callable[[Any], Any]], ...] = (
    ("decimal", "decimal", "Decimal", str),
    ("fraction", "fractions", "Fraction", lambda one: [one.numerator, one.denominator]),
    ("datetime", "datetime", "datetime", lambda one: one.isoformat()),
    ("date", "datetime", "date", lambda one: one.isoformat()),
    ("time", "datetime", "time", lambda one: one.isoformat()),
    ("timedelta", "datetime", "timedelta", lambda one: [one.days, one.seconds, one.microseconds]),
)


def _built(tree: Any, depth: int) -> Any:
    if depth > DEEPEST:
        raise NotPlainData(f"deeper than {DEEPEST}")
    if tree is None or type(tree) in (bool, int, str):
        return tree
    if type(tree) is not list or len(tree) != 2 or type(tree[0]) is not str:
        raise NotPlainData("no value")
    kind, content = tree
    if kind in COLLECTIONS:
        return COLLECTIONS[kind]([_built(one, depth + 1) for one in _list(content)])
    if kind == "dict":
        return {_built(key, depth + 1): _built(one, depth + 1) for key, one in map(_list, _list(content))}
    if kind not in SCALARS:
        raise NotPlainData("no value")
    return SCALARS[kind](content)


def _list(content: Any) -> list[Any]:
    if type(content) is not list or len(content) > MOST_ITEMS:
        raise NotPlainData("no list of values")
    return content


def _text(content: Any) -> str:
    if type(content) is not str:
        raise NotPlainData("no text")
    return content


def _integers(content: Any, count: int) -> list[int]:
    if type(content) is not list or len(content) != count or not all(type(one) is int for one in content):
        raise NotPlainData("no integers")
    return content


def _decimal(content: Any) -> Any:
    from decimal import Decimal

    return Decimal(_text(content))


def _fraction(content: Any) -> Any:
    from fractions import Fraction

    return Fraction(*_integers(content, 2))


def _time(name: str) -> Callable[[Any], Any]:
    def of(content: Any) -> Any:
        import datetime

        if name == "timedelta":
            return datetime.timedelta(*_integers(content, 3))
        return getattr(datetime, name).fromisoformat(_text(content))

    return of


COLLECTIONS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
    "deque": deque,
    "keys": lambda some: dict.fromkeys(some).keys(),
    "values": lambda some: dict(enumerate(some)).values(),
    "items": lambda some: dict(some).items(),
    "iterator": iter,
}
SCALARS: dict[str, Callable[[Any], Any]] = {
    "float": lambda content: float(_text(content)),
    "complex": lambda content: complex(*(float(_text(one)) for one in _list(content))),
    "bytes": lambda content: bytes.fromhex(_text(content)),
    "bytearray": lambda content: bytearray.fromhex(_text(content)),
    "range": lambda content: range(*_integers(content, 3)),
    "decimal": _decimal,
    "fraction": _fraction,
    **{name: _time(name) for name in ("datetime", "date", "time", "timedelta")},
}
