"""Reads records (frozen dataclasses) from plain values: unknown keys are refused, types are checked and never coerced.

In: what JSON or YAML says, and the kind of record that it is to be. Out: the record, or `Misfit` with the place and
what is wrong there. Whose file it is, and in which words that is told, the caller knows.
"""

import difflib
import re
import types
import typing
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

T = TypeVar("T")
_AT = re.compile(r"(?P<what>.*) - at `\$\.?(?P<place>.*)`", re.DOTALL)  # the form of msgspec's messages


class Misfit(ValueError):
    """A document does not fit its record.

    `place` leads to it, key by key, with a number from 1 where a key stands for a list. `key` is the one that is not
    known there, "" when a value does not fit; `known` are those that are.
    """

    def __init__(self, place: Sequence[str], what: str, key: str = "", known: Sequence[str] = ()) -> None:
        super().__init__(what)
        self.place, self.key, self.known = tuple(place), key, tuple(known)

    @property
    def near(self) -> str:
        """Return the known key that is spelt most alike; "" when none is."""
        return next(iter(difflib.get_close_matches(self.key, self.known, 1)), "")


def read(kind: type[T], raw: Any, spared: Sequence[str] = ()) -> T:
    """Return the `kind` that `raw` says.

    spared: keys that no record knows, and that the caller refuses in words of its own. Raises Misfit.
    """
    refuse_unknown(kind, raw, spared)
    return convert(kind, raw)


def convert(kind: type[T], raw: Any) -> T:
    """Return the `kind` that `raw` says, whose keys are known. Raises Misfit."""
    import msgspec

    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:  # messages of the record's own checks among them
        found = _AT.fullmatch(str(error))
        raise Misfit([found["place"]] if found else [], found["what"] if found else str(error)) from None


def refuse_unknown(kind: type, raw: Any, spared: Sequence[str] = (), place: Sequence[str] = ()) -> None:
    """Raise Misfit where `raw`, or a record inside of it, has a key that its kind has not."""
    if not isinstance(raw, Mapping):
        raise Misfit(place, f"expected a mapping, got {type(raw).__name__}")
    hints = typing.get_type_hints(kind)
    known = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    for key, value in raw.items():
        if key not in known:
            if key in spared:
                continue
            raise Misfit(place, f"unknown key {key!r}", str(key), known)
        for inner in _kinds(hints[key]):
            for where, part in _parts(key, hints[key], value):
                if isinstance(part, Mapping):
                    refuse_unknown(inner, part, spared, [*place, *where])


def _kinds(hint: Any) -> list[type]:
    """Return all records that a hint is made of."""
    if is_dataclass(hint) and isinstance(hint, type):
        return [hint]
    return [one for part in typing.get_args(hint) for one in _kinds(part)]


def _parts(key: str, hint: Any, value: Any) -> list[tuple[list[str], Any]]:
    """Return the parts of a key's value that may be records, and their places: all, each of a list, each by name."""
    if isinstance(value, list):
        return [([f"{key} {number}"], one) for number, one in enumerate(value, 1)]
    outer = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if isinstance(value, Mapping) and any(typing.get_origin(one) is dict for one in outer):
        return [([key, str(name)], one) for name, one in value.items()]
    return [([key], value)]
