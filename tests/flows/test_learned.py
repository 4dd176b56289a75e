"""Plans learn from finished runs, by the records of their pods on this machine."""

import json
import re
import sys
from dataclasses import replace

import pytest

from flows.planning import estimates, forecast_errors, learned
from flows.planning.training_plan import PlannedWork, plan_for
from flows.reading.status import with_left
from flows.runs import receipt
from flows.specs.work import WorkSpec
from infra.agent.environments import environment
from infra.agent.execution import utilization
from infra.agent.job import Job, Limits, NodeGroup, PodFolder
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.ledger.timings import Timings
from infra.market.step_times import AROUND, SAME, StepTime
from infra.records import Expected, Plan, PodView, Request
from infra.runs.sync.sync_step import with_uploader
from infra.selection import registry
from infra.settings import Settings
from tests.world import ROOT

ASKED_AT = 1_790_000_000.0
SECONDS = {"text": 2.0, "tokenizer": 1.0, "tokens": 3.0, "base": 40.0}


@pytest.fixture
def settings(tmp_path, monkeypatch):
    # Other load on this machine must not affect these plans.
    monkeypatch.setattr(utilization, "STAT", tmp_path / "none")
    estimates._others.cache_clear()
    mine = {
        "SLIPWAY_ENVIRONMENTS": "environments",
        "SLIPWAY_STATE_FILE": "state/journal.db",
        "SLIPWAY_PODS": "pods",
        "SLIPWAY_STORE": "store",
    }
    environ = {name: str(tmp_path / path) for name, path in mine.items()}
    return Settings.load(ROOT, {"profile": "tiny"}, environ={**environ, "HOME": str(tmp_path)})


@pytest.fixture
def journal(settings):
    with Journal.open(settings.state_file, {"XDG_CONFIG_HOME": str(settings.state_file.parent)}) as opened:
        yield opened


def planned(settings: Settings, **flags) -> Plan:
    local = registry.provider(settings, "local")
    work = PlannedWork.from_spec(WorkSpec(phase="base", **flags), settings)
    return plan_for(work, settings, Request(run="new"), local, Limits())


def finished_run(
    settings: Settings,
    journal: Journal,
    plan: Plan,
    run: str = "calm-ox-1",
    slower: float = 1.0,
    is_carried: bool = False,
    **said,
) -> Op:
    """Return a finished run with the records of its pod; `said`: more of the progress. `is_carried`: as on a rented
    pod.
    """
    folder = PodFolder(settings.pods / run)
    before = [step("fetch", ASKED_AT + 6.5, 0.4, [])] if is_carried else []
    job = with_uploader(plan.job, "s3://bucket/runs", run) if is_carried else plan.job
    token = f"sw1-{journal.installation}-{run}-{len(journal.ops())}"
    op = journal.plan(token=token, run=run, vendor="local", target=plan.target, job=job.to_json())
    op = journal.note(op, intent_at=int(ASKED_AT))
    for event, facts in (
        ("sending", {}),
        ("created", {"remote_id": f"{token}@{run}", "address": str(folder.root)}),
        ("armed", {}),
        ("gone", {"reason": "its work has ended"}),
    ):
        op = journal.advance(op, event, **facts)
    learned.save_forecast(op, plan, ASKED_AT, settings)
    at, steps = ASKED_AT + 7.0, [step("environment", ASKED_AT + 0.5, 6.0, []), *before]  # the environment was built
    for name, seconds in SECONDS.items():
        marks = [[5.0 * slower, 1 / 12], [35.0 * slower, 1.0]] if name == "base" else []
        steps.append(step(name, at, seconds * slower, marks))
        at += seconds * slower
    state = {"token": token, "run": run, "state": "succeeded", "agents": 1, "steps": steps, "updated_at": at, **said}
    folder.state.mkdir(parents=True, exist_ok=True)
    folder.progress.write_text(json.dumps(state))
    folder.verdict.write_text(json.dumps({"token": token, "run": run, "state": "succeeded", "at": at + 1.0}))
    return op


def with_margin(plan: Plan, around: Expected) -> Plan:
    steps = (*(one for one in plan.forecast if one.step != AROUND), around)
    return replace(plan, estimate=replace(plan.estimate, steps=steps))


def step(name: str, at: float, seconds: float, marks: list) -> dict:
    return {
        "name": name,
        "state": "done",
        "attempts": 1,
        "started_at": at,
        "ended_at": at + seconds,
        "marks": marks,
        "others_share": 0.01,
        "elapsed_s": seconds,
    }


