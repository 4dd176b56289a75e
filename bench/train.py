"""Benchmark training steps of a 22M Llama shape against transformers, litgpt and nanochat's block.

Run: python -m bench.train [--before FOLDER] [--peers PYTHON] [--rounds N] [--steps N] [--modes bf16,fp32]
[--arms PATTERN]. Prints tokens per second and ratios. FOLDER is a checkout of another version of Slipway, run as the
arm `before`. PYTHON belongs to an environment with the same torch, transformers and litgpt. Every arm is a process that
lives through the whole run; the arms take turns, so that load on the machine affects all arms. A step is a forward and
backward pass over ROWS x LENGTH tokens, gradient clipping to 1, and AdamW. Weights and gradients are float32 in all
arms; bf16 is the dtype of activations (peers: autocast). Mode `pure` runs a peer fully in bfloat16, without exact
weights. The peak is VmHWM during the steps, reset after the warm-up, so that imports and the compiler do not count.
`nanochat` is the published block of nanochat (no gains, QK-norm, relu squared, untied head, soft-capped logits) in
plain PyTorch at the same width and depth; the untied head adds parameters.
"""

import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
VOCAB, WIDTH, LAYERS, HEADS, INNER = 16_384, 384, 9, 6, 1024  # m3_medium
ROWS, LENGTH, LR = 4, 512, 1e-3
WARM_UP_STEPS = 3
PEERS = ("transformers", "litgpt", "nanochat")
Step = Callable[[Any, Any], float]  # ids, targets (ROWS, LENGTH) -> loss in nats per token


def shape(rows: int, length: int) -> None:
    global ROWS, LENGTH
    ROWS, LENGTH = rows, length


def ours(mode: str, compiled: bool) -> Iterator[Step]:
    import torch

    from trainer.device import prepare
    from trainer.loop import accumulate
    from trainer.model.decoder import Decoder, initialize
    from trainer.objectives import CrossEntropy
    from trainer.optim import Optimizer
    from trainer.recipes import m3_medium
    from trainer.speed import training_setup

    machine = prepare()
    config = changed(m3_medium().phases["base"], mode, compiled)
    model = Decoder(config.model, getattr(torch, config.dtype))
    initialize(model, 1)
    optimizer = Optimizer(model, config.optimizer)

    def step(ids: Any, targets: Any) -> float:
        optimizer.zero_grad()
        loss = float(accumulate(model, {"ids": ids, "targets": targets}, ROWS, ids.size, CrossEntropy())["loss"])
        optimizer.clip()
        optimizer.step(1.0)
        return loss

    with training_setup(model, config, machine):
        yield step


def changed(config: Any, mode: str, compiled: bool) -> Any:
    from dataclasses import replace

    optimizer = replace(config.optimizer, lr=LR, muon_lr=0.0, grad_clip=1.0)
    dtype = {"bf16": "bfloat16", "pure": "bfloat16", "fp32": "float32"}[mode]
    compile_ = "always" if compiled else "never"
    return replace(
        config, optimizer=optimizer, rows=ROWS, micro_rows=ROWS, sequence_len=LENGTH, dtype=dtype, compile=compile_
    )


def peer(loss_of: Callable[[Any, Any], Any], parameters: list[Any], mode: str) -> Step:
    """Return a training step of plain PyTorch around a peer's model."""
    import torch

    optimizer = torch.optim.AdamW(parameters, lr=LR, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step(ids: Any, targets: Any) -> float:
        optimizer.zero_grad(set_to_none=True)
        with torch.autocast("cpu", torch.bfloat16) if mode == "bf16" else nullcontext():
            loss = loss_of(torch.from_numpy(ids), torch.from_numpy(targets))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        return float(loss.detach())

    return step


def of_transformers(mode: str, compiled: bool) -> Iterator[Step]:
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    model: Any = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCAB,
            hidden_size=WIDTH,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            intermediate_size=INNER,
            max_position_embeddings=2048,
            tie_word_embeddings=True,
            use_cache=False,
        )
    )
    model.to(torch.bfloat16 if mode == "pure" else torch.float32)
    model.train()
    called = torch.compile(model) if compiled else model

    def loss_of(ids: Any, targets: Any) -> Any:
        return called(input_ids=ids, labels=ids, shift_labels=targets).loss

    yield peer(loss_of, list(model.parameters()), mode)


