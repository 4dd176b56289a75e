"""Conclusions of a drill about a vendor that follows its documents, and about vendors with one deviation."""

from dataclasses import replace

import pytest

from infra.records import Offer, Pod
from packs.drill.control import clauses
from packs.drill.control.evidence import (
    LEAVERS,
    SPOT,
    STRAY,
    WORKER,
    DrillObservations,
    Evidence,
    SelfDelete,
    Slice,
    Trial,
    Vendor,
    VerbCall,
)
from packs.drill.control.readings import BROKEN, KEPT, REFUSED, UNREACHED, UNTOLD
from packs.drill.control.reports import DrillReport, Reports

VENDOR = Vendor(name="shadeform", time_limit=True, time_grain_s=1.0, spend_limit=True, tells_limits=True,
                start_timer=False, resets_timer=False, spot=False, tells_bills=True, has_ssh=True, self_deletes=(),
                self_terminate="native", slack_s=300.0, late_s=5.0)  # fmt: skip
OFFER = Offer(provider="shadeform", offer_id="a/b/c", micro_usd_per_hour=500_000)
HOUR_S = 3600.0


def trial(name, number):
    return Trial(
        name=name,
        token=f"sw1-00000000-{number:016d}",
        offer=OFFER,
        pod_id=f"m-{number}",
        is_gone=True,
        ledger_micro_usd=100_000,
    )


def pod(one, **facts):
    told = {"ends_at": 4 * HOUR_S, "spend_limit_micro_usd": 1_500_000, "micro_usd_per_hour": 500_000, **facts}
    return Pod(
        **{
            "provider": "shadeform",
            "pod_id": one.pod_id,
            "token": one.token,
            "run": "",
            "address": "",
            "state": "running",
            **told,
        }
    )


