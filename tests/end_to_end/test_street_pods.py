"""Pods without a launch: the stages as commands, chained on a line, and the pods of a file."""

import json
import signal
import subprocess
import sys

import pytest

from infra.ledger.journal import Journal
from tests.programs import source
from tests.world import ROOT, World, until

pytestmark = pytest.mark.process

KILLED = source("killed_at_write")
AFTER = {}  # States of the rows, by number of writes.
for whole, one in enumerate(((), ("READY",))):
    for number, state in enumerate(("PLANNED", "CREATING", "BOOTING", "READY"), 1):
        AFTER[4 * whole + number] = [*one, state]


@pytest.fixture
def world(tmp_path):
    one = World(tmp_path)
    yield one
    one.inv("down", "--all")
    one.check_ended()


def test_files_of_a_pod_are_not_writable_by_others_under_any_umask(world):
    line = f"umask 000; exec {sys.executable} -m invoke pod.create --provider local --run-name open --yes"
    subprocess.run(line, shell=True, cwd=ROOT, env=world.environ, capture_output=True, check=True, timeout=60)
    until(lambda: (world.folder / "pods" / "open" / "state" / "guard.json").exists(), "its guard")
    made = [path for name in ("pods", "state", "config") for path in (world.folder / name).rglob("*")]
    assert len(made) > 20
    assert [path for path in made if not path.is_symlink() and path.stat().st_mode & 0o022] == []


def rows(world, **wanted):
    with Journal.open(world.environ["SLIPWAY_STATE_FILE"], world.environ) as journal:
        return journal.ops(**wanted)


def pods(world):
    """Return the tokens of the live pods, by name."""
    return {op.run: op.token for op in rows(world, live=True)}


def write(world, *entries, **more):
    path = world.folder / "trial.yaml"
    path.write_text(json.dumps({"pods": list(entries), **more}))
    return str(path)


def failure_of(world, *words):
    process = world.run(*words)
    err = process.stderr
    return process.returncode, err


@pytest.mark.nightly
def test_chained_commands_create_a_pod_run_work_twice_and_end_it(world):
    train = ("pod.run", "--phase", "base", "--steps", "2")
    line = ("pod.create", "--run-name", "box", "pod.sync", "pod.setup", *train, "pod.down")
    process = world.run(*line)
    err = process.stderr
    assert process.returncode == 0, err
    assert err.count("box succeeded") == 2 and "box: ended, nothing of it runs" in err
    assert world.model("base_checkpoints")
    (op,) = rows(world)
    assert (op.run, op.owner_kind, op.state) == ("box", "held", "TERMINATED")
    (row,) = world.json("status")
    assert (row["run"], row["state"]) == ("box", "succeeded")
    guards = (world.folder / "pods" / "box" / "logs" / "guard.log").read_text()
    assert guards.count("guard armed") == 1 and guards.count("starting the work") == 2
    assert pods(world) == {}


@pytest.mark.nightly
def test_failed_chain_names_the_remaining_pod_and_how_to_end_it(world):
    code, err = failure_of(world, "pod.create", "--run-name", "box", "pod.run", "--source", "/nowhere", "pod.down")
    assert code == 2 and "no such file" in err
    assert "box still exists: the pod costs nothing; end the pod: inv pod.down box" in err
    (pod,) = world.json("pod.list")
    assert (pod["run"], pod["provider"], pod["usd_per_hour"], pod["for"]) == ("box", "local", "0.00", "nothing yet")
    assert world.json("status")[0]["state"] == "idle"
    code, err = failure_of(world, "resume")
    assert code == 2 and "inv pod.run box" in err
    code, err = failure_of(world, "pod.create", "--run-name", "other", "status", "pod.down", "pod.down", "pod.down")
    assert code == 1 and "no pod exists" in err and pods(world) == {}


@pytest.mark.nightly
def test_pod_with_failed_work_takes_new_work(world):
    corpus = world.folder / "corpus.jsonl"
    corpus.write_text('{"no_text": 1}\n')
    world.inv("pod.create", "--run-name", "box")
    code, err = failure_of(world, "pod.run", "--phase", "base", "--source", str(corpus))
    assert code == 1 and "fix the cause, then: ./inv pod.run box" in err and "box still exists" in err
    (row,) = world.json("status")
    assert row["state"] == "failed" and "the pod stays" in row["note"]
    assert world.json("pod.setup")["state"] == "succeeded"


