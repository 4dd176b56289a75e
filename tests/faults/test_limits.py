"""Kills and lack of memory, again and again: the guard's limits hold, and the verdict states the cause."""

import contextlib
import json
import os
import random
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from infra.agent import limits as ends
from infra.agent.job import Limits
from infra.agent.process import send
from infra.agent.state import live_process, read_json, report
from tests import seeds
from tests.faults.trial import rounds
from tests.infra.agent.execution.test_steps import WAIT
from tests.infra.agent.world import World, module, until

pytestmark = pytest.mark.process

LIMIT_S, ERROR_S = 5.0, 60.0
AT_ONCE = 8
HOG = """
import os, resource
limit = int(os.environ.get("HOG_AS_BYTES", "0"))
if limit:
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
open(os.path.join(os.environ["SLIPWAY_WORK"], "ran.txt"), "a").write("ran\\n")
held = []
while True:
    held.append(bytearray(os.urandom(1)) * (8 << 20))
"""


@pytest.fixture
def narrow() -> Iterator[Callable[[], Path | None]]:
    """Make memory cgroups of 128 MB without swap, one per pod; return None without the right to make cgroups."""
    v1 = Path("/sys/fs/cgroup/memory")
    wanted = {
        "memory.limit_in_bytes": 128 << 20,
        "memory.memsw.limit_in_bytes": 128 << 20,
        "memory.max": 128 << 20,
        "memory.swap.max": 0,
    }
    made: list[Path] = []

    def make() -> Path | None:
        folder = (v1 if v1.is_dir() else v1.parent) / f"slipway-{os.getpid()}-{len(made)}"
        try:
            folder.mkdir()
        except OSError as error:
            print(f"no memory cgroup: {error}")
            return None
        made.append(folder)
        there = [name for name in wanted if (folder / name).exists()]
        for name in there:
            (folder / name).write_text(str(wanted[name]))
        return folder if there else None

    yield make
    for folder in made:
        until(lambda: removed(folder), "an empty cgroup")  # noqa: B023


def removed(folder: Path) -> bool:
    with contextlib.suppress(OSError):  # a process of the cgroup has not ended yet
        folder.rmdir()
    return not folder.exists()


@rounds(3, 100)
def test_a_trainer_without_memory_dies_alone_and_is_in_the_verdict(tmp_path, narrow, rounds):
    with ThreadPoolExecutor(AT_ONCE) as threads:
        trials = [
            threads.submit(starve, tmp_path / str(number), narrow() if number % 2 else None) for number in range(rounds)
        ]
        for trial in trials:
            trial.result()


def starve(root: Path, cgroup: Path | None) -> None:
    """Exhaust memory: the kernel kills the whole pod if the pod has a cgroup; otherwise an allocation fails."""
    world = World(root)
    try:
        world.program("hog", HOG)
        world.job(module("hog"), environ={} if cgroup else {"HOG_AS_BYTES": str(256 << 20)})
        words = [sys.executable, "-m", "infra.agent", "start", str(world.pod.root)]
        if cgroup:
            words = ["sh", "-c", f'echo $$ > {cgroup}/cgroup.procs && exec "$@"', "sh", *words]
        environ = {**os.environ, "PYTHONPATH": str(world.pod.code)}
        armed = json.loads(subprocess.run(words, cwd=root, env=environ, capture_output=True, check=True).stdout)
        verdict = world.verdict()
        assert (verdict["state"], verdict["step"]) == ("failed", "hog")
        if cgroup:
            assert verdict["reason"] == "step hog was killed by SIGKILL; the usual cause: the machine ran out of memory"
        else:
            assert verdict["exit_code"] == 1 and "MemoryError" in verdict["tail"]
        assert world.lines("ran.txt") == ["ran"]
        assert json.loads((world.pod.state / "guard.json").read_text())["identity"] == armed["identity"]
        said = world.pod.log("guard").read_text()
        assert said.count("guard armed") == 1 and "ended without a verdict" not in said, said
    finally:
        world.end()


def test_guard_and_agent_without_file_descriptors_wait_and_end_no_process(tmp_path):
    with running(tmp_path) as world:
        both = [world.living(role).pid for role in ("guard", "agent")]
        with exhaust_resource(resource.RLIMIT_NOFILE, *both):
            until(lambda: all("failed for now" in world.pod.log(role).read_text() for role in ("guard", "agent")))
        (world.pod.work / "go").touch()
        assert world.verdict()["state"] == "succeeded" and world.lines("ran.txt") == ["ran"]
        assert world.pod.log("guard").read_text().count("guard armed") == 1
        assert "ended without a verdict" not in world.pod.log("guard").read_text()


