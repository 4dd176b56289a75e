"""Amounts for people."""

import pytest

from infra.units import duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "?"), (0.44, "0.4 s"), (48, "48 s"), (185, "3 min 05 s"), (7800, "2 h 10 min"), (100 * 3600, "4 d 4 h"),
     (19 * 365 * 86400, "6,935 d 0 h"), (366_522 * 86400, "1,003 years")],
)  # fmt: skip
def test_a_duration_has_at_most_two_units(seconds, text):
    assert duration(seconds) == text