@pytest.mark.nightly
def test_pod_takes_one_work_at_a_time_and_ctrl_c_leaves_it_running(world):
    world.inv("pod.create", "--run-name", "box")
    follower = world.begin("pod.run", "--phase", "base")
    until(world.steps_at_work, "it is at work")
    until(lambda: world.json("status")[0]["state"] == "running", "work")
    code, err = failure_of(world, "pod.run", "--phase", "mid")
    assert code == 2 and "box is running" in err
    follower.send_signal(signal.SIGINT)
    _, err = follower.communicate(timeout=30)
    assert follower.returncode == 130 and "box continues" in err and "box still exists" in err
    world.inv("pod.down")


def test_pod_without_work_ends_at_its_time_limit(world):
    assert world.json("pod.create", "--ttl", "2s", "--dry-run")["state"] == "planned"
    assert rows(world) == []
    world.inv("pod.create", "--run-name", "box", "--ttl", "2s")
    until(world.verdicts, "its end")
    assert world.json("status")[0]["state"] == "limit"
    assert pods(world) == {}
    (op,) = rows(world)
    assert op.state == "TERMINATED" and "limit" in op.reason


def test_pods_of_a_file_are_created_kept_replaced_and_ended(world):
    world.inv("pod.create", "--run-name", "mine")
    path = write(world, {"name": "a", "ttl_hours": 1}, {"name": "b"})
    planned = world.json("apply", path, "--dry-run")
    assert [(one["action"], one["name"]) for one in planned["steps"]] == [("create", "a"), ("create", "b")]
    code, err = failure_of(world, "apply", path)
    assert code == 2 and "stdin is not a terminal" in err and pods(world).keys() == {"mine"}
    assert world.inv("apply", path, "--yes").splitlines()[1].startswith("+  a    local     0.00")
    first = pods(world)
    assert first.keys() == {"mine", "a", "b"} and [op.pod_set for op in rows(world)] == ["", "trial", "trial"]
    again = world.json("apply", path)  # Asks no question: no change is due.
    assert [one["action"] for one in again["steps"]] == ["keep", "keep"] and pods(world) == first
    write(world, {"name": "a", "ttl_hours": 2})
    process = world.run("apply", path, "--yes")
    out, err = process.stdout, process.stderr
    assert process.returncode == 0, err
    assert [line.split()[:2] for line in out.splitlines()[1:4]] == [["-", "a"], ["-", "b"], ["+", "a"]]
    code, err = failure_of(world, "pod.down")
    assert code == 2 and "several pods exist; name one of: mine, a" in err
    then = pods(world)
    assert then.keys() == {"mine", "a"} and then["mine"] == first["mine"] and then["a"] != first["a"]
    code, err = failure_of(world, "apply", write(world, {"name": "a"}, set="other"), "--yes")
    assert code == 2 and "a already exists outside of the set other" in err
    world.inv("apply", write(world), "--yes")
    assert pods(world).keys() == {"mine"}


@pytest.mark.parametrize(
    "writes", [6, *(pytest.param(one, marks=pytest.mark.nightly) for one in (1, 2, 3, 4, 5, 7, 8))]
)
def test_killed_apply_is_finished_by_the_next_apply(world, writes):
    path = write(world, {"name": "a"}, {"name": "b"})
    killed = subprocess.run(
        [sys.executable, "-c", KILLED, str(writes), "apply", path, "--yes"],
        cwd=ROOT,
        env=world.environ,
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    assert [op.state for op in rows(world)] == AFTER[writes]
    process = world.run("apply", path, "--yes")
    err = process.stderr
    assert process.returncode == 0, err
    assert sorted((op.run, op.state) for op in rows(world, live=True)) == [("a", "READY"), ("b", "READY")]
    assert {one["action"] for one in world.json("apply", path)["steps"]} == {"keep"}
    markers = [path.parent.name for path in (world.folder / "pods").glob("*/POD.json")]
    assert sorted(markers) == ["a", "b"]


def test_two_simultaneous_applies_create_the_pods_once(world):
    path = write(world, {"name": "a"}, {"name": "b"})
    both = [world.begin("apply", path, "--yes") for _ in range(2)]
    said = [one.communicate(timeout=120)[1] for one in both]
    codes = sorted(one.returncode for one in both)
    assert codes in ([0, 0], [0, 2]), said
    assert pods(world).keys() == {"a", "b"} and len(rows(world)) == 2


def test_stop_is_refused_with_the_command_to_use(world):
    code, err = failure_of(world, "stop", "box")
    assert code == 2 and "inv down" in err and "inv resume" in err
