"""Conversion of a document into a record that goes on after a part that does not fit, so that all parts are checked."""

import copy
import re
from typing import Any, TypeVar

T = TypeVar("T")
Place = tuple[str | int, ...]
MOST_MISMATCHES = 50


def convert(kind: type[T], raw: Any, usual: T) -> tuple[T, list[tuple[Place, str]]]:
    """Return the record of class `kind` without the parts of `raw` that do not fit, and place and reason of each.

    A record without a required key falls away with the key. usual: the record if no part of `raw` fits.
    """
    import msgspec

    body, found, removed = copy.deepcopy(raw), list[tuple[Place, str]](), set[Place]()
    for _ in range(MOST_MISMATCHES):
        try:
            return msgspec.convert(body, kind), found
        except msgspec.ValidationError as error:
            what, _, at = str(error).partition(" - at ")
            place = _place(body, kind, at, str(error))
            missing = re.search("missing required field `(.*)`", what)
            if not missing or (*place, missing[1]) not in removed:
                found.append((place, what))
            if not (gone := _remove(body, place)):
                break
            removed.add(gone)
    return usual, found


def _place(body: Any, kind: type, at: str, message: str) -> Place:
    """Return the place of an error; msgspec writes `[...]` for an arbitrary key, which is found by trial."""
    import msgspec

    is_key = at.startswith("`key` in ")
    words = re.findall(r"\[\.\.\.\]|\w+", at.removeprefix("`key` in "))
    found: list[str | int] = []
    for word in words:
        here = _at(body, tuple(found))
        if word != "[...]":
            found.append(int(word) if word.isdigit() and isinstance(here, list) else word)
            continue
        for key in here:
            alone: Any = {key: here[key]}
            for part in reversed(found):
                alone = {part: alone}
            try:
                msgspec.convert(alone, kind)
            except msgspec.ValidationError as error:
                if str(error) == message:
                    found.append(key)
                    break
        else:
            return tuple(found)
    if is_key and isinstance(here := _at(body, tuple(found)), dict):
        found += [key for key in here if not isinstance(key, str)][:1]
    return tuple(found)


def _at(body: Any, place: Place) -> Any:
    for part in place:
        body = body[part]
    return body


def _remove(body: Any, place: Place) -> Place:
    """Remove a part and return its place; of a list, the whole list, because other entries keep their places."""
    while place and not isinstance(above := _at(body, place[:-1]), dict):
        place = place[:-1]
    if place:
        del above[place[-1]]
    return place
