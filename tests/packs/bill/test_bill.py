"""The bill of a run: from records to parts, without gaps, and with the cost of the ledger."""

import json
from types import SimpleNamespace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra.agent.job import Job, Step
from infra.agent.limits import read_clocks
from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.records import Pod
from infra.runs.run_home import RunHome
from infra.settings import Settings
from infra.units import in_usd
from packs.bill.commands import tables
from packs.bill.control import sources
from packs.bill.control.bill import Bill, PodBill, add_bills, bill_of, cost_of
from packs.bill.control.flags import BillFlags
from packs.bill.control.pod_time import (
    PARTS,
    Moment,
    PodRecords,
    Span,
    of_first_node,
    overlay,
    read_lines,
    spans_of,
)
from scripts.market import cost as cost_command
from tests.seeds import examples
from tests.world import ROOT

T = 1_800_000_000.0  # start of all examples
KINDS = {"environment": "environment", "tokens": "data", "sft": "environment"}
START = [(0, "sending", {}), (2, "created", {"address": None}), (30, "note", {"address": "x"})]
CHECKED, ARMED = (40, "note", {"last_seen_at": 1}), (55, "armed", {})


def moments(*events):
    return [Moment(T + at, event, facts) for at, event, facts in events]


def line(at, boot_s=500.0, wrong_s=0.0, **facts):
    """Return a line `at` seconds after the start, of a machine that booted earlier and whose clock is wrong."""
    return {"at": T + at + wrong_s, "clock_s": at + boot_s, "token": "t", **facts}


def work(wrong_s=0.0):
    """Return the lines of a whole run."""
    said = [
        (54, {"agent": "starting"}),
        (55, {"step": "environment", "state": "running"}),
        (65, {"step": "environment", "state": "done"}),
        (66, {"step": "tokens", "state": "running"}),
        (76, {"step": "tokens", "state": "done"}),
        (76, {"step": "sft", "state": "running"}),
        (86, {"step": "sft", "part": "data"}),
        (90, {"step": "sft", "part": "steps"}),
        (100, {"step": "sft", "part": "compile", "took_s": 8}),
        (100, {"step": "sft", "part": "data", "took_s": 1}),
        (120, {"step": "sft", "part": "saves", "took_s": 2}),
        *((at, {}) for at in (130, 140, 150)),
        (160, {"step": "sft", "part": "saves"}),
        (162, {"step": "sft", "part": "evaluation"}),
        (165, {"step": "sft", "part": "upload"}),
        (168, {"step": "sft", "state": "done"}),
        (175, {"agent": "succeeded"}),
    ]
    return [line(at, wrong_s=wrong_s, **facts) for at, facts in said]


def seconds_of(spans):
    return {part: round(sum(one.seconds for one in spans if one.part == part), 6) for part in {s.part for s in spans}}


def whole(lines, *events, until=200, **more):
    events = events or (ARMED, (190, "end", {}), (200, "gone", {}))
    return spans_of(
        PodRecords(
            moments=moments(*START, CHECKED, *events),
            until=T + until,
            billed_from=T,
            lines=read_lines(lines),
            kinds=KINDS,
            **more,
        )
    )


WHOLE = {
    **{"wait": 2, "boot": 28, "checks": 10, "sync": 14, "environment": 21, "data": 15, "compile": 8, "steps": 59},
    **{"saves": 4, "evaluation": 3, "upload": 10, "idle": 16, "deletion": 10},
}


def test_each_second_of_a_whole_run_has_its_part():
    assert seconds_of(whole(work())) == WHOLE
    assert sum(WHOLE.values()) == 200


@pytest.mark.parametrize("wrong_s", [-3600.0, 0.4, 86400.0])
def test_wrong_time_of_day_on_the_pod_moves_no_second_to_another_part(wrong_s):
    found = seconds_of(whole(work(wrong_s)))
    assert found.keys() == WHOLE.keys() and sum(found.values()) == pytest.approx(200)
    inner = WHOLE.keys() - {"sync", "idle", "deletion"}  # parts between two lines of the pod
    assert {part: found[part] for part in inner} == {part: WHOLE[part] for part in inner}


