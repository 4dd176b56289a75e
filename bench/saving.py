"""What a save costs the training beside it: steps while one is being written, against steps without, in turn.

Run: python -m bench.saving [--rounds N] [--folder DIR]. A Llama shape of 21M parameters on this machine, a checkpoint
of 12 bytes a parameter. Prints medians and ranges of ratios: a step while a save is under way (copy included) over a
step without; the copy alone over a step; the same steps with saves that are waited for; and how long it takes to go on
from the newest checkpoint, which is hashed and read.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data.ahead import Ahead
from trainer.checkpoint import Checkpoints
from trainer.config import Keeping, ModelConfig, OptimizerConfig, PhaseConfig, ScheduleConfig
from trainer.loop import Training
from trainer.machine import prepare
from trainer.model import Decoder, initialise
from trainer.optim import Optimizer
from trainer.saving import Saver

MODEL = ModelConfig(
    vocab_size=8192,
    hidden_size=384,
    intermediate_size=1024,
    num_hidden_layers=10,
    num_attention_heads=6,
    num_key_value_heads=6,
    head_dim=64,
)
CONFIG = PhaseConfig(
    phase="base",
    model=MODEL,
    optimizer=OptimizerConfig(lr=1e-3),
    schedule=ScheduleConfig(),
    steps=100_000,
    rows=2,
    micro_rows=2,
    sequence_len=256,
)
STEPS = 8  # without a save, before each save


def training(folder: Path) -> Training:
    machine = prepare()
    model = Decoder(MODEL, machine.dtype(CONFIG))
    initialise(model, 1)

    def batch(step: int) -> tuple[np.ndarray, np.ndarray]:
        ids = np.random.default_rng([1, step]).integers(0, MODEL.vocab_size, (CONFIG.rows, CONFIG.sequence_len + 1))
        return ids[:, :-1], ids[:, 1:]

    keeping = Keeping(keep=2, reserve_bytes=0)
    one = Training(model.to(machine.device), CONFIG, batch, Checkpoints(folder / "saved", keeping), {}, folder)
    one.optimizer, one.saver = Optimizer(one.model, CONFIG.optimizer), Saver(one.checkpoints)
    return one


def step_s(one: Training, batches: Ahead[Any]) -> float:
    began = time.perf_counter()
    one._advance(batches, None, lambda: False)
    return time.perf_counter() - began


def measure(one: Training, batches: Ahead[Any], rounds: int) -> Iterator[tuple[float, float, float, float]]:
    """Of each round: a step without a save, a step with one, the copy, a step when the save is waited for."""
    for _ in range(rounds):
        alone = statistics.mean(step_s(one, batches) for _ in range(STEPS))
        began, steps = time.perf_counter(), 0
        one._save()
        copy = time.perf_counter() - began
        while not one.saver.collect():
            step_s(one, batches)
            steps += 1
        beside = (time.perf_counter() - began) / max(1, steps)
        after = statistics.mean(step_s(one, batches) for _ in range(STEPS))
        began = time.perf_counter()
        one._save()
        one._collect(wait=True)
        for _ in range(STEPS):
            step_s(one, batches)
        waited = (time.perf_counter() - began) / STEPS
        yield (alone + after) / 2, beside, copy, waited


def resume_s(one: Training) -> float:
    began = time.perf_counter()
    one._resume()
    return time.perf_counter() - began


def main() -> None:
    flags = argparse.ArgumentParser()
    flags.add_argument("--rounds", type=int, default=5)
    flags.add_argument("--folder", default=None)
    given = flags.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        one = training(Path(folder))
        with Ahead(one.batch, 0, CONFIG.steps) as batches:
            for _ in range(3):
                step_s(one, batches)
            one._save()
            one._collect(wait=True)
            found = list(measure(one, batches, given.rounds))
            resumed = [resume_s(one) for _ in range(given.rounds)]
        (saved,) = {path.stat().st_size for path in one.checkpoints.steps()[-1].glob("optimizer*")}
    size = f"{MODEL.num_params / 1e6:.1f}M parameters, {saved / 1e6:.0f} MB of optimizer state"
    print(f"{torch.get_num_threads()} threads, {size}")
    print(f"a step without a save: {statistics.median(alone for alone, *_ in found):.3f} s")
    for name, ratios in (
        ("a step while a save is under way, copy included", [beside / alone for alone, beside, _, _ in found]),
        ("the copy alone, in steps", [copy / alone for alone, _, copy, _ in found]),
        (f"a step of {STEPS} when their save is waited for", [waited / alone for alone, _, _, waited in found]),
    ):
        print(f"{name}: {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f})")
    print(f"going on from it: {statistics.median(resumed):.3f} s ({min(resumed):.3f} to {max(resumed):.3f})")


if __name__ == "__main__":
    main()
