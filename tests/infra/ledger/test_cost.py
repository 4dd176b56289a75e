"""The ledger of what was spent, from rows, and estimates of what work would cost, from offers."""

from dataclasses import replace

import pytest

from infra.errors import UsageError
from infra.ledger.op import Op
from infra.ledger.spend import due, ledger, left_s, months, span, spent

HOUR = 3600
NOVEMBER, DECEMBER = span("2026-11")


def row(token="t", **facts):
    return Op(
        **{
            "token": token,
            "run": "r",
            "vendor": "runpod",
            "state": "READY",
            "rate": 2_000_000,
            "sent_at": NOVEMBER + HOUR,
            "remote_id": "id",
            **facts,
        }
    )


def one(*words, **more):
    (line,) = ledger(*words, **more)
    return line


def test_time_is_counted_from_the_request_to_the_proven_end_and_never_short():
    line = one([row()], {}, NOVEMBER + 3 * HOUR)
    assert (line.elapsed_s, line.ended_at, line.quoted_micro_usd) == (2 * HOUR, None, 4_000_000)
    ended = one([row(state="TERMINATED", ended_at=NOVEMBER + 2 * HOUR)], {}, NOVEMBER + 9 * HOUR)
    assert ended.elapsed_s == HOUR
    fast = one([row()], {}, NOVEMBER + HOUR + 9, clock_scale=60.0)
    assert (fast.elapsed_s, fast.quoted_micro_usd) == (540, 300_000)
    assert one([row(sent_at=None, intent_at=NOVEMBER)], {}, NOVEMBER + 1).elapsed_s == 1
    begun = one([row(vendor="shadeform")], {}, NOVEMBER + HOUR + 61)  # which bills by the minute
    assert (begun.elapsed_s, begun.quoted_micro_usd) == (61, 66_667)


def test_a_pod_of_a_vendor_without_a_timer_is_counted_until_it_is_proven_gone():
    late = row(vendor="runpod", state="TERMINATED", ended_at=NOVEMBER + 25 * HOUR, ttl_s=600.0)
    assert one([late], {}, DECEMBER).elapsed_s == 24 * HOUR


@pytest.mark.parametrize(("vendor", "grain_s"), [("lium", HOUR), ("shadeform", 1)])
def test_what_its_vendor_ended_unasked_was_not_billed_beyond_its_timer(vendor, grain_s):
    """A laptop that was off for a day notices a day late."""
    late = {"vendor": vendor, "state": "TERMINATED", "ended_at": NOVEMBER + 25 * HOUR}
    limit_s = -(-600 // grain_s) * grain_s + 300
    for limits in ({"ttl_s": 600.0}, {"cap": 333_333}, {"ttl_s": 600.0, "cap": 90_000_000}):
        line = one([row(**late, **limits)], {}, DECEMBER)
        assert line.elapsed_s == limit_s, limits
        assert spent(row(**late, **limits), DECEMBER) == pytest.approx(limit_s * 2_000_000 / 3600, abs=600)
    unasked = one([row(**late)], {}, DECEMBER)
    asked = one([row(**late, ttl_s=600.0, del_requested_at=NOVEMBER + 24 * HOUR)], {}, DECEMBER)
    assert unasked.elapsed_s == asked.elapsed_s == 24 * HOUR
    early = one([row(**{**late, "ended_at": NOVEMBER + HOUR + 60}, ttl_s=600.0)], {}, DECEMBER)
    assert early.elapsed_s == 60


def test_what_was_refused_or_never_asked_for_costs_nothing():
    assert ledger([row(state="FAILED"), row(state="PLANNED", sent_at=None)], {}, DECEMBER) == []


def test_the_vendors_word_counts_when_the_pod_is_gone_and_only_raises_ours_before():
    now = NOVEMBER + 2 * HOUR
    less, more = {"t": (now, 1_000)}, {"t": (now, 9_000_000)}
    assert [one([row()], told, now).micro_usd for told in (less, more)] == [2_000_000, 9_000_000]
    assert [one([row(ended_at=now)], told, now).micro_usd for told in (less, more, {})] == [1_000, 9_000_000, 2_000_000]


def test_a_month_has_what_fell_into_it_and_the_months_make_the_whole():
    rows, told = [row(state="TERMINATED", sent_at=DECEMBER - HOUR, ended_at=DECEMBER + 2 * HOUR)], {"t": (DECEMBER, 5)}
    parts = [one(rows, told, DECEMBER + HOUR, month=month) for month in ("2026-11", "2026-12")]
    assert [part.elapsed_s for part in parts] == [HOUR, 2 * HOUR + 1]
    assert [part.billed_micro_usd for part in parts] == [None, None]  # the vendor's sum is of both
    assert sum(part.quoted_micro_usd for part in parts) == pytest.approx(one(rows, {}, 0).quoted_micro_usd, abs=600)
    assert ledger(rows, told, DECEMBER, month="2026-10") == ledger(rows, told, DECEMBER, month="2027-01") == []
    assert months(DECEMBER - 1, span("2027-01")[0]) == ["2026-11", "2026-12", "2027-01"]
    for wrong in ("2026", "2026-13", "november"):
        with pytest.raises(UsageError, match="2026-11"):
            span(wrong)


def test_time_is_limited_from_the_request_and_money_from_when_billing_began():
    pod = row(vendor="shadeform", intent_at=1000, sent_at=1000, billed_at=1400.0, ttl_s=2700.0, cap=None)
    assert (left_s(pod, 3700.0), due(pod, 3699.0)) == (0.0, "")
    assert due(pod, 3700.0) == "the time limit of 45 min 00 s is reached"
    dollar = replace(pod, ttl_s=None, cap=2_000_000)  # an hour of it
    assert (left_s(dollar, 3700.0), due(dollar, 4900.0)) == (1300.0, "")
    assert due(dollar, 5000.0) == "the spend limit of 2.00 USD is reached"