def test_time_of_day_set_during_the_run_moves_no_second_to_another_part():
    lines = work()
    set_back = [{**one, "at": one["at"] - 7200} if at > len(lines) * 0.6 else one for at, one in enumerate(lines)]
    assert seconds_of(whole(set_back)) == WHOLE


def test_lost_pod_keeps_its_last_part_up_to_the_loss_and_is_idle_after_a_long_silence():
    lines = [one for one in work() if one["clock_s"] < 500 + 121]  # the last line is 120 s after the request
    assert seconds_of(whole(lines, ARMED, (130, "gone", {}), until=130))["steps"] == 29
    found = seconds_of(whole(lines, ARMED, (400, "gone", {}), until=400))
    assert (found["steps"], found["idle"]) == (29, 271)


@pytest.mark.parametrize(
    ("events", "expected"),
    [
        ([(0, "sending", {}), (9, "refused", {})], {"wait": 9}),
        ([(0, "sending", {}), (5, "unclear", {}), (300, "absent", {})], {"wait": 5}),
        ([(0, "sending", {}), (5, "unclear", {}), (20, "detach", {}), (300, "gone", {})], {"wait": 5}),
        ([(0, "sending", {}), (5, "unclear", {}), (9, "found", {}), (50, "end", {}), (60, "gone", {})],
         {"wait": 9, "boot": 41, "deletion": 10}),
        ([(0, "sending", {}), (2, "created", {}), (50, "end", {}), (60, "gone", {})],
         {"wait": 2, "boot": 48, "deletion": 10}),
        ([*START, (70, "end", {}), (80, "gone", {})], {"wait": 2, "boot": 28, "sync": 40, "deletion": 10}),
        ([*START, ARMED, (70, "end", {}), (80, "gone", {})],
         {"wait": 2, "boot": 28, "sync": 35, "unexplained": 5, "deletion": 10}),
    ],
    ids=["refused", "absent", "detached", "found", "never booted", "no hand-over", "no timeline"],
)  # fmt: skip
def test_pod_that_never_worked_has_parts_too(events, expected):
    found = spans_of(PodRecords(moments=moments(*events), until=T + events[-1][0], billed_from=T))
    assert seconds_of(found) == expected


def test_held_pod_without_work_is_idle():
    assert seconds_of(whole([], is_held=True))["idle"] == 125


def test_later_start_of_billing_is_the_end_of_the_wait_for_the_vendor():
    pod = PodRecords(moments=moments(*START, (60, "gone", {})), until=T + 60, billed_from=T + 20)
    assert seconds_of(spans_of(pod)) == {"wait": 20, "boot": 10, "sync": 30}


def test_saves_after_a_request_to_end_are_no_deletion():
    found = seconds_of(whole(work(), ARMED, (158, "end", {}), (200, "gone", {})))
    assert found["saves"] == 4 and found["deletion"] == 25


def test_time_in_the_queue_of_a_cluster_is_a_wait_also_without_signs_of_life():
    queued = [line(54, agent="starting"), line(54, step="queue", state="running")]
    later = [line(150, agent="starting"), line(151, step="environment", state="running")]
    found = seconds_of(whole([*queued, *later], ARMED, (160, "end", {}), (170, "gone", {}), until=170))
    assert found["wait"] == 2 + 96 and found["environment"] == 10 and "idle" not in found
    # A cluster takes the machine of a started run and queues the run again: the agent says so and leaves.
    taken = [*(one for one in work() if one["clock_s"] <= 500 + 120), line(121, agent="waiting")]
    found = seconds_of(whole([*taken, *later], ARMED, (160, "end", {}), (170, "gone", {}), until=170))
    assert found["wait"] == 2 + 29 and found["environment"] == 21 + 10
    assert found["steps"] == 20


def test_further_node_takes_the_parts_of_the_first_node():
    first = [Span(0, 10, "environment", "sft"), Span(10, 50, "steps", "sft"), Span(50, 60, "saves", "sft")]
    other = [Span(-5, 0, "sync"), Span(0, 70, "environment", "sft"), Span(70, 80, "deletion")]
    assert seconds_of(of_first_node(other, first)) == {
        **{"sync": 5, "environment": 10, "steps": 40, "saves": 10, "idle": 10, "deletion": 10}
    }


