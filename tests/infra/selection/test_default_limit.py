"""The spend limit of a launch without a named limit follows the expected cost of the plan."""

import pytest

from infra.agent.job import Limits
from infra.market.step_times import AROUND, GUESS, SAME, SETTINGS, is_measured
from infra.records import Expected
from infra.selection.preflight import default_limit, is_open, with_most

USD = 10**6


@pytest.mark.parametrize(("high", "measured", "limit", "reason"), [
    (9_333_333, True, 28 * USD, "28.00 USD, 3 times the high estimate of 9.34 USD, based on measurements of"),
    (9_333_333, False, 93_340_000, "93.34 USD, 10 times the high estimate of 9.34 USD, based on a table"),
    (220_000, False, 5 * USD, "5.00 USD, the smallest default (10 times the high estimate of 0.22 USD"),
    (60 * USD, False, 150 * USD, "150.00 USD, the largest default (10 times the high estimate of 60.00 USD"),
    (200 * USD, True, 150 * USD, "may need more: --spend-limit 200; to change the limit: --spend-limit, --ttl"),
    (None, False, 150 * USD, "because the cost of the work is unknown"),
])  # fmt: skip
def test_the_default_limit_is_a_named_multiple_of_the_high_estimate(high, measured, limit, reason):
    found = default_limit(high, measured)
    assert found.micro_usd == limit and reason in found.description
    assert found.description.startswith("neither --ttl nor --spend-limit is given: the limit is ")


def expected(step, seconds, source):
    return Expected(step=step, seconds=seconds, low=seconds, high=seconds, fixed_s=0.0, source=source)


def test_a_forecast_is_measured_if_every_long_step_is_measured():
    base, talk = expected("base", 100.0, SAME), expected("talk", 1.0, GUESS)
    assert is_measured([base, talk, expected(AROUND, 300.0, GUESS)])
    assert is_measured([expected("base", 100.0, SETTINGS)])
    assert not is_measured([base, expected("sft", 50.0, GUESS)])
    assert not is_measured([])


def test_a_pod_with_unknown_work_gets_the_maximum_limit_by_default():
    told = []
    assert with_most(Limits(idle_gpu_s=60.0), True, told.append).spend_micro_usd == 150 * USD
    assert "150.00 USD" in told.pop()
    for limits in (Limits(time_s=60.0), Limits(spend_micro_usd=USD)):
        assert not is_open(limits) and with_most(limits, True, told.append) == limits
    assert with_most(Limits(), False, told.append) == Limits() and not told
