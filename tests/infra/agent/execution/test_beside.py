"""Processes beside the steps: kept alive through all of them, given their time at the end, and never doubled."""

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


def beside(world: World, *steps: Step, environment: str = "", **more: object) -> None:
    world.program("courier", BESIDE)
    world.program("wait", WAIT)
    world.program("count", COUNT)
    carry = Step("carry", ("-m", "courier"), environment, {"some": "thing"})
    world.job(*steps, beside=carry, **more)


def lives(world: World) -> list[int]:
    return [int(pid) for pid in world.lines("besides.txt")]


def ready(world: World) -> None:
    until((world.pod.work / "ready").exists, "it runs beside")


def time_passes(world: World, elapsed_s: float) -> Identity:
    """The agent, stopped, while the guard to come believes that so much has elapsed."""
    agent = world.living("agent")
    send(agent, signal.SIGSTOP)
    world.kill("guard")
    write_json(world.pod.state / "guard.json", {"token": world.token, "elapsed_s": elapsed_s, "clocks": None})
    return agent


def test_one_process_runs_beside_all_steps_and_is_none_of_them(world: World) -> None:
    leaves = "import subprocess; subprocess.Popen(['sleep', '600'], start_new_session=True)"  # ended with its step
    world.program("leave", leaves)
    steps = (module("wait"), module("leave"), Step("again", ("-m", "wait")), module("count", config={"total": 2}))
    world.pod.secrets.write_text(json.dumps({"HF_TOKEN": "canary-8b1d"}))
    beside(world, *steps, secrets=("HF_TOKEN",))
    world.start()
    ready(world)
    until(lambda: world.lines("ran.txt"))
    (world.pod.work / "go").touch()
    verdict = world.verdict()
    assert (verdict["state"], verdict["reason"]) == ("succeeded", "")
    assert len(lives(world)) == 1 and world.lines("asked.txt") == ["succeeded"]
    assert names(world.progress()["steps"]) == dict.fromkeys(("wait", "leave", "again", "count"), "done")
    assert "beside with canary-8b1d {'some': 'thing'}" in world.pod.log("carry").read_text()
    assert not world.pod.mark("carry").exists()


def test_it_begins_when_its_environment_is_there(world: World) -> None:
    (world.pod.code / "infra" / "agent" / "environments" / "environment.py").write_text(ENVIRONMENT)
    beside(world, module("count", config={"total": 1}), environment="train", environments=str(world.pod.root / "cache"))
    world.start()
    assert world.verdict()["reason"] == ""
    assert names(world.progress()["steps"]) == {"environment": "done", "count": "done"}
    assert len(lives(world)) == 1  # a short run has it for its last rites at least


def test_without_its_environment_the_verdict_says_what_is_not_in_the_store(world: World) -> None:
    (world.pod.code / "infra" / "agent" / "environments" / "environment.py").write_text(ENVIRONMENT)
    beside(world, module("count"), environment="train", environments=str(world.pod.root), torch="none")
    world.start()
    verdict = world.verdict()
    assert verdict["state"] == "failed" and verdict["step"] == "environment"
    assert verdict["reason"].endswith("the logs are not in the store: the pod has no environment to upload the logs")


def test_one_that_dies_comes_back(world: World) -> None:
    beside(world, module("wait"))
    world.start()
    ready(world)
    (world.pod.work / "die").touch()
    until(lambda: len(lives(world)) == 2, "it is there again")
    (world.pod.work / "go").touch()
    assert world.verdict()["state"] == "succeeded"
    assert len(lives(world)) == 2 and world.lines("ran.txt") == ["ran"]
    assert "carry: the process ended; retry in 1 s" in world.pod.log("agent").read_text()


def test_a_stop_gives_the_step_its_time_and_then_the_one_beside(world: World) -> None:
    beside(world, module("wait"))
    world.start()
    ready(world)
    until(lambda: world.lines("ran.txt"))
    stopped = world.call("stop")
    assert stopped["stopped"] and stopped["verdict"]["state"] == "stopped"
    assert (world.lines("left.txt"), world.lines("asked.txt")) == (["left"], ["stopped"])
    assert not world.members()
    world.start()  # the ending of before is not that of now
    until(lambda: len(world.lines("ran.txt")) == 2)
    assert not world.pod.ending.exists()
    (world.pod.work / "go").touch()
    assert world.verdict()["state"] == "succeeded"


def test_what_it_leaves_undone_is_said(world: World) -> None:
    beside(world, module("wait"))
    (world.pod.work / "code").write_text("1")
    world.start()
    ready(world)
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


