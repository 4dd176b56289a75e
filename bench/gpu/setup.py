"""The common setup of all parts of the bench: phases at the size of this machine, batches made of nothing, the loop."""

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
from trainer.config import Keeping, PhaseConfig
from trainer.device import Machine
from trainer.loop import Training
from trainer.model.decoder import IGNORED, Decoder, unfilled
from trainer.objectives import Batch, CrossEntropy, Objective
from trainer.objectives.source import StepSource
from trainer.parallel import placement
from trainer.parallel.fsdp import WHOLE, cut
from trainer.parallel.process_group import Ranks
from trainer.parallel.zero import shared
from trainer.recipes import PROFILES
from trainer.reporting.peak_flops import of_machine
from trainer.speed import equipped

SKIPPED = 2  # first steps, in which code is compiled and memory found
TALK_TOKENS, TALK_SPREAD = 350, 0.8  # median and sigma (of the logarithm) of conversations such as SmolTalk's
PROFILE_OF = {"1B": "runpod_1b", "d20": "d20", "2B": "runpod_2b"}


@dataclass
class Bench:
    """The setup that all parts need."""

    machine: Machine
    ranks: Ranks
    is_toy: bool
    folder: Path

    def size(self, profile: str = "1B") -> str:
        """Return the word for the size of the models of a profile."""
        return "toy" if self.is_toy else profile

    def phase(self, name: str, profile: str = "1B", **changes: Any) -> PhaseConfig:
        """Return a phase of a profile, at toy size where that is asked for, with rows as they fit."""
        config = PROFILES["tiny" if self.is_toy else PROFILE_OF[profile]]().phases[name]
        small = {"rows": 4, "micro_rows": 2, "sequence_len": 64, "compile": "never", "dtype": "float32"}
        config = replace(config, **({**small, **changes} if self.is_toy else {"compile": "always", **changes}))
        if config.rl is not None:
            return config
        return placement.fitted(config, self.ranks, self.machine, {})

    def model(self, config: PhaseConfig) -> tuple[Decoder, Any]:
        """Return the model of random parameters as a run would spread it, and its cut."""
        way = placement.how(config, self.ranks, self.machine)
        model = unfilled(config.model, self.machine.dtype(config))
        held = placement.is_held(config, way, self.ranks, self.machine)
        part = cut(model, way, self.ranks, is_held=held) if way != "ddp" else WHOLE
        model.to_empty(device=self.machine.device)
        torch.manual_seed(1)
        for one in model.parameters():
            filled = part.part(one)
            filled.normal_(std=0.02) if one.dim() > 1 else filled.fill_(1.0)
        if way == "ddp" and self.ranks.size > 1:
            part = shared(model, self.ranks)
        return model, part

    def trained(
        self, config: PhaseConfig, make: Callable[[int], Batch], steps: int, objective: Objective | None = None
    ) -> dict[str, Any]:
        """Run some steps of the loop; return the rates of those that are counted.

        Nothing is saved: all parts together would write some 150 GB.
        """
        steps = SKIPPED + 1 if self.is_toy else steps
        config = replace(config, steps=steps)
        if self.machine.device.type == "cuda":
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()
        model, part = self.model(config)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            saved = Checkpoints(Path(folder) / "saved", Keeping(save_every=10**6, reserve_bytes=0, samples=0))
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
            with equipped(model, config, self.machine):
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
            way = placement.how(config, self.ranks, self.machine)
            nodes = self.ranks.size // self.ranks.per_node
            spread = memory.ways(replace(config, parallel="auto"), self.ranks.per_node, nodes)[way]
            told = memory.estimate(config, **spread, is_held=part.is_held)
            found["estimate_over_memory"] = told.in_allocator / 1e9 / found["memory_gb"]
        return found


def _go(one: Training) -> None:
    """Run all steps of a training from its beginning, without its saves."""
    metrics = one._metrics(0) if one.ranks.is_first else None
    one._resume(None)
    with one._batches() as batches:
        while one.step < one.config.steps:
            one._advance(batches, metrics, lambda: False, lambda: False)
    if metrics is not None:
        metrics.close()


def text_of(config: PhaseConfig) -> Callable[[int], Batch]:
    """Return a maker of rows of random ids, each with the one after it."""

    def batch(step: int) -> Batch:
        shape = (config.rows, config.sequence_len + 1)
        ids = np.random.default_rng([1, step]).integers(0, config.model.vocab_size, shape)
        documents = np.zeros((config.rows, config.sequence_len), np.int64)
        documents[:, config.sequence_len // 3 :] = 1
        found = {"ids": ids[:, :-1], "targets": ids[:, 1:]}
        return {**found, "documents": documents} if config.document_masks else found

    return batch


def talk_of(config: PhaseConfig, is_packed: bool) -> Callable[[int], Batch]:
    """Return a maker of conversations of random ids, of which the second half is learnt."""

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
    """Return the seconds of the fastest of a few, after one that is not counted."""
    found = []
    for _ in range(1 + (1 if bench.is_toy else tries)):
        began = time.perf_counter()
        work()
        if bench.machine.device.type == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - began)
    return min(found[1:])
