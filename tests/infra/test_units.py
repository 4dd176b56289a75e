"""Amounts for people."""

import pytest

from infra.units import duration, per_hour


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(None, "?"), (0.44, "0.4 s"), (48, "48 s"), (185, "3 min 05 s"), (7800, "2 h 10 min"), (100 * 3600, "4 d 4 h"),
     (19 * 365 * 86400, "6,935 d 0 h"), (366_522 * 86400, "1,003 years")],
)  # fmt: skip
def test_a_duration_has_at_most_two_units(seconds, text):
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("micro", "text"),
    [(2_390_000, "2.39 USD/h"), (172_740, "0.173 USD/h"), (1_992_740, "1.993 USD/h"), (1, "0.001 USD/h")],
)
def test_a_price_per_hour_is_rounded_up_to_a_tenth_of_a_cent(micro, text):
    assert per_hour(micro) == text
