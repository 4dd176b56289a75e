"""SIGKILL at random moments: nothing is lost, and nothing runs twice at the same time."""

import random
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from infra.agent.process import send
from infra.agent.state import living
from tests.agent.world import World, module

PODS, KILLS = 4, 5  # of each pod, every time one to three of its processes
TOTAL = 100
# The counter's own lock tells whether two of it ever run at once; its file tells what it has done.
COUNTER = """
import fcntl, json, os, sys, time
work, total = os.environ["SLIPWAY_WORK"], json.load(open(sys.argv[2]))["total"]
alone = open(os.path.join(work, "alone"), "w")
try:
    fcntl.flock(alone, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:
    open(os.path.join(work, "overlap.txt"), "a").write("overlap\\n")
path = os.path.join(work, "count.txt")
done = len(open(path).readlines()) if os.path.exists(path) else 0
with open(path, "a") as file:
    for number in range(done, total):
        print(number, file=file, flush=True)
        time.sleep(0.02)
"""


def test_nothing_is_lost_and_nothing_runs_twice_under_random_kills(tmp_path: Path) -> None:
    seed = random.randrange(1 << 30)
    print(f"seed {seed}")
    with ThreadPoolExecutor(PODS) as pool:
        for done in [pool.submit(_shoot_at, tmp_path / str(number), seed + number) for number in range(PODS)]:
            done.result()


def _shoot_at(root: Path, seed: int) -> None:
    """A pod that counts while its processes are killed; at the end it has counted everything, once."""
    chance = random.Random(seed)
    world = World(root)
    try:
        world.program("counter", COUNTER)
        world.job(module("counter", config={"total": TOTAL}), clock_scale=1e5)  # 600 s of crash loop are 6 ms
        world.start()
        for _ in range(KILLS):
            time.sleep(chance.uniform(0, 0.4))
            targets = world.members()
            for target in chance.sample(targets, k=min(len(targets), chance.choice([1, 1, 2, 3]))):
                send(target, signal.SIGKILL)
            if world.pod.verdict.exists() or not (living(world.pod, "guard") or living(world.pod, "agent")):
                world.start()
        while world.verdict_or_death().get("state") != "succeeded":
            world.start()
        assert world.lines("count.txt") == [str(number) for number in range(TOTAL)]
        assert world.lines("overlap.txt") == []
    finally:
        world.end()