def test_further_node_without_a_timeline_takes_the_time_of_node_0():
    first = [
        *(Span(0, 5, "sync"), Span(5, 10, "environment", "environment"), Span(10, 50, "steps", "sft")),
        *(Span(50, 60, "idle"), Span(60, 70, "unexplained"), Span(70, 99, "deletion")),
    ]
    other = [Span(-5, 3, "sync"), Span(3, 80, "unexplained"), Span(80, 90, "deletion")]
    assert seconds_of(of_first_node(other, first)) == {
        **{"sync": 8, "environment": 5, "steps": 40, "idle": 2 + 10 + 10, "unexplained": 10, "deletion": 10}
    }
    assert of_first_node(other, [Span(0, 99, "unexplained")]) == other  # node 0 has no timeline either
    worked = [Span(3, 80, "environment", "sft")]
    assert seconds_of(of_first_node(worked, [*first[:3], Span(50, 99, "unexplained")])) == {
        **{"idle": 7, "steps": 40, "unexplained": 30}
    }


@pytest.mark.parametrize("is_partial", [True, False])
def test_time_after_the_copied_part_of_a_timeline_is_not_idle(is_partial):
    lines = [one for one in work() if one["clock_s"] < 500 + 121]
    found = seconds_of(spans_of(PodRecords(
        moments=moments(*START, CHECKED, ARMED), until=T + 36_000, billed_from=T, lines=lines, kinds=KINDS,
        is_partial=is_partial,
    )))  # fmt: skip
    assert found["steps"] > 15 and found["unexplained" if is_partial else "idle"] > 35_000
    assert (found["idle"] < 5) is is_partial


def test_lines_of_a_hostile_pod_are_skipped():
    good = line(60, agent="starting")
    bad = [
        {**good, "at": "now"},
        {**good, "clock_s": float("inf")},
        {**good, "agent": 1},
        {**good, "clock_s": -1.0},
        line(61, step="sft"),
        line(61, step="sft", part="deletion"),
        line(61, part="steps"),
        line(61, part="saves", took_s=5.0),
        line(61, step="sft", part="saves", took_s=-5.0),
    ]
    assert read_lines([*bad, good]) == [good]


# Properties.

TIMES = st.floats(0, 300, allow_nan=False)
LINES = st.lists(
    st.tuples(
        TIMES,
        st.sampled_from(
            [
                *({"agent": one} for one in ("starting", "succeeded", "failed")),
                *({"step": step, "state": state} for step in KINDS for state in ("running", "done", "reused")),
                *({"step": "sft", "part": part} for part in ("data", "steps", "saves", "upload")),
                *({"step": "sft", "part": part, "took_s": 7.0} for part in ("compile", "evaluation", "saves")),
                {},
            ]
        ),
        st.sampled_from([0.0, 0.0, 0.0, -3600.0]),  # now and then, a clock that was set
    ),
    max_size=25,
)
ENDS = st.sampled_from([[], [(200, "end", {}), (230, "gone", {})], [(230, "gone", {})], [(150, "detach", {})]])


@given(LINES, ENDS, st.integers(1, len(START) + 3), st.floats(0, 60))
@settings(max_examples=examples(60, 1000), deadline=None)
def test_spans_follow_each_other_from_the_request_to_the_end(said, ends, begun, billed):
    events = [*[*START, CHECKED, ARMED][:begun], *ends]
    said = sorted(said, key=lambda one: one[0])
    lines = [line(at, wrong_s=wrong_s, **facts) for at, facts, wrong_s in said]
    pod = PodRecords(
        moments=moments(*events), until=T + 230, billed_from=T + billed, lines=read_lines(lines), kinds=KINDS
    )
    spans = spans_of(pod)
    # A request without an answer ends with the row.
    end = 230 if begun > 1 or not ends else ends[0][0]
    assert spans[0].begin == T and spans[-1].end == pytest.approx(T + end)
    for one, following in zip(spans, spans[1:], strict=False):
        assert one.seconds > 0 and following.begin == pytest.approx(one.end, abs=1e-6)
    assert {one.part for one in spans} <= set(PARTS)


SPANS = st.lists(st.tuples(st.floats(0.01, 50), st.sampled_from(PARTS)), min_size=1, max_size=12)


