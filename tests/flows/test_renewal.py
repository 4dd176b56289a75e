"""Code changes of a checkout under a running supervisor: processes of the new code take over, and no run is lost."""

import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from flows.supervisor import supervisor as supervisor_module
from flows.supervisor import supervisor_client
from infra import checkout as running_code
from infra.ledger.journal import Journal
from infra.ledger.leases import SUPERVISOR, Holder
from infra.settings import Settings
from serve.controller import Controller
from tests.flows.test_supervisor import begun
from tests.world import ROOT, until

GUARD_S = 60.0


def of_supervisor(journal: Journal) -> Holder | None:
    return next((one for one in journal.leases.holders() if one.lease == SUPERVISOR), None)


@pytest.fixture
def settings(tmp_path, monkeypatch):
    for name in ("STATE", "CONFIG"):
        monkeypatch.setenv(f"XDG_{name}_HOME", str(tmp_path / name.lower()))
    monkeypatch.setenv("HOME", str(tmp_path))
    return Settings.load(ROOT)


@pytest.fixture
def journal(settings):
    with Journal.open(settings.state_file) as opened:
        yield opened


@pytest.fixture
def sweep_at_work(journal):
    """Start a process at work on a sweep, which keeps a supervisor alive."""
    words = [sys.executable, "-m", "tests.infra.ledger.holder", "", "leaves", "sweep:demo"]
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "held\n"
        yield
        process.kill()


@pytest.fixture
def checkout(tmp_path, monkeypatch):
    """Make a second checkout, which a supervisor checks often; supervisors are started from this checkout."""
    folder = tmp_path / "checkout"
    for name in filter(Path.is_dir, map(ROOT.joinpath, running_code.PRODUCT)):
        shutil.copytree(name, folder / name.name, ignore=shutil.ignore_patterns("*.pyc.*"))
    shutil.copy2(ROOT / "pyproject.toml", folder)
    watch = folder / "infra" / "checkout.py"
    watch.write_text(watch.read_text().replace("LOOK_EVERY_S = 15.0", "LOOK_EVERY_S = 0.2"))
    monkeypatch.setattr(supervisor_client, "ROOT", folder)
    return folder


@pytest.fixture
def ended_supervisor(journal):
    """Kill the remaining supervisor at the end of a test."""
    yield
    if (holder := of_supervisor(journal)) is not None:
        os.kill(holder.process.pid, 9)


@pytest.mark.process
def test_a_supervisor_of_older_code_is_replaced_once_its_successor_is_up(
    journal, settings, sweep_at_work, checkout, ended_supervisor
):
    op, log = begun(journal, "far-1"), supervisor_client.log_file(settings)
    supervisor_client.start(settings)
    until(lambda: "far-1: kept by the supervisor from now on" in log.read_text(), "its keeper", GUARD_S)
    first = of_supervisor(journal)

    names = checkout / "infra" / "names.py"
    good = names.read_text()
    names.write_text("def broken(:\n")
    until(lambda: "has exited with code 1; this process continues" in log.read_text(), "the failure", GUARD_S)
    assert of_supervisor(journal) == first

    names.write_text(f"{good}\n# other code\n")
    until(lambda: (one := of_supervisor(journal)) and one.process != first.process, "the successor", GUARD_S)
    assert of_supervisor(journal).code not in ("", first.code)
    begun_by = f"process {of_supervisor(journal).process.pid} looks after"
    until(
        lambda: "far-1: kept by the supervisor from now on" in log.read_text().partition(begun_by)[2],
        "its keeper",
        GUARD_S,
    )
    left = journal.ops(run="far-1")
    assert [(one.token, one.state) for one in left] == [(op.token, op.state)]


@pytest.mark.pack("control_host")
@pytest.mark.process
def test_control_start_replaces_only_a_supervisor_of_different_code(
    journal, settings, sweep_at_work, checkout, ended_supervisor
):
    supervisor_client.start(settings)
    until(lambda: of_supervisor(journal), "the supervisor", GUARD_S)
    older = of_supervisor(journal)
    assert older.code not in ("", running_code.stamp())
    supervisor_client.ROOT = ROOT
    pid = supervisor_client.renew(settings)
    assert (of_supervisor(journal).process.pid, of_supervisor(journal).code) == (pid, running_code.stamp())
    assert pid != older.process.pid and supervisor_client.renew(settings) is None


def test_a_successor_is_started_once_per_code_version(journal, settings, monkeypatch):
    codes, started, told = ["", "b" * 12, "b" * 12, "b" * 12, "c" * 12], [], []
    monkeypatch.setattr(supervisor_module, "load", lambda: settings)

    def start(settings, renews):
        started.append(renews)
        return SimpleNamespace(poll=lambda: 1, returncode=1)

    monkeypatch.setattr(supervisor_module, "start", start)
    supervisor = supervisor_module.Supervisor(settings, journal, 0.0, told.append)
    for code in codes:
        supervisor.code = SimpleNamespace(changed_stamp=lambda code=code: code)
        supervisor.start_successor()
    assert started == [True, True] and sum("has exited with code 1" in one for one in told) == 1


def test_new_code_counts_after_two_looks_in_a_row(monkeypatch):
    clock, found = [0.0], [running_code.stamp()]
    monkeypatch.setattr(running_code, "hash_checkout", lambda: found[0])
    monkeypatch.setattr(running_code.time, "monotonic", lambda: clock[0])
    watch = running_code.CodeWatch()
    said = []
    for code in ("a", "b", "b", "b", running_code.stamp(), running_code.stamp()):
        clock[0] += running_code.LOOK_EVERY_S
        found[0] = code
        said.append(watch.changed_stamp())
    assert said == ["", "", "b", "b", "", ""]
    found[0], clock[0] = "d", clock[0] + 1
    assert watch.changed_stamp() == ""


@pytest.mark.parametrize(
    ("other", "supervisor", "leaves"),
    [("", "b", False), ("b", "", False), ("b", "a", False), ("b", "b", True)],
)
def test_a_controller_exits_for_new_code_once_a_new_supervisor_lives(journal, other, supervisor, leaves):
    if supervisor:
        journal.leases.acquire(SUPERVISOR, supervisor)
    told = []
    controller = SimpleNamespace(
        name="demo",
        journal=journal,
        say=told.append,
        is_leaving=False,
        code=SimpleNamespace(changed_stamp=lambda: other),
    )
    assert Controller._should_stop(controller) is leaves and controller.is_leaving is leaves
    assert len(told) == leaves
    controller.is_leaving = True
    assert Controller._should_stop(controller)