def test_a_plan_uses_the_table_until_a_run_and_then_the_measured_time(settings, journal):
    first = planned(settings)
    assert {one.source for one in first.forecast} == {"a guess"}
    finished_run(settings, journal, first)
    assert planned(settings).forecast == first.forecast  # no command has looked yet
    learned.save_measured_times(journal, settings)
    second = planned(settings)
    assert {one.step: one.seconds for one in second.forecast} == {**SECONDS, AROUND: 8.0}
    assert {(one.source, one.times) for one in second.forecast} == {(SAME, 1)}
    assert {one.step: one.estimate_s for one in second.artifacts} == SECONDS
    assert [one.name for one in second.job.steps] == [one.name for one in first.job.steps]
    longer = {one.step: one for one in planned(settings, steps=120).forecast}  # ten times as long
    assert longer["base"].seconds == pytest.approx(40.0 + 9 * 30.0 * 12 / 11) and longer["base"].source == SAME


@pytest.mark.parametrize(
    ("made", "seconds"),
    [(6, 10.0 + 2 * 30.0), (12, 40.0), (13, 40.0), (0, 40.0), (True, 40.0), ("6", 40.0), (None, 40.0)],
)
def test_a_shortened_training_counts_as_the_steps_that_were_made(settings, journal, made, seconds):
    op = finished_run(settings, journal, planned(settings))
    folder = PodFolder(settings.pods / op.run)
    progress = json.loads(folder.progress.read_text())
    # With half of the planned 12 steps, the agent has corrected the shares of the marks.
    progress["steps"][-1] |= {"result": {"kind": "result", "steps": made}, "marks": [[5.0, 0.0], [35.0, 1.0]]}
    folder.progress.write_text(json.dumps(progress))
    is_shortened = made == 6
    assert len(forecast_errors.errors(journal, settings)) == (not is_shortened)  # the forecast was about 12 steps
    forecast = {one.step: one for one in planned(settings).forecast}
    assert forecast["base"].seconds == pytest.approx(seconds) and forecast["base"].source == SAME
    assert forecast[AROUND].seconds == 8.0


@pytest.mark.process
def test_the_receipt_of_an_ended_run_has_the_steps_of_a_shortened_training(settings, journal):
    op = finished_run(settings, journal, planned(settings))
    receipt.add_made_steps(op, settings)  # a run without a receipt
    receipt.write(op, settings)
    receipt.add_made_steps(op, settings)
    assert receipt.read(op, settings).made_steps == {}
    folder = PodFolder(settings.pods / op.run)
    progress = json.loads(folder.progress.read_text())
    progress["steps"][-1]["result"] = {"kind": "result", "steps": 6}
    folder.progress.write_text(json.dumps(progress))
    receipt.add_made_steps(op, settings)
    found = receipt.read(op, settings)
    assert found.made_steps == {"base": 6}
    assert "base has made 6 of 12 steps to fit the limit" in "\n".join(receipt.differences(found, settings))


def test_a_measured_time_is_kept_once_and_compared_with_the_forecast(settings, journal):
    op = finished_run(settings, journal, planned(settings))
    (first,) = forecast_errors.errors(journal, settings)
    assert (first.run, first.came_s, first.is_repeated) == ("calm-ox-1", 54.0, False)
    PodFolder(settings.pods / "calm-ox-1").progress.unlink()  # the folder may be removed now
    learned.save_measured_times(journal, settings)
    finished_run(settings, journal, planned(settings), "calm-ox-2", slower=1.1)
    _, second = forecast_errors.errors(journal, settings)
    assert second.is_repeated and second.error == pytest.approx(54.0 / 58.6 - 1)
    assert second.early_error == pytest.approx(second.error)  # at a tenth of the time no step had begun
    assert forecast_errors.errors(journal, settings, "calm-ox-1") == [first]
    assert Timings.for_journal(settings.state_file).get(op.token).state == "succeeded"


def test_a_resumed_run_on_a_rented_pod_is_learned_from(settings, journal):
    plan = planned(settings)
    op = finished_run(settings, journal, plan, is_carried=True)
    assert [step.name for step in Job.from_json(op.job).steps] == ["fetch", *(step.name for step in plan.job.steps)]
    (first,) = forecast_errors.errors(journal, settings)
    assert first.came_s == 54.0
    assert {one.step: one.seconds for one in planned(settings).forecast} == {**SECONDS, AROUND: 8.0}