@given(SPANS, st.lists(st.tuples(st.floats(0, 400), st.floats(0, 30)), max_size=10))
@settings(max_examples=examples(60, 1000), deadline=None)
def test_painted_spans_cover_the_same_time_once(lengths, extra):
    base, at = [], 0.0
    for length, part in lengths:
        base.append(Span(at, at + length, part, "sft"))
        at += length
    found = overlay(base, [Span(end - took, end, "saves", "sft") for end, took in extra])
    assert sum(one.seconds for one in found) == pytest.approx(at)
    assert all(a.end == pytest.approx(b.begin) for a, b in zip(found, found[1:], strict=False))


@given(
    st.lists(
        st.tuples(SPANS, st.integers(0, 10**7), st.integers(0, 10**7), st.floats(0, 40), st.booleans()),
        min_size=1,
        max_size=4,
    ),
    st.sampled_from([1.0, 60.0]),
)
@settings(max_examples=examples(60, 1000), deadline=None)
def test_bill_adds_up_to_the_time_and_to_the_ledger(pods, scale):
    made, at, away_s = [], T, 0
    for lengths, cost, rate, billed, is_last in pods:
        spans = []
        for length, part in lengths:
            spans.append(Span(at, at + length, part))
            at += length
        made.append(
            PodBill(
                **{"vendor": "lium", "host": "h", "spans": spans, "micro_usd": cost, "micro_usd_per_hour": rate},
                billed_from=spans[0].begin + billed,
                is_last=is_last,
            )
        )
        at += 5  # until the next pod
        away_s += 5 * is_last
    away_s -= 5 * pods[-1][-1]  # no pod follows
    bill = bill_of("otter", made, scale)
    assert bill.total_s == pytest.approx(bill.wall_s) == pytest.approx((at - 5 - T - away_s) * scale)
    assert bill.cost == sum(one.micro_usd for one in made)
    assert sum(cost_of(made[0], scale).values()) == pytest.approx(made[0].micro_usd)


def test_request_without_a_machine_is_a_wait_and_no_pod():
    asked = {"vendor": "lium", "host": "lium A100", "has_machine": False}
    rented = {"vendor": "runpod", "host": "runpod L40S"}
    pods = [
        PodBill(**asked, spans=[Span(0, 10, "wait")]),
        PodBill(**asked, spans=[Span(10, 30, "wait")]),  # the next request begins before the answer
        PodBill(**rented, spans=[Span(20, 25, "wait"), Span(25, 100, "steps")], micro_usd=7),
        PodBill(**asked, spans=[Span(110, 120, "wait")]),
    ]
    bill = bill_of("otter", pods)
    assert (bill.pods, bill.vendors, bill.hosts) == (1, ("runpod",), ("runpod L40S",))
    assert bill.seconds == {"wait": 20 + 5 + 20, "steps": 75} and bill.total_s == bill.wall_s == 120
    assert bill.cost == 7
    refused = bill_of("heron", pods[:1])
    assert (refused.pods, refused.vendors, refused.total_s) == (0, ("lium",), 10)
    nodes = [PodBill(**rented, spans=[Span(begin, 50, "steps")]) for begin in (0, 10)]
    assert bill_of("crane", nodes).seconds == {"steps": 90}  # pods at the same time, no wait


NIGHT_S = 16 * 3600
LIVES = {
    "refused the evening before": ([(0, 10, False, 0, False), (NIGHT_S, 3600, True, 0, True)], 10),
    "given back the evening before": ([(0, 10, False, 0, True), (NIGHT_S, 3600, True, 0, True)], 0),
    "next offer": ([(0, 10, False, 0, False), (70, 3600, True, 0, True)], 70),
    "recovered": ([(0, 10, False, 1, True), (NIGHT_S, 3600, True, 2, True)], NIGHT_S - 10),
    "resumed": ([(0, 10, True, 0, True), (70, 3600, True, 0, True)], 0),
    # Node 0 has the outcome of the run, and node 1 was requested later.
    "nodes resumed": ([(0, 10, True, 0, True), (1, 9, False, 0, True), (NIGHT_S, 3600, True, 0, True)], 0),
    "resumed, and recovered": (
        [(0, 10, True, 3, True), (NIGHT_S, 20, False, 0, True), (2 * NIGHT_S, 60, True, 1, True)], NIGHT_S - 20
    ),
}  # fmt: skip


