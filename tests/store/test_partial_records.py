"""All mismatches of a document at once, each with its place."""

from dataclasses import dataclass, field
from typing import Any

import pytest

from store import partial_records, strict_records


@dataclass(frozen=True, kw_only=True)
class Policy:
    least: int
    most: int | None = None


@dataclass(frozen=True, kw_only=True)
class Section:
    policy: Policy | None = None
    number: int | None = None


@dataclass(frozen=True, kw_only=True)
class Outer:
    section: Section
    words: dict[str, str | int] = field(default_factory=dict)
    several: list[int] = field(default_factory=list)


EMPTY = Outer(section=Section())
POLICY: dict[str, Any] = {"least": 1}


@pytest.mark.parametrize(
    ("raw", "record", "places"),
    [
        ({"section": {"policy": POLICY}}, Outer(section=Section(policy=Policy(least=1))), []),
        (
            {"section": {"number": "a"}, "words": {"a": 1, "b": [2]}},
            Outer(section=Section(), words={"a": 1}),
            [("section", "number"), ("words", "b")],
        ),
        # The section of a required key falls away with the key, and is no mismatch of its own.
        (
            {"section": {"policy": {"least": "a", "most": "b"}}},
            EMPTY,
            [("section", "policy", "least"), ("section", "policy", "most")],
        ),
        ({"section": {"policy": {"most": 1}}}, EMPTY, [("section", "policy")]),
        ({"section": 3, "words": {"a": 1}}, EMPTY, [("section",)]),
        ({"section": {}, "several": [1, "a"], "words": {1: 2}}, EMPTY, [("several", 1), ("words", 1)]),
        ([1], EMPTY, [()]),
    ],
)
def test_parts_that_do_not_fit_fall_away_and_are_all_named(raw, record, places):
    made, found = partial_records.convert(Outer, raw, EMPTY)
    assert made == record and sorted(map(str, (place for place, _ in found))) == sorted(map(str, places))


def test_unknown_keys_of_all_sections_are_named():
    raw = {"section": {"policy": {"leest": 1}, "spared": {"deep": 1}}, "wordz": 1}
    found = [(one.place, one.key, one.closest_key) for one in strict_records.unknown_keys(Outer, raw, ["spared"])]
    assert found == [(("section", "policy"), "leest", "least"), ((), "wordz", "words")]