def test_a_first_run_that_mostly_builds_its_environment_counts_as_new(settings, journal):
    plan = planned(settings)
    around = replace(next(one for one in plan.forecast if one.step == AROUND), seconds=3600.0, high=7200.0)
    finished_run(settings, journal, with_margin(plan, around))
    (first,) = forecast_errors.errors(journal, settings)
    assert not first.is_repeated


def kept(settings: Settings, op: Op) -> tuple[dict[str, StepTime], float | None]:
    found = Timings.for_journal(settings.state_file).get(op.token)
    return {one.work.step: one for one in found.times}, found.wall_s


def test_an_interrupted_run_provides_its_pace_and_not_its_time(settings, journal):
    plan = planned(settings)
    resumed = finished_run(settings, journal, plan, "calm-ox-1", agents=2)
    went_on = finished_run(settings, journal, plan, "calm-ox-2")
    folder = PodFolder(settings.pods / "calm-ox-2")
    progress = json.loads(folder.progress.read_text())
    progress["steps"][-1]["marks"] = [[5.0, 0.5], [35.0, 1.0]]  # from a checkpoint of an earlier pod
    folder.progress.write_text(json.dumps(progress))
    learned.save_measured_times(journal, settings)
    times, wall_s = kept(settings, resumed)
    assert wall_s is None and not any(one.is_whole for one in times.values())
    times, wall_s = kept(settings, went_on)
    assert wall_s is None and [name for name, one in times.items() if not one.is_whole] == ["base"]
    base = next(one for one in planned(settings).forecast if one.step == "base")
    assert base.times == 2 and 40.0 < base.seconds < 90.0


CLOCKS = {
    "the machine slept": (32_400.0, 3600.0, False),
    "the clock was set back": (3600.0, 14_400.0, False),
    "the clock was corrected": (3600.0, 3590.0, True),
    "a short step": (1.0, 5.5, True),
    "an older agent": (40.0, None, True),
}


@pytest.mark.parametrize(("wall_s", "awake_s", "is_kept"), CLOCKS.values(), ids=CLOCKS)
def test_sleep_and_a_set_clock_are_no_work(settings, journal, wall_s, awake_s, is_kept):
    op = finished_run(settings, journal, planned(settings))
    folder = PodFolder(settings.pods / op.run)
    progress = json.loads(folder.progress.read_text())
    base = progress["steps"][-1]
    base |= {"ended_at": base["started_at"] + wall_s, "marks": [], "awake_s": awake_s}
    folder.progress.write_text(json.dumps(progress))
    learned.save_measured_times(journal, settings)
    times, measured_s = kept(settings, op)
    assert ("base" in times) is is_kept and (measured_s is not None or not is_kept)


def harmed(settings: Settings, op: Op, fault: str) -> None:
    """Change the reports of a finished pod as a clock or a sleep of three hours changes the reports."""
    pod, late_s = PodFolder(settings.pods / op.run), 3 * 3600.0
    progress, verdict = (json.loads(path.read_text()) for path in (pod.progress, pod.verdict))
    environment, *steps = progress["steps"]
    progress |= {"started_at": ASKED_AT + 0.4, "awake_s": progress["updated_at"] - ASKED_AT - 0.4}
    for one in progress["steps"]:
        one["awake_s"] = one["elapsed_s"]
    later = {"during the environment": [*steps, verdict], "between steps": [*steps[1:], verdict], "none": []}
    later |= {"after the steps": [verdict], "throughout": [environment, *steps, verdict]}
    for one in later[fault]:
        one |= {name: one[name] + late_s for name in ("started_at", "ended_at", "at") if name in one}
    if fault == "during the environment":
        environment["ended_at"] += late_s
    if fault != "none":
        progress["updated_at"] += late_s
    if fault == "throughout":
        progress["started_at"] += late_s
    pod.progress.write_text(json.dumps(progress))
    pod.verdict.write_text(json.dumps(verdict))


@pytest.mark.parametrize("fault", ["none", "during the environment", "between steps", "after the steps"])
def test_sleep_and_a_set_clock_are_no_time_around_the_steps(settings, journal, fault):
    op = finished_run(settings, journal, planned(settings))
    harmed(settings, op, fault)
    learned.save_measured_times(journal, settings)
    times, wall_s = kept(settings, op)
    assert {name: one.seconds for name, one in times.items() if name} == SECONDS
    assert (wall_s, AROUND in times) == ((54.0, True) if fault == "none" else (None, False))


