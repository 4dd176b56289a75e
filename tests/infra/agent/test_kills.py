"""SIGKILL at random moments: no result is lost, and no work runs twice at the same time."""

import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra.agent.process import send
from infra.agent.state import is_held, lock
from tests import seeds
from tests.infra.agent.world import World, module, until
from tests.programs import source

pytestmark = pytest.mark.process

PODS, KILLS = 4, 5  # per pod; each kill hits one to three processes
COUNTER = source("counter")


def test_random_kills_lose_no_result_and_run_no_work_twice(tmp_path: Path) -> None:
    seed = seeds.seed()
    with ThreadPoolExecutor(PODS) as pool:
        for done in [pool.submit(_kill_repeatedly, tmp_path / str(number), seed + number) for number in range(PODS)]:
            done.result()


def _kill_repeatedly(root: Path, seed: int) -> None:
    """Kill the processes of a counting pod; at the end every number is counted once."""
    chance = random.Random(seed)
    world = World(root)
    try:
        world.program("counter", COUNTER)
        world.job(module("counter"), clock_scale=1e5)  # 600 s of crash loop are 6 ms
        world.start()
        for _ in range(KILLS):
            if chance.random() < 0.7:  # otherwise the kill hits the start
                _await_count(world)
            time.sleep(chance.uniform(0, 0.8))
            targets = world.members()
            for target in chance.sample(targets, k=min(len(targets), chance.choice([1, 1, 2, 3]))):
                send(target, signal.SIGKILL)
            if not _lives(world):
                world.start()
        (world.pod.work / "enough").touch()
        while world.verdict_or_death().get("state") != "succeeded":
            world.start()
        lines = world.lines("count.txt")
        assert lines and lines == [str(number) for number in range(len(lines))]
        assert world.lines("overlap.txt") == []
    finally:
        world.end()


def _await_count(world: World) -> None:
    count = len(world.lines("count.txt"))
    until(lambda: len(world.lines("count.txt")) > count or not _lives(world), "a count")


def _lives(world: World) -> bool:
    return not world.pod.verdict.exists() and any(is_held(lock(world.pod, role)) for role in ("guard", "agent"))
