"""The pipeline over SSH: a real sshd with a separate home, after the launching process has ended."""

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from infra.agent.environments.packages import portable_sources
from tests.end_to_end.test_street import EVERYTHING
from tests.hosts import hosts as hosts
from tests.hosts import sshd as sshd
from tests.hosts import uv_cache as uv_cache
from tests.world import ONE_THREAD, World, until

pytestmark = pytest.mark.process


@pytest.fixture
def world(tmp_path, sshd):
    """Return a world with the loopback sshd as the only machine, with existing environments."""
    one = with_machines(tmp_path, sshd)
    yield one
    one.inv("down", "--all")


@pytest.fixture
def bare(tmp_path, hosts, uv_cache):
    """Return a function: `bare(2)` makes a world of two machines without rsync, uv and a default route, but with a uv
    cache.
    """
    worlds = []

    def make(count):
        worlds.append(with_machines(tmp_path, *hosts(count, hidden=["rsync", "uv"], uv_cache=uv_cache)))
        return worlds[0]

    yield make
    for one in worlds:
        one.inv("down", "--all")


def with_machines(folder, *machines):
    python = getattr(sys, "_base_executable", sys.executable)
    known = [
        {"ip": one.address.host, "port": one.address.port, "identity_file": one.address.key, "python": python}
        for one in machines
    ]
    (folder / "pools.yaml").write_text(json.dumps({"box": {"user": machines[0].address.user, "hosts": known}}))
    # A world has a separate configuration folder, which hides the user's pip configuration.
    places = {
        f"PIP_{option.upper().replace('-', '_')}": " ".join(found) for option, found in portable_sources().items()
    }
    known_places = {"SLIPWAY_POOLS": str(folder / "pools.yaml"), "SLIPWAY_ACCEPT_FREE_GB": "1", **places}
    return World(folder, {**known_places, **ONE_THREAD})


def stderr_of(process):
    """Return the stderr of a command, which must succeed."""
    out, err = process.communicate(timeout=280)
    assert process.returncode == 0, f"{out}\n{err}"
    return err


@pytest.mark.nightly
def test_run_continues_without_its_launcher_and_all_files_come_home(world, sshd, stock):
    world.take(stock)
    launch = world.begin("launch", "--provider", "ssh", "--yes")
    pods = sshd.folder / ".slipway" / "pods"
    until(lambda: world.steps_at_work(pods), "it is at work")
    until(lambda: [row["state"] for row in world.json("status")] == ["running"], "handed over")
    os.killpg(launch.pid, signal.SIGKILL)
    launch.communicate()
    until(lambda: world.verdicts(pods), "it ends by itself", within_s=280)
    (row,) = world.json("status")
    assert row["state"] == "succeeded"
    made = [name for name in EVERYTHING if name not in ("text", "tokenizer", "tokens")]
    assert [step["name"] for step in row["steps"]] == ["environment", *made]
    assert (pods / row["run"] / "state" / "verdict.json").exists()
    sshd.stop()  # The machine is gone for good: local files answer all further requests.
    assert world.json("status")[0]["state"] == "succeeded"
    assert "bits per byte" in world.inv("logs", row["run"], "--file", "base")
    assert world.inv("chat", "--prompt", "Who are you?", "--max-tokens", "4").strip()
    assert world.json("launch", "--provider", "ssh")["ran"] == []
    sshd.start()


@pytest.mark.nightly
def test_local_artifacts_are_sent_and_not_created_again(world, sshd, stock):
    world.take(stock)
    first = world.json("launch", "--provider", "ssh", "--phase", "base", "--yes")
    assert (first["state"], first["ran"]) == ("succeeded", ["environment", "base"])
    subprocess.run(["rm", "-r", sshd.folder / ".slipway" / "artifacts"], check=True)
    second = world.json("launch", "--provider", "ssh", "--phase", "mid", "--yes")
    assert (second["state"], second["ran"]) == ("succeeded", ["environment", "identity", "questions", "mid"])
    done = world.run("ssh", second["run"], "--", "sh", "-c", "pwd; exit 7")
    out = done.stdout
    assert (done.returncode, Path(out.strip()).name) == (7, second["run"])


def test_failed_machine_is_returned_and_remembered(world):
    world.extra["SLIPWAY_ACCEPT_FREE_GB"] = "1000000"
    world.inv("launch", "--provider", "ssh", "--phase", "base", "--yes", code=3)
    assert "free disk" in next(iter(world.json("hosts").values()))["failure"]
    assert all(row["leased_by"] is None for row in world.json("pool.list"))


@pytest.mark.nightly  # In daily runs test_bootstrap.py sets up a bare machine.
@pytest.mark.timeout(300)
def test_bare_machine_without_a_default_route_trains_and_the_model_answers_locally(bare):
    world = bare(1)
    said = stderr_of(world.begin("launch", "--provider", "ssh", "--phase", "sft", "--yes"))
    stages = ["connect", "rent", "accept", "push", "tools", "inputs", "hand-over"]
    assert re.findall(r"^([a-z-]+) (?:\d+ min )?[\d.]+ s", said, re.M)[: len(stages)] == stages
    assert "uv sent" in said and "succeeded" in said
    (row,) = world.json("status")
    assert [step["name"] for step in row["steps"]] == ["environment", *EVERYTHING]
    assert "making the train environment with uv" in world.inv("logs", row["run"], "--file", "environment")
    assert world.inv("chat", "--prompt", "Who are you?", "--max-tokens", "4").strip()
    said = stderr_of(world.begin("launch", "--provider", "ssh", "--phase", "base", "--seed", "1", "--detach", "--yes"))
    assert "uv was sent earlier" in said


@pytest.mark.nightly  # In daily runs two machines work at once in test_street_sweep.py.
@pytest.mark.timeout(300)
def test_two_machines_work_at_the_same_time(bare):
    world = bare(2)
    flags = ("launch", "--provider", "ssh", "--phase", "base", "--yes")
    launches = [world.begin(*flags, "--store", str(world.folder / name)) for name in "ab"]
    for one in launches:
        assert "succeeded" in stderr_of(one)
    first, second = (row["steps"] for row in world.json("status"))
    assert first[0]["started_at"] < second[-1]["ended_at"] and second[0]["started_at"] < first[-1]["ended_at"]
    assert {world.folder / name / "base_checkpoints" / "tiny" for name in "ab"} <= set(world.folder.glob("[ab]/*/tiny"))