@pytest.mark.parametrize("vendor", ["local", "runpod"])
@pytest.mark.parametrize("fault", ["none", "throughout"])
def test_clock_of_a_remote_machine_is_compared_with_the_hand_over(settings, journal, fault, vendor):
    op = finished_run(settings, journal, planned(settings))
    harmed(settings, op, fault)
    pod = PodFolder(settings.pods / op.run)
    reports = (json.loads(path.read_text()) for path in (pod.progress, pod.verdict))
    before = Timings.for_journal(settings.state_file).get(op.token)
    armed = {op.token: int(ASKED_AT)}
    settings = replace(settings, runpod_api_key="k" * 20)
    found = learned.measured_times(replace(op, vendor=vendor), *reports, before, ASKED_AT, armed, settings)
    assert (found.wall_s is None) is (fault == "throughout" and vendor == "runpod")


@pytest.mark.parametrize("before", ["refused", "given back", "worked"])
def test_requests_and_machines_without_work_do_not_interrupt_a_run(settings, journal, before):
    """A vendor that is often sold out refuses the first offers of most launches."""
    plan = planned(settings)
    ends = {"refused": ["refused"], "given back": ["created", "end", "gone"], "worked": ["created", "armed", "gone"]}
    lost = journal.plan(token="sw1-x", run="calm-ox-1", vendor="lium", target=plan.target)
    for event in ("sending", *ends[before]):
        lost = journal.advance(lost, event)
    op = finished_run(settings, journal, plan)
    learned.save_measured_times(journal, settings)
    times, wall_s = kept(settings, op)
    is_alone = before != "worked"
    assert wall_s == (54.0 if is_alone else None) and times["base"].is_whole is is_alone


@pytest.mark.parametrize("nodes", [1, 2])
def test_time_before_the_request_for_the_last_pod_is_no_time_of_the_run(settings, journal, nodes):
    """A launch waits in a queue, and gives back a machine that boots for 15 minutes and fails."""
    op, timings = finished_run(settings, journal, planned(settings)), Timings.for_journal(settings.state_file)
    timings.save(replace(timings.get(op.token), asked_at=ASKED_AT - 900.0))
    if nodes == 2:
        job = replace(op.read_job(), group=NodeGroup(run=op.run, addresses=("a", "b")))
        journal.note(op, intent_at=int(ASKED_AT) - 900, job=job.to_json())
        again = journal.plan(token="sw1-b", run=f"{op.run}.1", rank=1, vendor="local")
        for event in ("sending", "created", "armed", "gone"):
            again = journal.advance(again, event)
        journal.note(again, intent_at=int(ASKED_AT))
    (found,) = forecast_errors.errors(journal, settings)
    assert (found.came_s, found.asked_at) == (54.0, ASKED_AT)
    times, _ = kept(settings, op)
    assert times[AROUND].seconds == 8.0 and times["text"].began_s == 7.0


def test_cost_of_a_forecast_is_that_of_all_nodes(settings, journal):
    op, timings = finished_run(settings, journal, planned(settings)), Timings.for_journal(settings.state_file)
    timings.save(replace(timings.get(op.token), micro_usd=(1, 2, 3)))
    for token, run, rank in ((op.token, op.run, 0), ("sw1-b", f"{op.run}.1", 1), ("sw1-c", op.run, 0)):
        if token != op.token:  # the last row is a later launch
            row = journal.plan(token=token, run=run, rank=rank, vendor="local")
            for event in ("sending", "created", "end", "gone"):
                row = journal.advance(row, event, **({"remote_id": token} if event == "created" else {}))
        row = journal.op(token)
        journal.note(row, rate=36_000_000, sent_at=row.ended_at - 100, lived_s=100.0)
    (found,) = forecast_errors.errors(journal, settings)
    assert found.spent_micro_usd == 2 * 1_000_000


