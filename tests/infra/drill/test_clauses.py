"""The conclusions of a drill about a vendor that is as its documents say, and about ones that differ in one thing."""

from dataclasses import replace

import pytest

from infra.drill import clauses
from infra.drill.clauses import BROKEN, KEPT, UNREACHED
from infra.drill.evidence import STRAY, WORKER, Evidence, Ground, Trial, Vendor, VerbCall
from infra.drill.reports import DrillReport, Reports
from infra.records import Offer, Pod

VENDOR = Vendor(name="shadeform", time_limit=True, time_grain_s=1.0, spend_limit=True, tells_limits=True,
                self_terminate="native", slack_s=300.0, late_s=5.0)  # fmt: skip
OFFER = Offer(provider="shadeform", offer_id="a/b/c", micro_usd_per_hour=500_000)
HOUR_S = 3600.0


def trial(name, number):
    return Trial(name=name, token=f"sw1-00000000-{number:016d}", offer=OFFER, pod_id=f"m-{number}", is_gone=True,
                 ledger_micro_usd=100_000)  # fmt: skip


def pod(one, **facts):
    told = {"ends_at": 4 * HOUR_S, "spend_limit_micro_usd": 1_500_000, "micro_usd_per_hour": 500_000, **facts}
    return Pod(**{"provider": "shadeform", "pod_id": one.pod_id, "token": one.token, "run": "", "address": "",
                  "state": "running", **told})  # fmt: skip


def life(one, began_at, **facts):
    """A pod from its request to its absence: created, looked at twice, billed, deleted, gone.

    Its listing shows no limits, as Shadeform's does not.
    """

    def asked(verb, after_s, **about):
        at = began_at + after_s
        return VerbCall(verb=verb, began_at=at, ended_at=at + 1, **about)

    facts = {"ends_at": began_at + 4 * HOUR_S, **facts}
    listed = {**facts, "ends_at": None, "spend_limit_micro_usd": None}
    return [
        asked("create", 0, word=one.token, time_s=4 * HOUR_S, spend_micro_usd=1_500_000, pods=(pod(one, **facts),)),
        asked("find", 9, word=one.pod_id, pods=(pod(one, **facts),)),
        asked("list", 10, pods=(pod(one, **listed),)),
        asked("find", 199, word=one.pod_id, pods=(pod(one, **facts),)),
        asked("list", 200, pods=(pod(one, **listed),)),
        asked("billed", 210, word=one.pod_id, micro_usd=90_000),
        asked("delete", 220, word=one.pod_id),
        asked("list", 230, pods=(pod(one, **{**listed, "state": "ending"}),)),
        asked("list", 260),
    ]


WORKED, STRAYED = trial(WORKER, 1), trial(STRAY, 2)
LOOKS = [VerbCall(verb="catalog", began_at=at, ended_at=at, word="a/b/c", micro_usd=500_000) for at in (-20.0, -10.0)]
REACHED = VerbCall(verb="reach", word="m-1", began_at=100.0, ended_at=101.0)
HONEST = Evidence(
    vendor=VENDOR, asked=(*LOOKS, *life(WORKED, 0), REACHED, *life(STRAYED, 1000)), trials=(WORKED, STRAYED),
    ground=Ground(machine="", host_key="", guard="", log="", checkpoint=""), creates=1,
)  # fmt: skip


def of_worker(**facts):
    return replace(HONEST, asked=(*LOOKS, *life(WORKED, 0, **facts), REACHED, *life(STRAYED, 1000)))


def changed(verb, number, **facts):
    """The evidence with one of its verbs answered otherwise."""
    found = [index for index, one in enumerate(HONEST.asked) if one.verb == verb]
    asked = [replace(one, **facts) if index == found[number] else one for index, one in enumerate(HONEST.asked)]
    return replace(HONEST, asked=tuple(asked))


def broken(seen):
    return {one.clause: one.seen for one in clauses.judge(seen) if one.state == BROKEN}


def test_a_vendor_that_is_as_its_documents_say_breaks_nothing():
    found = clauses.judge(HONEST)
    assert {one.clause: one.state for one in found} == dict.fromkeys([one.clause for one in found], KEPT)
    assert "self-end" not in {one.clause for one in found}  # its pods cannot


DELETED_LATE = replace(HONEST, asked=tuple(
    replace(one, pods=(pod(STRAYED),)) if one.began_at == 1260 else one for one in HONEST.asked
))  # fmt: skip
REFUSED = replace(HONEST, asked=tuple(
    replace(one, error="AuthError: /home/somebody/key was refused") if one is REACHED else one
    for one in HONEST.asked
))  # fmt: skip
BLIND = VerbCall(verb="list", began_at=150.0, ended_at=151.0)
LATE = replace(HONEST, asked=tuple(sorted((BLIND, *(one for one in HONEST.asked if one.began_at != 10)),
                                          key=lambda one: one.began_at)))  # fmt: skip
