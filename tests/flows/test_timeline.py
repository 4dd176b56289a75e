"""The cost of a run at each moment, over all pods."""

from flows.reading.timeline import cost_curve
from infra.agent.limits import Clocks
from infra.ledger.op import Op

HOUR = 3600


def pod(name, sent_at, ended_at, rate, **facts):
    lived = {"lived_s": float(ended_at - sent_at), "state": "TERMINATED"} if ended_at else {"state": "READY"}
    return Op(
        token=f"sw1-{name}",
        run="r",
        vendor="lium",
        sent_at=sent_at,
        intent_at=sent_at,
        ended_at=ended_at,
        del_requested_at=ended_at,
        rate=rate,
        boot_id="b",
        boot_s=float(sent_at),
        **{**lived, **facts},
    )


def test_costs_of_consecutive_pods_add_up_with_none_in_between():
    rows = [pod("a", 0, 2 * HOUR, 3_000_000), pod("b", 4 * HOUR, None, 1_000_000)]
    points = cost_curve(rows, {}, Clocks("b", 5.0 * HOUR, 5.0 * HOUR), 1.0)
    assert points == [(0, 0), (120, 6), (240, 6), (300, 7)]


def test_concurrent_pods_add_up_and_a_rehearsal_counts_simulated_hours():
    rows = [pod("a", 0, HOUR, 1_000_000), pod("b", 0, HOUR, 2_000_000), pod("c", 0, HOUR, 9, state="FAILED")]
    assert cost_curve(rows, {}, Clocks("b", 9.0 * HOUR, 9.0 * HOUR), 60.0) == [(0, 0), (3600, 180)]


def test_a_free_run_has_no_cost_curve():
    assert cost_curve([pod("a", 0, HOUR, 0)], {}, Clocks("b", 9.0 * HOUR, 9.0 * HOUR), 1.0) == []
