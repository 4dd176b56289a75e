"""Managed jobs through SkyPilot itself, over a Slurm cluster of two nodes: preempted, ended, and without the server."""

import os

import pytest

from infra.agent.environments import cache_folder
from tests.packs.skypilot.bed import Bed
from tests.world import World, until

pytestmark = [pytest.mark.pack("jobs"), pytest.mark.process, pytest.mark.nightly, pytest.mark.timeout(3000)]

WHERE = "--provider skypilot --cloud slurm --region loop --gpu none --cpus 1 --ttl 50m".split()
LONG_S = 900.0  # Timeout for SkyPilot to start or restart a job on a busy machine.


@pytest.fixture
def world(tmp_path, sky: Bed):
    own = {key: value for key, value in sky.environ.items() if os.environ.get(key) != value}
    caches = {"SLIPWAY_ENVIRONMENTS": str(cache_folder.default_cache()), "SLIPWAY_STORE": f"file://{sky.shared}/store"}
    one = World(tmp_path, {**own, **caches})
    yield one
    one.inv("down", "--all")


def start_job(world, name, steps):
    words = ("-e", f"STEPS={steps}", "-e", "PAUSE=0.5", "-n", name, "--yes")
    return world.begin("launch", "examples/jobs/smoke_test.yaml", *WHERE, *words)


def newest(sky, name):
    """Return the newest checkpoint of a run in the store, 0 without a checkpoint."""
    found = (one.parent for one in (sky.shared / "store").rglob("step-*/MANIFEST.json") if name in one.parts)
    return max((int(one.name.partition("-")[2]) for one in found), default=0)


def allocations(sky):
    return sky.run("squeue", "-h", "-o", "%i").split()


def row(world, name):
    return next(one for one in world.json("status") if one["run"] == name)


def finish(process):
    out, err = process.communicate(timeout=LONG_S)
    return process.returncode, f"{out}\n{err}"


def test_preempted_job_is_restarted_by_skypilot_and_succeeds(world, sky):
    launch = start_job(world, "taken", 240)
    until(lambda: newest(sky, "taken") >= 20 or launch.poll() is not None, "it is at work", LONG_S)
    assert launch.poll() is None, finish(launch)
    assert row(world, "taken")["state"] == "running"
    for one in allocations(sky):
        sky.run("scancel", one)
    code, said = finish(launch)
    assert code == 0, said
    seen = row(world, "taken")
    assert (seen["state"], seen["recoveries"]) == ("succeeded", 1)
    log = world.inv("logs", "taken", "--file", "run")
    begun = [line.rpartition(" ")[2] for line in log.splitlines() if "begins at step" in line]
    assert begun and int(begun[-1]) >= 20 and log.endswith("done\n"), log


def test_ended_job_saves_and_leaves_no_process(world, sky):
    launch = start_job(world, "ended", 2000)
    until(lambda: newest(sky, "ended") >= 10, "it is at work", LONG_S)
    world.inv("down", "ended")
    launch.communicate(timeout=LONG_S)
    assert row(world, "ended")["state"] == "stopped"
    until(lambda: not allocations(sky), "Slurm has nothing of it", LONG_S)
    assert world.json("audit", "--provider", "skypilot")["machines"] == []


def test_killed_server_is_reported_and_the_job_continues(world, sky):
    launch = start_job(world, "alone", 400)
    until(lambda: newest(sky, "alone") >= 10, "it is at work", LONG_S)
    sky.kill_server()
    assert "no API server answers" in row(world, "alone")["note"]
    before = newest(sky, "alone")
    until(lambda: newest(sky, "alone") > before, "it goes on", LONG_S)
    sky.start_server()
    code, said = finish(launch)
    assert code == 0, said
    assert row(world, "alone")["state"] == "succeeded"
