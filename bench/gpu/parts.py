"""Parts of the GPU benchmark: each yields a name, the measured values and the target."""

import os
import shutil
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from bench.gpu.setup import Bench, best_s, talk_of, text_of
from store import packs
from trainer import memory
from trainer.checkpoints.checkpoint import Checkpoints
from trainer.config import CheckpointOptions
from trainer.errors import Preempted
from trainer.loop import Training, accumulate
from trainer.model import float8
from trainer.model.decoder import Decoder, initialize
from trainer.objectives import Batch, CrossEntropy
from trainer.objectives.rl import PolicyLoss
from trainer.objectives.source import StepSource
from trainer.optim import orthogonalized
from trainer.recipes import PROFILES
from trainer.reporting.peak_flops import of_machine
from trainer.speed import fast_attention, training_setup

SAVED_LAYERS = 4

Seen = Iterator[tuple[str, Mapping[str, Any], str]]


def base(bench: Bench, name: str = "1B", wanted: str = "MFU 0.50") -> Seen:
    config = bench.phase("base", name)
    config = replace(config, rows=max(config.micro_rows * 4, bench.ranks.size * config.micro_rows))
    yield f"base {bench.size(name)} {config.dtype}", bench.trained(config, text_of(config), 6), wanted


def others(bench: Bench) -> Seen:
    for name, wanted in (("d20", "MFU 0.47"), ("2B", "MFU 0.48")):
        yield from base(bench, name, wanted)


def eight_bits(bench: Bench) -> Seen:
    if problem := float8.problem(bench.machine.device):
        yield "float8", {"left_out": problem}, ""
        return
    config = bench.phase("base", dtype="float8")
    config = replace(config, rows=config.micro_rows * 4 * bench.ranks.size)
    yield f"base {bench.size()} float8", bench.trained(config, text_of(config), 6), "tokens/s 1.15 x bfloat16"


def talk(bench: Bench) -> Seen:
    rates = {}
    for name, is_packed in (("packed", True), ("padded", False)):
        config = bench.phase("sft", turns=1, packed="always" if is_packed else "never")
        config = replace(config, rows=config.rows if bench.is_toy else 128 * bench.ranks.size)
        found = bench.trained(config, talk_of(config, is_packed), 5)
        rates[name] = found.get("tokens_per_s", 0.0)
        if not is_packed and rates["padded"]:
            found = {**found, "packed_over_padded": rates["packed"] / rates["padded"]}
        yield f"sft {bench.size()} {name}", found, "tokens/s 0.9 x those of base" if is_packed else ""


def documents(bench: Bench) -> Seen:
    """Compare the gradients of packed documents on this device with float32 gradients on the CPU."""
    shape = replace(PROFILES["tiny"]().phases["base"].model, max_position_embeddings=512)
    ids = np.random.default_rng(3).integers(0, shape.vocab_size, (2, 256))
    numbers = np.sort(np.random.default_rng(4).integers(0, 5, (2, 256)), axis=1)
    batch = {"ids": ids, "targets": np.roll(ids, -1, 1), "documents": numbers}
    found = []
    fast = bench.machine.fast if bench.machine.device.type == "cuda" else torch.float32
    for device, dtype in ((torch.device("cpu"), torch.float32), (bench.machine.device, fast)):
        model = Decoder(shape, dtype)
        initialize(model, 1)
        torch.manual_seed(1)
        for one in model.parameters():
            one.data += 0.02 * torch.randn_like(one)
        model.to(device)
        accumulate(model, batch, 2, ids.size, CrossEntropy())
        found.append(torch.cat([one.grad.flatten().cpu() for one in model.parameters() if one.grad is not None]))
    apart = float((found[0] - found[1]).norm() / found[0].norm())
    if apart > 0.03:
        raise AssertionError(f"gradients of packed documents differ by {apart:.3f} from the CPU gradients")
    yield "document masks, backward", {"apart": apart}, "below 0.03"


def saving(bench: Bench) -> Seen:
    """Stop a run early, resume in a new run, and compare the parameters with an uninterrupted run.

    The model has fewer layers: at 1B a checkpoint has 12 GB, and the disk of a rented machine may need a minute to
    write 12 GB.
    """
    config = bench.phase("base")
    fewer = replace(config.model, num_hidden_layers=min(SAVED_LAYERS, config.model.num_hidden_layers))
    config = replace(config, model=fewer, rows=config.micro_rows * bench.ranks.size, steps=6)
    ends = []
    for name in ("through", "stopped"):
        folder = bench.folder / f"saving-{name}"
        make = text_of(config)

        def stopping(step: int, make: Callable[[int], Batch] = make) -> Batch:
            os.kill(os.getpid(), signal.SIGTERM)  # Like a preemption by the vendor.
            return make(step)

        for source in [stopping, make] if name == "stopped" else [make]:
            model, part = bench.model(config)
            saved = Checkpoints(folder, CheckpointOptions(save_every=10**6, reserve_bytes=0, samples=0))
            run = Training(model, config, StepSource(source), saved, {}, folder / "metrics", bench.ranks, part)
            began = time.perf_counter()
            with training_setup(model, config, bench.machine), suppress(Preempted):
                run.run()
            took_s = time.perf_counter() - began
        if bench.ranks.is_first:
            shutil.rmtree(folder)
        squares = bench.ranks.sum_values(
            sum(float(part.local_rows(one).double().square().sum()) for one in model.parameters())
        )
        ends.append(squares[0])
    apart = abs(ends[0] - ends[1]) / ends[0]
    size = memory.host_bytes(config)
    yield "save and resume", {"gb": size / 1e9, "last_run_s": took_s, "apart": apart}, "apart below 1e-6; 0 on a CPU"
    if apart > (0 if bench.machine.device.type == "cpu" else 1e-6):
        raise AssertionError(f"parameters of a resumed run differ by {apart:.1e} from an uninterrupted run")