@pytest.mark.parametrize(("lives", "wait_s"), LIVES.values(), ids=LIVES)
def test_time_without_a_pod_is_a_wait_only_while_a_process_asks_for_one(lives, wait_s):
    pods = [
        PodBill(
            **{"vendor": "lium", "host": "h", "is_last": is_last, "recoveries": recoveries, "has_machine": has_machine},
            spans=[Span(begin, begin + took_s, "steps" if has_machine else "wait")],
        )
        for begin, took_s, is_last, recoveries, has_machine in lives
    ]
    bill = bill_of("otter", pods)
    assert bill.seconds.get("wait", 0.0) == wait_s
    assert bill.total_s >= bill.wall_s


# The tables.

BILL = Bill(
    run="otter",
    vendors=("lium",),
    hosts=("lium RTX 4090",),
    pods=2,
    seconds={"boot": 60.0, "steps": 120.0, "deletion": 20.0},
    micro_usd={"boot": 100_000, "steps": 200_000},
    wall_s=200.0,
)


def test_table_of_a_run_shows_each_part_and_the_overhead():
    text = tables.text_of(BILL)
    assert [row.split()[0] for row in text.splitlines()] == ["part", "boot", "training", "deletion", "in", "each"]
    assert "each second of training steps took 1.67 seconds on 2 pods, 0.3000 USD for 0.2000 USD of steps" in text
    assert tables.document_of(BILL)["usd"]["steps"] == "0.20"


@pytest.mark.parametrize(
    "amounts", [[4_004_900] * 3, [3_999_999, 1, 4_004_950, 2_000_000], [12_345], [0, 999_999_999], [1, 1, 1], []]
)
def test_amounts_of_a_table_add_up_to_the_sum_of_the_ledger(amounts):
    *shown, total = (round(float(one.replace(",", "")) * 10**4) for one in tables._amounts(amounts))
    assert sum(shown) == total and all(abs(one - exact / 100) < 100 for one, exact in zip(shown, amounts, strict=True))
    if sum(amounts) >= tables.SMALL:
        assert f"{tables._amounts(amounts)[-1]} USD".replace(",", "") == in_usd(sum(amounts))
    else:
        assert 0 <= total - sum(amounts) / 100 < 1


def test_comparison_lists_the_least_overhead_first():
    slow = Bill(**{**vars(BILL), "run": "slow", "vendors": ("runpod",), "seconds": {"boot": 500.0, "steps": 100.0}})
    found = tables.compared("vendors", [slow, BILL, BILL])
    assert [row.split()[0] for row in found.text.splitlines()[1:3]] == ["lium", "runpod"]
    assert found.document["vendors"][0]["total_s"] == add_bills("lium", [BILL, BILL]).total_s == 400


@pytest.fixture
def world(tmp_path):
    """Return settings, and a row of a rented pod with a hand-over."""
    environ = {
        "SLIPWAY_STATE_FILE": f"{tmp_path}/state/journal.db",
        "HOME": str(tmp_path),
        "SLIPWAY_PODS": f"{tmp_path}/pods",
    }
    found = Settings.load(ROOT, environ=environ)
    with Journal.open(found.state_file) as journal:
        yield found, journal


def rented(journal, job, token="sw1-a"):
    op = journal.plan(token=token, run="otter", vendor="lium", rate=36 * 10**9, job=job.to_json(), store="s3://b/f")
    op = journal.advance(journal.advance(op, "sending"), "created", remote_id="pod-1")
    return journal.advance(journal.note(op, address="ssh://root@10.0.0.1:22/pod"), "armed")


BASE = Job("otter", "sw1-a", (Step("base", ("-m", "trainer", "base")),))


def timeline_of(found, *facts):
    """Write the copy of the timeline on this machine."""
    clocks = read_clocks()
    lines = [{"at": clocks.wall_s, "clock_s": clocks.boot_s, "token": "sw1-a", **one} for one in facts]
    log = RunHome.for_run("otter", found.homes).pod.log("timeline")
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("".join(f"{json.dumps(one)}\n" for one in lines))


