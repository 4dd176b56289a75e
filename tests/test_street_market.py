"""Whole launches on rehearsed markets: taken away and brought back, ended at the dollar, on demand, chosen by hand.

The clients, the journal, the hand-over, the agent and the courier are the real ones; the pods are processes here.
"""

import contextlib
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from infra.rehearsal import attach
from tests.world import ROOT, World, until

KEYS = {"RUNPOD_API_KEY": "", "LIUM_API_KEY": "", "SHADEFORM_API_KEY": ""}
GPU = {"runpod": ("H100", "1"), "lium": ("RTX4090", "1"), "shadeform": ("L40S", "1")}
ENDED = ("limit", "stopped")  # stopped: its vendor was first, and its last words had not reached the store
DEAR = ("--gpu", "A100-80GB", "--num-gpus", "8")  # 11.04 USD/h at Shadeform: a dollar lasts 326 s


class Rehearsed(World):
    """An installation whose commands all deal with a rehearsal of their own."""

    @property
    def base(self) -> Path:
        return attach.beside(self.folder / "state" / "journal.db")

    @property
    def world(self) -> attach.Running:
        return attach.find(self.base)

    @property
    def store(self) -> Path:
        return self.world.folder / "artifacts"

    def truth(self) -> dict:
        return self.world.truth()

    def calls(self, name: str) -> int:
        return sum(call["call"] == name for call in self.world.calls())


@pytest.fixture
def user(tmp_path):
    user = Rehearsed(tmp_path, KEYS)
    yield user
    with contextlib.suppress(attach.NoWorld):
        user.inv("rehearse", "--stop")
    assert until(lambda: not user.processes(), "the end of everything")


def flags(vendor: str, *more: str) -> list[str]:
    gpu, number = GPU[vendor]
    return ["--provider", vendor, "--gpu", gpu, "--num-gpus", number, "--phase", "base", *more]


def weights(store: Path, phase: str = "base_checkpoints") -> bytes:
    return next((store / phase / "tiny" / "hf").glob("*.safetensors")).read_bytes()


def test_a_run_that_is_taken_away_ends_with_the_parameters_of_one_that_is_not(user):
    attach.start(user.base, speed=60)
    words = ["--provider", "runpod", "--gpu", "H100", "--num-gpus", "1", "--phase", "mid", "--use-spot", "--yes"]
    told = json.loads(user.inv("rehearse", *words, "--preempt", "1", "--json"))
    assert (told["launch"]["state"], told["launch"]["recoveries"]) == ("succeeded", 1)
    whats = [one["what"] for one in told["timeline"]]
    assert whats.count("stopped (preempted)") == 1 and sum(one.startswith("rented") for one in whats) == 2
    (row,) = user.json("status", "--rehearse")
    assert (row["run"], row["state"], row["recoveries"]) == (told["launch"]["run"], "succeeded", 1)
    log = (user.store / "runs" / row["run"] / "logs" / "fetch.log").read_text()
    assert "step-" in log  # it went on from a checkpoint in the store
    user.inv("launch", "--provider", "local", "--phase", "mid", "--yes")
    for phase in ("base_checkpoints", "mid_checkpoints"):
        assert weights(user.store, phase) == weights(user.folder / "artifacts", phase)
    assert user.truth()["billing"] == 0


@pytest.mark.nightly
def test_a_whole_run_that_is_taken_away_twice_ends_with_the_same_parameters(user):
    attach.start(user.base, speed=60)
    words = ["rehearse", "--provider", "runpod", "--phase", "sft", "--use-spot", "--preempt", "2", "--yes", "--json"]
    told = json.loads(user.inv(*words, "--gpu", "H100", "--num-gpus", "1"))
    assert (told["launch"]["state"], told["launch"]["recoveries"]) == ("succeeded", 2)
    user.inv("launch", "--provider", "local", "--phase", "sft", "--yes")
    assert weights(user.store, "chatsft_checkpoints") == weights(user.folder / "artifacts", "chatsft_checkpoints")


