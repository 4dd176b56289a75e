"""Benchmark a fused head and cross entropy: trainer.model.losses against linear_cross_entropy of PyTorch.

Run: python -m bench.head [--rounds N] [--sizes PATTERN]. Measures forward and backward. Every arm is a separate process
that lives through the run of one size; the arms take turns, so that load on the machine affects all arms. `chunked` is
PyTorch's function with its default options, `whole` the function without options, which makes all logits at once.
Hidden states have the dtype of activations and the head's matrix is float32, as in the trainer. Prints medians and
ranges of the CPU time relative to `ours` in the same round, the peak memory above the memory before the call (VmHWM,
reset after a first call), and the error of the loss and of both gradients against float64.
"""

import argparse
import json
import re
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
SIZES = {  # tokens, width, vocabulary
    "smoke": (4096, 256, 4096),
    "2b-slice": (512, 2048, 16_384),  # width of the 2B presets, a tenth of the vocabulary
}
DTYPES = ("float32", "bfloat16")
ARMS = ("ours", "chunked", "whole")
MIB = 1 << 20


def loss_of(arm: str) -> Callable[[Any, Any, Any], Any]:
    import torch
    import torch.nn.functional as F

    from trainer.model.losses import Shape, SummedCrossEntropy

    if arm == "ours":
        return lambda hidden, head, targets: SummedCrossEntropy.apply(hidden, head, targets, Shape())
    options = torch.nn.LinearCrossEntropyOptions() if arm == "chunked" else None

    def of_torch(hidden: Any, head: Any, targets: Any) -> Any:
        return F.linear_cross_entropy(hidden, head.to(hidden.dtype), targets, reduction="sum", options=options)

    return of_torch


def status(field: str) -> int:
    """Return a memory field of /proc/self/status in bytes."""
    found = re.search(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found, field
    return int(found[1]) * 1024


def serve(arm: str, size: str, dtype: str) -> None:
    """Run a call for each line of stdin and print CPU and wall seconds; at the end print memory and errors."""
    import torch
    import torch.nn.functional as F

    tokens, width, vocabulary = SIZES[size]
    chance = torch.Generator().manual_seed(1)
    hidden = torch.randn(tokens, width, generator=chance).to(getattr(torch, dtype)).requires_grad_()
    head = (torch.randn(vocabulary, width, generator=chance) / width**0.5).requires_grad_()
    targets = torch.randint(vocabulary, (tokens,), generator=chance)
    began = time.process_time()
    loss = loss_of(arm)

    def call() -> Any:
        hidden.grad = head.grad = None
        found = loss(hidden, head, targets)
        found.backward()
        return found

    found = call()
    first_s = time.process_time() - began
    hidden.grad = head.grad = None
    Path("/proc/self/clear_refs").write_text("5")  # Reset VmHWM: the peak starts here.
    before = status("VmRSS")
    for _ in sys.stdin:
        cpu, wall = time.process_time(), time.perf_counter()
        found = call()
        print(json.dumps([time.process_time() - cpu, time.perf_counter() - wall]), flush=True)
    peak = status("VmHWM") - before
    exact = [one.detach().double().requires_grad_() for one in (hidden, head)]
    truth = F.cross_entropy(F.linear(*exact), targets, reduction="sum")
    truth.backward()
    apart = [
        float((ours.grad.double() - true.grad).norm() / true.grad.norm())
        for ours, true in zip((hidden, head), exact, strict=True)
        if ours.grad is not None and true.grad is not None
    ]
    print(json.dumps({"first_s": first_s, "peak": peak, "loss": abs(float(found) / float(truth) - 1), "grads": apart}))


def compare(size: str, dtype: str, rounds: int) -> None:
    words = [sys.executable, "-m", "bench.head", "--size", size, "--dtype", dtype, "--arm"]
    arms = {
        arm: subprocess.Popen([*words, arm], cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for arm in ARMS
    }
    seconds: dict[str, list[list[float]]] = {arm: [] for arm in ARMS}
    for _ in range(rounds):
        for arm, process in arms.items():
            assert process.stdin and process.stdout
            print(file=process.stdin, flush=True)
            seconds[arm].append(json.loads(process.stdout.readline()))
    print(f"{size}: tokens, width, vocabulary {SIZES[size]}, {dtype}, {rounds} rounds")
    for arm, process in arms.items():
        said = json.loads(process.communicate()[0])
        ratios = [
            [one[which] / ours[which] for one, ours in zip(seconds[arm], seconds["ours"], strict=True)]
            for which in (0, 1)
        ]
        cpu, wall = (f"{statistics.median(some):.2f} [{min(some):.2f}-{max(some):.2f}]" for some in ratios)
        print(
            f"  {arm:8} CPU {cpu}, wall {wall}; peak {said['peak'] / MIB:.0f} MiB; first {said['first_s']:.2f} CPU s; "
            f"off by: loss {said['loss']:.1e}, gradients {said['grads'][0]:.1e}, {said['grads'][1]:.1e}"
        )


def main() -> None:
    flags = argparse.ArgumentParser(description=__doc__)
    flags.add_argument("--rounds", type=int, default=12)
    flags.add_argument("--sizes", default="")
    flags.add_argument("--arm", choices=ARMS, help=argparse.SUPPRESS)
    flags.add_argument("--size", choices=SIZES, help=argparse.SUPPRESS)
    flags.add_argument("--dtype", choices=DTYPES, help=argparse.SUPPRESS)
    asked = flags.parse_args()
    if asked.arm:
        serve(asked.arm, asked.size, asked.dtype)
        return
    for size in filter(re.compile(asked.sizes).search, SIZES):
        for dtype in DTYPES:
            compare(size, dtype, asked.rounds)


if __name__ == "__main__":
    main()