WORKING, DONE = ({"agent": "starting"}, {"step": "base", "state": "running"}), {"agent": "succeeded"}


@pytest.mark.parametrize(
    ("here", "is_live", "is_asked"),
    [((), False, True), (WORKING, False, True), ((*WORKING, DONE), False, False), (WORKING, True, False)],
    ids=["no copy", "copy of a part", "whole copy", "live"],
)
def test_incomplete_copy_of_a_timeline_is_completed_from_the_store(world, monkeypatch, here, is_live, is_asked):
    found, journal = world
    op = rented(journal, BASE)
    if not is_live:
        op = journal.advance(journal.advance(op, "end", reason="x"), "gone")
    timeline_of(found, *here)
    monkeypatch.setattr(sources.logs, "fetch", lambda *given: False)
    monkeypatch.setattr(sources.logs, "fetch_from_store", lambda *given: timeline_of(found, *WORKING, DONE))
    lines, _ = sources.lines_of(op, journal, found, pytest.fail, asks=True)
    assert len(lines) == (3 if is_asked else len(here))


def test_timeline_of_a_hostile_pod_larger_than_any_timeline_is_not_read(world, monkeypatch):
    found, journal = world
    timeline_of(found, *WORKING)
    monkeypatch.setattr(sources, "MOST_BYTES", 10)
    assert sources.lines_of(rented(journal, BASE), journal, found, pytest.fail, asks=False) == ([], True)


def test_steps_of_each_job_of_a_held_pod_have_a_part(world):
    found, journal = world
    op = rented(journal, Job("otter", "sw1-a", (), kind="hold"))
    data = Job("otter", "sw1-a", (Step("tokens", ("-m", "data", "tokens")),))
    op = journal.note(journal.note(op, job=data.to_json()), job=BASE.to_json())
    events = sources.moments_of([op], journal)[op.token]
    kinds = {"environment": "environment", "tokens": "data", "base": "environment"}
    assert sources.kinds_of(op, events) == kinds


def test_bill_of_a_run_counts_the_machines_and_not_the_refused_requests(world):
    found, journal = world
    for token, events in (("sw1-x", ("unsent",)), ("sw1-y", ("sending", "refused"))):
        op = journal.plan(token=token, run="otter", vendor="shadeform", rate=10**6, job=BASE.to_json())
        for event in events:
            op = journal.advance(op, event)
    op = rented(journal, BASE)
    journal.advance(journal.advance(op, "end", reason="x"), "gone")
    bill = sources.bill_of_run("otter", journal, found, pytest.fail, asks=False)
    assert (bill.pods, bill.vendors) == (1, ("lium",))
    assert len(sources.pods_of(journal.ops(run="otter"), journal, found, pytest.fail, False)) == 2


def test_bill_of_a_run_has_the_nodes_that_were_given_back_before_they_met(world):
    found, journal = world
    for rank, run in enumerate(("crane", "crane.1")):
        op = journal.plan(
            **{"token": f"sw1-{run}", "run": run, "rank": rank, "vendor": "lium", "rate": 36 * 10**9},
            job=Job(run, "", BASE.steps).to_json(),
        )
        op = journal.advance(journal.advance(op, "sending"), "created", remote_id=run)
        journal.advance(journal.advance(op, "end", reason="no machine is left"), "gone")
    assert sources.bill_of_run("crane", journal, found, pytest.fail, asks=False).pods == 2
    compared = tables.BillView().of_flags(cost_command.CostFlags(added=(BillFlags(compare="runs"),)), journal, found)
    assert [(one["run"], one["pods"]) for one in compared.document["runs"]] == [("crane", 2)]


@pytest.fixture
def clock(monkeypatch):
    """Return a clock for the events of the journal: `began`, and `at` in seconds since then."""
    found = SimpleNamespace(began=0, at=0.0, CLOCK_MONOTONIC=1)
    found.time = lambda: found.began + found.at
    found.clock_gettime_ns = lambda clock: int((1000 + found.at) * 10**9)
    monkeypatch.setattr("infra.ledger.journal.time", found)
    return found