def test_one_that_does_not_finish_is_ended_when_its_time_is_over(world: World) -> None:
    # Nobody asked for the end: 12 % of an hour are 432 s, in which the clock passes 144 times a second.
    beside(world, module("wait"), limits=Limits(time_s=3600.0), clock_scale=144.0)
    (world.pod.work / "deaf").touch()
    world.start()
    ready(world)
    (world.pod.work / "go").touch()
    verdict = world.verdict()
    assert (verdict["state"], verdict["reason"]) == ("succeeded", "not in the store yet: see logs/carry.log")
    assert world.lines("asked.txt") == ["succeeded"] and not world.members()


def test_a_stop_cuts_short_what_time_there_was(world: World) -> None:
    beside(world, module("wait"))  # no limit: 15 minutes
    (world.pod.work / "deaf").touch()
    world.start(SLIPWAY_GRACE_S="1")
    ready(world)
    (world.pod.work / "go").touch()
    until(lambda: world.lines("asked.txt"))
    assert world.call("stop", {"SLIPWAY_GRACE_S": "1"})["verdict"]["state"] == "succeeded"


def test_before_the_limit_there_is_time_for_the_step_and_for_the_one_beside(world: World) -> None:
    beside(world, module("wait"), limits=Limits(time_s=3600.0), clock_scale=50.0)
    world.start()
    ready(world)
    until(lambda: world.lines("ran.txt"))
    send(time_passes(world, 3160.0), signal.SIGCONT)  # it brings the guard back
    verdict = world.verdict()
    assert (verdict["state"], verdict["reason"]) == ("limit", "the limit of 1 h 00 min is near")
    assert (world.lines("left.txt"), world.lines("asked.txt")) == (["left"], ["limit"])


def test_at_the_limit_the_guard_ends_it_with_everything_else(world: World) -> None:
    beside(world, module("wait"), limits=Limits(time_s=3600.0), clock_scale=20.0)
    (world.pod.work / "deaf").touch()
    world.start()
    ready(world)
    until(lambda: world.lines("ran.txt"))
    time_passes(world, 3590.0)
    world.start()  # of a guard; the agent stays as it is
    verdict = world.verdict()
    assert (verdict["state"], verdict["reason"]) == ("limit", "the limit of 1 h 00 min is reached")
    assert not world.members()


def test_a_new_agent_has_one_and_not_two(world: World) -> None:
    beside(world, module("wait"))
    world.start()
    ready(world)
    until(lambda: world.lines("ran.txt"))
    (first,) = lives(world)
    old = identify(first)
    world.kill("agent")
    until(lambda: len(lives(world)) == 2, "one of the new agent")
    assert old not in world.members()
    world.kill("guard", "agent")
    world.start()
    until(lambda: len(lives(world)) == 3 and len(world.lines("ran.txt")) == 3, "one of the third")
    members = {one.pid for one in world.members()}
    assert [pid for pid in lives(world) if pid in members] == lives(world)[-1:]
    (world.pod.work / "go").touch()
    assert world.verdict()["state"] == "succeeded"


def test_only_node_0_has_one(tmp_path) -> None:
    pair = Pair(tmp_path, together())
    try:
        for node in pair.nodes:
            node.program("courier", BESIDE)
            job = Job.from_json(node.pod.job.read_text())
            carry = Step("carry", ("-m", "courier"))
            node.job(*job.steps, group=job.group, beside=carry)
        pair.start()
        pair.until_both_run()
        ready(pair.nodes[0])
        pair.go(0, 0)
        assert [verdict["state"] for verdict in pair.verdicts()] == ["succeeded", "succeeded"]
        assert [len(lives(node)) for node in pair.nodes] == [1, 0]
    finally:
        for node in pair.nodes:
            node.end()


def test_a_job_with_one_is_read_as_it_was_written() -> None:
    job = Job("brave-otter-1", "t", (module("wait"),), beside=Step("carry", ("-m", "courier"), config={"a": 1}))
    assert Job.from_json(job.to_json()) == job
    assert Job.from_json(Job("r", "t", ()).to_json()).beside is None


def test_the_last_uploads_have_what_a_save_has_and_never_more_than_the_limit_leaves() -> None:
    job = Job("r", "t", (), Limits(time_s=7200.0), clock_scale=2.0)
    assert ends.carry_s(Job("r", "t", ()), {}) == 900.0
    assert ends.carry_s(job, {}) == 0.9 * 900 / 2
    said = {"token": "t", "elapsed_s": 7000.0, "clocks": None}
    assert ends.carry_s(job, said) == 0.9 * 200 / 2
    clocks = {"boot_id": "another", "boot_s": 0.0, "wall_s": time.time() - 50}
    assert ends.carry_s(job, {**said, "clocks": clocks}) <= 0.9 * 100 / 2
    assert ends.carry_s(job, {**said, "token": "of another pod"}) == 0.9 * 900 / 2
