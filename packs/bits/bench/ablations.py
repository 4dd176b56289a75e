"""Ablate the parts of the 1.58-bit stages on paired seeds: the effect of each part, with a confidence interval.

Run: python -m packs.bits.bench.ablations [--profile smoke_bits] [--arms haar,saliency,...] [--seeds 1,2,3]
[--share 1.0]
The comparison is the same as in the sweep ablation_saliency_toy, but in a single process without published artifacts,
and several times faster for a small model. --profile also takes a file, e.g. examples/sweeps/profiles/small_bits.yaml.
The program first trains a base model for each seed. Every arm continues from the base model with the same batches and
the same number of tokens; the arm `fp` continues in full precision, as the reference for the ternary models.
Differences are paired by seed, with Student's 95 % interval. --share scales the steps of every phase.
Prints a Markdown table: loss (nats per token) and perplexity on held-out text, bits per byte, the difference of bits
per byte to the arms `fp` and `baseline` in %, tokens per CPU second, and the rounding error of the matrices.
"""

import argparse
import copy
import math
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from bench.quality import Inputs, inputs
from data.tokens.loader import LOADERS, heldout
from data.tokens.token_file import token_files
from packs.bits.records.bits_config import BitsPhaseConfig
from packs.bits.trainer.conversion import converted
from packs.bits.trainer.objective import Bits
from packs.bits.trainer.ternary import layers_of, relative_error
from packs.sweeps.control.trials.ranking import student
from trainer.config import PhaseConfig
from trainer.device import Machine, prepare
from trainer.evaluation.evaluate import bits_per_byte
from trainer.loop import accumulate
from trainer.model.decoder import Decoder, initialize
from trainer.objectives import CrossEntropy, Objective
from trainer.optim import Optimizer, learning_rate_scale
from trainer.plan import profile_named
from trainer.records.model_config import ModelConfig, Ternary
from trainer.speed import training_setup


@dataclass(frozen=True)
class Arm:
    """A recipe from a base model to a ternary model."""

    what: str
    ternary: Ternary | None = Ternary()
    sub_norm: bool = True
    layerwise: bool = True  # stage 1.9; if False, stage 2 also gets the steps of stage 1.9
    growing: bool = False  # warm-up of rounding in stage 2
    saliency: float = 0.0


ARMS = {
    "fp": Arm("full precision, continued", ternary=None, sub_norm=False, layerwise=False),
    "baseline": Arm("SubLN, 1.9, 2"),
    "lambda": Arm("SubLN, 1.9, 2 with lambda", growing=True),
    "saliency": Arm("SubLN, 1.9, 2 with saliency", saliency=0.1),
    "both": Arm("SubLN, 1.9, 2 with lambda and saliency", growing=True, saliency=0.1),
    "row": Arm("as baseline, a scale per row", ternary=Ternary(per_row=True)),
    "haar": Arm("as baseline, Haar bands", ternary=Ternary(haar=True)),
    "haar-row": Arm("as baseline, Haar bands, a scale per row", ternary=Ternary(haar=True, per_row=True)),
    "lambda-only": Arm("SubLN, 2 with lambda", layerwise=False, growing=True),
    "neither": Arm("SubLN, 2", layerwise=False),
    "plain": Arm("no SubLN, 2", sub_norm=False, layerwise=False),
}


@dataclass(frozen=True)
class Result:
    loss: float
    bits_per_byte: float
    tokens_per_cpu_s: float
    error: float  # relative squared rounding error, mean over matrices; 0 without rounding
    errors: tuple[float, ...]  # mean per layer


