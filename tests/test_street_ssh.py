"""The street over SSH: a real sshd, a home of its own behind it, and the launching process gone."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from infra.agent import environment
from tests.hosts import sshd as sshd
from tests.test_street import EVERYTHING
from tests.world import World, until


@pytest.fixture
def world(tmp_path, sshd):
    """A world whose one machine is the sshd on loopback, with environments that are there already."""
    sshd.options.append(f"-oSetEnv=HOME={sshd.folder} SLIPWAY_ENVIRONMENTS={environment.default_cache()}")
    sshd.stop()
    sshd.options = sshd.options[-1:]
    sshd.start()
    machine = {
        "ip": sshd.address.host,
        "port": sshd.address.port,
        "python": getattr(sys, "_base_executable", sys.executable),
    }
    pool = {"user": sshd.address.user, "identity_file": sshd.address.key, "hosts": [machine]}
    (tmp_path / "pools.yaml").write_text(json.dumps({"box": pool}))
    one = World(tmp_path, {"SLIPWAY_POOLS": str(tmp_path / "pools.yaml"), "SLIPWAY_ACCEPT_FREE_GB": "1"})
    yield one
    one.inv("down", "--all")


def test_a_run_goes_on_without_its_launcher_and_everything_comes_home(world, sshd):
    launch = world.begin("launch", "--provider", "ssh", "--yes")
    until(lambda: [row for row in world.json("status") if row["state"] == "running"], "handed over")
    os.killpg(launch.pid, signal.SIGKILL)
    launch.communicate()
    (row,) = until(
        lambda: [row for row in world.json("status") if row["state"] not in ("running", "planned")], "it ends by itself"
    )
    assert row["state"] == "succeeded"
    assert [step["name"] for step in row["steps"]] == ["environment", *EVERYTHING]
    assert (sshd.folder / ".slipway" / "pods" / row["run"] / "state" / "verdict.json").exists()
    sshd.stop()  # the machine is gone for good: all that is asked now is answered from home
    assert world.json("status")[0]["state"] == "succeeded"
    assert "bits per byte" in world.inv("logs", row["run"], "--file", "base")
    assert world.inv("chat", "--prompt", "Who are you?", "--max-tokens", "4").strip()
    assert world.json("launch", "--provider", "ssh")["ran"] == []
    sshd.start()


def test_what_is_here_is_sent_and_not_made_again(world, sshd):
    first = world.json("launch", "--provider", "ssh", "--phase", "base", "--yes")
    assert first["state"] == "succeeded"
    subprocess.run(["rm", "-r", sshd.folder / ".slipway" / "artifacts"], check=True)
    second = world.json("launch", "--provider", "ssh", "--phase", "mid", "--yes")
    assert (second["state"], second["ran"]) == ("succeeded", ["environment", "identity", "questions", "mid"])
    done = world.begin("ssh", second["run"], "--", "sh", "-c", "pwd; exit 7")
    out, _ = done.communicate(timeout=60)
    assert (done.returncode, Path(out.strip()).name) == (7, second["run"])


def test_a_machine_that_fails_is_given_back_and_remembered(world):
    world.extra["SLIPWAY_ACCEPT_FREE_GB"] = "1000000"
    world.inv("launch", "--provider", "ssh", "--phase", "base", "--yes", code=3)
    assert "free disk" in next(iter(world.json("hosts").values()))["failure"]
    assert all(row["leased_by"] is None for row in world.json("pool.list"))