def recorded(journal, clock, token, rank, *events, rate=36 * 10**9):
    """Return the row of a pod with events at these times."""
    run = f"crane.{rank}" if rank else "crane"
    job = Job(run, token, BASE.steps).to_json()
    op = journal.plan(token=token, run=run, rank=rank, vendor="lium", rate=rate, job=job)
    for clock.at, event, facts in events:
        op = journal.note(op, **facts) if event == "note" else journal.advance(op, event, **facts)
    return op


def told_by(found, run, token, began, first, last, *facts):
    """Write the copy of a timeline with a sign of life every 10 s."""
    said = [(first, one) for one in facts] + [(at, {}) for at in range(first + 10, last, 10)]
    log = RunHome.for_run(run, found.homes).pod.log("timeline")
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a") as file:
        for at, one in said:
            file.write(json.dumps({"at": began + at + 0.5, "clock_s": at, "token": token, **one}) + "\n")


def worked(armed, *events):
    facts = {"remote_id": f"pod-{armed}"}
    return [
        *((armed - 10, "sending", {}), (armed - 9, "created", facts)),
        *((armed - 5, "note", {"address": "ssh://root@10.0.0.1:22/pod"}), (armed, "armed", {}), *events),
    ]


STEPPING = (*WORKING, {"step": "base", "part": "steps"})


@pytest.mark.parametrize("rate", [36 * 10**9, 0], ids=["rented", "own"])
@pytest.mark.parametrize("lost", [0, 1])
@pytest.mark.parametrize("is_told", [True, False], ids=["timeline of both nodes", "timeline of node 0"])
def test_nodes_of_two_lives_have_the_steps_of_node_0(world, clock, lost, is_told, rate):
    """One node is silent and detached, and is proven gone only after the second life of the run."""
    found, journal = world
    began = clock.began = int(read_clocks().wall_s) - 1000
    ends = {lost: ((102, "detach", {}), (500, "gone", {})), 1 - lost: ((102, "end", {}), (104, "gone", {}))}
    for rank in (0, 1):
        recorded(journal, clock, f"sw1-old-{rank}", rank, *worked(11, *ends[rank]), rate=rate)
    for rank in (0, 1):
        recorded(journal, clock, f"sw1-new-{rank}", rank, *worked(130, (291, "end", {}), (301, "gone", {})), rate=rate)
    for run, rank in (("crane", 0), *([("crane.1", 1)] if is_told else [])):
        said = STEPPING if rank == 0 else WORKING
        told_by(found, run, f"sw1-old-{rank}", began, 10, 101, *said)
        told_by(found, run, f"sw1-new-{rank}", began, 129, 290, *said)
    pods = sources.pods_of(journal.ops(), journal, found, pytest.fail, asks=False)
    old, new, *others = (seconds_of(one.spans) for one in pods)
    assert old["steps"] == pytest.approx(91, abs=11) and new["steps"] == pytest.approx(161, abs=11)
    for one, of_node_0 in zip(others, (old, new), strict=True):
        assert one["steps"] == pytest.approx(of_node_0["steps"], abs=12)
    gone_s = 398 if rate else 0
    assert [old, others[0]][lost].get("deletion", 0.0) == pytest.approx(gone_s, abs=2)
    bill = sources.bill_of_run("crane", journal, found, pytest.fail, asks=False)
    assert bill.pods == 4 and bill.seconds.get("idle", 0.0) < 12 and "unexplained" not in bill.seconds


@pytest.mark.parametrize("asks", [True, False])
def test_part_of_a_timeline_that_is_not_copied_yet_is_unknown(world, clock, monkeypatch, asks):
    found, journal = world
    began = clock.began = int(read_clocks().wall_s) - 36_000
    recorded(journal, clock, "sw1-a", 0, *worked(20))
    told_by(found, "crane", "sw1-a", began, 20, 240, *STEPPING)
    monkeypatch.setattr(sources.logs, "fetch", lambda *given: False)  # the pod has answered
    bill = sources.bill_of_run("crane", journal, found, pytest.fail, asks)
    assert bill.seconds["steps"] == pytest.approx(220, abs=11)
    assert bill.seconds["idle" if asks else "unexplained"] == pytest.approx(35_750, abs=30)
    assert bool("% of the time is without a record" in tables.overhead_of(bill)) is not asks


