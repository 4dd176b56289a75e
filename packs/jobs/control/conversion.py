"""Conversion of a YAML document into a record that goes on after a refused part, so that all parts are checked."""

import copy
import datetime
import re
from typing import Any, TypeVar

from infra.strict_yaml import Place, YamlDocument
from packs.jobs.control.refusals import Refusals

T = TypeVar("T")
MOST_REFUSALS = 50


def convert(document: YamlDocument, kind: type[T], refused: Refusals) -> T:
    """Return the document as a record, without the refused parts."""
    import msgspec

    body = _with_texts_of_dates(copy.deepcopy(document.value), document, ())
    for _ in range(MOST_REFUSALS):
        try:
            return msgspec.convert(body, kind)
        except msgspec.ValidationError as error:
            what, _, at = str(error).partition(" - at ")
            place = _place(body, kind, at, str(error))
            named = ".".join(map(str, place)) or "the file"
            if place and isinstance(place[-1], bool):
                named, what = ".".join(map(str, place[:-1])), "put the names yes, no, on and off in quotes"
            refused.add(document.line(*place), f"{named}: {what}")
            _remove(body, place)
            if not place:
                break
    return msgspec.convert({}, kind)


def _with_texts_of_dates(said: Any, document: YamlDocument, at: Place) -> Any:
    """Return the value with each date as the text in the file, such as `2026-03-14`."""
    if isinstance(said, dict):
        return {key: _with_texts_of_dates(one, document, (*at, key)) for key, one in said.items()}
    if isinstance(said, list):
        return [_with_texts_of_dates(one, document, (*at, number)) for number, one in enumerate(said)]
    return document.texts.get(at, str(said)) if isinstance(said, datetime.date) else said


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


def _remove(body: Any, place: Place) -> None:
    """Remove a part; of a list, the whole list, because the places of the other entries must stay."""
    while place and not isinstance(above := _at(body, place[:-1]), dict):
        place = place[:-1]
    if place:
        del above[place[-1]]
