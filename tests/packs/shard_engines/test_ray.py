"""`inv shard --engine` on a real Ray: after every kill the bytes equal the bytes of one machine."""

import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path

import pytest

from data import card
from data.config import TextSpec
from data.merge import merge
from data.shards.pipeline import RunOptions
from data.shards.pipeline import shard as shard_alone
from data.text.inputs import Share
from packs.shard_engines.data.work import HOME, locked
from tests.data.conftest import ROOT
from tests.packs.shard_engines import ray_cluster
from tests.processes import command_line, pids
from tests.world import World

pytestmark = [pytest.mark.nightly, pytest.mark.timeout(900)]
WORLD = 4
SPEC = {"val_ratio": 0.01, "seed": 7, "lines_per_shard": 9000}
WORDS = ("--mode", "split", "--seed", "7", "--lines-per-shard", "9000", "--text-unit", "line", "--world", str(WORLD))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Return 200,000 distinct lines in five files."""
    folder = tmp_path_factory.mktemp("corpus")
    for number in range(5):
        lines = (f"line {n} says \\ {n * 7919 % 1_000_003}\n" for n in range(number * 40_000, (number + 1) * 40_000))
        (folder / f"{number}.txt").write_text("".join(lines))
    return folder


@pytest.fixture(scope="module")
def undisturbed_files(corpus, tmp_path_factory):
    """Run the same ranks in sequence, undisturbed."""
    folder = tmp_path_factory.mktemp("expected")
    for rank in range(WORLD):
        spec = TextSpec(source=str(corpus), **SPEC)
        shard_alone(spec, folder, True, RunOptions(workers=1), Share(rank=rank, world=WORLD))
    merge(folder)
    card.write(folder)
    return contents(folder)


def contents(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def start_command(corpus, out, **more):
    """Start the command without its front, so that no environment is needed."""
    config = out.parent / "config.json"
    config.write_text(json.dumps({"out": str(out), "spec": {"source": str(corpus), **SPEC, "world": WORLD, **more}}))
    words = [sys.executable, "-m", "data", "text", "--config", str(config)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    return subprocess.Popen(words, cwd=ROOT, env=environ, stderr=subprocess.PIPE, text=True)


def hold_locks(stack, out):
    """Hold the locks of all ranks, so that each rank waits for the test; return the names by rank."""
    (out / HOME).mkdir(parents=True, exist_ok=True)
    names = [Share(rank=rank, world=WORLD).folder for rank in range(WORLD)]
    for name in names:
        stack.enter_context(locked(out / HOME / f"{name}.lock"))
    return names


def processes(out, name):
    """Return the pids of a task of `out`."""
    meant = [str(out / HOME).encode(), name.encode()]
    return [pid for pid in pids() if command_line(pid).split(b"\0")[-3:-1] == meant]


def parent(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def wait_for(true, command, what):
    deadline = time.monotonic() + 180
    while not (found := true()):
        assert command.poll() is None, f"{what}: it has left: {command.stderr.read()}"
        assert time.monotonic() < deadline, what
        time.sleep(0.1)
    return found


def next_process(out, name, command, but=()):
    """Return the process of a task, as soon as a process other than `but` exists."""
    return wait_for(lambda: [pid for pid in processes(out, name) if pid not in but], command, f"task {name}")[0]


def finish(command):
    out, err = command.communicate(timeout=300)
    assert command.returncode == 0, err
    return err


@pytest.fixture(scope="module")
def ray_python(tmp_path_factory):
    return ray_cluster.interpreter(tmp_path_factory.mktemp("ray-environment"))


@pytest.fixture
def ray(monkeypatch, ray_python):
    home = Path(tempfile.mkdtemp(prefix="ray-"))  # A short path: Ray's sockets have at most 107 characters.
    with ray_cluster.running(home, ray_python) as (address, nodes):
        monkeypatch.setenv("RAY_ADDRESS", address)
        yield nodes


def test_ray_restarts_a_killed_rank_and_a_rank_of_a_lost_node(ray, ray_python, corpus, undisturbed_files, tmp_path):
    out = tmp_path / "out"
    with ExitStack() as stack:
        names = hold_locks(stack, out)
        command = start_command(corpus, out, engine="ray", engine_options={"ray_python": str(ray_python)})
        pids = {name: next_process(out, name, command) for name in names}
        raylets = {name: parent(parent(pid)) for name, pid in pids.items()}
        lost = next(raylet for raylet in raylets.values() if parent(raylet) == ray[1].pid)
        on_head = [name for name in names if raylets[name] != lost]
        assert 0 < len(on_head) < WORLD
        # A rank's process, and Ray's process above a rank.
        for victim in (pids[on_head[0]], parent(pids[on_head[-1]])):
            os.kill(victim, signal.SIGKILL)
        for name in {on_head[0], on_head[-1]}:
            next_process(out, name, command, pids.values())
        os.kill(lost, signal.SIGKILL)
        wait_for(
            lambda: not any(pids[name] in processes(out, name) for name in names), command, "what was lost is gone"
        )
    finish(command)
    assert contents(out) == undisturbed_files


def test_ctrl_c_cancels_the_ray_tasks(ray, ray_python, corpus, undisturbed_files, tmp_path):
    out = tmp_path / "out"
    world = World(tmp_path, {"SLIPWAY_RAY_PYTHON": str(ray_python)})
    words = ("shard", *WORDS, "--source", str(corpus), "--out", str(out), "--engine", "ray")
    with ExitStack() as stack:
        names = hold_locks(stack, out)
        command = world.begin(*words)
        for name in names:
            next_process(out, name, command)
        os.killpg(command.pid, signal.SIGINT)
        _, err = command.communicate(timeout=60)
        assert command.returncode == 130 and "cancelled the tasks of Ray, 0 of 4 ranks finished" in err, err
        assert not any(processes(out, name) for name in names)
    world.inv(*words)
    assert contents(out) == undisturbed_files