@torch.no_grad()
def evaluating(bench: Bench) -> Seen:
    config = bench.phase("base")
    if bench.ranks.size > 1:
        return
    model, _ = bench.model(config)
    ids = torch.randint(0, config.model.vocab_size, (4, config.sequence_len), device=bench.machine.device)
    seconds = best_s(bench, lambda: model.loss(ids, ids))
    rate = ids.numel() / seconds
    found = {"tokens_per_s": rate}
    if peak := of_machine(bench.machine):
        found["mfu"] = rate * config.flops_per_token(config.sequence_len) / 3 / peak.flops_per_s
    yield "eval, forward", found, "MFU 0.35, uncompiled"


def phases(bench: Bench) -> Seen:
    """Run a few steps with document masks, of rl, and of the `bench/gpu_part.py` of each pack."""
    if bench.ranks.size > 1:
        return
    masked = bench.phase("base", document_masks=True)
    masked = replace(masked, rows=masked.micro_rows * 2)
    yield "base with document masks", bench.trained(masked, text_of(masked), 4), "0.9 x of base"
    yield from _policy(bench)
    for path in sorted(packs.FOLDER.glob("*/bench/gpu_part.py")):
        yield from import_module(f"packs.{path.parts[-3]}.bench.gpu_part").measured(bench)


def _policy(bench: Bench) -> Seen:
    config = bench.phase("rl", rows=16, micro_rows=2)
    assert config.rl is not None
    make = talk_of(config, is_packed=False)

    def batch(step: int) -> Batch:
        one, chance = make(step), np.random.default_rng([6, step])
        worth = chance.normal(size=one["targets"].shape).astype(np.float32)
        of_one = np.ones_like(worth)  # each target belongs to one answer
        return {**one, "better": worth.clip(0), "worse": worth.clip(max=0), "weights": of_one, "times": of_one}

    yield "rl, the loss", bench.trained(config, batch, 4, PolicyLoss(config.rl)), ""


def parts(bench: Bench) -> Seen:
    """Time the parts of a forward and backward pass separately, to explain the MFU."""
    if bench.ranks.size > 1:
        return
    config = bench.phase("base")
    shape, device, fast = config.model, bench.machine.device, bench.machine.dtype(config)
    tokens, peak = config.micro_rows * config.sequence_len, of_machine(bench.machine)

    def told(name: str, work: Callable[[], Any], flops: float) -> tuple[str, Mapping[str, Any], str]:
        seconds = best_s(bench, work)
        share = {"of_peak": flops / seconds / peak.flops_per_s} if peak else {}
        return f"part: {name}", {"ms": 1e3 * seconds, **share}, ""

    def new(*sides: int, grad: bool = True) -> Tensor:
        return torch.randn(*sides, device=device, dtype=fast, requires_grad=grad)

    x, up = new(tokens, shape.hidden_size), new(shape.intermediate_size, shape.hidden_size)
    yield told("a matrix of the MLP", lambda: F.linear(x, up).sum().backward(), 6.0 * tokens * up.numel())
    heads, length = shape.num_attention_heads, config.sequence_len
    q, k, v = (new(config.micro_rows, heads, length, shape.head_dim) for _ in range(3))
    flops = 12.0 * tokens * length * heads * shape.head_dim

    def attention() -> None:
        F.scaled_dot_product_attention(q, k, v, is_causal=True).sum().backward()

    yield told("attention", attention, flops / 2)
    with fast_attention(bench.machine, False) as name:
        if name:
            yield told(f"attention by {name}", attention, flops / 2)
    model, _ = bench.model(replace(config, model=replace(shape, num_hidden_layers=1)))
    ids = torch.randint(0, shape.vocab_size, (config.micro_rows, length), device=device)
    places = torch.arange(tokens, device=device)
    per_token = 6.0 * (shape.vocab_size * shape.hidden_size)
    yield told(
        "one block, embedding, head and loss",
        lambda: model.loss(ids, ids, None, None, places).backward(),
        tokens * (per_token + 6.0 * (model.config.num_matrix_params - shape.vocab_size * shape.hidden_size)) + flops,
    )
    stack = new(4, shape.intermediate_size, shape.hidden_size, grad=False)
    small, large = sorted(stack.shape[1:])
    yield told(
        "Muon, four matrices", lambda: orthogonalized(stack.clone()), 4 * 5 * (4.0 * small**2 * large + 2.0 * small**3)
    )


PARTS = {
    "base": base, "others": others, "float8": eight_bits, "sft": talk, "documents": documents, "saving": saving,
    "eval": evaluating, "parts": parts, "phases": phases,
}  # fmt: skip