SEEN_AGAIN = VerbCall(verb="list", began_at=215.0, ended_at=216.0, pods=(pod(WORKED),))
FLICKERING = replace(HONEST, asked=tuple(sorted(
    (replace(BLIND, began_at=205.0, ended_at=206.0), SEEN_AGAIN, *HONEST.asked), key=lambda one: one.began_at
)))  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "clause", "words"),
    [
        (of_worker(micro_usd_per_hour=1_000_000), "price", "1.00 USD/h"),
        (of_worker(token="", name="gpu-1"), "token", "without it, named 'gpu-1'"),
        (of_worker(ends_at=None), "timer", "no timer in 2 of 2 rows"),
        (of_worker(ends_at=52 * HOUR_S), "timer", "it ends it after 52 h 00 min"),
        (of_worker(spend_limit_micro_usd=None), "spend limit", "none"),
        (DELETED_LATE, "delete", "the stray was still running until the end of the drill"),
        (replace(HONEST, creates=2), "lost reply", "2 requests were sent"),
        (changed("list", 4, pods=(pod(STRAYED), pod(STRAYED, pod_id="m-3"))), "lost reply", "2 machines"),
        (replace(HONEST, ground=replace(HONEST.ground, host_key="another host key")), "host key", "another"),
        (replace(HONEST, ground=replace(HONEST.ground, guard="dead")), "guard", "dead"),
        (replace(HONEST, ground=replace(HONEST.ground, log="it is not there")), "log", "it is not there"),
        (REFUSED, "key", "refused 1 time, the last time by AuthError"),
        (changed("billed", 0, micro_usd=3_000_000), "bill", "3.00 USD billed, 0.10 USD counted"),
        (LATE, "listing", "shown after"),
        (FLICKERING, "listing", "then left out of 1 of 3 listings, and shown again"),
        (changed("catalog", 1, micro_usd=None), "offer", "not on offer"),
        (replace(HONEST, trials=(replace(WORKED, is_gone=False), STRAYED)), "nothing left", "the worker (m-1)"),
    ],
)  # fmt: skip
def test_one_thing_that_differs_is_named_with_what_was_seen(seen, clause, words):
    found = broken(seen)
    assert words in found.pop(clause)
    assert found.keys() <= {"nothing left"}  # what is still listed at the end is left as well


def test_a_request_that_was_answered_with_an_error_and_done_is_judged_by_what_the_listing_shows():
    found = {one.clause: one.state for one in clauses.judge(changed("create", 0, error="SlipwayError: 500", pods=()))}
    assert found["listing"] == found["token"] == KEPT
    unknown = replace(changed("create", 0, error="SlipwayError: 500"), trials=(replace(WORKED, pod_id=""), STRAYED))
    assert {one.clause: one.state for one in clauses.judge(unknown)}["listing"] == UNREACHED


def test_what_was_not_tried_is_neither_kept_nor_broken():
    found = clauses.judge(Evidence(vendor=VENDOR))
    states = {one.clause: one.state for one in found}
    assert states.pop("nothing left") == KEPT
    assert set(states.values()) == {UNREACHED}


def test_the_newest_report_is_cited_and_a_damaged_one_is_none(tmp_path):
    reports = Reports.beside(tmp_path / "journal.sqlite")
    assert reports.cite(["lium", "shadeform", "lium"]) == [
        "never drilled: lium, shadeform; next: inv drill --provider lium"
    ]
    for at, seen in ((1_790_000_000, HONEST), (1_790_100_000, of_worker(ends_at=None))):
        findings = tuple(clauses.judge(seen))
        report = DrillReport(vendor="lium", at=at, is_rehearsed=True, findings=findings, counted_micro_usd=1)
        assert reports.save(report).parent == tmp_path / "journal-drills"
        assert reports.newest("lium") == report
    said = "lium: drilled on 2026-09-22 in a rehearsal: 15 of 16 clauses kept; broken: timer"
    assert reports.cite(["lium"]) == [said]
    (newest,) = tmp_path.glob("journal-drills/lium-20260922*.json")
    newest.write_text("{")
    assert reports.cite(["lium"])[0].endswith("16 of 16 clauses kept")


def test_a_listing_in_the_second_of_a_deletion_came_after_it():
    """A clock that is known to the second tells neither which was first nor that time goes on."""
    asked = [one for one in HONEST.asked if not any(pod.state == "ending" for pod in one.pods)]
    same = [
        replace(one, began_at=asked[number - 1].began_at, ended_at=asked[number - 1].began_at - 0.1)
        if number and asked[number - 1].verb == "delete" else one
        for number, one in enumerate(asked)
    ]  # fmt: skip
    assert sum(one.ended_at < one.began_at for one in same) == 2
    found = clauses.judge(replace(HONEST, asked=tuple(same)))
    assert {one.clause: one.state for one in found} == dict.fromkeys([one.clause for one in found], KEPT)