def test_rows_are_read_once_for_all_forecasts(settings, journal, monkeypatch):
    """A row has a job of many kB, and the errors of hundreds of runs are shown at once."""
    timings, read = Timings.for_journal(settings.state_file), []
    for number in range(3):
        op = finished_run(settings, journal, planned(settings), f"calm-ox-{number}")
        lived_s = 100.0 * (number + 1)
        journal.note(op, rate=36_000_000, sent_at=int(journal.op(op.token).ended_at - lived_s), lived_s=lived_s)
        timings.save(replace(timings.get(op.token), micro_usd=(1, 2, 3)))
    run_of = forecast_errors.run_rows.run_of
    monkeypatch.setattr(forecast_errors.run_rows, "run_of", lambda op: read.append(op.run) or run_of(op))
    found = forecast_errors.errors(journal, settings)
    costs = {one.run: one.spent_micro_usd for one in found}
    assert costs == {f"calm-ox-{number}": 1_000_000 * (number + 1) for number in range(3)}
    assert sorted(read) == sorted(costs)
    read.clear()
    assert [one.run for one in forecast_errors.errors(journal, settings, "calm-ox-1")] == ["calm-ox-1"] == read


def test_a_journal_without_records_is_understood(settings, journal):
    op = finished_run(settings, journal, planned(settings))
    timings = Timings.for_journal(settings.state_file)
    timings._path(op.token).unlink()  # no forecast was kept, and the agent reported no marks
    folder = PodFolder(settings.pods / op.run)
    progress = json.loads(folder.progress.read_text())
    for one in progress["steps"]:
        del one["marks"], one["others_share"]
    del progress["agents"]
    folder.progress.write_text(json.dumps(progress))
    learned.save_measured_times(journal, settings)
    seconds = {one.step: one.seconds for one in planned(settings).forecast}
    assert {name: seconds[name] for name in SECONDS} == SECONDS
    assert forecast_errors.errors(journal, settings) == []  # no forecast could be wrong


@pytest.mark.parametrize("text", ["", "{", "[]", '{"token": "another"}', '{"token": "TOKEN", "steps": [{"name": 7}]}'])
def test_unreadable_records_of_a_pod_are_ignored(settings, journal, text):
    op = finished_run(settings, journal, planned(settings))
    PodFolder(settings.pods / op.run).progress.write_text(text.replace("TOKEN", op.token))
    learned.save_measured_times(journal, settings)
    assert {one.source for one in planned(settings).forecast} == {"a guess"}


def test_a_working_run_shows_its_remaining_time(settings, journal):
    plan = planned(settings)
    op = finished_run(settings, journal, plan)
    now = ASKED_AT + 17.0
    steps = [
        step("text", ASKED_AT + 1, 2.0, []),
        step("tokenizer", ASKED_AT + 3, 1.0, []),
        step("tokens", ASKED_AT + 4, 3.0, []),
        {
            "name": "base",
            "state": "running",
            "started_at": ASKED_AT + 7,
            "marks": [[4.0, 1 / 12]],
            "record": {"done": 3, "total": 12, "at": now},
        },
    ]
    view = PodView(run=op.run, provider="local", state="running", progress={"steps": steps, "updated_at": now})
    found = with_left(view, journal, settings)
    low, expected, high = found.left_s
    assert low <= 27.0 <= high and 20.0 < expected < 40.0  # by the pace of the run: 3 s a step, 9 steps
    assert found.left_from == "from a table"
    assert with_left(replace(view, state="succeeded"), journal, settings).left_s is None
    Timings.for_journal(settings.state_file)._path(op.token).write_text("{")
    assert with_left(view, journal, settings).left_s is None


def test_an_environment_with_cached_packages_is_built_in_seconds(settings, tmp_path, monkeypatch):
    """The network of a machine is unknown, but the need for the network is known."""
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    downloaded = planned(settings)
    pins = (ROOT / "constraints" / "train.txt").read_text()
    version = re.search(r"^torch==([^\s;+]+)", pins, re.M)[1]
    build = "+cpu" if environment.torch_build() == "cpu" and sys.platform == "linux" else ""
    (tmp_path / "uv" / "archive-v0" / "x" / f"torch-{version}{build}.dist-info").mkdir(parents=True)
    cached = planned(settings)
    seconds = [next(one.seconds for one in plan.forecast if one.step == AROUND) for plan in (downloaded, cached)]
    assert seconds == [estimates.HERE_S + estimates.BUILD_S, estimates.HERE_S + estimates.CACHED_S]
    told = [next(note for note in plan.notes if "environment is built first" in note) for plan in (downloaded, cached)]
    assert ["depending on the network" in note for note in told] == [True, False]