@dataclass
class Bench:
    """State shared by all runs of a seed."""

    given: Inputs
    machine: Machine
    phases: dict[str, PhaseConfig]
    seed: int
    tokens: int = 0
    spent_s: float = 0.0

    def train(self, config: PhaseConfig, model: Decoder, objective: Objective, first: int = 0) -> None:
        """Train all steps of a phase, from batch number `first`."""
        files = token_files(self.given.tokens, "train")
        loader: Any = LOADERS[config.packing](
            files, config.sequence_len, config.rows, self.seed, self.given.tokenizer.sha256
        )
        optimizer, began = Optimizer(model, config.optimizer), time.process_time()
        with training_setup(model, config, self.machine):
            for step in range(config.steps):
                rows = loader.batch(first + step)
                batch = {"ids": rows[:, :-1], "targets": rows[:, 1:]}
                objective.set_step(step, config.steps)
                optimizer.zero_grad()
                accumulate(model, batch, config.micro_rows, objective.loss_divisor(batch), objective)
                optimizer.clip()
                optimizer.step(learning_rate_scale(config.schedule, step, config.steps))
                self.tokens += batch["targets"].size
        self.spent_s += time.process_time() - began

    def base(self) -> Decoder:
        config = self.phases["base"]
        model = Decoder(config.model, self.machine.dtype(config))
        initialize(model, self.seed)
        self.train(config, model, CrossEntropy())
        return model

    def run(self, arm: Arm, base: Decoder) -> Result:
        """Train an arm from a copy of the base model and return the result."""
        layerwise, second, first = self.phases["bits1.9"], self.phases["bits2"], self.phases["base"].steps
        steps = layerwise.steps + second.steps
        shape: ModelConfig = replace(base.config, ternary=arm.ternary, sub_norm=arm.sub_norm)
        model = converted(base, shape, base.compute_dtype)
        self.tokens, self.spent_s = 0, 0.0
        assert isinstance(layerwise, BitsPhaseConfig) and isinstance(second, BitsPhaseConfig)
        assert layerwise.bits is not None and second.bits is not None
        bits = replace(second.bits, saliency=arm.saliency, saliency_warmup=max(1, second.steps // 10))
        bits = bits if arm.growing else replace(bits, warmup_steps=0)
        if arm.layerwise:
            teacher = copy.deepcopy(base).eval().requires_grad_(False)
            self.train(layerwise, model, Bits(layerwise.bits, model, teacher), first)
            self.train(second, model, Bits(bits, model), first + layerwise.steps)
        else:
            whole = replace(second, steps=steps)
            self.train(whole, model, Bits(bits, model) if arm.ternary else CrossEntropy(), first)
        return self.measure(model)

    def measure(self, model: Decoder) -> Result:
        val = token_files(self.given.tokens, "val")
        model.eval()
        found = bits_per_byte(model, heldout(val, self.given.tokenizer_folder, self.phases["base"].sequence_len))
        by_layer: dict[str, list[float]] = {}
        for name, one in layers_of(model).items():
            by_layer.setdefault(name.split(".")[2], []).append(relative_error(one.weight.detach(), one.how))
        errors = tuple(statistics.mean(one) for one in by_layer.values())
        rate = self.tokens / self.spent_s if self.spent_s else 0.0
        return Result(found["loss"], found["bits_per_byte"], rate, statistics.mean(errors or (0.0,)), errors)


def table(results: dict[str, list[Result]]) -> str:
    """Return a Markdown table with a line per arm."""
    lines = [
        "| arm | what | loss | perplexity | bits per byte | to `fp`, % | to `baseline`, % | tokens per CPU s | "
        "rounding error |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for name, found in results.items():

        def mean(of: Callable[[Result], float], some: list[Result] = found) -> float:
            return statistics.mean(of(one) for one in some)

        apart = " | ".join(
            difference(found, results[other]) if other in results and name != other else ""
            for other in ("fp", "baseline")
        )
        bpb = " ".join(f"{one.bits_per_byte:.3f}" for one in found)
        loss, bits = mean(lambda one: one.loss), mean(lambda one: one.bits_per_byte)
        rate, error = mean(lambda one: one.tokens_per_cpu_s), mean(lambda one: one.error)
        scores = f"{loss:.3f} | {math.exp(loss):.1f} | {bits:.4f} ({bpb})"
        lines.append(f"| {name} | {ARMS[name].what} | {scores} | {apart} | {rate:.0f} | {error:.3f} |")
    return "\n".join(lines)


def difference(ours: Sequence[Result], theirs: Sequence[Result]) -> str:
    """Return the difference of bits per byte in %, paired by seed, with Student's 95 % interval."""
    shares = [100 * (one.bits_per_byte / other.bits_per_byte - 1) for one, other in zip(ours, theirs, strict=True)]
    middle, half = student(shares)
    if len(shares) == 1:
        return f"{middle:+.2f}"
    return f"{middle:+.2f} ± {half:.2f}" + ("" if abs(middle) > half else " (inside the noise)")


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--profile", default="smoke_bits")
    flags.add_argument("--arms", default=",".join(ARMS))
    flags.add_argument("--seeds", default="1,2,3")
    flags.add_argument("--share", type=float, default=1.0, help="of the steps of every phase")
    asked = flags.parse_args()
    machine, profile = prepare(), profile_named(asked.profile)
    arms = asked.arms.split(",")
    if unknown := [name for name in arms if name not in ARMS]:
        raise SystemExit(f"unknown arms {', '.join(unknown)}; known: {', '.join(ARMS)}")
    phases = {name: profile.phases[name] for name in ("base", "bits1.9", "bits2")}
    phases = {name: one.with_steps(max(4, round(one.steps * asked.share))) for name, one in phases.items()}
    results: dict[str, list[Result]] = {name: [] for name in arms}
    with tempfile.TemporaryDirectory() as folder:
        given = inputs(Path(folder), profile.vocab_size)
        for seed in map(int, asked.seeds.split(",")):
            bench = Bench(given, machine, phases, seed)
            base = bench.base()
            began = bench.measure(base)
            print(f"seed {seed}: base {began.bits_per_byte:.4f} bits per byte", flush=True)
            for name in arms:
                results[name].append(bench.run(ARMS[name], base))
                one = results[name][-1]
                layers = " ".join(f"{error:.3f}" for error in one.errors)
                print(
                    f"  {name}: {one.bits_per_byte:.4f}, {bench.spent_s:.0f} CPU s, error by layer {layers}", flush=True
                )
    steps = ", ".join(f"{name} {one.steps}" for name, one in phases.items())
    print(
        f"\n{asked.profile}, seeds {asked.seeds}, steps {steps}, {torch.get_num_threads()} threads, "
        f"{machine.dtype(phases['base'])}, load {os.getloadavg()[0]:.0f}\n"
    )
    print(table(results))


if __name__ == "__main__":
    main()
