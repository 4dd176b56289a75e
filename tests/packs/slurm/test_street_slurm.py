"""The pipeline over a real Slurm on loopback: queued, preempted, cancelled, cut off, ended; on one node and on two."""

import json
import os
import signal
import subprocess
import time

import pytest

from packs.slurm.agent import queue
from tests.packs.slurm.test_clusters import SBATCH_TIMES
from tests.slurm import cluster as cluster
from tests.world import World, until

pytestmark = [pytest.mark.pack("jobs"), pytest.mark.process, pytest.mark.nightly, pytest.mark.timeout(900)]

JOB = """
name: {name}
num_nodes: {nodes}
workdir: examples/jobs/smoke
envs: {{STEPS: {steps}, PAUSE: 0.2}}
run: python count.py --steps $STEPS --pause $PAUSE
"""


@pytest.fixture
def world(tmp_path, cluster):
    """Return a world with the loopback cluster as its only cluster."""
    one = World(tmp_path, {"SLIPWAY_CLUSTERS": str(cluster.inventory(tmp_path / "clusters.yaml"))})
    yield one
    one.inv("down", "--all")
    assert not cluster.jobs()


@pytest.fixture
def pods(cluster):
    return cluster.login.folder / ".slipway" / "pods"


def counting(world, name, steps, nodes=1):
    """Return the file of a job that counts, and saves every step."""
    path = world.folder / f"{name}.yaml"
    path.write_text(JOB.format(name=name, steps=steps, nodes=nodes))
    return str(path)


def newest(pods, run):
    """Return the newest checkpoint of a run, 0 without a checkpoint."""
    found = [
        int(one.parent.name.partition("-")[2]) for one in (pods / run).glob("work/checkpoints/*/step-*/MANIFEST.json")
    ]
    return max(found, default=0)


def verdict(pods, run):
    """Return the verdict in the run's folder on the cluster; {} without a verdict."""
    path = pods / run / "state" / "verdict.json"
    return json.loads(path.read_text()) if path.exists() else {}


def stdout_of(process):
    """Return the output of a command, which must succeed."""
    out, err = process.communicate(timeout=600)
    assert process.returncode == 0, f"{out}\n{err}"
    return f"{out}\n{err}"


def test_smoke_test_and_a_training_come_home(world, cluster):
    said = stdout_of(world.begin("launch", "examples/jobs/smoke_test.yaml", "--provider", "slurm", "--yes"))
    assert "smoke-test-1 succeeded" in said
    assert stdout_of(world.begin("launch", "--phase", "sft", "--provider", "slurm", "--yes"))
    assert {row["state"] for row in world.json("status")} == {"succeeded"}
    assert world.inv("chat", "--prompt", "Who are you?", "--max-tokens", "4").strip()
    assert world.json("audit", "--provider", "slurm")["machines"] == []
    assert not cluster.jobs()


def test_run_preempted_twenty_times_never_starts_over(world, cluster, pods):
    launch = world.begin("launch", counting(world, "count", 250), "--provider", "slurm", "--yes")
    (job,) = until(cluster.jobs, "it is queued", 60.0)
    before = 0
    for _ in range(20):
        until(lambda: newest(pods, "count-1") > before, "it goes on", 120.0)  # noqa: B023
        cluster.requeue(job)
        assert (now := newest(pods, "count-1")) > before
        before = now
        assert launch.poll() is None
    assert "count-1 succeeded" in stdout_of(launch)
    (row,) = world.json("status")
    assert (row["state"], row["recoveries"]) == ("succeeded", 0), "Slurm has begun it anew each time, and not we"
    log = (pods / "count-1" / "logs" / "run.log").read_text()
    assert log.count("begins at step 0") <= 1


def test_cancelled_job_is_submitted_again_by_the_next_follower(world, cluster, pods):
    launch = world.begin("launch", counting(world, "cut", 60), "--provider", "slurm", "--yes")
    (job,) = until(cluster.jobs, "it is queued", 60.0)
    until(lambda: newest(pods, "cut-1") > 3, "it is at work")
    cluster.call("scancel", job)
    said = stdout_of(launch)
    assert "cut-1 succeeded" in said and f"Slurm job {job} has ended: CANCELLED" in said
    assert world.json("status")[0]["recoveries"] == 1


def test_two_nodes_are_one_job_and_a_requeue_restarts_both(world, cluster, pods):
    launch = world.begin("launch", counting(world, "pair", 120, nodes=2), "--provider", "slurm", "--yes")
    (job,) = until(cluster.jobs, "it is queued", 60.0)
    until(lambda: newest(pods, "pair-1") > 3, "it is at work")
    assert cluster.call("squeue", "-h", "-j", job, "-o", "%D %N").strip() == "2 slip[1-2]"
    group = json.loads((pods / "pair-1.1" / "job.json").read_text())["group"]
    assert (group["rank"], group["addresses"]) == (1, ["127.0.0.1", "127.0.0.1"])
    cluster.requeue(job)
    assert "pair-1 succeeded" in stdout_of(launch)
    assert not cluster.jobs()


