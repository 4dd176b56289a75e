"""The reports of a run: consistent metrics, over recoveries too; and samples of the model's text."""

import json
import math
import re
from dataclasses import asdict, replace

import numpy as np
import pytest
import torch

from data.tokens import tokenizer as tokenizers
from infra.market import gpus
from tests.trainer.checkpoints.test_checkpoint import EASY, stop_at, training
from tests.trainer.conftest import tiny
from trainer.device import Machine
from trainer.model.decoder import Decoder, initialize
from trainer.objectives.passes import tokens_in
from trainer.reporting import peak_flops
from trainer.reporting.jsonl_log import FOLLOWED, SAID, StepLines, parse, read
from trainer.reporting.metrics import POINTS, Curve, Metrics, StepTokens
from trainer.reporting.peak_flops import Peak
from trainer.reporting.samples import TALK, Sampler, is_due


def records_of(path, kind):
    """Return the records of a kind in the file of a step."""
    return [one for one in map(json.loads, path.read_text().splitlines()) if one["kind"] == kind]


PARTS = ("compile", "data", "evaluation", "saves")
NEW = ("mfu", "tokens_per_s", "step_s", "data_wait_s", "memory_bytes", "at")


def test_metrics_of_a_step_follow_their_formulas(tmp_path):
    one = training(tmp_path, steps=6)
    one.peak = Peak(1e9, "a device of 1 GFLOP/s")
    one.run()
    lines = read(tmp_path / "metrics" / "metrics.jsonl")
    tokens, flops = 4 * 16, tiny().model.flops_per_token(16)
    assert [line["tokens"] for line in lines] == [tokens * (at + 1) for at in range(6)]
    assert [line.get("mfu_of") for line in lines] == ["a device of 1 GFLOP/s", *[None] * 5]
    seconds = 0.0
    for at, line in enumerate(lines):
        assert {"loss", "grad_norm", "lr", *NEW} <= line.keys()
        seconds += line["step_s"]
        rate = tokens * (at + 1) / seconds
        assert line["tokens_per_s"] == pytest.approx(rate, rel=1e-3, abs=0.1)  # The mean over the last steps.
        assert line["mfu"] == pytest.approx(rate * flops / 1e9, rel=1e-3, abs=1e-4)
    assert 1 << 26 < lines[-1]["memory_bytes"] < 1 << 40


@pytest.mark.slow
def test_rate_covers_the_last_steps_and_a_curve_the_whole_run(tmp_path, monkeypatch):
    told = tmp_path / "records.jsonl"
    monkeypatch.setenv("SLIPWAY_RECORDS", str(told))
    stop_at(training(tmp_path, steps=40), 33)
    final = training(tmp_path, steps=40)
    final.run()
    lines = read(tmp_path / "metrics" / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, 41))
    record = records_of(told, "progress")[-1]
    assert record["curve"] == [
        round(math.fsum(line["loss"] for line in lines[at : at + 2]) / len(lines[at : at + 2]), 3)
        for at in range(0, 40, 2)
    ]
    assert record["tokens_per_s"] == lines[-1]["tokens_per_s"]
    assert record["eta_s"] == 0


def test_curve_of_rl_shows_its_reward_also_over_a_recovery(tmp_path, monkeypatch):
    told = tmp_path / "records.jsonl"
    monkeypatch.setenv("SLIPWAY_RECORDS", str(told))
    for start in (0, 2):
        metrics = Metrics(tmp_path / "metrics", start, tiny(steps=4))
        for step in range(start + 1, start + 3):
            metrics.step(step, StepTokens(8, 8, 8), loss=0.0, reward=step / 4)
        metrics.close()
    assert records_of(told, "progress")[-1]["curve"] == [0.25, 0.5, 0.75, 1.0]


def test_parts_of_a_training_follow_its_stages_and_fit_into_its_time(tmp_path, monkeypatch):
    told = tmp_path / "records.jsonl"
    monkeypatch.setenv("SLIPWAY_RECORDS", str(told))
    one = training(tmp_path, steps=6)
    one.sample = lambda: [{"prompt": "a", "text": "b"} for _ in range(200_000)][:1]  # takes some milliseconds
    one.run()
    parts = records_of(told, "part")
    assert [each["part"] for each in parts if "took_s" not in each] == ["steps", "saves"]
    spent = {name: sum(each["took_s"] for each in parts if each["part"] == name and "took_s" in each) for name in PARTS}
    assert spent["evaluation"] > 0 < spent["saves"] and spent["compile"] == 0
    assert spent["data"] == pytest.approx(
        sum(line["data_wait_s"] for line in read(tmp_path / "metrics" / "metrics.jsonl")), abs=2e-3
    )
    begun, ended = (each["clock_s"] for each in parts if "took_s" not in each)
    assert sum(spent.values()) < ended - begun
    assert all(begun <= each["clock_s"] <= ended for each in parts)


def test_padding_is_not_counted_as_tokens():
    targets = np.array([[-1, 5, 6, -1, -1], [-1, -1, -1, -1, -1], [1, 2, 3, 4, 5], [7, -1, -1, -1, 8]])
    assert tokens_in({"ids": np.zeros((4, 5), np.int64), "targets": targets}) == 3 + 0 + 5 + 5