def test_a_full_disk_leaves_reserved_room_for_a_verdict_and_a_stop(tmp_path, disk):
    with running(disk / "first") as world:
        fill(world.pod.work / "ballast")
        (step,) = set(world.members()) - {world.living("guard"), world.living("agent")}
        send(step, signal.SIGKILL)
        assert world.verdict()["reason"].startswith("step wait was killed by SIGKILL")
        (world.pod.work / "ballast").unlink()
    with running(disk / "second") as world:
        fill(world.pod.work / "ballast")
        said = world.call("stop")
        assert said["stopped"] and said["verdict"]["state"] == "stopped" and not world.members()


def test_the_verdict_waits_without_disk_and_reserved_room(tmp_path, disk):
    with running(disk / "first", logs=tmp_path / "logs") as world:
        for room in world.pod.state.glob(".*.room"):
            room.unlink()
        fill(world.pod.work / "ballast")
        (step,) = set(world.members()) - {world.living("guard"), world.living("agent")}
        send(step, signal.SIGKILL)
        until(lambda: "writing the verdict failed for now: OSError(28" in world.pod.log("agent").read_text())
        assert not world.pod.verdict.exists() and step not in world.members() and len(world.members()) == 2
        (world.pod.work / "ballast").unlink()
        assert world.verdict()["reason"].startswith("step wait was killed by SIGKILL")
        assert world.pod.log("guard").read_text().count("guard armed") == 1


def fill(path: Path) -> None:
    """Write until the disk is full."""
    with open(path, "wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))


@contextlib.contextmanager
def running(root: Path, logs: Path | None = None) -> Iterator[World]:
    """Start a pod at its step; guard and agent retry actions for a shorter time than usual, then report the shortage.

    `logs`: a folder on a different disk, for output while the pod's disk is full.
    """
    world = World(root)
    if logs:
        logs.mkdir()
        world.pod.logs.symlink_to(logs)
    shortage = world.pod.code / "infra" / "agent" / "shortage.py"
    text = shortage.read_text()
    assert "PATIENCE_S = 10.0" in text
    shortage.write_text(text.replace("PATIENCE_S = 10.0", "PATIENCE_S = 0.2"))
    try:
        world.program("wait", WAIT)
        world.job(module("wait"))
        world.start()
        until(lambda: world.lines("ran.txt"))
        yield world
    finally:
        world.end()


@contextlib.contextmanager
def exhaust_resource(what: int, *pids: int) -> Iterator[None]:
    """Deny a resource in use to the processes."""
    before = [resource.prlimit(pid, what) for pid in pids]
    for pid, (_, most) in zip(pids, before, strict=True):
        resource.prlimit(pid, what, (0, most))
    yield
    for pid, limits in zip(pids, before, strict=True):
        resource.prlimit(pid, what, limits)


@rounds(2, 50)
def test_the_time_limit_holds_while_guard_or_agent_is_killed_repeatedly(tmp_path, rounds):
    seed = seeds.seed()
    with ThreadPoolExecutor(AT_ONCE) as threads:
        trials = [
            threads.submit(kill_until_the_end, tmp_path / f"{role}-{number}", role, random.Random(seed + number))
            for number in range(rounds)
            for role in ("guard", "agent")
        ]
        errors_s, kills = zip(*(trial.result() for trial in trials), strict=True)
    print(f"over the limit of {LIMIT_S:g} s by {min(errors_s):.1f} to {max(errors_s):.1f} s; kills {sorted(kills)}")
    assert max(errors_s) <= ERROR_S
    assert sum(kills) >= len(kills)  # on a busy machine a start may take so long that a pod ends before the first kill


def kill_until_the_end(root: Path, role: str, dice: random.Random) -> tuple[float, int]:
    """Send SIGKILL in a loop until the end; return by how much the pod outlived the limit, and the number of kills."""
    world = World(root)
    most = {"guard": 1000, "agent": 4}[role]  # a fifth dead agent is a crash loop, and the guard gives up
    try:
        world.program("wait", WAIT)
        world.job(module("wait"), limits=Limits(time_s=LIMIT_S))
        began_s = ends.boottime_s()
        kills, elapsed_s = 0, 0.0
        while not world.pod.verdict.exists() and ends.boottime_s() - began_s < LIMIT_S + ERROR_S:
            if not world.members():
                if ends.boottime_s() - began_s >= 0.88 * LIMIT_S:
                    break  # a guard was killed in the last action: all processes ended, without a report
                world.start()  # not begun yet, or a guard was killed before it could start its agent
            said = read_json(report(world.pod, "guard"))
            assert said["limit_s"] == LIMIT_S and said["elapsed_s"] >= elapsed_s, (said, elapsed_s)
            elapsed_s = said["elapsed_s"]
            target = live_process(world.pod, role)
            kills += bool(target and kills < most and send(target, signal.SIGKILL))
            time.sleep(dice.uniform(0.0, 0.6))
        until(lambda: not world.members(), "the end of every process")
        over_s = ends.boottime_s() - began_s - LIMIT_S
        if not world.pod.verdict.exists():
            world.start()  # a new start gets the verdict
        assert world.verdict()["state"] == "limit"
        return over_s, kills
    finally:
        world.end()