def life(one, began_at, **facts):
    """Return the calls of a pod's life: created, observed twice, billed, deleted, gone.

    The listing shows no limits, like Shadeform's listing.
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
    vendor=VENDOR, calls=(*LOOKS, *life(WORKED, 0), REACHED, *life(STRAYED, 1000)), trials=(WORKED, STRAYED),
    ground=DrillObservations(machine="", host_key="", guard="", log="", checkpoint=""), creates=1,
)  # fmt: skip


def worker_evidence(**facts):
    return replace(HONEST, calls=(*LOOKS, *life(WORKED, 0, **facts), REACHED, *life(STRAYED, 1000)))


def evidence_with(verb, number, **facts):
    """Return the evidence with a different answer to one verb."""
    found = [index for index, one in enumerate(HONEST.calls) if one.verb == verb]
    asked = [replace(one, **facts) if index == found[number] else one for index, one in enumerate(HONEST.calls)]
    return replace(HONEST, calls=tuple(asked))


def broken_clauses(seen):
    return {one.clause: one.seen for one in clauses.judge(seen) if one.state == BROKEN}


def test_vendor_that_follows_its_documents_breaks_no_clause():
    found = clauses.judge(HONEST)
    assert {one.clause: one.state for one in found} == dict.fromkeys([one.clause for one in found], KEPT)
    assert "self-end" not in {one.clause for one in found}  # Shadeform's pods cannot delete themselves.


DELETED_LATE = replace(HONEST, calls=tuple(
    replace(one, pods=(pod(STRAYED),)) if one.began_at == 1260 else one for one in HONEST.calls
))  # fmt: skip
REFUSED_KEY = replace(HONEST, calls=tuple(
    replace(one, error="AuthError: /home/somebody/key was refused") if one is REACHED else one
    for one in HONEST.calls
))  # fmt: skip
BLIND = VerbCall(verb="list", began_at=150.0, ended_at=151.0)
LATE = replace(HONEST, calls=tuple(sorted((BLIND, *(one for one in HONEST.calls if one.began_at != 10)),
                                          key=lambda one: one.began_at)))  # fmt: skip
SEEN_AGAIN = VerbCall(verb="list", began_at=215.0, ended_at=216.0, pods=(pod(WORKED),))
FLICKERING = replace(HONEST, calls=tuple(sorted(
    (replace(BLIND, began_at=205.0, ended_at=206.0), SEEN_AGAIN, *HONEST.calls), key=lambda one: one.began_at
)))  # fmt: skip


@pytest.mark.parametrize(
    ("seen", "clause", "words"),
    [
        (worker_evidence(micro_usd_per_hour=1_000_000), "price", "1.00 USD/h"),
        (worker_evidence(token="", name="gpu-1"), "token", "without it, named 'gpu-1'"),
        (worker_evidence(ends_at=None), "timer", "no timer in 2 of 2 rows"),
        (worker_evidence(ends_at=52 * HOUR_S), "timer", "it ends it after 52 h 00 min"),
        (worker_evidence(spend_limit_micro_usd=None), "spend limit", "none"),
        (DELETED_LATE, "delete", "the stray was still running until the end of the drill"),
        (replace(HONEST, creates=2), "lost reply", "2 requests were sent"),
        (evidence_with("list", 4, pods=(pod(STRAYED), pod(STRAYED, pod_id="m-3"))), "lost reply", "2 machines"),
        (replace(HONEST, ground=replace(HONEST.ground, host_key="another host key")), "host key", "another"),
        (replace(HONEST, ground=replace(HONEST.ground, guard="dead")), "guard", "dead"),
        (replace(HONEST, ground=replace(HONEST.ground, log="it is not there")), "log", "it is not there"),
        (REFUSED_KEY, "key", "refused 1 time, the last time with AuthError"),
        (evidence_with("billed", 0, micro_usd=3_000_000), "bill", "3.00 USD billed, 0.10 USD counted"),
        (LATE, "listing", "shown after"),
        (FLICKERING, "listing", "then left out of 1 of 3 listings, and shown again"),
        (evidence_with("catalog", 1, micro_usd=None), "offer", "not on offer"),
        (replace(HONEST, trials=(replace(WORKED, is_gone=False), STRAYED)), "nothing left", "the worker (m-1)"),
    ],
)  # fmt: skip
def test_single_deviation_is_named_with_the_observation(seen, clause, words):
    found = broken_clauses(seen)
    assert words in found.pop(clause)
    assert found.keys() <= {"nothing left"}  # A machine that is still listed at the end also counts as left.


def test_request_that_failed_but_was_executed_is_judged_by_the_listing():
    found = {
        one.clause: one.state for one in clauses.judge(evidence_with("create", 0, error="SlipwayError: 500", pods=()))
    }
    assert found["listing"] == found["token"] == KEPT
    unknown = replace(
        evidence_with("create", 0, error="SlipwayError: 500"), trials=(replace(WORKED, pod_id=""), STRAYED)
    )
    assert {one.clause: one.state for one in clauses.judge(unknown)}["listing"] == UNREACHED


def test_untested_clause_is_neither_kept_nor_broken():
    found = clauses.judge(Evidence(vendor=VENDOR))
    states = {one.clause: one.state for one in found}
    assert states.pop("nothing left") == KEPT
    assert set(states.values()) == {UNREACHED}


def test_newest_report_of_an_account_is_cited_with_its_age_and_a_damaged_report_is_ignored(tmp_path):
    reports, at = Reports.for_journal(tmp_path / "journal.sqlite"), 1_790_100_000
    assert reports.summary_lines({"lium": "mine", "shadeform": "mine"}, at) == [
        "never drilled: lium, shadeform; next: inv drill --provider lium"
    ]
    for account, day, seen in (("mine", 1, HONEST), ("mine", 0, worker_evidence(ends_at=None)), ("theirs", -1, HONEST)):
        findings = tuple(clauses.judge(seen))
        report = DrillReport(
            vendor="lium",
            account=account,
            at=at - day * 86_400,
            is_rehearsed=True,
            findings=findings,
            counted_micro_usd=1,
        )
        assert reports.save(report).parent == tmp_path / "journal-drills"
        assert reports.newest("lium", account) == report
    said = "lium: drilled 2 days ago (2026-09-22) in a rehearsal: 18 of 19 clauses kept; broken: timer"
    assert reports.summary_lines({"lium": "mine"}, at + 2 * 86_400) == [said]
    assert "too long ago to count" in reports.summary_lines({"lium": "mine"}, at + 30 * 86_400)[0]
    (newest,) = tmp_path.glob("journal-drills/lium-20260922*.json")
    newest.write_text("{")
    assert reports.summary_lines({"lium": "mine"}, at)[0].endswith("19 of 19 clauses kept")


def test_listing_in_the_second_of_a_deletion_counts_as_later():
    """A clock with a resolution of seconds shows neither the order of two events nor the progress of time."""
    asked = [one for one in HONEST.calls if not any(pod.state == "ending" for pod in one.pods)]
    same = [
        replace(one, began_at=asked[number - 1].began_at, ended_at=asked[number - 1].began_at - 0.1)
        if number and asked[number - 1].verb == "delete"
        else one
        for number, one in enumerate(asked)
    ]
    assert sum(one.ended_at < one.began_at for one in same) == 2
    found = clauses.judge(replace(HONEST, calls=tuple(same)))
    assert {one.clause: one.state for one in found} == dict.fromkeys([one.clause for one in found], KEPT)


def states(seen):
    return {one.clause: one.state for one in clauses.judge(seen)}


def evidence_without_bill(*at_s):
    """Return the evidence of a vendor that was asked for the bill at these times, without an answer."""
    asked = [one for one in HONEST.calls if one.verb != "billed"]
    asked += [VerbCall(verb="billed", began_at=at, ended_at=at, word="m-1") for at in at_s]
    return replace(HONEST, calls=tuple(asked))


def test_missing_answer_of_the_vendor_is_a_failure_after_an_hour():
    assert states(evidence_without_bill(210, 3700))["bill"] == UNTOLD
    assert "never answered" in broken_clauses(evidence_without_bill(210, 3900))["bill"]
    silent = [replace(one, error="SlipwayError: no answer", pods=()) for one in HONEST.calls if one.verb == "list"]
    silent = [one for one in HONEST.calls if one.verb != "list"] + silent
    late = replace(silent[-1], began_at=silent[-1].began_at + HOUR_S, ended_at=silent[-1].ended_at + HOUR_S)
    assert states(replace(HONEST, calls=tuple(silent)))["token"] == UNREACHED
    assert broken_clauses(replace(HONEST, calls=(*silent, late))).keys() >= {"token", "listing"}


def test_vendor_without_a_bill_is_not_asked_for_a_bill():
    quiet = replace(evidence_without_bill(210, 3900), vendor=replace(VENDOR, tells_bills=False))
    assert "bill" not in states(quiet) and not clauses.unanswered(quiet)
    assert clauses.unanswered(evidence_without_bill(210)).keys() == {"billed"}


SPOTTED = Trial(name=SPOT, token="sw1-00000000-0000000000000003", offer=replace(OFFER, cloud="SECURE", spot=True),
                pod_id="m-3", is_gone=True)  # fmt: skip
WITH_SPOT = replace(HONEST, vendor=replace(VENDOR, spot=True), trials=(*HONEST.trials, SPOTTED),
                    calls=(*HONEST.calls, *life(SPOTTED, 2000)))  # fmt: skip


def evidence_without_listing(seen, one):
    """Return the evidence without this machine in any listing."""
    asked = [
        replace(call, pods=tuple(pod for pod in call.pods if pod.pod_id != one.pod_id)) if call.verb == "list" else call
        for call in seen.calls
    ]
    return replace(seen, calls=tuple(asked))


def test_spot_machine_must_be_listed_with_its_token_at_its_bid():
    (found,) = [one for one in clauses.judge(WITH_SPOT) if one.clause == "spot"]
    assert (found.state, found.api) == (KEPT, "SECURE spot")
    assert {one.api for one in clauses.judge(WITH_SPOT) if one is not found and one.clause != "spot"} == {"on demand"}
    assert "not listed 3 min" in broken_clauses(evidence_without_listing(WITH_SPOT, SPOTTED))["spot"]
    dear = [*HONEST.calls, *life(SPOTTED, 2000, micro_usd_per_hour=900_000)]
    assert "0.90 USD/h, the bid was 0.50" in broken_clauses(replace(WITH_SPOT, calls=tuple(dear)))["spot"]
    bare = [*HONEST.calls, *life(SPOTTED, 2000, token="")]
    assert "lacks the token of the machine" in broken_clauses(replace(WITH_SPOT, calls=tuple(bare)))["spot"]
    none = replace(HONEST, vendor=replace(VENDOR, spot=True))
    assert states(none)["spot"] == UNTOLD


@pytest.mark.parametrize(("works", "expected"), [
    ((True, True), (KEPT, KEPT)),
    ((False, True), (REFUSED, KEPT)),  # One listing is enough.
    ((False, False), (BROKEN, BROKEN)),
    ((True,), (KEPT, UNREACHED)),
])  # fmt: skip
def test_each_self_delete_request_has_a_separate_result(works, expected):
    names = ("DELETE /v2/pods", "POST /graphql")
    tried = tuple(
        SelfDelete(name=name, answer="204" if is_gone else "403", is_gone=is_gone)
        for name, is_gone in zip(names, works, strict=False)
    )
    found = states(replace(HONEST, vendor=replace(VENDOR, self_deletes=names), self_deletes=tried))
    assert tuple(found[f"self-delete by {name}"] for name in names) == expected
    assert len(LEAVERS) == len(names)


def test_rate_limited_rent_request_is_judged_only_after_it_occurred():
    assert "throttle" not in states(HONEST)
    assert states(replace(HONEST, throttled=1))["throttle"] == KEPT
    refused = [replace(one, error="RateLimited: 429") if one.verb == "create" else one for one in HONEST.calls]
    assert "none served" in broken_clauses(replace(HONEST, throttled=3, calls=tuple(refused)))["throttle"]


def test_machine_that_never_boots_is_named_with_its_last_state():
    asked = [replace(one, pods=tuple(replace(pod, state="booting") for pod in one.pods)) for one in HONEST.calls]
    given_up = replace(HONEST, calls=tuple(asked), trials=(replace(WORKED, failure="no address in time"), STRAYED))
    assert "still booting after 3 min" in broken_clauses(given_up)["boot"]


def test_timer_reset_by_a_boot_is_judged_only_after_it_is_set_again():
    """Lium replaces the exact end by whole hours from the boot; a launch then sets the exact end again."""
    replaced = [
        replace(one, pods=tuple(replace(pod, ends_at=9 * HOUR_S) for pod in one.pods))
        if one.verb == "find" and one.began_at == 9
        else one
        for one in HONEST.calls
    ]
    assert "timer" in broken_clauses(replace(HONEST, calls=tuple(replaced)))
    index = next(number for number, one in enumerate(replaced) if one.verb == "find") + 1
    again = VerbCall(verb="arm", word="m-1", began_at=9.5, ended_at=9.6, time_s=4 * HOUR_S)
    asked = (*replaced[:index], again, *replaced[index:])
    resets = replace(HONEST, calls=asked, vendor=replace(VENDOR, resets_timer=True))
    assert states(resets)["timer"] == KEPT
    late = [
        replace(one, pods=tuple(replace(pod, ends_at=9 * HOUR_S) for pod in one.pods))
        if one.verb == "find" and one.began_at == 199
        else one
        for one in asked
    ]
    assert "timer" in broken_clauses(replace(resets, calls=tuple(late)))


def test_machine_without_an_end_time_during_boot_is_named():
    booting = [
        replace(one, pods=tuple(replace(pod, state="booting", ends_at=None) for pod in one.pods))
        if one.verb == "find" and one.began_at == 9
        else one
        for one in HONEST.calls
    ]
    assert "none in 1 of 1 row" in broken_clauses(replace(HONEST, calls=tuple(booting)))["timer before boot"]


def test_slice_that_counts_as_a_whole_gpu_is_a_failure():
    one = Slice(kind="NVIDIA H100 MIG 1g.10gb", whole="")
    assert states(replace(HONEST, slices=(one,)))["slices"] == states(HONEST)["slices"] == KEPT
    assert "NVIDIA H100 MIG" in broken_clauses(replace(HONEST, slices=(replace(one, whole="H100-SXM"),)))["slices"]


def test_disk_on_a_bill_costs_the_listed_price():
    def billed(disk_micro_usd):
        trial = replace(WORKED, offer=replace(OFFER, disk_bytes=100 * 10**9))
        seen = replace(evidence_with("billed", 0, disk_micro_usd=disk_micro_usd), trials=(trial, STRAYED))
        return {one.clause: one for one in clauses.judge(seen)}

    assert "disk price" not in states(HONEST)
    assert billed(800)["disk price"].state == KEPT  # 100 GB for 3.5 min at 0.10 USD per GB and month.
    assert billed(60_000)["disk price"].state == BROKEN


def test_refusal_in_unknown_words_is_judged_only_after_it_occurred():
    assert "refusal" not in states(HONEST)
    seen = replace(HONEST, unknown_refusals=("409: NEW_CODE",))
    assert "1 answer unknown to Slipway, the first '409: NEW_CODE'" in broken_clauses(seen)["refusal"]


def test_spot_machine_listed_only_by_v2_is_checked_with_the_api_of_the_machine():
    for answer, state in ((True, KEPT), (False, REFUSED)):
        (found,) = [one for one in clauses.judge(replace(WITH_SPOT, spot_in_v2=answer)) if one.clause == "spot in v2"]
        assert (found.state, found.api) == (state, "SECURE spot")
    assert "spot in v2" not in states(WITH_SPOT)
