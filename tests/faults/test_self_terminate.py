"""Pods without a returning launcher end by themselves, or by the vendor's timer. The true state decides."""

import contextlib
import json
import os
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from infra.agent import process
from infra.agent.job import PodFolder
from infra.ledger.journal import Journal
from infra.providers.by_name import open_market
from infra.runs import run_rows
from infra.runs.keepers.run_keeper import RunKeeper
from infra.runs.run_home import RunHome
from infra.settings import VENDORS, Settings
from store.run_sync.run_folder import ENDING, RunFolder
from tests.faults.test_secrets import encodings, files
from tests.faults.trial import checkout, rounds
from tests.hosts import first_process, until
from tests.infra.rehearsal.worlds import Running, world
from tests.processes import command_lines
from tests.programs import source
from tests.world import ROOT

pytestmark = pytest.mark.process

SPEED = 600.0
LIMIT_S = 7 * 86400.0  # by the vendors' clocks; a good quarter of an hour of real time
LONG_S = 120.0
# The end of each pod's work; the pods of two vendors cannot end themselves, however their work ends.
ENDINGS = {"runpod": ("succeeds", "fails"), "shadeform": ("succeeds",), "lium": ("succeeds",)}
LAUNCH = source("rent_and_wait")
FAILS = """
import os, time
while not os.path.exists(os.path.join(os.environ["SLIPWAY_WORK"], "enough")):
    time.sleep(0.02)
raise SystemExit("there was enough")
"""


@dataclass(frozen=True)
class Rented:
    """A pod at work with a killed launcher; `log` is the guard's log, which stays readable after its removal."""

    vendor: str
    run: str
    pod_id: str
    pod: PodFolder
    log: Any

    def output(self) -> str:
        self.log.seek(0)
        return self.log.read()


@pytest.mark.nightly
@rounds(1, 25)
def test_pods_of_a_dead_launcher_are_ended(tmp_path, monkeypatch, rounds):
    monkeypatch.setenv("PATH", os.pathsep.join([sysconfig.get_path("scripts"), os.environ["PATH"]]))  # has uv
    root = checkout(tmp_path / "checkout")
    (root / "fails.py").write_text(FAILS)
    with world(tmp_path / "world", speed=SPEED) as running, ThreadPoolExecutor(len(VENDORS)) as pool:
        for number in range(rounds):
            launched = pool.map(lambda name, n=number: launch(running, tmp_path, name, n), ENDINGS)
            trial(running, tmp_path, [one for rented in launched for one in rented])


