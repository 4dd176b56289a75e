"""Sidecars of the steps: kept alive through all steps, with time to finish, and never started twice."""

import json
import signal
import time

import pytest

from infra.agent import limits as ends
from infra.agent.job import Job, Limits, Step
from infra.agent.process import Identity, identify, send
from infra.agent.state import write_json
from tests.infra.agent.execution.test_nodes import Pair, together
from tests.infra.agent.execution.test_steps import COUNT, ENVIRONMENT, WAIT
from tests.infra.agent.world import World, module, names, until
from tests.programs import source

pytestmark = pytest.mark.process

BESIDE = source("beside")


def start_with_sidecar(world: World, *steps: Step, environment: str = "", **more: object) -> None:
    world.program("uploader", BESIDE)
    world.program("wait", WAIT)
    world.program("count", COUNT)
    carry = Step("carry", ("-m", "uploader"), environment, {"some": "thing"})
    world.job(*steps, beside=carry, **more)


def sidecar_pids(world: World) -> list[int]:
    return [int(pid) for pid in world.lines("besides.txt")]


def await_sidecar(world: World) -> None:
    until((world.pod.work / "ready").exists, "it runs beside")


def stop_agent_at(world: World, elapsed_s: float) -> Identity:
    """Stop the agent, and make the next guard count `elapsed_s` seconds."""
    agent = world.living("agent")
    send(agent, signal.SIGSTOP)
    world.kill("guard")
    write_json(world.pod.state / "guard.json", {"token": world.token, "elapsed_s": elapsed_s, "clocks": None})
    return agent


def test_one_sidecar_runs_through_all_steps_and_is_not_a_step(world: World) -> None:
    leaves = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)"  # ended with the step
    world.program("leave", leaves)
    steps = (module("wait"), module("leave"), Step("again", ("-m", "wait")), module("count", config={"total": 2}))
    world.pod.secrets.write_text(json.dumps({"HF_TOKEN": "canary-8b1d"}))
    start_with_sidecar(world, *steps, secrets=("HF_TOKEN",))
    world.start()
    await_sidecar(world)
    until(lambda: world.lines("ran.txt"))
    (world.pod.work / "go").touch()
    verdict = world.verdict()
    assert (verdict["state"], verdict["reason"]) == ("succeeded", "")
    assert len(sidecar_pids(world)) == 1 and world.lines("asked.txt") == ["succeeded"]
    assert names(world.progress()["steps"]) == dict.fromkeys(("wait", "leave", "again", "count"), "done")
    assert "beside with canary-8b1d {'some': 'thing'}" in world.pod.log("carry").read_text()
    assert not world.pod.mark("carry").exists()


def test_a_sidecar_starts_once_its_environment_exists(world: World) -> None:
    (world.pod.code / "infra" / "agent" / "environments" / "environment.py").write_text(ENVIRONMENT)
    start_with_sidecar(
        world, module("count", config={"total": 1}), environment="train", environments=str(world.pod.root / "cache")
    )
    world.start()
    assert world.verdict()["reason"] == ""
    assert names(world.progress()["steps"]) == {"environment": "done", "count": "done"}
    assert len(sidecar_pids(world)) == 1  # a short run gives the sidecar at least the time of the last uploads


def test_the_verdict_of_a_sidecar_without_environment_lists_the_missing_uploads(world: World) -> None:
    (world.pod.code / "infra" / "agent" / "environments" / "environment.py").write_text(ENVIRONMENT)
    start_with_sidecar(world, module("count"), environment="train", environments=str(world.pod.root), torch="none")
    world.start()
    verdict = world.verdict()
    assert verdict["state"] == "failed" and verdict["step"] == "environment"
    assert verdict["reason"].endswith("the logs are not in the store: the pod has no environment to upload the logs")


def test_a_dead_sidecar_is_restarted(world: World) -> None:
    start_with_sidecar(world, module("wait"))
    world.start()
    await_sidecar(world)
    (world.pod.work / "die").touch()
    until(lambda: len(sidecar_pids(world)) == 2, "it is there again")
    (world.pod.work / "go").touch()
    assert world.verdict()["state"] == "succeeded"
    assert len(sidecar_pids(world)) == 2 and world.lines("ran.txt") == ["ran"]
    assert "carry: the process ended; retry in 1 s" in world.pod.log("agent").read_text()


