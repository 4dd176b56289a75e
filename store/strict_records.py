"""The strict reader of records (frozen dataclasses) from plain values: unknown keys raise, types are never coerced.

The input is a parsed JSON or YAML value and the record class; the result is the record, or `RecordMismatch` with the
location and the error. The caller adds the file name and the wording of the final message.
"""

import difflib
import re
import types
import typing
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

T = TypeVar("T")
_AT = re.compile(r"(?P<what>.*) - at `\$\.?(?P<place>.*)`", re.DOTALL)  # format of msgspec error messages


class RecordMismatch(ValueError):
    """An error at a location of a document that does not fit the record class.

    `place` is the path of keys to the error, with 1-based numbers for list items. `key` is the unknown key, or "" for
    an invalid value; `known` lists the valid keys.
    """

    def __init__(self, place: Sequence[str], what: str, key: str = "", known: Sequence[str] = ()) -> None:
        super().__init__(what)
        self.place, self.key, self.known = tuple(place), key, tuple(known)

    @property
    def closest_key(self) -> str:
        """Return the valid key with the closest spelling, or ""."""
        return next(iter(difflib.get_close_matches(self.key, self.known, 1)), "")


def read(kind: type[T], raw: Any, spared: Sequence[str] = ()) -> T:
    """Return the record of class `kind` in `raw`.

    spared: unknown keys to ignore, which the caller rejects with its own message. Raise RecordMismatch.
    """
    for one in unknown_keys(kind, raw, spared):
        raise one
    return convert(kind, raw)


def convert(kind: type[T], raw: Any) -> T:
    """Return the record of class `kind` in `raw`, without a check for unknown keys. Raise RecordMismatch."""
    import msgspec

    try:
        return msgspec.convert(raw, kind)
    except msgspec.ValidationError as error:  # includes errors of the record's own checks
        found = _AT.fullmatch(str(error))
        raise RecordMismatch([found["place"]] if found else [], found["what"] if found else str(error)) from None


def unknown_keys(
    kind: type, raw: Any, spared: Sequence[str] = (), place: Sequence[str] = ()
) -> Iterator[RecordMismatch]:
    """Yield a mismatch for each key in `raw` or a nested record that the record class does not define."""
    if not isinstance(raw, Mapping):
        yield RecordMismatch(place, f"expected a mapping, got {type(raw).__name__}")
        return
    hints = typing.get_type_hints(kind)
    known = [one.name for one in fields(kind)]  # type: ignore[arg-type]
    for key, value in raw.items():
        if key not in known:
            if key not in spared:
                yield RecordMismatch(place, f"unknown key {key!r}", str(key), known)
            continue
        for inner in _kinds(hints[key]):
            for where, part in _parts(key, hints[key], value):
                if isinstance(part, Mapping):
                    yield from unknown_keys(inner, part, spared, [*place, *where])


def _kinds(hint: Any) -> list[type]:
    """Return all record classes in a type hint."""
    if is_dataclass(hint) and isinstance(hint, type):
        return [hint]
    return [one for part in typing.get_args(hint) for one in _kinds(part)]


def _parts(key: str, hint: Any, value: Any) -> list[tuple[list[str], Any]]:
    """Return the values of a key that may be records, with their paths: the value itself, list items or dict values."""
    if isinstance(value, list):
        return [([f"{key} {number}"], one) for number, one in enumerate(value, 1)]
    outer = typing.get_args(hint) if typing.get_origin(hint) in (typing.Union, types.UnionType) else (hint,)
    if isinstance(value, Mapping) and any(typing.get_origin(one) is dict for one in outer):
        return [([key, str(name)], one) for name, one in value.items()]
    return [([key], value)]
