"""The end of `inv track.send`: a server that stops to answer ends the command, and a slow server does not."""

import json
import os
import sys

import pytest

from packs.trackers.control import sending

pytestmark = pytest.mark.process

# Writes one state after the other, and works on the last until the end of the command.
SIDECAR = """
import json, os, sys, time
state, states, is_silent = sys.argv[1], json.loads(sys.argv[2]), sys.argv[3] == "silent"
for one in states:
    with open(state + ".draft", "w") as file:
        json.dump(one, file)
    os.replace(state + ".draft", state)
    time.sleep(0.5)
time.sleep(600 if is_silent else 0)
"""
STEP = {"figures": {"sft": 1}, "samples": {}, "problem": ""}


def test_the_first_report_of_a_server_that_never_answers_is_no_progress(tmp_path, monkeypatch):
    monkeypatch.setattr(sending, "ANSWER_S", 1.0)
    state = tmp_path / "state.json"
    states = [{"figures": {}, "samples": {}, "problem": sending.NO_ANSWER}] * 30
    words = [sys.executable, "-c", SIDECAR, str(state), json.dumps(states), "ends"]
    assert sending._run_sidecar(words, dict(os.environ), state) == -9


@pytest.mark.parametrize(
    ("states", "how", "code"),
    [
        ([{"problem": sending.NO_ANSWER}], "silent", -9),
        ([STEP, {**STEP, "problem": sending.NO_ANSWER}], "silent", -9),
        ([{**STEP, "figures": {"sft": n}, "problem": sending.NO_ANSWER} for n in range(1, 9)], "ends", 0),
    ],
    ids=["no answer", "no answer any more", "slow"],
)
def test_command_ends_when_no_answer_comes_any_more(tmp_path, monkeypatch, states, how, code):
    monkeypatch.setattr(sending, "ANSWER_S", 3.0)
    monkeypatch.setattr(sending, "IDLE_S", 3.0)
    state = tmp_path / "state.json"
    words = [sys.executable, "-c", SIDECAR, str(state), json.dumps(states), how]
    assert sending._run_sidecar(words, dict(os.environ), state) == code
