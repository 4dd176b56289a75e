import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from infra.agent.job import Call, Job, Limits, PodFolder, Step
from infra.agent.limits import Clocks
from infra.agent.process import Identity, send
from infra.errors import UsageError
from infra.ledger import spend
from infra.ledger.journal import Journal
from infra.ledger.op import STATES, Op
from infra.providers.local import Local
from infra.records import Pod, Request
from infra.runs import journal_upkeep, lookup, observation, pod_views, pods
from infra.runs.observation import Observation
from infra.settings import Settings
from infra.transport.protocol import ThisMachine

REPOSITORY = Path(__file__).parents[3]


@pytest.fixture
def journal(tmp_path):
    with Journal.open(environ={"XDG_STATE_HOME": str(tmp_path), "XDG_CONFIG_HOME": str(tmp_path)}) as opened:
        yield opened


@pytest.fixture
def local(tmp_path):
    return Local(tmp_path / "pods")


def rent(local, journal, run="a-1", **more):
    job = Job("", "", (Step(name="work", words=("step.py",)),), Limits(time_s=7200))
    request = Request(run=run)
    return pods.rent(local, request, local.offers(request)[0], job, journal, pods.RowDraft(**more))


def start(op, journal, script):
    """Hand the job over and start the agent, as a launch does."""
    folder = PodFolder(Path(op.address))
    folder.code.mkdir(parents=True)
    (folder.code / "step.py").write_text(script)
    folder.job.write_text(op.job)
    folder.secrets.write_text("{}")
    words = [sys.executable, "-m", "infra.agent", "start", op.address]
    subprocess.run(words, check=True, capture_output=True, env={**os.environ, "PYTHONPATH": str(REPOSITORY)})
    return journal.advance(op, "armed")


def await_view(journal, local, wanted):
    deadline = time.monotonic() + 30
    while time.monotonic() < deadline:
        (view,) = pod_views.snapshot(journal, {"local": local}, local.pods.parent / "homes")
        if wanted(view):
            return view
    raise AssertionError(f"never came: {view}")


def test_an_empty_journal_gives_an_empty_view(journal, local):
    assert pod_views.snapshot(journal, {"local": local}, local.pods.parent / "homes") == []


@pytest.mark.process
def test_a_pod_is_shown_as_planned_running_and_stopped(journal, local):
    op = rent(local, journal)
    (planned,) = pod_views.snapshot(journal, {"local": local}, local.pods.parent / "homes")
    assert (planned.state, planned.age_s, planned.ends) == ("planned", None, ())
    try:
        start(op, journal, "import time\nwhile True: time.sleep(0.1)\n")
        running = await_view(journal, local, lambda view: view.step == "work")
        assert (running.run, running.provider, running.state) == ("a-1", "local", "running")
        assert running.progress["token"] == op.token and 0 <= running.age_s < 30
        assert running.ends[0].startswith("guard alive, ends it in ")
        assert observation.is_alive(op, ThisMachine())
    finally:
        pods.end(local, journal.op(op.token), journal)
    assert not observation.is_alive(op, ThisMachine())
    (stopped,) = pod_views.snapshot(journal, {"local": local}, local.pods.parent / "homes")
    assert (stopped.state, stopped.ends) == ("stopped", ()) and stopped.progress["state"] == "stopped"


@pytest.mark.process
@pytest.mark.parametrize(("script", "state"), [("print('done')", "succeeded"), ("raise SystemExit(3)", "failed")])
def test_a_pod_that_ended_by_itself_shows_its_verdict_before_and_after_settling(journal, local, script, state):
    op = start(rent(local, journal), journal, script)
    view = await_view(journal, local, lambda view: view.state not in ("planned", "running"))
    assert (view.state, view.progress["state"]) == (state, state)
    assert pods.settle(local, op, journal).state == "TERMINATED"
    (settled,) = pod_views.snapshot(journal, {"local": local}, local.pods.parent / "homes")
    assert (settled.state, settled.note, settled.ends) == (state, view.note, ())