def launch(
    running: Running, folder: Path, vendor: str, number: int, endings: Sequence[str] = (), speed: float = SPEED
) -> list[Rented]:
    """Launch by a process killed right after the hand-over."""
    endings = endings or ENDINGS[vendor]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), **environ_of(running, folder, vendor, speed)}
    words = [sys.executable, "-c", LAUNCH, str(folder), vendor, str(number), str(LIMIT_S), *endings]
    with subprocess.Popen(
        words, env=environ, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as launcher:
        assert launcher.stdout is not None and launcher.stderr is not None
        lines = [launcher.stdout.readline() for _ in endings]
        launcher.kill()
        assert all(lines), launcher.stderr.read()
    rented = []
    for one in map(json.loads, lines):
        pod = PodFolder(Path(one["folder"]))
        rented.append(Rented(vendor, one["run"], one["id"], pod, pod.log("guard").open()))
    return rented


def environ_of(running: Running, folder: Path, vendor: str, speed: float = SPEED) -> dict[str, str]:
    """Return the environment of an installation with only this world."""
    environ = {
        "SLIPWAY_CLOCK_SCALE": str(speed),
        "SLIPWAY_STATE_FILE": str(folder / vendor / "journal.db"),
        "SLIPWAY_BOOT_S": f"{LONG_S * speed:.0f}",
    }
    for name, key in VENDORS.items():
        about = running.about[name]
        environ |= {f"SLIPWAY_{name.upper()}_URL": about["url"], key.upper(): about["key"]}
    return environ


def trial(running: Running, folder: Path, rented: list[Rented]) -> None:
    """End the work of all pods while RunPod is out of order, then let RunPod's clock run on."""
    own = [one for one in rented if one.vendor == "runpod"]
    lines: set[bytes] = set()

    def all_of(pods: list[Rented], words: str) -> bool:
        lines.update(command_lines())
        return all(words in one.output() for one in pods)

    def truth(pods: list[Rented]) -> list[dict[str, Any]]:
        lines.update(command_lines())
        return [running.pod(one.pod_id) for one in pods]

    running.fault(requests=[{"vendor": "runpod", "call": "delete", "kind": "error", "status": 503, "count": None}])
    keys = [process.environ_of(first_process_of(running, one.pod_id))["RUNPOD_API_KEY"] for one in own]
    for one in rented:
        until(one.pod.work.is_dir, "work", LONG_S)
        (one.pod.work / "enough").touch()
    until(lambda: all_of(rented, "the end: "), "all verdicts", LONG_S)
    until(lambda: all_of(own, "/graphql: 503"), "refused requests", LONG_S)
    for one in rented:
        verdict = json.loads(one.pod.verdict.read_text())["state"]
        assert verdict == ("failed" if "fails" in one.run else "succeeded"), one
    assert all(pod["micro_usd_per_hour"] > 0 for pod in truth(rented))  # until a user ends the pods
    for key in keys:
        assert files_with(key, folder) == [] and not any(key.encode() in line for line in lines)
    running.fault()
    until(
        lambda: {pod["state"] for pod in truth(own)} <= {"deleting", "gone"}, "pods that have ended themselves", LONG_S
    )
    assert [pod["ended_by"] for pod in truth(own)] == ["pod"] * len(own)
    for one in own:
        check_run_stays_over(running, folder, one)
    others = [one for one in rented if one not in own]
    assert not any("self-termination" in one.output() for one in others)
    assert all(pod["micro_usd_per_hour"] > 0 for pod in truth(others))
    running.move(LIMIT_S + 7200)
    until(lambda: (running.truth()["billing"], running.truth()["running"]) == (0, 0), "the vendors' timers", LONG_S)
    assert [pod["ended_by"] for pod in truth(others)] == ["time limit"] * len(others)
    assert running.truth()["problems"] == []
    for one in rented:
        one.log.close()


def check_run_stays_over(running: Running, folder: Path, one: Rented) -> None:
    """Return as the keeper of a run after the pod has ended itself: the run is over, and nothing is rented."""
    settings = Settings.load(folder, environ=environ_of(running, folder, one.vendor))
    vendor, state = open_market(one.vendor, settings), "failed" if "fails" in one.run else "succeeded"
    rented = len(running.truth()["pods"])
    with Journal.open(settings.state_file, {"XDG_CONFIG_HOME": str(folder / one.vendor)}) as journal:
        *before, op = journal.ops(run=one.run)  # on a busy machine a launch may have passed over an offer
        assert op.remote_id == one.pod_id and not any(row.is_live for row in before)
        # The uploader of a real job leaves these files; this small job has no uploader.
        said = json.dumps({"token": op.token, "state": state, "reason": ""}).encode()
        RunFolder(op.store, op.run).put({ENDING: [said]})
        keeper = RunKeeper(
            journal, lambda _: vendor, vendor.offers, RunHome(folder / one.vendor / one.run), {}, lambda _: None
        )
        with keeper.hold_lease(one.run):
            assert [verdict for _, verdict in keeper.follow_run(op)][-1]["state"] == state
        row = journal.ops(run=one.run)[-1]
        assert row.token == op.token
        assert (row.state, row.outcome, run_rows.is_over(row)) == ("TERMINATED", state, True)
    assert len(running.truth()["pods"]) == rented


def files_with(key: str, folder: Path) -> list[Path]:
    """Return the files that contain the secret, in any encoding."""
    found = []
    for path in files(folder):
        with contextlib.suppress(FileNotFoundError):  # a draft, renamed meanwhile
            content = path.read_bytes()
            found += [path] if any(form in content for form in encodings(key)) else []
    return found


def first_process_of(running: Running, pod_id: str) -> int:
    (token,) = (path.read_text() for path in Path(running.about["state"]).glob(f"pods/{pod_id}-*/token"))
    return first_process(token)
