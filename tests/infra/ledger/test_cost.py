"""The ledger of past costs, from rows, and estimates of the cost of work, from offers."""

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


def ledger_line(*words, **more):
    (line,) = ledger(*words, **more)
    return line


def test_time_counts_from_the_request_to_the_proven_end_and_is_never_short():
    line = ledger_line([row()], {}, NOVEMBER + 3 * HOUR)
    assert (line.elapsed_s, line.ended_at, line.quoted_micro_usd) == (2 * HOUR, None, 4_000_000)
    ended = ledger_line([row(state="TERMINATED", ended_at=NOVEMBER + 2 * HOUR)], {}, NOVEMBER + 9 * HOUR)
    assert ended.elapsed_s == HOUR
    fast = ledger_line([row()], {}, NOVEMBER + HOUR + 9, clock_scale=60.0)
    assert (fast.elapsed_s, fast.quoted_micro_usd) == (540, 300_000)
    assert ledger_line([row(sent_at=None, intent_at=NOVEMBER)], {}, NOVEMBER + 1).elapsed_s == 1
    begun = ledger_line([row(vendor="shadeform")], {}, NOVEMBER + HOUR + 61)  # bills by the minute
    assert (begun.elapsed_s, begun.quoted_micro_usd) == (61, 66_667)


def test_a_pod_without_a_vendor_timer_counts_until_proven_gone():
    late = row(vendor="runpod", state="TERMINATED", ended_at=NOVEMBER + 25 * HOUR, ttl_s=600.0)
    assert ledger_line([late], {}, DECEMBER).elapsed_s == 24 * HOUR


@pytest.mark.parametrize(("vendor", "grain_s"), [("lium", HOUR), ("shadeform", 1)])
def test_a_pod_ended_by_its_vendor_is_not_billed_beyond_its_timer(vendor, grain_s):
    """A laptop that was off for a day notices the end a day late."""
    late = {"vendor": vendor, "state": "TERMINATED", "ended_at": NOVEMBER + 25 * HOUR}
    limit_s = -(-600 // grain_s) * grain_s + 300
    for limits in ({"ttl_s": 600.0}, {"cap": 333_333}, {"ttl_s": 600.0, "cap": 90_000_000}):
        line = ledger_line([row(**late, **limits)], {}, DECEMBER)
        assert line.elapsed_s == limit_s, limits
        assert spent(row(**late, **limits), DECEMBER) == pytest.approx(limit_s * 2_000_000 / 3600, abs=600)
    unasked = ledger_line([row(**late)], {}, DECEMBER)
    asked = ledger_line([row(**late, ttl_s=600.0, del_requested_at=NOVEMBER + 24 * HOUR)], {}, DECEMBER)
    assert unasked.elapsed_s == asked.elapsed_s == 24 * HOUR
    early = ledger_line([row(**{**late, "ended_at": NOVEMBER + HOUR + 60}, ttl_s=600.0)], {}, DECEMBER)
    assert early.elapsed_s == 60


def test_a_refused_or_unsent_request_costs_nothing():
    assert ledger([row(state="FAILED"), row(state="PLANNED", sent_at=None)], {}, DECEMBER) == []


def test_the_vendors_bill_counts_after_the_end_and_only_raises_our_sum_before():
    now = NOVEMBER + 2 * HOUR
    less, more = {"t": (now, 1_000)}, {"t": (now, 9_000_000)}
    assert [ledger_line([row()], told, now).micro_usd for told in (less, more)] == [2_000_000, 9_000_000]
    ended = row(vendor="lium", state="TERMINATED", ended_at=now)
    assert [ledger_line([ended], told, now).micro_usd for told in (less, more, {})] == [1_000, 9_000_000, 2_000_000]


def test_early_bill_is_no_final_bill():
    """A vendor reports no bill of a deleted machine, RunPod books by the hour, and a user reads bills at any time."""
    end = NOVEMBER + 11 * HOUR
    early = [("lium", NOVEMBER + 2 * HOUR), ("lium", end - 1), ("runpod", end), ("runpod", end + 2 * HOUR - 1)]
    for vendor, at in (*early, ("lium", end), ("shadeform", end), ("runpod", end + 2 * HOUR)):
        cost = ledger_line([row(vendor=vendor, state="TERMINATED", ended_at=end)], {"t": (at, 18_000_000)}, DECEMBER)
        is_final = (vendor, at) not in early
        assert (cost.is_final, cost.micro_usd) == (is_final, 18_000_000 if is_final else 20_000_000), (vendor, at)


@pytest.mark.parametrize("vendor", ["runpod", "shadeform"])
@pytest.mark.parametrize("told", [{}, {"t": (DECEMBER, 5_000_001)}, {"t": (DECEMBER + 5 * HOUR, 17_999_999)}])
@pytest.mark.parametrize("ended_at", [None, DECEMBER + 2 * HOUR])
def test_a_month_has_its_own_costs_and_the_months_add_up(vendor, told, ended_at):
    facts = {"vendor": vendor, "rate": 10_000_000, "sent_at": DECEMBER - HOUR, "ended_at": ended_at}
    rows, now = [row(state="TERMINATED" if ended_at else "READY", **facts)], DECEMBER + 2 * HOUR
    parts = [ledger_line(rows, told, now, month=month) for month in ("2026-11", "2026-12")]
    assert [part.elapsed_s for part in parts] == [HOUR, 2 * HOUR + 1]
    whole = ledger_line(rows, told, now)
    assert sum(part.micro_usd for part in parts) == whole.micro_usd
    assert sum(part.quoted_micro_usd for part in parts) == whole.quoted_micro_usd == 30_000_000
    assert parts[0].micro_usd == pytest.approx(whole.micro_usd / 3, rel=1e-3)


def test_month_without_the_pod_and_wrong_months():
    rows, told = [row(state="TERMINATED", sent_at=DECEMBER - HOUR, ended_at=DECEMBER + 2 * HOUR)], {"t": (DECEMBER, 5)}
    assert ledger(rows, told, DECEMBER, month="2026-10") == ledger(rows, told, DECEMBER, month="2027-01") == []
    assert months(DECEMBER - 1, span("2027-01")[0]) == ["2026-11", "2026-12", "2027-01"]
    for wrong in ("2026", "2026-13", "november"):
        with pytest.raises(UsageError, match="2026-11"):
            span(wrong)


def test_time_is_limited_from_the_request_and_money_from_the_start_of_billing():
    pod = row(vendor="shadeform", intent_at=1000, sent_at=1000, billed_at=1400.0, ttl_s=2700.0, cap=None)
    assert (left_s(pod, 3700.0), due(pod, 3699.0)) == (0.0, "")
    assert due(pod, 3700.0) == "the time limit of 45 min 00 s is reached"
    dollar = replace(pod, ttl_s=None, cap=2_000_000)  # an hour of cost
    assert (left_s(dollar, 3700.0), due(dollar, 4900.0)) == (1300.0, "")
    assert due(dollar, 5000.0) == "the spend limit of 2.00 USD is reached"