def test_a_stop_gives_time_to_the_step_and_then_to_the_sidecar(world: World) -> None:
    start_with_sidecar(world, module("wait"))
    world.start()
    await_sidecar(world)
    until(lambda: world.lines("ran.txt"))
    stopped = world.call("stop")
    assert stopped["stopped"] and stopped["verdict"]["state"] == "stopped"
    assert (world.lines("left.txt"), world.lines("asked.txt")) == (["left"], ["stopped"])
    assert not world.members()
    world.start()  # an earlier ending does not apply to this start
    until(lambda: len(world.lines("ran.txt")) == 2)
    assert not world.pod.ending.exists()
    (world.pod.work / "go").touch()
    assert world.verdict()["state"] == "succeeded"


def test_the_verdict_lists_pending_uploads_of_the_sidecar(world: World) -> None:
    start_with_sidecar(world, module("wait"))
    (world.pod.work / "code").write_text("1")
    world.start()
    await_sidecar(world)
    write_json(world.pod.waiting, {"names": ["work/checkpoints/base/step-000000010", "logs/base.log"]})
    write_json(
        world.pod.acknowledged,
        {
            "work/checkpoints/base/step-000000005": 7.0,
            "work/checkpoints/base/step-000000004": 6.0,
            "logs/base.log": 8.0,
        },
    )
    (world.pod.work / "go").touch()
    verdict = world.verdict()
    assert verdict["state"] == "succeeded"
    assert verdict["reason"] == "not in the store yet: work/checkpoints/base/step-000000010, logs/base.log"
    assert world.progress()["in_store"] == {"base/step-000000005": 7.0}
    assert world.progress()["uploads"]["pending"] == ["work/checkpoints/base/step-000000010", "logs/base.log"]


def test_a_sidecar_that_does_not_finish_is_ended_after_its_time(world: World) -> None:
    # No process requested the end: 12 % of an hour are 432 s, at 144 clock seconds per second.
    start_with_sidecar(world, module("wait"), limits=Limits(time_s=3600.0), clock_scale=144.0)
    (world.pod.work / "deaf").touch()
    world.start()
    await_sidecar(world)
    (world.pod.work / "go").touch()
    verdict = world.verdict()
    assert (verdict["state"], verdict["reason"]) == ("succeeded", "not in the store yet: see logs/carry.log")
    assert world.lines("asked.txt") == ["succeeded"] and not world.members()


def test_a_stop_shortens_the_remaining_time_of_a_sidecar(world: World) -> None:
    start_with_sidecar(world, module("wait"))  # no limit: 15 minutes
    (world.pod.work / "deaf").touch()
    world.start(SLIPWAY_GRACE_S="1")
    await_sidecar(world)
    (world.pod.work / "go").touch()
    until(lambda: world.lines("asked.txt"))
    assert world.call("stop", {"SLIPWAY_GRACE_S": "1"})["verdict"]["state"] == "succeeded"


def test_step_and_sidecar_get_time_before_the_limit(world: World) -> None:
    start_with_sidecar(world, module("wait"), limits=Limits(time_s=3600.0), clock_scale=50.0)
    world.start()
    await_sidecar(world)
    until(lambda: world.lines("ran.txt"))
    send(stop_agent_at(world, 3160.0), signal.SIGCONT)  # the agent restarts the guard
    verdict = world.verdict()
    assert (verdict["state"], verdict["reason"]) == ("limit", "the limit of 1 h 00 min is near")
    assert (world.lines("left.txt"), world.lines("asked.txt")) == (["left"], ["limit"])


def test_the_guard_ends_the_sidecar_at_the_limit(world: World) -> None:
    start_with_sidecar(world, module("wait"), limits=Limits(time_s=3600.0), clock_scale=20.0)
    (world.pod.work / "deaf").touch()
    world.start()
    await_sidecar(world)
    until(lambda: world.lines("ran.txt"))
    stop_agent_at(world, 3590.0)
    world.start()  # starts a guard; the agent stays stopped
    verdict = world.verdict()
    assert (verdict["state"], verdict["reason"]) == ("limit", "the limit of 1 h 00 min is reached")
    assert not world.members()