@pytest.mark.process
def test_a_pod_with_killed_guard_and_agent_is_lost(journal, local):
    op = start(rent(local, journal), journal, "import time\nwhile True: time.sleep(0.1)\n")
    try:
        await_view(journal, local, lambda view: view.step == "work")
        state = PodFolder(Path(op.address)).state
        both = [Identity(**json.loads((state / f"{role}.json").read_text())["identity"]) for role in ("guard", "agent")]
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: each process would restart the other
            assert all([send(one, number) for one in both])
        lost = await_view(journal, local, lambda view: view.state != "running")
        assert (lost.state, lost.note) == ("lost", "neither guard nor agent is running")
        assert lost.ends[0].startswith("guard dead, last heard ")
    finally:
        pods.end(local, op, journal)


@pytest.mark.process
def test_the_last_ended_runs_stay_listed_with_live_runs(journal, local):
    live = rent(local, journal, "live-0")
    for number in range(1, 14):
        pods.end(local, rent(local, journal, f"over-{number}"), journal)
    pods.end(local, rent(local, journal, "over-5"), journal)
    runs = [view.run for view in pod_views.snapshot(journal, {"local": local}, local.pods.parent / "homes")]
    assert runs == ["live-0", *(f"over-{number}" for number in (4, 6, 7, 8, 9, 10, 11, 12, 13)), "over-5"]
    pods.end(local, live, journal)


@pytest.mark.process
def test_replicas_of_a_service_do_not_count_as_last_runs(journal, local):
    for run in ("mine-1", "mine-2"):
        pods.end(local, rent(local, journal, run), journal)
    for run in ("demo-0", "mine-3"):
        replica = rent(local, journal, run, owner_kind="service", owner="demo")  # services and runs may share a name
        assert replica.service == "demo"
        assert [view.run for view in pod_views.snapshot(journal, {"local": local}, local.pods.parent)][
            -1
        ] == run  # costs money
        pods.end(local, replica, journal)

    def listed(**more):
        return [view.run for view in pod_views.snapshot(journal, {"local": local}, local.pods.parent, **more)]

    assert listed() == ["mine-1", "mine-2"] and listed(ended=1) == ["mine-2"]
    assert listed(named="demo-0") == ["mine-1", "mine-2", "demo-0"]
    assert [lookup.find_run(journal, word).run for word in ("", "mine-1", "demo-0")] == ["mine-2", "mine-1", "demo-0"]
    trial = rent(local, journal, "rates.lr-3e-4")
    assert lookup.find_run(journal, "rates/lr-3").run == trial.run, "as the table of a sweep shows it"
    pods.end(local, trial, journal)
    with pytest.raises(UsageError, match="matches several names: mine-1, mine-2$"):
        lookup.find_run(journal, "mine")


@pytest.mark.process
def test_an_ended_replica_is_left_to_its_living_controller(journal, local, monkeypatch):
    monkeypatch.setenv("SLIPWAY_PODS", str(local.pods))
    for key in ("RUNPOD_API_KEY", "LIUM_API_KEY", "SHADEFORM_API_KEY"):
        monkeypatch.setenv(key, "")
    settings = Settings.load(REPOSITORY)
    replica = start(rent(local, journal, "demo-0", owner_kind="service", owner="demo"), journal, "")
    deadline = time.monotonic() + 30
    while not observation.verdict_of(journal.op(replica.token), ThisMachine()):
        assert time.monotonic() < deadline
        time.sleep(0.02)
    controller = journal.leases.acquire("serve:demo")
    assert journal_upkeep.settle(journal, settings, print) == []
    assert journal.op(replica.token).is_live
    journal.leases.release(controller)
    assert [op.token for op in journal_upkeep.settle(journal, settings, print)] == [replica.token]
    assert not journal.op(replica.token).is_live


class Silent(Local):
    """Answers after the release."""

    hold = threading.Event()
    name = "silent"

    def find(self, pod):
        self.hold.wait(60)
        return super().find(pod)


