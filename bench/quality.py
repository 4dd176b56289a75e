"""Measure quality at a fixed cost: bits per byte of held-out text after 120 s of training on two cores, by seed.

Run: python -m bench.quality [--profile NAME] [--seeds 1,2,3] [--cpu-s 240] [--steps N] [--rows N]. The text is `pydocs`
as in every local run, a twentieth held out. Making text, tokenizer and tokens does not count as cost; neither does the
evaluation. To exclude other programs on the machine, the program times a few steps in CPU seconds of this process, and
then trains the base phase for as many steps as fit into --cpu-s (two cores for 120 s), with warm-up and decay scaled,
and all other settings of the profile. A busy machine makes steps more expensive and thus reduces the number of steps.
"""

import argparse
import statistics
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from time import perf_counter, process_time
from typing import Any

import torch

from data.config import TextSpec, TokenizerSpec
from data.report.compressors import anchors
from data.shards import pipeline
from data.tokens import bpe, tokenize
from data.tokens.loader import LOADERS, heldout
from data.tokens.token_file import token_files
from data.tokens.tokenizer import Tokenizer
from data.tokens.tokenizer import load as load_tokenizer
from trainer.config import PhaseConfig
from trainer.device import Machine, prepare
from trainer.evaluation.evaluate import bits_per_byte
from trainer.loop import accumulate
from trainer.model.decoder import Decoder, initialize
from trainer.objectives import CrossEntropy
from trainer.optim import Optimizer, learning_rate_scale
from trainer.recipes import PROFILES
from trainer.speed import training_setup

WARM_UP_STEPS, TIMED_STEPS = 2, 8


@dataclass(frozen=True)
class Inputs:
    text: Path
    tokenizer_folder: Path
    tokens: Path
    tokenizer: Tokenizer


@dataclass
class StepTimes:
    """Times of steps. On a GPU, a step ends when the GPU has done its work."""

    device: torch.device
    cpu_s: list[float] = field(default_factory=list)
    """CPU seconds of this process."""
    wall_s: list[float] = field(default_factory=list)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Add the times of the block."""
        began_s, began_cpu_s = perf_counter(), process_time()
        yield
        if self.device.type == "cuda":
            torch.cuda.synchronize(self.device)
        self.cpu_s.append(process_time() - began_cpu_s)
        self.wall_s.append(perf_counter() - began_s)


def inputs(folder: Path, vocab_size: int) -> Inputs:
    pipeline.shard(TextSpec(), folder / "text")
    bpe.make(TokenizerSpec(vocab_size=vocab_size), folder / "text", folder / "tokenizer")
    tokenize.make(folder / "text", folder / "tokenizer", folder / "tokens")
    return Inputs(folder / "text", folder / "tokenizer", folder / "tokens", load_tokenizer(folder / "tokenizer"))


def trained(config: PhaseConfig, given: Inputs, machine: Machine, steps: int) -> tuple[Decoder, StepTimes]:
    """Return the model after the first `steps` steps of the phase, and the times of the steps."""
    files = token_files(given.tokens, "train")
    loader: Any = LOADERS[config.packing](files, config.sequence_len, config.rows, config.seed, given.tokenizer.sha256)
    model = Decoder(config.model, machine.dtype(config))
    initialize(model, config.seed)
    model.to(machine.device)
    optimizer, times = Optimizer(model, config.optimizer), StepTimes(machine.device)
    with training_setup(model, config, machine):
        for step in range(steps):
            with times.step():
                rows = loader.batch(step)
                optimizer.zero_grad()
                batch = {"ids": rows[:, :-1], "targets": rows[:, 1:]}
                accumulate(model, batch, config.micro_rows, batch["targets"].size, CrossEntropy())
                optimizer.clip()
                optimizer.step(learning_rate_scale(config.schedule, step, config.steps), step / config.steps)
    return model, times


def main() -> None:
    flags = argparse.ArgumentParser()
    flags.add_argument("--profile", default="smoke")
    flags.add_argument("--seeds", default="1,2,3")
    flags.add_argument("--cpu-s", type=float, default=240.0)
    flags.add_argument("--steps", type=int, default=0, help="steps of each seed, instead of --cpu-s")
    flags.add_argument("--rows", type=int, default=0, help="rows of a step, instead of the rows of the profile")
    given = flags.parse_args()
    machine, base = prepare(), PROFILES[given.profile]().phases["base"]
    if given.rows:
        base = replace(base, rows=given.rows, micro_rows=min(given.rows, base.micro_rows))
    with tempfile.TemporaryDirectory() as folder:
        made = inputs(Path(folder), base.model.vocab_size)
        steps = given.steps
        if not steps:
            _, times = trained(base, made, machine, WARM_UP_STEPS + TIMED_STEPS)
            steps = int(given.cpu_s / statistics.mean(times.cpu_s[WARM_UP_STEPS:]))
        config = base.with_steps(steps)
        texts = sorted((made.text / "val").glob("*.txt"))
        print(
            f"{given.profile}: {base.model.num_params:,} parameters, {steps} steps of {base.rows} x "
            f"{base.sequence_len} tokens, {torch.get_num_threads()} threads, {machine.dtype(base)}"
        )
        print("held out:", ", ".join(f"{name} {value:.3f}" for name, value in anchors(texts).items()))
        print("\n| seed | bits per byte | CPU s of the steps | s on the wall |\n|---|---|---|---|")
        found = []
        for seed in map(int, given.seeds.split(",")):
            began = perf_counter()
            model, times = trained(replace(config, seed=seed), made, machine, steps)
            wall_s = perf_counter() - began
            val = token_files(made.tokens, "val")
            text_of = heldout(val, made.tokenizer_folder, config.sequence_len)
            found.append(bits_per_byte(model, text_of)["bits_per_byte"])
            print(f"| {seed} | {found[-1]:.3f} | {sum(times.cpu_s):.0f} | {wall_s:.0f} |", flush=True)
    print(f"\nmean {statistics.mean(found):.3f}, range {min(found):.3f} to {max(found):.3f}")


if __name__ == "__main__":
    main()