def test_a_new_agent_runs_a_single_sidecar(world: World) -> None:
    start_with_sidecar(world, module("wait"))
    world.start()
    await_sidecar(world)
    until(lambda: world.lines("ran.txt"))
    (first,) = sidecar_pids(world)
    old = identify(first)
    world.kill("agent")
    until(lambda: len(sidecar_pids(world)) == 2, "one of the new agent")
    assert old not in world.members()
    world.kill("guard", "agent")
    world.start()
    until(lambda: len(sidecar_pids(world)) == 3 and len(world.lines("ran.txt")) == 3, "one of the third")
    members = {one.pid for one in world.members()}
    assert [pid for pid in sidecar_pids(world) if pid in members] == sidecar_pids(world)[-1:]
    (world.pod.work / "go").touch()
    assert world.verdict()["state"] == "succeeded"


def test_only_node_0_runs_a_sidecar(tmp_path) -> None:
    pair = Pair(tmp_path, together())
    try:
        for node in pair.nodes:
            node.program("uploader", BESIDE)
            job = Job.from_json(node.pod.job.read_text())
            carry = Step("carry", ("-m", "uploader"))
            node.job(*job.steps, group=job.group, beside=carry)
        pair.start()
        pair.until_both_run()
        await_sidecar(pair.nodes[0])
        pair.go(0, 0)
        assert [verdict["state"] for verdict in pair.verdicts()] == ["succeeded", "succeeded"]
        assert [len(sidecar_pids(node)) for node in pair.nodes] == [1, 0]
    finally:
        for node in pair.nodes:
            node.end()


def test_a_job_with_a_sidecar_is_read_unchanged() -> None:
    job = Job("brave-otter-1", "t", (module("wait"),), beside=Step("carry", ("-m", "uploader"), config={"a": 1}))
    assert Job.from_json(job.to_json()) == job
    assert Job.from_json(Job("r", "t", ()).to_json()).beside is None


def test_the_last_uploads_get_the_time_of_a_save_within_the_limit() -> None:
    job = Job("r", "t", (), Limits(time_s=7200.0), clock_scale=2.0)
    assert ends.upload_allowance_s(Job("r", "t", ()), {}) == 900.0
    assert ends.upload_allowance_s(job, {}) == 0.9 * 900 / 2
    said = {"token": "t", "elapsed_s": 7000.0, "clocks": None}
    assert ends.upload_allowance_s(job, said) == 0.9 * 200 / 2
    clocks = {"boot_id": "another", "boot_s": 0.0, "wall_s": time.time() - 50}
    assert ends.upload_allowance_s(job, {**said, "clocks": clocks}) <= 0.9 * 100 / 2
    assert ends.upload_allowance_s(job, {**said, "token": "of another pod"}) == 0.9 * 900 / 2


# A tracker whose server does not answer: its process reports that, and does not end when asked.
SILENT = """\
import json, os, signal, time
from pathlib import Path
signal.signal(signal.SIGTERM, signal.SIG_IGN)
state = Path(os.environ["SLIPWAY_WORK"]).parent / "state" / "tracking" / "mlflow.json"
state.parent.mkdir(parents=True, exist_ok=True)
draft = state.with_suffix(".draft")
draft.write_text(json.dumps({"problem": "no answer yet"}))
draft.replace(state)
time.sleep(600)
"""


def write_metrics(world: World) -> None:
    folder = world.pod.work / "runs" / "base"
    folder.mkdir(parents=True)
    (folder / "metrics.jsonl").write_text("{}\n")


def problem_of_tracker(world: World) -> str:
    state = world.pod.tracking / "mlflow.json"
    return json.loads(state.read_text())["problem"] if state.exists() else ""


# Writes the state of a tracker whose server has answered.
ANSWERED = SILENT.replace("no answer yet", "").replace("signal.SIG_IGN", "lambda *_: exit(0)")


