"""An engine takes the machine away by a signal to every process: the work leaves no verdict, and starts again."""

import signal
import time
from pathlib import Path

import pytest

from infra.agent.process import send
from infra.agent.state import ENGINE, LEFT, read_json, stop_file
from tests.infra.agent.execution.test_steps import WAIT
from tests.infra.agent.world import World, module, until

pytestmark = pytest.mark.process


@pytest.mark.parametrize("first", ["the step", "the guard"])
def test_preempted_work_leaves_no_verdict_for_any_order_of_signals(world: World, first: str) -> None:
    world.program("wait", WAIT)
    world.job(module("wait"))
    world.start(**{ENGINE: "slurm"})
    until(lambda: world.lines("ran.txt"))
    guard, agent = world.living("guard"), world.living("agent")
    (step,) = set(world.members()) - {guard, agent}
    order = [[step], [agent, guard]] if first == "the step" else [[guard], [agent, step]]
    for members in order:
        for one in members:
            send(one, signal.SIGTERM)
        time.sleep(0.5)
    assert world.verdict_or_death() == {}
    assert read_json(stop_file(world.pod))["state"] == LEFT
    world.start(**{ENGINE: "slurm"})
    until(lambda: len(world.lines("ran.txt")) == 2, "it is begun anew")
    world.call("stop")
    assert world.verdict()["state"] == "stopped"


def test_a_failing_step_also_fails_on_an_engine(world: World, tmp_path: Path) -> None:
    world.program("fails", "import os, signal; os.kill(os.getpid(), signal.SIGTERM)")
    world.job(module("fails"))
    world.start(**{ENGINE: "slurm"})
    verdict = world.verdict()
    assert (verdict["state"], verdict["exit_code"]) == ("failed", -signal.SIGTERM)
