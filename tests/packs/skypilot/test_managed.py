"""The command of a task as an engine runs it on a machine, here in local folders without the engine."""

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from infra.agent.execution.steps import RESUME_ME
from infra.agent.job import Job, Limits, NodeGroup, Step
from infra.agent.peer_addresses import free_ports
from infra.records import Carried, Plan, Request
from packs.skypilot.agent.managed import SUBMITTED_AT
from packs.skypilot.control import bundle as bundles
from packs.skypilot.control import job_view
from tests.infra.agent.world import until

pytestmark = pytest.mark.process

TOKEN = "sw1-abcdefgh-0123456789abcdef"


def step(text):
    config = {"text": text, "name": "", "workdir": "workdir", "own_home": False}
    return Step("run", ("-m", "infra.agent.shell"), config=config, together=("-u",), everywhere=True)


@pytest.fixture
def bundle(tmp_path):
    """Return a folder as SkyPilot brings it to each node: the agent's code, a sent file, the job."""
    root, own = tmp_path / "root", tmp_path / "own"
    repository = Path(__file__).resolve().parents[3]
    (root / "infra").mkdir(parents=True)
    (root / "infra" / "__init__.py").touch()
    (root / "infra" / "agent").symlink_to(repository / "infra" / "agent")
    (root / "packs").symlink_to(repository / "packs")
    own.mkdir()
    (own / "own.txt").write_text("mine")

    def make(text, **more):
        job = replace(Job(run="job-1", token=TOKEN, steps=(step(text),), secrets=("DB_KEY",)), **more)
        plan = Plan(
            target="",
            store="",
            artifacts=(),
            job=job,
            request=Request(run="job-1"),
            carried=(Carried(name="workdir", source=str(own)),),
        )
        folder = tmp_path / "bundle"
        bundles.write_bundle(job, plan, root, folder)
        (folder / "code").rename(folder / "pushed")  # A push does not follow links; here links are sufficient.
        (folder / "code").symlink_to(root)
        return folder

    return make


def start_task(bundle, home, **environ):
    home.mkdir(parents=True, exist_ok=True)
    given = {
        **os.environ,
        "DB_KEY": "hush-" * 3,
        "HOME": str(home),
        "PYTHONPATH": str(bundle / "code"),
        "SLIPWAY_GRACE_S": "5",
        **environ,
    }
    return subprocess.Popen(
        [sys.executable, "-m", "packs.skypilot.agent.managed"],
        cwd=bundle,
        env=given,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )


def test_task_runs_the_job_under_its_guard_and_prints_the_output_of_a_pod(bundle, tmp_path):
    folder = bundle('cat own.txt; echo " has ${#DB_KEY} as $SKYPILOT_TASK_ID"; exit 0')
    child = start_task(folder, tmp_path / "home")
    said = child.communicate(timeout=60)[0]
    assert child.returncode == 0, said
    log = job_view.read(said)
    assert log.steps["run"] == "mine has 15 as job-1\n"
    assert (log.report["verdict"]["state"], log.report["verdict"]["token"]) == ("succeeded", TOKEN)
    assert "hush" not in said


def test_task_of_two_nodes_is_one_job(bundle, tmp_path):
    port, words_port = free_ports(2)
    group = NodeGroup(run="job-1", port=port, words_port=words_port, key="k" * 8)
    folder = bundle("echo node $SKYPILOT_NODE_RANK of $SKYPILOT_NUM_NODES at $MASTER_ADDR", group=group)
    ips = "127.0.0.1\n127.0.0.1"
    children = [
        start_task(folder, tmp_path / "home", SKYPILOT_NODE_IPS=ips, SKYPILOT_NODE_RANK=str(rank)) for rank in range(2)
    ]
    said = [child.communicate(timeout=90)[0] for child in children]
    assert [child.returncode for child in children] == [0, 0], said
    assert [job_view.read(one).steps["run"] for one in said] == [
        f"node {rank} of 2 at 127.0.0.1\n" for rank in range(2)
    ]


def test_limit_of_a_task_counts_from_its_submission_and_a_preempted_task_saves_and_continues(bundle, tmp_path):
    text = """
    [ ! -e ~/saved ] || { echo went on; exit; }
    trap 'touch ~/saved; exit 75' TERM
    echo begun; while :; do sleep 0.1; done
    """
    folder = bundle(text, limits=Limits(time_s=10000.0))
    child = start_task(folder, tmp_path / "home", **{SUBMITTED_AT: "1000"})
    said = child.communicate(timeout=60)[0]
    assert (child.returncode, job_view.read(said).report["verdict"]["state"]) == (1, "limit"), said
    folder.rename(tmp_path / "before")
    folder = bundle(text)
    home = tmp_path / "another"
    child = start_task(folder, home)
    log = home / ".slipway" / "pods" / "job-1" / "logs" / "run.log"
    until(lambda: log.exists() and "begun" in log.read_text(), "the step")
    child.send_signal(signal.SIGTERM)
    said = child.communicate(timeout=60)[0]
    assert (child.returncode, job_view.read(said).report["verdict"]) == (RESUME_ME, {}), said
    child = start_task(folder, home)
    said = child.communicate(timeout=60)[0]
    lines = log.read_text().splitlines()
    assert (child.returncode, lines[0], lines[-1]) == (0, "begun", "went on"), said


@pytest.mark.nightly
def test_files_of_a_different_slurm_allocation_in_the_same_home_are_not_continued(bundle, tmp_path):
    text = """
    echo "$([ ! -e "$SLIPWAY_WORK/left" ] || echo goes on) in ${SLIPWAY_ENVIRONMENTS##*/}"
    touch "$SLIPWAY_WORK/left"
    trap 'exit 75' TERM
    echo begun; while :; do sleep 0.1; done
    """
    config = {"text": "echo done >> ~/setups", "name": "", "workdir": "workdir", "own_home": False}
    setup = Step("setup", ("-m", "infra.agent.shell"), config=config)
    folder, home = bundle("", steps=(setup, step(text))), tmp_path / "home"
    log = home / ".slipway" / "pods" / "job-1" / "logs" / "run.log"
    for allocation, begun in (("1", 1), ("1", 2), ("2", 1)):
        child = start_task(folder, home, SLURM_JOB_ID=allocation, SLIPWAY_ENVIRONMENTS="")

        def is_at_work(allocation=allocation, begun=begun):
            said = log.read_text() if log.exists() else ""
            return said.count(f" in environments-{allocation}\n") == begun and said.endswith("begun\n")

        until(is_at_work, "the step")
        child.send_signal(signal.SIGTERM)
        said = child.communicate(timeout=60)[0]
        assert child.returncode == RESUME_ME, said
        assert ("goes on" in log.read_text()) == (begun == 2)
    assert (home / "setups").read_text() == "done\n" * 2
