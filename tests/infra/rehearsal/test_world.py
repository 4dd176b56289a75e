"""A world as a process: start, leftovers, and control of the time."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from infra.agent import process
from tests.infra.rehearsal.worlds import ROOT, Running, begin, until, world

pytestmark = pytest.mark.process

PODS = {
    "runpod": ("POST", "/v2/pods", {"name": "sw1-a", "image": "i", "gpu": {"id": "NVIDIA L40S", "count": 1}}),
    "shadeform": (
        "POST", "/instances/create",
        {"cloud": "hyperstack", "region": "montreal-canada-2", "shade_instance_type": "L40", "shade_cloud": True,
         "name": "b"},
    ),
}  # fmt: skip


def two_pods(running: Running) -> list[str]:
    """Return the tokens of two pods, once their processes run."""
    for vendor, words in PODS.items():
        assert running.call(vendor, *words).status_code in (200, 201)
    until(lambda: all(pod["processes"] >= 2 for pod in running.truth()["pods"]), "two pods with their sshd")
    return [path.read_text() for path in Path(running.about["state"]).glob("pods/*/token")]


def test_a_world_asked_to_end_leaves_no_process_and_no_folder(tmp_path):
    with world(tmp_path) as running:
        tokens = two_pods(running)
        assert len(tokens) == 2 and all(process.find(token) for token in tokens)
        assert (tmp_path / "state" / "world.json").stat().st_mode & 0o777 == 0o600
        assert running.end(signal.SIGTERM) == 0
    assert [process.find(token) for token in tokens] == [[], []]
    assert not (tmp_path / "state" / "pods").exists() and not (tmp_path / "state" / "world.json").exists()


def test_a_world_ends_pods_with_stopped_processes(tmp_path):
    """A user simulates a hung machine with SIGSTOP for all processes."""
    with world(tmp_path) as running:
        tokens = two_pods(running)
        for one in process.find(tokens[0]):
            os.kill(one.pid, signal.SIGSTOP)
        assert running.end(signal.SIGTERM) == 0
    assert not [one for token in tokens for one in process.find(token)]


def test_a_killed_world_takes_its_pods_along_and_the_next_world_ends_leftovers(tmp_path):
    with world(tmp_path) as running:
        tokens = two_pods(running)
        # A pod loses its first process too, and with it the process that would have ended the pod.
        orphaned = process.find(tokens[0])
        os.kill(orphaned[0].pid, signal.SIGKILL)
        assert running.end(signal.SIGKILL) == -signal.SIGKILL
        until(lambda: not process.find(tokens[1]), "the pod that ends by itself")
        assert process.find(tokens[0])
        again = begin(tmp_path)
        try:
            assert not process.find(tokens[0]) and again.truth()["pods"] == []
        finally:
            assert again.end() == 0
            again.client.close()


def test_a_second_world_in_the_same_folder_is_refused(tmp_path):
    with world(tmp_path):
        words = [sys.executable, "-m", "infra.rehearsal", "--state", str(tmp_path / "state")]
        done = subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and "already" in done.stderr and "Traceback" not in done.stderr


def test_prices_and_balances_come_from_the_plan_and_time_is_movable(tmp_path):
    plan = tmp_path / "faults.yaml"
    plan.write_text(
        "prices: [{at_s: 3600, offer: hyperstack/L40, factor: 2}]\nbalance_usd: {runpod: 0.5}\nlium_key_budget_usd: 0\n"
    )
    with world(tmp_path, "--faults", str(plan), speed=1) as running:

        def price() -> int:
            query = {"cloud": "hyperstack", "shade_instance_type": "L40"}
            rows = running.call("shadeform", "GET", "/instances/types", params=query).json()["instance_types"]
            return rows[0]["hourly_price"]

        assert running.call("runpod", *PODS["runpod"]).status_code == 402
        template = running.call("lium", "GET", "/templates").json()[0]["id"]
        host = running.call("lium", "GET", "/executors").json()[0]["id"]
        body = {"pod_name": "sw1-a", "template_id": template, "user_public_key": ["ssh-ed25519 A"]}
        spent = running.call("lium", "POST", f"/executors/{host}/rent", body)
        assert (spent.status_code, spent.json()["error"]["code"]) == (402, "API_KEY_BUDGET_EXCEEDED")
        assert price() == 100
        running.move(3700)
        assert price() == 200
        assert running.send_command("/move", {"seconds": -1}).status_code == 400
        calls = running.client.get(running.about["truth"] + "/calls").json()
        told = [(one["vendor"], one["call"], one["status"]) for one in calls]
        assert [one for one in told if one[1] == "create"] == [("runpod", "create", 402), ("lium", "create", 402)]


def test_an_invalid_file_is_named_and_no_world_starts(tmp_path):
    wrong = tmp_path / "offers.json"
    wrong.write_text('[{"vendor": "nobody"}]')
    words = [sys.executable, "-m", "infra.rehearsal", "--state", str(tmp_path / "state"), "--offers", str(wrong)]
    done = subprocess.run(words, cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=30)
    assert done.returncode == 2 and str(wrong) in done.stderr and "Traceback" not in done.stderr