def test_silent_login_node_and_dead_controller_do_not_harm_a_run(world, cluster, pods):
    launch = world.begin("launch", counting(world, "deaf", 400), "--provider", "slurm", "--yes")
    until(cluster.jobs, "it is queued", 60.0)
    until(lambda: newest(pods, "deaf-1") > 3, "it is at work")
    cluster.login.freeze()
    cluster.end("slurmctld")
    before, at = newest(pods, "deaf-1"), time.monotonic()
    until(lambda: time.monotonic() - at > 60, "a minute passes")
    assert newest(pods, "deaf-1") > before
    cluster.login.thaw()
    assert "some clusters have not answered" in json.dumps(world.json("audit", "--provider", "slurm", code=5))
    cluster.start_controller()
    until(lambda: cluster.call("squeue", "-h", may_fail=True), "the controller is back", 60.0)
    world.inv("down", "deaf-1")
    launch.communicate(timeout=120)
    assert not cluster.jobs()
    assert verdict(pods, "deaf-1")["state"] == "stopped"


def test_queued_job_is_shown_and_ended_and_no_own_job_is_lost(world, cluster, pods):
    cluster.call("scontrol", "update", "PartitionName=gpu", "State=INACTIVE")
    world.inv("launch", counting(world, "idle", 5), "--provider", "slurm", "--yes", code=3)
    cluster.call("scontrol", "update", "PartitionName=gpu", "State=DOWN")  # Jobs are accepted, and wait.
    try:
        world.inv("launch", counting(world, "wait", 5), "--provider", "slurm", "--yes", "--detach")
        row = next(one for one in world.json("status") if one["run"].startswith("wait"))
        assert row["state"] == "planned" and "waits in gpu" in row["note"]
        world.inv("down", row["run"])
        assert not cluster.jobs()
    finally:
        cluster.call("scontrol", "update", "PartitionName=gpu", "State=UP")
    installation = world.json("audit", "--provider", "slurm")["installation"]
    stray = f"sw1-{installation}-0123456789abcdef"
    cluster.call("sbatch", f"--job-name={stray}", "--output=/dev/null", "--wrap=sleep 600")
    (found,) = world.json("audit", "--provider", "slurm", code=5)["machines"]
    assert (found["whose"], found["token"]) == ("orphaned", stray)
    world.json("audit", "--provider", "slurm", "--kill")
    until(lambda: not cluster.jobs(), "the stray is gone", 60.0)


def test_run_of_a_dead_launcher_comes_home_on_request(world, cluster, pods):
    launch = world.begin("launch", counting(world, "alone", 30), "--provider", "slurm", "--yes")
    until(cluster.jobs, "it is queued", 60.0)
    until(lambda: newest(pods, "alone-1"), "it is at work")
    os.killpg(launch.pid, signal.SIGKILL)
    launch.communicate()
    until(lambda: verdict(pods, "alone-1"), "it ends by itself", 200.0)
    row = next(one for one in world.json("status") if one["run"] == "alone-1")
    assert row["state"] == "succeeded"
    sessions = subprocess.run(["pgrep", "-f", "packs.slurm.agent"], capture_output=True, text=True)
    assert str(cluster.login.folder) not in sessions.stdout, "nothing of ours stays on the login node"


def test_a_variable_of_the_user_hides_no_job_of_the_queue(cluster, monkeypatch):
    job = cluster.call("sbatch", "--hold", "--parsable", "--job-name=mine", "--wrap", "true").strip()
    monkeypatch.setenv("SLURM_CONF", str(cluster.conf))
    monkeypatch.setenv("SCANCEL_INTERACTIVE", "true")
    for name in ("SQUEUE_PARTITION", "SQUEUE_ACCOUNT", "SQUEUE_QOS", "SCANCEL_PARTITION", "LOGNAME"):
        monkeypatch.setenv(name, "other")
    assert cluster.call("squeue", "-h", "-j", job, may_fail=True) == "", "the variable is an option of squeue"
    assert queue.newest("mine")["job"] == job
    assert queue.cancel("mine") == {"jobs": []} and not cluster.jobs()


def test_sbatch_reads_the_times_of_an_inventory_like_the_inventory(cluster):
    for text, seconds in SBATCH_TIMES.items():
        job = cluster.call("sbatch", "--hold", "--parsable", f"--time={text}", "--wrap", "true").strip()
        limit = cluster.call("scontrol", "show", "job", "-o", job).partition("TimeLimit=")[2].split()[0]
        days, _, clock = limit.rpartition("-")
        hours, minutes, rest = map(int, clock.split(":"))
        # Slurm rounds up to whole minutes.
        assert ((int(days or 0) * 24 + hours) * 60 + minutes) * 60 + rest == -(-seconds // 60) * 60, (text, limit)
        cluster.call("scancel", job)
