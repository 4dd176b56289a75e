"""Pods that are rented first and used later, by several runs at once."""

import json
import shutil
from pathlib import Path

import pytest

from infra.rehearsal import attach
from tests.end_to_end.test_street_market import KEYS, Rehearsed

pytestmark = [
    pytest.mark.nightly,
    pytest.mark.pack("jobs"),
    pytest.mark.process,
    pytest.mark.needs("sshd", "ssh-keygen"),
    pytest.mark.timeout(600),
]
TWO_GPUS = ("--provider", "lium", "--gpu", "RTX4090,L40S", "--num-gpus", "2")


@pytest.fixture
def user(tmp_path):
    one = Rehearsed(tmp_path, {**KEYS, "SLIPWAY_BOOT_S": "6000"})
    attach.start(one.base, speed=20)
    yield one
    one.inv("rehearse", "--stop")


def run_of(folder: Path, name: str, *more: str) -> list[str]:
    """Return a job that waits until both jobs are at work."""
    meet = f"touch {folder}/{name}; while [ $(ls {folder} | wc -l) -lt 2 ]; do sleep 0.1; done"
    return ["launch", "--cmd", meet, "--run-name", name, "--no-deploy", *more]


def test_held_pod_takes_two_runs_at_once_then_a_third_without_a_second_setup(user):
    folder = user.folder / "meeting"
    folder.mkdir()
    code, out, err = failure_of(user, *run_of(folder, "early"))
    assert code == 3 and "no pod is held" in err, (out, err)
    made = user.json("launch", *TWO_GPUS, "--deploy-only", "--run-name", "box", "--ttl", "8h", "--yes", "--rehearse")
    assert (made["run"], made["stays"], made["for"]) == ("box", True, "nothing yet") and float(made["usd_per_hour"]) > 0
    refused = failure_of(user, "launch", "--provider", "lium", "--gpu", "L40S", "--phase", "base", "--no-sync")
    assert refused[0] == 2 and "a new machine has no code" in refused[2]
    done = user.run_in_parallel(
        {name: run_of(folder, name, "--host", "box", "--devices", device) for name, device in ("a0", "b1")}
    )
    assert [one.returncode for one in done.values()] == [0, 0], done
    rows = user.status()
    assert {rows[name]["state"] for name in ("a", "b")} == {"succeeded"} and rows["box"]["state"] == "idle"
    again = user.run(*run_of(folder, "c", "--no-sync", "--no-setup"), "--rehearse")
    err = again.stderr
    assert again.returncode == 0 and "sync: skipped; code is that of" in err and "setup: skipped" in err, err
    user.inv("down", "box", "--rehearse")
    truth = user.truth()
    assert (len(truth["pods"]), truth["billing"]) == (1, 0)


def failure_of(user: Rehearsed, *words: str) -> tuple[int, str, str]:
    process = user.run(*words, "--rehearse")
    out, err = process.stdout, process.stderr
    return process.returncode, out, err


@pytest.mark.pack("sweeps")
def test_sweep_packs_its_runs_on_one_pod_and_returns_the_pod_after_the_last(user, stock):
    shutil.copytree(stock, user.store, dirs_exist_ok=True)
    each = {"profile": "tiny", "phase": "base", "gpu": "RTX4090,L40S", "steps": 3}
    runs = [{"name": name, "seed": number} for number, name in enumerate("abc")]
    path = user.folder / "packed.yaml"
    path.write_text(json.dumps({"each": each, "runs": runs}))
    sweep = ("sweep", str(path), "--provider", "lium", "--pack", "2", "--spend-limit", "40", "--yes", "--rehearse")
    planned = user.json(*sweep, "--dry-run")
    assert [lane["devices"] for lane in planned["lanes"]] == ["0", "1"]
    assert {lane["host"] for lane in planned["lanes"]} == {"packed.pod-1"} and user.truth()["pods"] == []
    begun = user.run(*sweep, "--json", timeout_s=580)
    out, err = begun.stdout, begun.stderr
    assert begun.returncode == 0, err
    done = json.loads(out)
    assert [one["state"] for one in done["runs"]] == ["succeeded"] * 3
    assert {one["pod"] for one in done["runs"]} == {"packed.pod-1 device 0", "packed.pod-1 device 1"}
    truth = user.truth()
    assert (len(truth["pods"]), truth["billing"]) == (1, 0), "one pod for all"
    assert 0 < float(done["usd"]) <= 40 and all(float(one["usd"]) > 0 for one in done["runs"])
