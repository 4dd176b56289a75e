"""Conversion of a YAML document into a record that goes on after a refused part, so that all parts are checked."""

import datetime
from typing import Any, TypeVar

from infra.strict_yaml import Place, YamlDocument
from packs.jobs.control.refusals import Refusals
from store import partial_records

T = TypeVar("T")


def convert(document: YamlDocument, kind: type[T], refused: Refusals) -> T:
    """Return the document as a record, without the refused parts."""
    body = _with_texts_of_dates(document.value, document, ())
    made, found = partial_records.convert(kind, body, kind())
    for place, what in found:
        line = document.line(*place)
        if place and isinstance(place[-1], bool):
            place, what = place[:-1], "put the names yes, no, on and off in quotes"
        named = ".".join(map(str, place)) or "the file"
        refused.add(line, f"{named}: {what}")
    return made


def _with_texts_of_dates(said: Any, document: YamlDocument, at: Place) -> Any:
    """Return the value with each date as the text in the file, such as `2026-03-14`."""
    if isinstance(said, dict):
        return {key: _with_texts_of_dates(one, document, (*at, key)) for key, one in said.items()}
    if isinstance(said, list):
        return [_with_texts_of_dates(one, document, (*at, number)) for number, one in enumerate(said)]
    return document.texts.get(at, str(said)) if isinstance(said, datetime.date) else said