@pytest.mark.process
def test_a_silent_provider_delays_no_other_provider(journal, local):
    silent = Silent(local.pods)
    request = Request(run="slow-1")
    pods.rent(silent, request, local.offers(request)[0], Job("", "", ()), journal)
    rent(local, journal, "quick-2")
    try:
        slow, quick = pod_views.snapshot(
            journal, {"local": local, "silent": silent}, local.pods.parent / "homes", deadline_s=2
        )
        assert (slow.run, slow.note, slow.state) == ("slow-1", "no answer in 2 s", "planned")
        assert (quick.run, quick.note, quick.state) == ("quick-2", "", "planned")
    finally:
        silent.hold.set()


@pytest.mark.process
def test_a_failure_of_one_pod_is_a_note_in_its_row(journal, local):
    op = rent(local, journal)
    (Path(op.address) / "POD.json").write_text("{")
    (view,) = pod_views.snapshot(journal, {"local": local}, local.pods.parent / "homes")
    assert "POD.json is damaged" in view.note
    (view,) = pod_views.snapshot(journal, {}, local.pods.parent / "homes")
    assert view.note == "provider local is not set up here"


@pytest.mark.process
def test_the_verdict_of_an_earlier_pod_does_not_apply_to_the_current_pod(journal, local):
    first = rent(local, journal)
    said = {"token": first.token, "state": "failed", "step": "work", "reason": "why"}
    PodFolder(Path(first.address)).verdict.write_text(json.dumps(said))
    pods.end(local, first, journal)
    (view,) = pod_views.snapshot(journal, {"local": local}, local.pods.parent / "homes")
    assert (view.state, view.step, view.note) == ("failed", "work", "why")
    rent(local, journal)
    (view,) = pod_views.snapshot(journal, {"local": local}, local.pods.parent / "homes")
    assert (view.state, view.step, view.note) == ("planned", "", "")


def test_the_truth_table():
    def row(state):
        return [pod_views.state_of(state, "", is_alive) for is_alive in (True, False, None)]

    assert {state: row(state) for state in STATES} == {
        "PLANNED": ["running", "planned", "planned"],
        "CREATING": ["running", "planned", "planned"],
        "UNKNOWN": ["running", "planned", "planned"],
        "BOOTING": ["running", "planned", "planned"],
        "READY": ["running", "lost", "running"],
        "LOST": ["running", "lost", "lost"],
        "TERMINATING": ["ending"] * 3,
        "TERMINATED": ["stopped"] * 3,
        "FAILED": ["failed"] * 3,
    }
    for verdict in ("succeeded", "failed", "stopped", "limit"):
        assert {pod_views.state_of(state, verdict, alive) for state in STATES for alive in (True, False, None)} == {
            verdict
        }