def test_curve_has_a_bounded_number_of_points_for_any_run_length():
    for steps in (1, POINTS, POINTS + 1, 400_000):
        curve = Curve(steps)
        for step in {1, steps // 2 + 1, steps}:
            curve.add(step, float(step))
        assert max(curve.sums) < POINTS
    assert Curve(10).points() == []


def test_repeated_steps_and_incomplete_lines_are_dropped(tmp_path):
    path = tmp_path / "lines.jsonl"
    told = [{"step": step, "tokens": 96 * step, "loss": 2.5} for step in (1, 2, 2, 3)]
    told[2]["lr"] = 0.1
    path.write_text("".join(f"{json.dumps(one)}\n" for one in told) + '{"step": 3, "tok')
    lines = StepLines(path, 2)
    lines.add({**told[3], "loss": 2.25})
    lines.close()
    assert read(path) == [*told[:3], {**told[3], "loss": 2.25}]


def test_gpu_speeds_of_metrics_equal_the_speeds_of_forecasts():
    for gpu in gpus.GPUS:
        for device in (*gpu.runpod, *gpu.lium):
            if gpus.is_slice(gpu.name):  # The machine itself reports the slice.
                continue
            found, wanted = peak_flops.of_name(device), gpus.tflops(gpu.name)
            assert found or wanted is None, device
            assert wanted is None or found.flops_per_s == wanted * 1e12, device
    assert peak_flops.of_name("Voodoo 2") is None
    named = {
        "NVIDIA A40": 149.7,
        "NVIDIA A10": 125,
        "NVIDIA A10G": 70,
        "NVIDIA L4": 121,
        "NVIDIA H20": 148,
        "NVIDIA RTX A4000": 77,
        "NVIDIA RTX 6000 Ada Generation": 364,
        "NVIDIA GB200": 2500,
        "NVIDIA GH200 480GB": 989,
        "AMD Instinct MI300X": 1307,
    }
    for device, tflops in named.items():
        assert peak_flops.of_name(device).flops_per_s == tflops * 1e12, device


def test_gpu_slice_is_as_fast_as_its_multiprocessors():
    found = peak_flops.of_name("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 42)
    assert found.flops_per_s == pytest.approx(312e12 * 42 / 108)
    assert "42 of 108" in found.source
    assert peak_flops.of_name("NVIDIA H100 80GB HBM3 MIG 7g.80gb", 132).flops_per_s == 989e12
    assert peak_flops.of_name("NVIDIA A100-SXM4-40GB MIG 3g.20gb") is None  # The number is unknown.


def test_cpu_speed_is_measured_and_labelled():
    found = peak_flops.of_machine(Machine(torch.device("cpu"), torch.float32, 1))
    assert 1e8 < found.flops_per_s < 1e13
    assert "measured" in found.source


def test_samples_are_taken_at_equal_distances_and_at_the_end():
    for steps, times in ((144, 6), (7, 3), (3, 6), (1, 1), (100, 0)):
        due = [step for step in range(1, steps + 1) if is_due(step, steps, times)]
        assert len(due) == min(steps, times)
        assert not due or due[-1] == steps
        assert len({later - before for before, later in zip(due, due[1:], strict=False)}) <= 2


@pytest.mark.slow
def test_sampling_changes_no_bit_and_samples_survive_a_kill(tmp_path, inputs):
    words = tokenizers.load(inputs[0] / "tokenizer")

    def asked(name, steps=20):
        model = Decoder(tiny().model)
        initialize(model, 1337)
        one = training(tmp_path / name, replace(EASY, samples=4), model, steps=steps)
        one.sample = Sampler(model, words, is_talk=True)
        return one

    silent = training(tmp_path / "silent", steps=20).run()
    stop_at(asked("asked"), 12)
    final = asked("asked").run()
    ours, theirs = silent.tensors("model"), final.tensors("model")
    assert all(torch.equal(ours[name], theirs[name]) for name in ours)
    said = read(tmp_path / "asked" / "metrics" / "samples.jsonl", SAID)
    assert [one["step"] for one in said] == [step for step in (5, 10, 15, 20) for _ in TALK]
    assert [one["prompt"] for one in said[: len(TALK)]] == list(TALK)
    assert all(isinstance(one["text"], str) for one in said)


def test_first_line_of_a_run_has_the_whole_configuration_and_is_parsed_like_any_other(tmp_path):
    config = tiny(steps=3)
    for start, steps in ((0, 2), (2, 3)):
        told = Metrics(tmp_path, start, config)
        for step in range(start + 1, steps + 1):
            told.step(step, StepTokens(8, 8, 8), loss=1.0)
        told.close()
    first, *rest = read(tmp_path / "metrics.jsonl")
    assert (first["step"], first["config"]) == (1, json.loads(json.dumps(asdict(config))))
    assert [one["step"] for one in rest] == [2, 3] and not any("config" in one for one in rest)
    assert parse('{"step": 1, "tokens": 1, "loss": 1.0, "config": 3}\n') == []


def test_log_has_a_line_every_few_steps_unless_a_terminal_shows_them(tmp_path, monkeypatch, capfd):
    def told(steps, **figures):
        metrics = Metrics(tmp_path / str(steps), 0, tiny(steps=steps))
        for step in range(1, steps + 1):
            metrics.step(step, StepTokens(8, 8, 8), loss=2.0, **figures)
        metrics.close()
        return capfd.readouterr().err.splitlines()

    lines = told(3, reward=0.5)
    assert [
        re.fullmatch(r"step (\d) of 3: loss 2.0000, reward 0.500, [\d,]+ tokens/s", one)[1] for one in lines
    ] == list("123")
    many = told(450)
    assert [one.split(":")[0] for one in many[:3]] == ["step 1 of 450", "step 4 of 450", "step 8 of 450"]
    assert many[-1].startswith("step 450 of 450") and len(many) == 114
    monkeypatch.setenv(FOLLOWED, "1")
    assert told(4) == []
