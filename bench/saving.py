"""Measure the cost of asynchronous checkpoints: steps during a save against steps without a save, in turn.

Run: python -m bench.saving [--rounds N] [--folder DIR]. The model is a Llama shape of 21M parameters, a checkpoint has
12 bytes per parameter. Prints medians and ranges over rounds of: a step during a save (copy included) / a step without
a save, also as a ratio of the total seconds; the pause of the training / a copy in memory; a synchronous save / a plain
write and fsync of as many bytes; and the seconds to resume from the newest checkpoint, including hash and read.
"""

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data.prefetch import PrefetchIterator
from trainer.checkpoints.checkpoint import Checkpoints
from trainer.checkpoints.saving import Saver
from trainer.config import CheckpointOptions, OptimizerConfig, PhaseConfig, ScheduleConfig
from trainer.device import prepare
from trainer.loop import Training
from trainer.model.decoder import Decoder, initialize
from trainer.objectives import Batch
from trainer.objectives.source import StepSource
from trainer.optim import Optimizer
from trainer.records.model_config import ModelConfig
from trainer.tensor_file import _bytes_of

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
STEPS = 8  # steps without a save, before and after each save


def training(folder: Path) -> Training:
    machine = prepare()
    model = Decoder(MODEL, machine.dtype(CONFIG))
    initialize(model, 1)

    def batch(step: int) -> Batch:
        ids = np.random.default_rng([1, step]).integers(0, MODEL.vocab_size, (CONFIG.rows, CONFIG.sequence_len + 1))
        return {"ids": ids[:, :-1], "targets": ids[:, 1:]}

    keeping = CheckpointOptions(keep=2, reserve_bytes=0)
    one = Training(
        model.to(machine.device), CONFIG, StepSource(batch), Checkpoints(folder / "saved", keeping), {}, folder
    )
    one.optimizer, one.saver = Optimizer(one.model, CONFIG.optimizer), Saver(one.checkpoints)
    return one


def step_s(one: Training, batches: PrefetchIterator[Any]) -> float:
    began = time.perf_counter()
    one._advance(batches, None, lambda: False, lambda: False)
    return time.perf_counter() - began


@dataclass(frozen=True)
class Round:
    """Seconds of a round."""

    alone: float  # a step without a save
    beside: float  # a step during a save, with a share of the copy
    steps: int  # number of steps during the save
    stall: float  # pause of the training at the start of a save
    copy: float  # a copy of the same tensors in memory
    saved: float  # a synchronous save
    written: float  # a write and fsync of as many bytes


def measure(one: Training, batches: PrefetchIterator[Any], folder: Path) -> Round:
    before = statistics.mean(step_s(one, batches) for _ in range(STEPS))
    began, steps = time.perf_counter(), 0
    one._save()
    stall = time.perf_counter() - began
    while not one.saver.collect():
        step_s(one, batches)
        steps += 1
    beside = (time.perf_counter() - began) / steps
    after = statistics.mean(step_s(one, batches) for _ in range(STEPS))

    def save() -> None:
        one._save()
        one._collect(wait=True)

    saved = took_s(save)
    copies = list(one.saver._copies.values())
    twins = [torch.empty_like(tensor).zero_() for tensor in copies]
    copy = took_s(lambda: [twin.copy_(tensor) for twin, tensor in zip(twins, copies, strict=True)])
    with tempfile.NamedTemporaryFile(dir=folder, buffering=0) as file:

        def write() -> None:
            for tensor in twins:
                file.write(_bytes_of(tensor))
            os.fsync(file.fileno())

        written = took_s(write)
    return Round((before + after) / 2, beside, steps, stall, copy, saved, written)


def took_s(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main() -> None:
    flags = argparse.ArgumentParser()
    flags.add_argument("--rounds", type=int, default=10)
    flags.add_argument("--folder", default=None)
    given = flags.parse_args()
    with tempfile.TemporaryDirectory(dir=given.folder) as folder:
        one = training(Path(folder))
        with PrefetchIterator(one.source.batch, 0, CONFIG.steps) as batches:
            for _ in range(3):
                step_s(one, batches)
            one._save()
            one._collect(wait=True)
            found = []
            for _ in range(given.rounds):
                step_s(one, batches)
                found.append(measure(one, batches, Path(folder)))
            resumed = [took_s(lambda: one._resume(one.checkpoints.find_newest())) for _ in range(given.rounds)]
        size = sum(path.stat().st_size for path in one.checkpoints.steps()[-1].glob("*.safetensors"))
    print(f"{torch.get_num_threads()} threads, {MODEL.num_params / 1e6:.1f}M parameters, {size / 1e6:.0f} MB")
    for name, values in (
        ("a step without a save, s", [one.alone for one in found]),
        (
            "a step during a save (copy included) / a step without a save",
            [one.beside / one.alone for one in found],
        ),
        ("the pause of the training / a copy in memory", [one.stall / one.copy for one in found]),
        ("a synchronous save / write and fsync", [one.saved / one.written for one in found]),
        ("resume from the checkpoint, s", resumed),
    ):
        print(f"{name}: {statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})")
    beside, alone = (sum(one.steps * getattr(one, which) for one in found) for which in ("beside", "alone"))
    print(f"the {sum(one.steps for one in found)} steps during saves / as many without: {beside / alone:.3f}")


if __name__ == "__main__":
    main()
