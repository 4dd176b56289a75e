"""Damaged or unwritable files: the message, its time, and no delay for other runs."""

import json
import subprocess

import pytest

from infra.agent.process import end_all
from infra.errors import SlipwayError
from infra.ledger.journal import Journal
from infra.providers.local import Local
from infra.runs import observation, pods
from infra.settings import Settings
from infra.transport.protocol import ThisMachine
from infra.transport.push import push
from tests.faults.trial import COUNT, Counted, checkout, plan
from tests.hosts import until
from tests.infra.transport.test_push import TOKEN, make_pod
from tests.street import launch_on
from tests.world import ROOT, World

pytestmark = pytest.mark.process

DAMAGE = {
    "truncated": lambda marker: marker.write_text(marker.read_text()[:20]),
    "a folder": lambda marker: (marker.unlink(), marker.mkdir()),
}


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


@pytest.fixture
def runs(world, tmp_path):
    """Launch runs by name on this machine; end all runs after the test."""
    root = checkout(tmp_path / "checkout")
    begun = []

    def begin(run):
        with Journal.open(Settings.load(ROOT, environ=world.environ).state_file) as journal:
            provider = Local(tmp_path / "pods")
            wanted = plan(tmp_path / "store", COUNT, run=run)
            begun.append(launch_on(provider, wanted, journal, root))
        return begun[-1]

    yield begin
    for op in begun:
        assert not end_all(op.token, 0.0)


@pytest.mark.day_cases(1)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_marker_delays_no_other_run(tmp_path, runs, damage):
    bad, good = runs("bad-1"), runs("good-1")
    marker = observation.folder_of(bad).marker
    DAMAGE[damage](marker)
    provider = Local(tmp_path / "pods")
    with Journal.open(tmp_path / "state" / "journal.db") as journal:
        assert provider.find(good.remote_id) is not None
        assert {pod.run: pod.token for pod in provider.list()} == {"bad-1": "", "good-1": good.token}
        assert pods.settle(provider, good, journal) == good
        assert pods.end(provider, good, journal).state == "TERMINATED"
        with pytest.raises(SlipwayError, match=r"POD.json is damaged .*; remove the file, then run: inv down bad-1"):
            pods.end(provider, bad, journal)
        third = runs("third-1")
        assert pods.end(provider, third, journal).state == "TERMINATED"
        marker.rmdir() if marker.is_dir() else marker.unlink()
        assert pods.end(provider, journal.op(bad.token), journal).state == "TERMINATED"


def test_a_damaged_marker_is_one_table_row_and_the_advice_works(world, tmp_path, runs):
    bad, _ = runs("bad-1"), runs("good-1")
    marker = observation.folder_of(bad).marker
    marker.write_text('{"token": "sw1')
    rows = {row["run"]: row for row in world.json("status")}
    assert "POD.json is damaged" in rows["bad-1"]["note"] and "inv down bad-1" in rows["bad-1"]["note"]
    assert rows["good-1"]["state"] == "running" and not rows["good-1"]["note"]
    world.inv("down", "good-1")
    world.inv("down", "bad-1", code=1)
    marker.unlink()
    world.inv("down", "bad-1")
    assert not {"running", "lost"} & {row["state"] for row in world.json("status")}
    assert not end_all(bad.token, 0.0)


def test_a_marker_with_the_token_of_another_pod_is_left_alone(world, tmp_path, runs):
    bad, good = runs("bad-1"), runs("good-1")
    marker = observation.folder_of(bad).marker
    marker.write_text(json.dumps({"token": "sw1-somebody-else", "run": "bad-1"}))
    before = marker.read_text()
    count = Counted(observation.folder_of(good))
    until(count.lines, "a count")
    world.json("status")
    world.inv("down", "bad-1")
    assert marker.read_text() == before
    assert not end_all(bad.token, 0.0)
    seen = len(count.lines())
    until(lambda: len(count.lines()) > seen, "the other run goes on")


def test_the_plan_reports_an_unwritable_store(world, tmp_path):
    (tmp_path / "file").write_text("not a folder")
    places = {"/proc/nothing/here": "No such file", str(tmp_path / "file" / "store"): "Not a directory"}
    for place, why in places.items():
        for flags in (["--dry-run"], ["--yes"]):
            process = world.run("launch", "--phase", "base", "--store", place, *flags)
            out, err = process.stdout, process.stderr
            assert process.returncode == 2 and out == "", (out, err)
            assert f"the store {place} is not writable" in err and why in err and "--store" in err
    assert not (tmp_path / "pods").exists() and world.json("status") == []


def test_the_plan_reports_a_store_on_a_read_only_disk(world, disk):
    subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
    process = world.run("launch", "--phase", "base", "--yes", "--store", str(disk / "artifacts"))
    err = process.stderr
    assert process.returncode == 2 and "Read-only file system" in err


def test_a_push_onto_a_full_disk_reports_it_and_continues_when_there_is_room(tmp_path, disk):
    root, dest = checkout(tmp_path / "checkout", ballast_bytes=6_000_000), make_pod(disk / "pod")
    with pytest.raises(SlipwayError, match="push to .*: .*No space left on device") as failure:
        push(ThisMachine(), root, dest, TOKEN)
    assert "Traceback" not in str(failure.value) and not list(dest.rglob("*.draft"))
    (root / "ballast").write_bytes(b"")
    push(ThisMachine(), root, dest, TOKEN)
    assert (dest / "counter.py").read_text() == (root / "counter.py").read_text()
