"""The owner of each machine, and overdue machines: pure decisions from a vendor's listing and the journal."""

import pytest

from infra.agent.limits import Clocks
from infra.ledger.audit import findings
from infra.ledger.op import Op
from infra.ledger.reap import CUT_OFF, due
from infra.ledger.reconcile import AccountSnapshot, Listing
from infra.records import Pod

PREFIX = "sw1-aaaaaaaa-"
NOW = 10_000


def token(name):
    return f"{PREFIX}{name:0>16}"


def pod(name="a", pod_id="id-a", **facts):
    told = {"created_at": NOW - 90, "micro_usd_per_hour": 100, "state": "running", "name": "n", **facts}
    return Pod(**{"provider": "m", "pod_id": pod_id, "token": token(name), "run": "", "address": "", **told})


def row(state, name="a", **facts):
    known = {"rate": 100, "sent_at": NOW - 100, "remote_id": f"id-{name}", **facts}
    return Op(**{"token": token(name), "run": f"run-{name}", "vendor": "m", "state": state, **known})


def seen(rows, *pods, denied=(), busy=(), is_complete=True):
    listing = Listing(
        began=Clocks("boot", NOW, NOW), pods=tuple(pods), is_complete=is_complete, denied=frozenset(denied)
    )
    look = AccountSnapshot(listing, {one.token: one for one in rows}, frozenset(busy), ())
    return findings(look, provider="m", prefix=PREFIX, now=NOW)


def kinds(*words, **more):
    return [(one.pod_id, one.kind) for one in seen(*words, **more)]


def why(*words):
    return due(*words)[0]


@pytest.mark.parametrize(
    ("state", "kind"),
    [("BOOTING", "claimed"), ("READY", "claimed"), ("LOST", "claimed"), ("CREATING", "claimed"), ("UNKNOWN", "claimed"),
     ("TERMINATING", "ending"), ("TERMINATED", "orphaned"), ("FAILED", "orphaned")],
)  # fmt: skip
def test_our_machine_has_the_state_of_its_row(state, kind):
    (found,) = seen([row(state)], pod())
    assert (found.kind, found.run, found.age_s, found.micro_usd_per_hour) == (kind, "run-a", 90, 100)
    assert found.wastes_money == (kind in ("orphaned", "ending"))


def test_a_marked_machine_without_a_row_is_an_orphan_unless_it_is_ending():
    assert kinds([], pod()) == [("id-a", "orphaned")]
    (leaving,) = seen([row("TERMINATING")], pod(state="ending"))
    assert leaving.is_due and not leaving.wastes_money


def test_a_foreign_machine_is_never_ours_under_any_name():
    strangers = [
        pod(token="", pod_id="1"),
        pod(token="sw1-bbbbbbbb-0000000000000000", pod_id="2"),
        pod(token="sw1-aaaaaaa", pod_id="3"),
    ]
    found = seen([row("READY")], *strangers, denied=["id-a"])
    assert [one.kind for one in found] == ["foreign", "foreign", "foreign", "ghost"]
    assert not any(one.wastes_money for one in found)
    assert [one.note for one in found][:3] == ["", "another installation's", ""]


def test_a_row_owns_one_of_two_machines_with_its_token():
    old, young = pod(pod_id="old", created_at=3), pod(pod_id="young", created_at=9)
    assert kinds([row("READY", remote_id="young")], young, old) == [("old", "orphaned"), ("young", "claimed")]
    assert kinds([row("UNKNOWN", remote_id=None)], young, old) == [("old", "claimed"), ("young", "orphaned")]
    assert kinds([row("TERMINATED", remote_id="old")], young, old) == [("old", "orphaned"), ("young", "orphaned")]


def test_a_row_without_machine_is_a_ghost_only_if_the_vendor_denies_the_machine():
    assert kinds([row("READY")], denied=["id-a"]) == [("id-a", "ghost")]
    assert kinds([row("READY")]) == [("id-a", "claimed")]  # a lagging listing
    assert kinds([row("READY")], is_complete=False) == []
    assert kinds([row("TERMINATED"), row("FAILED", "b"), row("PLANNED", "c", sent_at=None, remote_id=None)]) == []


def test_an_unanswered_request_is_not_clean_unless_a_process_handles_it():
    lost = row("UNKNOWN", remote_id=None)
    (found,) = seen([lost])
    assert (found.kind, found.wastes_money, found.micro_usd_per_hour) == ("unclear", True, 100)
    (found,) = seen([lost], busy=[lost.token])
    assert (found.kind, found.wastes_money) == ("claimed", False)
    assert kinds([row("TERMINATING", remote_id=None, sent_at=None)]) == [("", "ghost")]


def test_a_machine_beyond_its_limits_is_overdue_by_the_vendors_clock():
    nobody = frozenset[str]()
    for one in (row("READY", ttl_s=600.0), row("LOST", cap=1_000, rate=6_000)):
        assert why(one, nobody, one.sent_at + 599) == "" != why(one, nobody, one.sent_at + 600)
        assert why(one, nobody, one.sent_at + 9, 60.0) == "" != why(one, nobody, one.sent_at + 10, 60.0)
        assert why(one, frozenset([one.token]), one.sent_at + 600)  # a launch does not extend the life of its pod
    assert why(row("READY"), nobody, NOW * 1000) == ""


def test_a_pod_without_a_launch_to_hand_over_its_job_is_due_at_once():
    assert why(row("BOOTING"), frozenset(), NOW) == CUT_OFF
    assert why(row("BOOTING"), frozenset([token("a")]), NOW) == ""
    assert [why(row(state), frozenset(), NOW) for state in ("TERMINATING", "TERMINATED", "FAILED")] == [""] * 3