def of_litgpt(mode: str, compiled: bool) -> Iterator[Step]:
    import torch
    from litgpt import GPT, Config
    from litgpt.utils import chunked_cross_entropy

    config = Config(
        name="llama-22m",
        block_size=2048,
        padded_vocab_size=VOCAB,
        vocab_size=VOCAB,
        n_layer=LAYERS,
        n_head=HEADS,
        n_embd=WIDTH,
        intermediate_size=INNER,
        rotary_percentage=1.0,
        parallel_residual=False,
        bias=False,
        norm_class_name="RMSNorm",
        mlp_class_name="LLaMAMLP",
    )
    model: Any = GPT(config)
    model.lm_head.weight = model.transformer.wte.weight
    model.to(torch.bfloat16 if mode == "pure" else torch.float32)
    model.max_seq_length = LENGTH
    for one in model.parameters():
        if one.dim() > 1:
            torch.nn.init.normal_(one, std=0.02)
    called = torch.compile(model) if compiled else model

    def loss_of(ids: Any, targets: Any) -> Any:
        return chunked_cross_entropy(called(ids), targets, chunk_size=0)

    yield peer(loss_of, list(model.parameters()), mode)


def of_nanochat(mode: str, compiled: bool) -> Iterator[Step]:
    import torch
    import torch.nn.functional as F
    from torch import nn

    def norm(x: Any) -> Any:
        return F.rms_norm(x, (x.shape[-1],))

    def rotated(x: Any, cos: Any, sin: Any) -> Any:
        first, second = x.chunk(2, dim=-1)
        return torch.cat([first * cos + second * sin, second * cos - first * sin], dim=-1).to(x.dtype)

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH, bias=False) for _ in range(4))
            self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH, bias=False), nn.Linear(4 * WIDTH, WIDTH, bias=False)

        def forward(self, x: Any, cos: Any, sin: Any) -> Any:
            rows, length, _ = x.shape
            y = norm(x)
            q, k, v = (one(y).view(rows, length, HEADS, -1).transpose(1, 2) for one in (self.q, self.k, self.v))
            q, k = norm(rotated(q, cos, sin)), norm(rotated(k, cos, sin))
            y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.out(y.transpose(1, 2).reshape(rows, length, -1))
            return x + self.down(F.relu(self.up(norm(x))).square())

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wte, self.head = nn.Embedding(VOCAB, WIDTH), nn.Linear(WIDTH, VOCAB, bias=False)
            self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
            half = torch.arange(0, WIDTH // HEADS, 2) / (WIDTH // HEADS)
            angle = torch.outer(torch.arange(LENGTH), 10_000.0**-half)
            self.register_buffer("cos", angle.cos())
            self.register_buffer("sin", angle.sin())

        def forward(self, ids: Any, targets: Any) -> Any:
            x = norm(self.wte(ids))
            for block in self.blocks:
                x = block(x, self.cos, self.sin)
            logits = 15 * torch.tanh(self.head(norm(x)).float() / 15)
            return F.cross_entropy(logits.flatten(0, 1), targets.flatten())

    model: Any = Model().to(torch.bfloat16 if mode == "pure" else torch.float32)
    yield peer(torch.compile(model) if compiled else model, list(model.parameters()), mode)


ARMS = {"ours": ours, "transformers": of_transformers, "litgpt": of_litgpt, "nanochat": of_nanochat}


def arm(name: str, mode: str, is_compiled: bool) -> None:
    """Read a number of steps from each line of stdin, run the steps, and print the figures as JSON."""
    import numpy as np

    chance = np.random.default_rng(1)

    def batch() -> tuple[Any, Any]:
        rows = chance.integers(0, VOCAB, (ROWS, LENGTH + 1))
        return np.ascontiguousarray(rows[:, :-1]), np.ascontiguousarray(rows[:, 1:])

    for step in ARMS[name](mode, is_compiled):
        for _ in range(WARM_UP_STEPS):
            step(*batch())
        Path("/proc/self/clear_refs").write_text("5")  # Reset VmHWM.
        print(json.dumps({}), flush=True)
        for line in sys.stdin:
            batches = [batch() for _ in range(int(line))]
            began, loss = time.perf_counter(), 0.0
            for one in batches:
                loss = step(*one)
            spent_s = time.perf_counter() - began
            print(json.dumps({"s": spent_s, "loss": loss, "peak_bytes": peak_bytes()}), flush=True)


def peak_bytes() -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM:"))
    return int(line.split()[1]) * 1024


@dataclass(frozen=True)
class Arm:
    name: str
    process: "subprocess.Popen[str]"

    def ask(self, steps: int) -> dict[str, float]:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{steps}\n")
        self.process.stdin.flush()
        return self.hear()

    def hear(self) -> dict[str, float]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with exit code {self.process.wait()}")
        return json.loads(line)


@contextmanager
def begun(
    mode: str, wanted: re.Pattern[str], peers: str, before: str, compiled: tuple[bool, ...]
) -> Iterator[list[Arm]]:
    """Start the arms in sequence, each with a warm-up, and yield all of them."""
    arms: list[Arm] = []
    kernels = tempfile.TemporaryDirectory(prefix="kernels-")  # empty: earlier runs may leave partial files
    environ = {**os.environ, "TORCHINDUCTOR_CACHE_DIR": kernels.name}
    try:
        for name in (*ARMS, *(["before"] if before else [])):
            for is_compiled in compiled:
                title = f"{name} {'compiled' if is_compiled else 'eager'}"
                if not wanted.search(title) or name in ("transformers", "litgpt") and not peers:
                    continue
                python = peers if name in PEERS and peers else sys.executable
                words = [python, "-m", "bench.train", "--arm", "ours" if name == "before" else name, "--modes", mode]
                words += ["--rows", str(ROWS), "--length", str(LENGTH), *([] if is_compiled else ["--only-eager"])]
                pipe, checkout = subprocess.PIPE, before if name == "before" else ROOT
                arms.append(
                    Arm(title, subprocess.Popen(words, cwd=checkout, env=environ, stdin=pipe, stdout=pipe, text=True))
                )
                arms[-1].hear()
        yield arms
    finally:
        for one in arms:
            one.process.kill()
            one.process.communicate()
        kernels.cleanup()


def main() -> None:
    flags = argparse.ArgumentParser()
    flags.add_argument("--before", default="", help="checkout of another version, run as the arm `before`")
    flags.add_argument("--peers", default="", help="Python of an environment with transformers and litgpt")
    flags.add_argument("--rounds", type=int, default=7)
    flags.add_argument("--steps", type=int, default=3, help="steps of each turn")
    flags.add_argument("--modes", default="bf16,fp32", help="modes, separated by commas: bf16, fp32, pure")
    flags.add_argument("--arms", default="", help="regular expression for names of arms, such as `litgpt compiled`")
    flags.add_argument("--only-eager", action="store_true")
    flags.add_argument("--arm", default="", help=argparse.SUPPRESS)
    flags.add_argument("--rows", type=int, default=ROWS, help="rows of a step")
    flags.add_argument("--length", type=int, default=LENGTH, help="tokens of a row")
    given = flags.parse_args()
    shape(given.rows, given.length)
    if given.arm:
        arm(given.arm, given.modes, not given.only_eager)
        return
    for mode in given.modes.split(","):
        compiled = (False,) if given.only_eager else (False, True)
        with begun(mode, re.compile(given.arms), given.peers, given.before, compiled) as arms:
            found: dict[str, list[dict[str, float]]] = {one.name: [] for one in arms}
            for _ in range(given.rounds):
                for one in arms:
                    found[one.name].append(one.ask(given.steps))
        tell(mode, found, given.steps)


def tell(mode: str, found: dict[str, list[dict[str, float]]], steps: int) -> None:
    """Print a table, with ratios to `transformers eager` and to the best of `ours` in the same round."""
    anchor = next(name for name in ("transformers eager", "ours compiled", *found) if name in found)
    best = next(name for name in ("ours compiled", "ours eager", *found) if name in found)
    print(f"\n{mode}: {ROWS} x {LENGTH} tokens a step, {steps} steps a turn; median [range]\n")
    print(f"| arm | tokens/s | / {anchor} | {best} / it | peak MB | last loss |\n|---|---|---|---|---|---|")
    for name, turns in found.items():
        speeds = [steps * ROWS * LENGTH / one["s"] for one in turns]
        over = [base["s"] / one["s"] for one, base in zip(turns, found[anchor], strict=True)]
        under = [one["s"] / mine["s"] for one, mine in zip(turns, found[best], strict=True)]
        peak, loss = max(one["peak_bytes"] for one in turns) / 1e6, turns[-1]["loss"]
        print(f"| {name} | {shown(speeds, 0)} | {shown(over, 2)} | {shown(under, 2)} | {peak:.0f} | {loss:.2f} |")


def shown(values: list[float], digits: int) -> str:
    return f"{statistics.median(values):.{digits}f} [{min(values):.{digits}f}-{max(values):.{digits}f}]"


if __name__ == "__main__":
    main()