@pytest.mark.parametrize(
    ("text", "problem", "reason"),
    [
        ("exit(1)", "the process ended; see logs/track-mlflow.log", "the process ended; see logs/track-mlflow.log"),
        ("import time; time.sleep(600)", "not started yet", "not started yet"),
        (
            ANSWERED.replace("time.sleep(600)", "os.kill(os.getpid(), signal.SIGKILL)"),
            "the process ended; see logs/track-mlflow.log",
            "process ended; see logs/track-mlflow.log",
        ),
        (ANSWERED, "", ""),
    ],
    ids=["fails", "builds", "killed", "finishes"],
)
def test_a_tracker_that_sends_nothing_is_named_at_once_and_by_the_verdict(
    world: World, text: str, problem: str, reason: str
) -> None:
    world.program("tracker", text)
    world.program("wait", WAIT)
    tracker = Step("track-mlflow", ("-m", "tracker"), config={"tracker": "mlflow"})
    world.job(module("wait"), trackers=(tracker,))
    write_metrics(world)
    world.start()
    until((world.pod.tracking / "mlflow.json").exists, "a state")
    until(world.pod.progress.exists, "the progress")
    until(lambda: problem_of_tracker(world) == problem, "the problem of the tracker")
    until(lambda: world.progress().get("tracking") == {"mlflow": f"(not updated since: {problem})" if problem else ""})
    (world.pod.work / "go").touch()
    verdict = world.verdict()
    assert verdict["state"] == "succeeded"
    assert reason in verdict["reason"] and ("not all metrics are in mlflow" in verdict["reason"]) == bool(reason)


# A tracker with a problem `before`; asked to finish, the tracker reports the problem `during` and needs some seconds.
SLOW = """\
import json, os, signal, time
from pathlib import Path
state = Path(os.environ["SLIPWAY_WORK"]).parent / "state" / "tracking" / "mlflow.json"
def report(problem):
    state.parent.mkdir(parents=True, exist_ok=True)
    draft = state.with_suffix(".draft")
    draft.write_text(json.dumps({{"problem": problem}}))
    draft.replace(state)
def finish(*_):
    for problem in {during}:
        report(problem)
        time.sleep(1.5)
    report("")
    os._exit(0)
signal.signal(signal.SIGTERM, finish)
report({before!r})
time.sleep(600)
"""


@pytest.mark.day_cases(1)
@pytest.mark.parametrize(
    ("before", "during", "reason"),
    [
        ("", ["no answer yet"] * 2, ""),
        ("no answer yet", ["", "no answer yet", "no answer yet"], ""),
        ("no answer yet", ["no answer yet"] * 400, "no answer yet"),
    ],
    ids=["slow", "answers again", "silent"],
)
def test_a_tracker_that_worked_until_the_end_has_time_for_the_last_metrics(
    world: World, before: str, during: list[str], reason: str
) -> None:
    agent = world.pod.code / "infra" / "agent" / "execution" / "agent.py"
    agent.write_text(agent.read_text().replace("TRACKERS_PAID_S = 10.0", "TRACKERS_PAID_S = 1.0"))
    world.program("tracker", SLOW.format(before=before, during=during))
    world.program("wait", WAIT)
    world.job(module("wait"), trackers=(Step("track-mlflow", ("-m", "tracker"), config={"tracker": "mlflow"}),))
    write_metrics(world)
    world.start()
    until(lambda: problem_of_tracker(world) == before, "the tracker")
    (world.pod.work / "go").touch()
    verdict = world.verdict()
    assert verdict["state"] == "succeeded"
    assert reason in verdict["reason"] and bool(verdict["reason"]) == bool(reason)


def test_a_tracker_without_metrics_to_send_is_not_named(world: World) -> None:
    world.program("tracker", "exit(1)")
    world.program("count", COUNT)
    tracker = Step("track-mlflow", ("-m", "tracker"), config={"tracker": "mlflow"})
    world.job(module("count", config={"total": 1}), trackers=(tracker,))
    world.start()
    assert world.verdict()["reason"] == ""


@pytest.mark.nightly
def test_a_silent_tracker_is_named_by_the_verdict_and_ended_within_seconds(world: World) -> None:
    world.program("silent", SILENT)
    world.program("wait", WAIT)
    tracker = Step("track-mlflow", ("-m", "silent"), config={"tracker": "mlflow"})
    world.job(module("wait"), trackers=(tracker,))
    write_metrics(world)
    world.start()
    until(lambda: problem_of_tracker(world) == "no answer yet", "the tracker")
    (world.pod.work / "go").touch()
    verdict = world.verdict()
    assert verdict["state"] == "succeeded"
    assert verdict["reason"] == "not all metrics are in mlflow (no answer yet); they are in work/runs of the run"
    assert "a tracker did not finish in time" in world.pod.log("agent").read_text()
    until(lambda: not world.members(), "the end of the tracker")
