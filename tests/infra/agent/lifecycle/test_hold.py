"""A held pod: held without work, at work, held again; limits count throughout."""

import json
import os
import signal
from typing import Any

import pytest

from infra.agent.job import Limits
from infra.agent.process import send
from infra.agent.state import write_json
from tests.infra.agent.execution.test_steps import WAIT
from tests.infra.agent.world import World, module, until

pytestmark = pytest.mark.process

FAIL = "import sys; sys.exit(3)"


def guard_json(world: World) -> dict[str, Any]:
    return json.loads((world.pod.state / "guard.json").read_text())


def held(world: World, **more: Any) -> dict[str, Any]:
    """Yield a held pod, and the first report of the guard."""
    world.job(kind="hold", stays=True, **more)
    return world.start()


def work(world: World, text: str, name: str = "work", **more: Any) -> None:
    """Hand over a job with a single step."""
    world.program(name, text)
    world.job(module(name), stays=True, **more)
    world.start()


def verdict(world: World) -> dict[str, Any]:
    until(lambda: world.pod.verdict.exists() and guard_json(world)["holds"], "a verdict, and the pod held after it")
    return json.loads(world.pod.verdict.read_text())


def test_a_held_pod_runs_only_a_guard(world: World) -> None:
    first = held(world)
    assert first["holds"] and first["armed"]
    assert world.start()["identity"] == first["identity"]
    assert [one.pid for one in world.members()] == [first["identity"]["pid"]]
    assert not world.pod.progress.exists()
    stopped = world.call("stop")
    assert stopped["verdict"]["state"] == "stopped" and world.members() == []


def test_jobs_run_in_turn_under_one_guard_with_a_running_clock(world: World) -> None:
    first = held(world, limits=Limits(time_s=600.0))
    work(world, "pass", limits=Limits(time_s=600.0))
    assert verdict(world)["state"] == "succeeded"
    between = guard_json(world)
    work(world, FAIL, "worse", limits=Limits(time_s=600.0))
    assert verdict(world)["state"] == "failed"
    work(world, "pass", "worse", limits=Limits(time_s=600.0))
    assert verdict(world)["state"] == "succeeded"
    last = guard_json(world)
    assert first["identity"] == between["identity"] == last["identity"]
    assert first["elapsed_s"] < between["elapsed_s"] < last["elapsed_s"] and last["limit_s"] == 600.0
    assert len(list(world.pod.state.glob("verdict-*.json"))) == 2
    assert [one.pid for one in world.members()] == [last["identity"]["pid"]]


def test_a_guard_begins_no_job_before_its_start(world: World) -> None:
    """The guard does not know the order of an upload: job.json may arrive before the code."""
    first = held(world)
    world.program("work", "pass")
    world.job(module("work"), stays=True)
    until(lambda: guard_json(world)["elapsed_s"] > first["elapsed_s"], "the guard's next report")
    assert guard_json(world)["holds"] and not world.pod.progress.exists()
    world.start()
    assert verdict(world)["state"] == "succeeded"
    assert not list(world.pod.state.glob("verdict-*.json"))


def test_repeating_a_failed_job_runs_the_failed_part_again(world: World) -> None:
    held(world)
    work(world, FAIL)
    assert verdict(world)["state"] == "failed"
    (world.pod.code / "work.py").write_text("pass")
    world.start()
    assert verdict(world)["state"] == "succeeded"


@pytest.mark.parametrize("after_work", [False, True])
def test_a_limit_ends_a_held_pod(world: World, after_work: bool) -> None:
    limits = Limits(time_s=3600.0)
    held(world, limits=limits, clock_scale=3600.0)
    if after_work:
        work(world, "pass", limits=limits, clock_scale=3600.0)
    ending = world.verdict()  # on a slow machine the limit may come before the end of the work
    assert ending["state"] == "limit" and ending["reason"].startswith("the limit of 1 h 00 min is ")


def test_a_limit_ends_work_and_pod(world: World) -> None:
    limits = Limits(time_s=3600.0)
    held(world, limits=limits, clock_scale=3600.0)
    work(world, WAIT, limits=limits, clock_scale=3600.0)
    assert world.verdict()["state"] == "limit" and world.members() == []


def test_stop_ends_a_held_pod_and_keeps_the_verdict_of_its_work(world: World) -> None:
    held(world)
    work(world, "pass")
    assert verdict(world)["state"] == "succeeded"
    assert world.call("stop")["verdict"]["state"] == "succeeded"
    assert world.members() == []


def test_a_guard_asked_to_end_ends_its_held_pod(world: World) -> None:
    held(world)
    os.kill(world.living("guard").pid, signal.SIGTERM)
    assert world.verdict()["state"] == "stopped"


def test_the_next_start_replaces_a_killed_guard_and_keeps_the_elapsed_time(world: World) -> None:
    limits = Limits(time_s=600.0, micro_usd_per_hour=1_000_000)
    held(world, limits=limits)
    world.kill("guard")
    before = guard_json(world)
    write_json(world.pod.state / "guard.json", {**before, "elapsed_s": 100.0})
    assert world.start()["elapsed_s"] >= 100.0
    send(world.living("guard"), signal.SIGKILL)
    until(lambda: not world.members(), "its death")
    work(world, "pass", limits=limits)
    assert verdict(world)["state"] == "succeeded" and guard_json(world)["elapsed_s"] >= 100.0


def test_a_guard_killed_during_work_is_restarted_and_holds_the_pod_afterwards(world: World) -> None:
    held(world)
    work(world, WAIT)
    until(lambda: world.lines("ran.txt"))
    world.kill("guard")
    world.living("guard")
    (world.pod.work / "go").touch()
    assert verdict(world)["state"] == "succeeded"


def test_a_job_may_make_only_an_environment(world: World) -> None:
    held(world)
    world.job(stays=True, setup=("nowhere",), environments=str(world.pod.root / "cache"))
    world.start()
    assert verdict(world)["step"] == "environment"
    assert "nowhere" in world.pod.log("environment").read_text()
