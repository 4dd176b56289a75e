"""Pods with a key for the guard end themselves at vendors that give pods no key; the launcher is gone."""

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from infra.agent import process
from infra.agent.job import SELF_END_KEY
from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.providers.by_name import open_market
from infra.runs import pod_views
from infra.settings import Settings
from tests.faults.test_self_terminate import LIMIT_S, LONG_S, Rented, environ_of, files_with, launch
from tests.faults.trial import checkout
from tests.hosts import until
from tests.infra.rehearsal.worlds import Running, world
from tests.processes import command_line, environ, pids
from tests.world import ROOT

pytestmark = pytest.mark.process

SPEED = 60.0  # on a busy machine, pods boot within this time too
# The trial kills a pod's guard, and the new guard has no key; the market has one such machine of Lium.
GUARDED = {"lium": ("succeeds",), "shadeform": ("succeeds", "revived")}
HIDES = (
    "import sys; from infra.agent import process; import ctypes; process.disable_core_dumps(); process.hide_memory(); "
)
HIDES += "print(ctypes.CDLL(None).prctl(3, 0, 0, 0, 0), process.resource.getrlimit(process.resource.RLIMIT_CORE)[0])"


@pytest.fixture(scope="module")
def running(tmp_path_factory):
    with world(tmp_path_factory.mktemp("world"), speed=SPEED) as one:
        yield one


def guard_of(one: Rented) -> dict:
    return json.loads((one.pod.state / "guard.json").read_text())


def processes_with(text: bytes) -> list[int]:
    """Return the processes with the text in their environment or command line."""
    return [pid for pid in pids() if text in environ(pid) or text in command_line(pid)]


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_finished_pods_end_themselves_and_revived_guards_leave_the_end_to_the_vendor(running, tmp_path, monkeypatch):
    checkout(tmp_path / "checkout")
    key = {"lium": running.about["end_keys"]["lium"], "shadeform": running.about["shadeform"]["key"]}
    monkeypatch.setenv("SELF_END", "1")
    monkeypatch.setenv("LIUM_SELF_END_KEY", key["lium"])
    pods = [one for vendor in key for one in launch(running, tmp_path, vendor, 0, GUARDED[vendor], SPEED)]
    monkeypatch.delenv("LIUM_SELF_END_KEY")
    for one in pods:
        until(one.pod.work.is_dir, "work", LONG_S)
        assert guard_of(one)["self_end"] == "armed"
        assert files_with(key[one.vendor], one.pod.root) == files_with(key[one.vendor], tmp_path / one.vendor) == []
        assert SELF_END_KEY in one.pod.job.read_text()  # and not its value
    assert not [one for each in key.values() for one in processes_with(each.encode())]
    ends = [one for one in pods if "succeeds" in one.run]
    stay = [one for one in pods if "revived" in one.run]
    for one in stay:
        before = process.Identity(**guard_of(one)["identity"])
        assert process.send(before, signal.SIGKILL)
        until(lambda one=one, pid=before.pid: guard_of(one)["identity"]["pid"] != pid, "another guard", LONG_S)
        until(lambda one=one: guard_of(one)["self_end"] == "lost", "its word", LONG_S)
        assert "the vendor's own limit ends the pod" in status_of_ends(running, tmp_path, one)
    for one in pods:
        (one.pod.work / "enough").touch()
    until(lambda: {running.pod(one.pod_id)["state"] for one in ends} <= {"deleting", "gone"}, "their ends", LONG_S)
    for one in stay:
        until(lambda one=one: "started without the key" in one.output(), "the end of the work", LONG_S)
        assert running.pod(one.pod_id)["micro_usd_per_hour"] > 0  # until the vendor's own limit
    running.move(LIMIT_S + 7200)
    until(lambda: (running.truth()["billing"], running.truth()["running"]) == (0, 0), "the vendors' timers", LONG_S)
    assert {running.pod(one.pod_id)["ended_by"] for one in stay} == {"time limit"}
    assert running.truth()["problems"] == []
    for one in pods:
        one.log.close()


def status_of_ends(running: Running, folder: Path, one: Rented) -> str:
    """Return the text of `status` about the ends of the pod."""
    settings = Settings.load(folder, environ=environ_of(running, folder, one.vendor, SPEED))
    with Journal.open(settings.state_file, {"XDG_CONFIG_HOME": str(folder / one.vendor)}) as journal:
        views = pod_views.snapshot(journal, {one.vendor: open_market(one.vendor, settings)}, folder, deadline_s=30.0)
    return "; ".join(next(view.ends for view in views if view.run == one.run))


def test_the_key_of_lium_can_only_end_pods(running, tmp_path):
    about, ends = running.about, running.about["end_keys"]["lium"]

    def asked(key: str) -> str:
        environ = {**environ_of(running, tmp_path, "lium", SPEED), "LIUM_SELF_END_KEY": key}
        return open_market("lium", Settings.load(tmp_path, environ=environ)).check_self_end()

    rented = len(running.truth()["pods"])
    assert asked(ends) == ""
    for key, why in (
        ("", "needs LIUM_SELF_END_KEY"),
        (about["lium"]["key"], "also has the scope rent and billing"),
        (about["read_keys"]["lium"], "scope"),
    ):
        with pytest.raises(UsageError, match=why):
            asked(key)
    environ = environ_of(running, tmp_path, "shadeform", SPEED)
    assert "can use the account" in open_market("shadeform", Settings.load(tmp_path, environ=environ)).check_self_end()
    assert len(running.truth()["pods"]) == rented


def test_a_hidden_process_cannot_be_dumped():
    done = subprocess.run([sys.executable, "-c", HIDES], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["0", "0"]