@pytest.mark.nightly  # how much is done within the dollar depends on how busy the machine is
@pytest.mark.timeout(300)
def test_the_dollar_ends_a_run_whose_launcher_is_dead_and_more_money_goes_on_with_it(user):
    attach.start(user.base, speed=20)
    words = ["launch", "--rehearse", "--provider", "shadeform", *DEAR, "--phase", "mid", "--spend-limit", "1", "--yes"]
    launcher = user.begin(*words)
    assert launcher.stderr is not None
    assert any("✓ tokens" in line for line in launcher.stderr)  # in the midst of it
    os.killpg(launcher.pid, signal.SIGKILL)
    launcher.communicate()
    until(lambda: user.truth()["billing"] == 0, "an end")
    (pod,) = user.truth()["pods"]
    poll_usd = 11.04 * 60 / 3600
    assert pod["billed_micro_usd"] <= (1 + 2 * poll_usd) * 1e6  # looked at, and billed, by the minute
    assert user.json("status", "--rehearse")[0]["state"] in ("lost", *ENDED)  # and never at work
    run = until(lambda: [row for row in user.json("status", "--rehearse") if row["state"] in ENDED], "an end")[0]
    folder = user.store / "runs" / run["run"]
    assert (folder / "logs").is_dir()
    assert user.json("audit", "--rehearse")["machines"] == []
    refused = user.begin("resume", run["run"], "--rehearse")
    _, said = refused.communicate(timeout=120)
    assert refused.returncode == 5 and "--spend-limit" in said
    user.inv("resume", run["run"], "--rehearse", "--spend-limit", "20")
    (row,) = user.json("status", "--rehearse")
    assert (row["run"], row["state"]) == (run["run"], "succeeded")
    log = (folder / "logs" / "text.log").read_text()
    assert user.truth()["billing"] == 0 and log.count("documents") <= 1  # what was made is not made again


def test_down_lets_a_rented_pod_save_and_returns_when_the_vendor_has_ended_it(user):
    attach.start(user.base, speed=60)
    run = user.json("launch", "--rehearse", *flags("lium", "--spend-limit", "5", "--detach", "--yes"))["run"]
    until(lambda: (user.store / "runs" / run / "logs" / "environment.log").exists(), "a courier at work")
    user.inv("down", run, "--rehearse")
    truth = user.truth()
    assert truth["billing"] == 0 and truth["running"] == 0
    (row,) = user.json("status", "--rehearse")
    assert (row["state"], row["usd_per_hour"] != "0.00") == ("stopped", True)
    assert not list((user.world.folder / "journal-keys").iterdir())  # the pod's key went with it


def test_a_dry_run_creates_nothing_and_nobody_is_asked_where_nobody_is(user):
    attach.start(user.base, speed=60)
    user.inv("launch", "--rehearse", "--dry-run")
    refused = user.begin("launch", "--rehearse")
    _, said = refused.communicate(timeout=60)
    assert refused.returncode == 2 and "add --yes, or name --cloud, --region and --instance-type" in said
    assert "hyperstack" in said and said.index("33.60") < said.index("35.84") < said.index("38.40")
    assert user.calls("create") == 0


def test_an_instance_is_chosen_by_its_number_and_q_chooses_none(user):
    attach.start(user.base, speed=60)
    said = typed(user, ["9\n", "x\n", "q\n"], "--provider", "shadeform")
    assert said.count("Select instance [1-3] or 'q' to quit:") == 3 and "nothing was rented" in said
    assert user.calls("create") == 0
    said = typed(user, ["2\n"], "--provider", "shadeform", "--phase", "base", "--detach")
    (pod,) = user.truth()["pods"]
    assert "datacrunch" in pod["offer"], said
    user.inv("down", "--all", "--rehearse")


def typed(user: Rehearsed, answers: list[str], *words: str) -> str:
    """What `inv launch` says on a terminal where somebody types these answers."""
    controller, terminal = pty.openpty()
    line = [sys.executable, "-m", "invoke", "launch", "--rehearse", *words]
    process = subprocess.Popen(line, cwd=ROOT, env=user.environ, stdin=terminal, stdout=terminal, stderr=terminal,
                               start_new_session=True)  # fmt: skip
    os.close(terminal)
    said, deadline, rest = "", time.monotonic() + 120, list(answers)
    while time.monotonic() < deadline:
        if select.select([controller], [], [], 0.2)[0]:
            try:
                said += os.read(controller, 65536).decode(errors="replace")
            except OSError:  # the other end was closed
                break
        if rest and said.count("to quit: ") > len(answers) - len(rest):
            os.write(controller, rest.pop(0).encode())
    os.close(controller)
    assert process.wait(60) == 0, said
    return said
