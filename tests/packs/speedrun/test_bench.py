"""The benchmark of nanochat's code and ours: the same schedules, and a number of steps that fits into a time."""

import ast
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from bench import quality, speedrun
from packs.speedrun.records.recipes import MUON
from tests.trainer.conftest import BASE
from tests.world import ROOT
from trainer.config import ScheduleConfig
from trainer.optim import learning_rate_scale, momentum_at

NEAR = 0.004  # our rates, and with the rates our momentum, end at a twentieth of the way
SCHEDULE = ScheduleConfig(warmup_steps=40, decay=0.65, final=0.05)


@pytest.fixture
def folder(inputs, tmp_path) -> Path:
    """Return the folder with the inputs of the arms."""
    for name, there in {"text": "datasets/x/text", "tokenizer": "tokenizer", "tokens": "datasets/x/tokens"}.items():
        (tmp_path / name).symlink_to(inputs[0] / there)
    return tmp_path


def momentum_of(step: int, steps: int) -> float:
    return momentum_at(MUON, step, learning_rate_scale(SCHEDULE, step, steps))


@pytest.mark.parametrize(
    ("step", "expected"), [(0, 0.85), (399, 0.9697), (400, 0.964615), (674, 0.935108), (999, 0.900108)]
)
def test_momentum_of_both_arms_is_that_of_nanochat(step, expected):
    assert momentum_of(step, 1000) == pytest.approx(expected, abs=NEAR)  # `get_muon_momentum` of 1,000 steps


@pytest.mark.nightly
@pytest.mark.skipif("NANOCHAT" not in os.environ, reason="NANOCHAT names no checkout of nanochat")
@pytest.mark.parametrize("steps", [150, 1000, 5568])
def test_momentum_equals_the_code_of_a_checkout(steps):
    tree = ast.parse((Path(os.environ["NANOCHAT"]) / "scripts/base_train.py").read_text(encoding="utf-8"))
    found = next(one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == "get_muon_momentum")
    names = {"args": SimpleNamespace(warmdown_ratio=0.65), "num_iterations": steps}
    exec(compile(ast.Module([found], []), "base_train.py", "exec"), names)
    for step in range(steps):
        assert momentum_of(step, steps) == pytest.approx(names["get_muon_momentum"](step), abs=NEAR), step


@pytest.mark.parametrize(
    ("spent", "whole_s", "steps"),
    [
        ([9.0, 5.0, 5.0, *[2.0] * 10], 26.0, 240),  # the compiler in the first steps does not count
        ([2.0] * 13, 26.0, 240),
        ([700.0] * 13, 9100.0, 1),
        ([2.0], 2.0, 240),
    ],
)
def test_time_is_divided_into_steps_without_the_compiler(spent, whole_s, steps):
    assert speedrun.of_all(spent) == whole_s
    assert speedrun.steps_within(480.0, spent) == steps


@pytest.mark.parametrize(("seconds", "steps"), [(0.0, 4), (5.0, 20)])
def test_arm_trains_for_the_steps_or_for_the_time_that_is_asked_for(folder, monkeypatch, seconds, steps):
    clock = iter(range(10_000))
    monkeypatch.setattr(quality, "perf_counter", lambda: next(clock) / 4)  # each step takes 0.25 s
    config = replace(BASE, compile="never", steps=4)
    found = speedrun.run_arm("ours", folder, Path("none"), config, 1, seconds)
    assert (found["steps"], found["step_s"], found["s"]) == (steps, 0.25, steps / 4)
    assert found["params"] == config.model.num_params and 0 < found["bits_per_byte"] < 16 and found["cpu_s"] > 0
    line = speedrun.line_of("ours", [found])
    assert line.count("|") == len(speedrun.COLUMNS) + 2 and f"| {steps} |" in line


def test_every_arm_has_the_steps_and_the_rows_of_the_command():
    for depth in (4, 12):
        found = speedrun.arms(depth, 150, 8, 256, 3)
        assert {(one.steps, one.rows, one.sequence_len, one.seed) for one in found.values()} == {(150, 8, 256, 3)}
        assert {one.model.num_hidden_layers for name, one in found.items() if name != "smoke"} == {depth}
        longer = {name: one.with_steps(1500).schedule.warmup_steps for name, one in found.items()}
        assert longer == {name: 10 * one.schedule.warmup_steps for name, one in found.items()}


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.skipif("NANOCHAT" not in os.environ, reason="NANOCHAT names no checkout of nanochat")
@pytest.mark.parametrize("length", [("--steps", "4"), ("--seconds", "0.5")])
def test_arms_of_both_codes_train_in_processes_of_their_own(folder, length):
    words = ["--nanochat", os.environ["NANOCHAT"], "--folder", str(folder), "--depth", "1", "--rows", "2", *length]
    words += ["--length", "64", "--val-batches", "1", "--threads", "1", "--eager", "--seeds", "1"]
    for arm in (speedrun.NANOCHAT, "ours"):
        line = [sys.executable, "-m", "bench.speedrun", *words, "--child", arm]
        done = subprocess.run(line, cwd=ROOT, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        assert 0 < found["bits_per_byte"] < 16
        assert found["steps"] == 4 if length[0] == "--steps" else found["steps"] >= 1
