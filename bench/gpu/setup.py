"""Common setup of all parts of the GPU benchmark: phases sized for this machine, random batches, the training loop."""

import json
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data.chat.packing import packed
from trainer import memory
from trainer.checkpoints.checkpoint import Checkpoints
from trainer.config import CheckpointOptions, PhaseConfig
from trainer.device import Machine
from trainer.loop import Training
from trainer.model.decoder import IGNORED, Decoder, uninitialized_decoder
from trainer.objectives import Batch, CrossEntropy, Objective
from trainer.objectives.source import StepSource
from trainer.parallel import placement
from trainer.parallel.fsdp import WHOLE, shard_model
from trainer.parallel.process_group import Ranks
from trainer.parallel.zero import shard_optimizer_state
from trainer.recipes import PROFILES
from trainer.reporting.peak_flops import of_machine
from trainer.speed import training_setup

SKIPPED = 2  # warm-up steps: compilation and allocation
TALK_TOKENS, TALK_SPREAD = 350, 0.8  # lengths as in SmolTalk: median, sigma of the logarithm
PROFILE_OF = {"1B": "runpod_1b", "d20": "d20", "2B": "runpod_2b"}


@dataclass
class Bench:
    """Machine, ranks and size, shared by all parts."""

    machine: Machine
    ranks: Ranks
    is_toy: bool
    folder: Path

    def size(self, profile: str = "1B") -> str:
        """Return the size for names of measurements: `toy` or the profile."""
        return "toy" if self.is_toy else profile

    def phase(self, name: str, profile: str = "1B", **changes: Any) -> PhaseConfig:
        """Return a phase of a profile (toy size with `--toy`), with micro_rows that fit into memory."""
        config = PROFILES["tiny" if self.is_toy else PROFILE_OF[profile]]().phases[name]
        small = {"rows": 4, "micro_rows": 2, "sequence_len": 64, "compile": "never", "dtype": "float32"}
        config = replace(config, **({**small, **changes} if self.is_toy else {"compile": "always", **changes}))
        if config.rl is not None:
            return config
        return placement.with_fitting_micro_batch(config, self.ranks, self.machine, {})

    def model(self, config: PhaseConfig) -> tuple[Decoder, Any]:
        """Return a model with random parameters, placed on the ranks as in a run, and the shards of this rank."""
        way = placement.choose_layout(config, self.ranks, self.machine)
        model = uninitialized_decoder(config.model, self.machine.dtype(config))
        held = placement.is_held(config, way, self.ranks, self.machine)
        part = shard_model(model, way, self.ranks, is_held=held) if way != "ddp" else WHOLE
        model.to_empty(device=self.machine.device)
        torch.manual_seed(1)
        for one in model.parameters():
            filled = part.local_rows(one)
            filled.normal_(std=0.02) if one.dim() > 1 else filled.fill_(1.0)
        if way == "ddp" and self.ranks.size > 1:
            part = shard_optimizer_state(model, self.ranks)
        return model, part

    def trained(
        self, config: PhaseConfig, make: Callable[[int], Batch], steps: int, objective: Objective | None = None
    ) -> dict[str, Any]:
        """Run `steps` steps of the training loop; return rates after the warm-up steps.

        Saves no checkpoint: all parts together would write some 150 GB.
        """
        steps = SKIPPED + 1 if self.is_toy else steps
        config = replace(config, steps=steps)
        if self.machine.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        model, part = self.model(config)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            saved = Checkpoints(Path(folder) / "saved", CheckpointOptions(save_every=10**6, reserve_bytes=0, samples=0))
            one = Training(
                model,
                config,
                StepSource(make),
                saved,
                {},
                Path(folder) / "metrics",
                self.ranks,
                part,
                objective or CrossEntropy(),
                of_machine(self.machine),
            )
            with training_setup(model, config, self.machine):
                _go(one)
            if not self.ranks.is_first:
                return {}
            lines = [json.loads(line) for line in (Path(folder) / "metrics/metrics.jsonl").read_text().splitlines()]
        counted = lines[SKIPPED:]
        spent_s = sum(line["step_s"] for line in counted)
        tokens = counted[-1]["tokens"] - lines[SKIPPED - 1]["tokens"]
        found = {"micro_rows": config.micro_rows, "tokens_per_s": tokens / spent_s, "loss": lines[-1]["loss"]}
        if peak := one.peak:
            flops = tokens * config.flops_per_token(config.sequence_len)
            found["mfu"] = flops / spent_s / peak.flops_per_s / self.ranks.size
        if self.machine.device.type == "cuda":
            found["memory_gb"] = torch.cuda.max_memory_allocated() / 1e9
            way = placement.choose_layout(config, self.ranks, self.machine)
            nodes = self.ranks.size // self.ranks.per_node
            spread = memory.ways(replace(config, parallel="auto"), self.ranks.per_node, nodes)[way]
            told = memory.estimate(config, **spread, is_held=part.is_held)
            found["estimate_over_memory"] = told.in_allocator / 1e9 / found["memory_gb"]
        return found


def _go(one: Training) -> None:
    """Run all steps of a training from the beginning, without checkpoints."""
    metrics = one._metrics(0) if one.ranks.is_first else None
    one._resume(None)
    with one._batches() as batches:
        while one.step < one.config.steps:
            one._advance(batches, metrics, lambda: False, lambda: False)
    if metrics is not None:
        metrics.close()


def text_of(config: PhaseConfig) -> Callable[[int], Batch]:
    """Return a function that makes a batch of random ids with next-id targets for a step."""

    def batch(step: int) -> Batch:
        shape = (config.rows, config.sequence_len + 1)
        ids = np.random.default_rng([1, step]).integers(0, config.model.vocab_size, shape)
        documents = np.zeros((config.rows, config.sequence_len), np.int64)
        documents[:, config.sequence_len // 3 :] = 1
        found = {"ids": ids[:, :-1], "targets": ids[:, 1:]}
        return {**found, "documents": documents} if config.document_masks else found

    return batch


def talk_of(config: PhaseConfig, is_packed: bool) -> Callable[[int], Batch]:
    """Return a function that makes conversations of random ids; the second half of each is trained on."""

    def batch(step: int) -> Batch:
        chance = np.random.default_rng([2, step])
        sizes = np.exp(chance.normal(np.log(min(TALK_TOKENS, config.sequence_len // 3)), TALK_SPREAD, config.rows))
        sizes = sizes.clip(8, config.sequence_len).astype(int)
        width = int(sizes.max()) + -int(sizes.max()) % 16
        ids = chance.integers(0, config.model.vocab_size, (config.rows, width))
        at = np.arange(width)
        targets = np.where((at >= sizes[:, None] // 2) & (at < sizes[:, None]), np.roll(ids, -1, 1), IGNORED)
        return packed(ids, targets, config.sequence_len, 0) if is_packed else {"ids": ids, "targets": targets}

    return batch


def best_s(bench: Bench, work: Callable[[], Any], tries: int = 4) -> float:
    """Return the seconds of the fastest of `tries` calls, after a warm-up call."""
    found = []
    for _ in range(1 + (1 if bench.is_toy else tries)):
        began = time.perf_counter()
        work()
        if bench.machine.device.type == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return min(found[1:])