def test_the_cost_of_a_run_is_the_ledger_sum_of_all_its_pods():
    """Add up pods with any state, renter and vendor reports."""
    common = {"run": "a-1", "rate": 2_000_000, "intent_at": 1_000, "sent_at": 1_000, "remote_id": "id"}
    rows = [
        Op(**common, token="failed", vendor="lium", state="FAILED"),
        Op(**common, token="late", vendor="shadeform", state="TERMINATED", ended_at=90_000, ttl_s=600.0),
        Op(**common, token="asked", vendor="lium", state="TERMINATED", ended_at=5_000, del_requested_at=4_990),
        Op(**common, token="billed", vendor="shadeform", state="TERMINATED", ended_at=4_600),
        Op(**common, token="now", vendor="shadeform", state="READY", billed_at=8_000.0),
    ]
    told, now, op = {"billed": (4_700, 1_234_567)}, Clocks("", 0.0, 9_001.0), rows[-1]
    guard = {"alive": True, "age_s": 3.0, "limit_s": None, "spent_micro_usd": 9, "elapsed_s": 2.0}
    progress = {"updated_at": 8_991.0, "step": "work"}
    for says, costs in ((None, 17 * 60), (1, 17 * 60), (5_000_000, 9_000)):  # bills begun minutes
        pod = Pod(provider="shadeform", pod_id="id", token="now", run="a-1", address="", spent_micro_usd=says)
        reading = Observation(True, True, pod=pod, guard=guard, progress=progress)
        view = pod_views.view(op, reading, now, rows, told)
        bills = told if says is None else {**told, "now": (9_001, says)}
        lines = {line.token: line.micro_usd for line in spend.ledger(rows, bills, now)}
        assert view.spent_micro_usd == sum(lines.values()) == spend.total(rows, bills, now)
        assert lines == {"late": 500_000, "asked": 2_222_223, "billed": 1_234_567, "now": -(-costs * 5_000 // 9)}
        assert (view.micro_usd_per_hour, view.age_s, view.started_at) == (2_000_000, 10.0, 1_000)
        assert view.ends == ("guard alive, no limit",)


@pytest.mark.parametrize(
    ("changes", "state"),
    [
        ({}, "limit"),
        ({"ended_at": 4_500}, "limit"),  # a guard is early
        ({"ended_at": 2_000}, "stopped"),
        ({"del_requested_at": 4_900}, "stopped"),  # a user requested the end
        ({"ttl_s": None}, "stopped"),
        ({"ttl_s": None, "cap": 1_000_000}, "limit"),
        ({"rate": 0}, "stopped"),
        ({"outcome": "succeeded"}, "succeeded"),
        (
            {"reason": "has the mark of this installation, but no row in the journal", "del_requested_at": 4_900},
            "stopped",
        ),
    ],
)
def test_a_rented_pod_gone_at_its_limit_has_reached_the_limit(changes, state):
    row = {
        "token": "t",
        "run": "r",
        "vendor": "runpod",
        "state": "TERMINATED",
        "rate": 1_000_000,
        "sent_at": 1_000,
        "ended_at": 100_000,
        "ttl_s": 3600.0,
        "reason": "runpod ended it",
    }
    seen = pod_views.view(Op(**{**row, **changes}), Observation(), Clocks("", 0.0, 200_000.0), (), {})
    assert seen.state == state
    assert ("without a verdict" in seen.note) == (state == "limit")


def test_the_time_of_a_run_sums_its_pods_by_the_billing_clock():
    common = {"run": "a-1", "vendor": "runpod", "rate": 3_600_000_000, "intent_at": 1_000}
    first = Op(**common, token="one", state="TERMINATED", sent_at=1_000, ended_at=1_060, del_requested_at=1_050)
    aside = Op(**common, token="two", state="LOST", detached=True, sent_at=1_060, del_requested_at=1_070)
    last = Op(**common, token="new", state="READY", sent_at=1_100)
    rows, now = [first, aside, last], Clocks("", 0.0, 1_200.0)
    work = {"name": "base", "state": "done", "elapsed_s": 10.0}
    verdict = {"state": "succeeded", "at": 1_140.0}
    ended = pod_views.view(
        last, Observation(clock_scale=60.0, verdict=verdict, progress={"steps": [work]}), now, rows, {}
    )
    assert (ended.elapsed_s, ended.ended_at, ended.clock_scale) == (60 * (60 + 10 + 40), 1_140.0, 60.0)
    at_work = pod_views.view(last, Observation(clock_scale=60.0, is_alive=True), now, rows, {})
    assert (at_work.elapsed_s, at_work.ended_at) == (60 * (60 + 10 + 100), None)
    over = pod_views.view(first, Observation(), now, [first], {})
    assert (over.elapsed_s, over.ended_at) == (60.0, 1_060.0)


def test_an_old_problem_is_not_shown_for_a_working_pod():
    op = Op(token="t", run="a-1", vendor="runpod", state="READY", sent_at=1, reason="its vendor did not show it")
    now = Clocks("", 0.0, 9.0)
    assert pod_views.view(op, Observation(True, is_alive=True), now, [op], {}).note == ""
    assert pod_views.view(op, Observation(), now, [op], {}).note == "its vendor did not show it"


def test_an_idle_gpu_is_shown_with_its_limit_and_pending_uploads():
    op = Op(token="t", run="a-1", vendor="runpod", state="READY", sent_at=1)
    guard = {
        "alive": True,
        "age_s": 3.0,
        "limit_s": 19_650.0,
        "elapsed_s": 30.0,
        "idle_s": 185.0,
        "limits": {"idle_gpu_s": 1800.0},
    }
    uploads = {"pending": ["work/checkpoints/base-f00d/step-000000500"], "problem": "ConnectionError: reset"}
    reading = Observation(True, is_alive=True, guard=guard, progress={"uploads": uploads})
    seen = pod_views.view(op, reading, Clocks("", 0.0, 9.0), [op], {})
    assert seen.ends == ("guard alive, ends it in 5 h 27 min; GPUs idle for 3 min 05 s of 30 min 00 s",)
    assert (seen.pending, seen.upload_problem) == (
        ("work/checkpoints/base-f00d/step-000000500",),
        "ConnectionError: reset",
    )


@pytest.mark.parametrize(("nodes", "rank", "limit"), [(1, 0, 25_000_000), (4, 0, 100_000_000), (4, 2, None)])
def test_limit_of_a_run_counts_all_nodes_and_is_in_the_row_of_the_first(nodes, rank, limit):
    request = json.dumps({"nodes": nodes})
    op = Op(token="t", run="a-1", vendor="runpod", state="READY", cap=25_000_000, request=request, rank=rank)
    seen = pod_views.view(op, Observation(), Clocks("", 0.0, 9.0), [op], {})
    assert (seen.limit_micro_usd, seen.run_limit_micro_usd) == (25_000_000, limit)


@pytest.mark.parametrize(
    ("age_s", "scale", "spent_s", "end"),
    [
        (59.0, 1.0, 600, "guard alive, ends it in 1 min 40 s"),
        (61.0, 1.0, 600, "guard last heard 1 min 01 s ago"),
        (14.0, 60.0, 600, "guard alive, ends it in 1 min 40 s"),  # by the clock of a rehearsal, 14 minutes
        (98.0, 60.0, 600, "guard last heard 1 h 38 min ago"),
        (98.0, 60.0, 8_946, "guard last heard 1 h 38 min ago; over its limit by 2.97 USD"),
        (3.0, 1.0, 8_946, "guard alive, ends it in 1 min 40 s"),
    ],
)
def test_a_guard_is_alive_only_with_a_report_younger_than_a_minute(age_s, scale, spent_s, end):
    op = Op(token="t", run="a-1", vendor="runpod", state="READY", sent_at=1_000, rate=2_000_000, cap=2_000_000)
    guard = {"alive": True, "age_s": age_s, "limit_s": 3_600.0, "elapsed_s": 3_500.0}
    now = Clocks("", 0.0, 1_000 + spent_s / scale)
    seen = pod_views.view(op, Observation(True, is_alive=True, guard=guard, clock_scale=scale), now, [op], {})
    assert seen.ends == (end,)
    assert seen.heard_s == age_s * scale
    assert seen.over_limit_micro_usd == max(0, spent_s * 2_000_000 // 3_600 - 2_000_000)


@pytest.mark.parametrize(
    ("age_s", "timer", "words"),
    [
        (3.0, {"ends_at": 3_600, "looked_s_ago": 9.0}, "dead-man timer armed: 1970-01-01 01:00 UTC"),
        (3.0, {"ends_at": 3_600, "looked_s_ago": 130.0}, "dead-man timer: not seen"),
        (3.0, {}, "dead-man timer: not seen"),
        (90.0, {"ends_at": 3_600, "looked_s_ago": 9.0}, "dead-man timer: not seen"),  # no report of the pod
    ],
)
def test_a_dead_man_timer_is_armed_once_the_guard_has_seen_the_process(age_s, timer, words):
    job = Job(run="a-1", token="t", steps=(), self_terminate_calls=(Call("DELETE", "https://example.invalid", {}),))
    op = Op(token="t", run="a-1", vendor="runpod", state="READY", sent_at=1, job=job.to_json())
    guard = {"alive": True, "age_s": age_s, "limit_s": None, "elapsed_s": 30.0, "start_timer": timer}
    seen = pod_views.view(op, Observation(True, is_alive=True, guard=guard), Clocks("", 0.0, 9.0), [op], {})
    assert seen.ends[1:] == (words,)
    assert pod_views.view(op, Observation(), Clocks("", 0.0, 9.0), [op], {}).ends == ("dead-man timer: not seen",)