@pytest.mark.parametrize("is_told", [True, False])
def test_pod_adopted_after_the_loss_of_the_journal_has_the_parts_of_the_timeline(world, is_told):
    found, journal = world
    began = int(read_clocks().wall_s) - 3600
    pod = Pod(provider="lium", pod_id="p", token="sw1-b", run="crane", address="ssh://root@10.0.0.1:22/pod",
              created_at=began)  # fmt: skip
    op = journal.claim(pod, "older than the journal", state="LOST")
    if is_told:
        told_by(
            found, "crane", "sw1-b", began, 100, 3590, WORKING[0], {"step": "own", "state": "running"}, *STEPPING[1:]
        )
    journal.advance(journal.advance(op, "end", reason="x"), "gone")
    bill = sources.bill_of_run("crane", journal, found, pytest.fail, asks=False)
    assert bill.total_s == pytest.approx(3600, abs=5)
    expected = {"boot": 100, "steps": 3490} if is_told else {"unexplained": 3590}
    assert {part: bill.seconds[part] for part in expected} == pytest.approx(expected, abs=15)


def test_table_of_a_run_comes_from_the_journal_and_the_copied_timeline(tmp_path):
    environ = {
        "SLIPWAY_STATE_FILE": f"{tmp_path}/state/journal.db",
        "HOME": str(tmp_path),
        "SLIPWAY_PODS": f"{tmp_path}/pods",
    }
    found = Settings.load(ROOT, environ=environ)
    with Journal.open(found.state_file) as journal:
        job = Job("otter", "", (Step("sft", ("-m", "trainer", "sft")),))
        op = journal.plan(token="sw1-a", run="otter", vendor="lium", rate=36 * 10**9, job=job.to_json())
        op = journal.advance(journal.advance(op, "sending"), "created", remote_id="pod-1")
        op = journal.advance(journal.note(op, address="ssh://root@10.0.0.1:22/pod"), "armed")
        clocks = read_clocks()
        states = [{"agent": "starting"}, {"step": "sft", "state": "running"}, {"step": "sft", "part": "steps"}]
        lines = [{"at": clocks.wall_s, "clock_s": clocks.boot_s, "token": "sw1-a", **one} for one in states]
        log = RunHome.for_run("otter", found.homes).pod.log("timeline")
        log.parent.mkdir(parents=True)
        log.write_text("".join(f"{json.dumps(one)}\n" for one in [*lines, {"token": "sw1-a"}]) + "torn")
        op = journal.advance(journal.advance(op, "end", reason="x"), "gone")
        journal.record_cost("sw1-a", "vendor", 123_457_000)
        table = tables.BillView().of_run("otter", journal, found, asks=False)
        assert table is not None
        assert sum(part.micro_usd for part in table.parts) == 123_457_000
        assert "without a record" not in {part.name for part in table.parts}
        assert table.document["pods"] == 1 and table.document["is_over"]
        assert tables.BillView().of_run("heron", journal, found, asks=False) is None


@pytest.mark.parametrize(
    ("spec", "by", "expected"),
    [
        ({"run": "otter"}, "runs", "Leave out the run"),
        ({"accuracy": True}, "runs", "Leave out --accuracy"),
        ({}, "moons", "expected one of runs, vendors, hosts"),
        ({"estimate": True}, "runs", "--compare about past runs"),
    ],
)
def test_comparison_is_never_ignored(tmp_path, monkeypatch, spec, by, expected):
    monkeypatch.setenv("SLIPWAY_STATE_FILE", f"{tmp_path}/state/journal.db")
    asked = cost_command.CostFlags(**spec, added=(BillFlags(compare=by),))
    with pytest.raises(UsageError, match=expected):
        cost_command.cost.work(asked)


def test_events_lie_on_the_clock_of_the_boot_also_after_the_time_was_set():
    boot_s = [100.0 + step * 0.4 for step in range(20)]
    right = [(int(T + one), one) for one in boot_s]
    assert sources._offset(right) == pytest.approx(T, abs=0.5)
    set_back = [(int(T + one - (3600 if at > 14 else 0)), one) for at, one in enumerate(boot_s)]
    assert sources._offset(set_back) == pytest.approx(T, abs=1)
