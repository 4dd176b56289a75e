"""The one loop that every phase shares: batch(step) -> micro-batches -> optimizer step -> record -> save.

In: a model, a `PhaseConfig`, a pure function `batch(step)`, a run's `Checkpoints`. Out: the trained model and its last
checkpoint. Everything is a pure function of the step and of what a checkpoint holds, so a run that is killed and
started again has the same parameters, bit for bit, as one that was not.
"""

import logging
import math
import signal
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from data.report import emit
from trainer.checkpoint import FILES, Checkpoint, Checkpoints, NonFinite
from trainer.config import PhaseConfig
from trainer.errors import CheckpointError, Diverged, Preempted, TrainerError
from trainer.metrics import Metrics
from trainer.model import IGNORED, Decoder
from trainer.optim import Optimizer, learning_rate_scale

log = logging.getLogger(__name__)

Batch = Callable[[int], tuple[np.ndarray, np.ndarray]]  # step -> ids, targets (rows, T), targets -1 = not counted
MAX_SKIPPED = 3  # non-finite steps in a row before a roll-back
MAX_FAILED_SAVES = 3


@dataclass
class Training:
    """One run: everything that a step reads or changes."""

    model: Decoder
    config: PhaseConfig
    batch: Batch
    checkpoints: Checkpoints
    facts: Mapping[str, Any]  # for the manifest: run, phase, tokenizer_sha256, vocab
    folder: Path  # of metrics.jsonl
    step: int = 0  # how many are done
    skipped: int = 0  # non-finite steps in a row
    failed_saves: int = 0  # in a row
    rolled_back: bool = False

    def run(self) -> Checkpoint:
        """Train to the end, from the newest checkpoint when there is one; the last step's checkpoint, read back.

        Raises Preempted after SIGTERM (saved), Diverged, CheckpointError, TrainerError when the disk stays full.
        """
        try:
            return self._run_from_newest()
        except NonFinite as error:
            self.rolled_back = True
            alarm(f"{error}; back to the newest checkpoint")
        try:
            return self._run_from_newest()
        except NonFinite as error:
            raise Diverged(f"{error}, again after a roll-back; lower the learning rate") from None

    def _run_from_newest(self) -> Checkpoint:
        steps, every = self.config.steps, self.checkpoints.keeping.save_every
        self._resume()
        metrics = Metrics(self.folder, self.step, steps, self._tokens_per_step())
        try:
            with sigterm_noted() as asked_to_stop:
                while self.step < steps:
                    self._advance(metrics)
                    stop = asked_to_stop()
                    if self.step == steps or self.step % every == 0 or stop:
                        self._save()
                    if stop and self.step < steps:
                        raise Preempted(f"stopped at step {self.step} of {steps}; start it again to go on")
        finally:
            metrics.close()
        final = self.checkpoints.newest()
        if final is None or final.step != steps:
            raise TrainerError(f"{self.checkpoints.folder}: step {steps} is done but not safely saved; start again")
        return final

    def _resume(self) -> None:
        """Take over the newest whole checkpoint, if there is one."""
        self.optimizer = Optimizer(self.model, self.config.optimizer)
        self.skipped = 0
        newest = self.checkpoints.newest()
        if newest is None:
            if self.rolled_back:
                raise Diverged("the loss is not finite and nothing was saved before; lower the learning rate")
            torch.manual_seed(self.config.seed)
            return
        for name, expected in self._facts().items():
            if newest.manifest.get(name) != expected and name in ("config_hash", "tokenizer_sha256", "vocab"):
                words = f"{name} is {newest.manifest.get(name)}, this run has {expected}"
                raise CheckpointError(f"{newest.folder}: {words}; remove the folder to begin again")
        self.model.load_state_dict(newest.tensors("model"))
        self.optimizer.load(newest.tensors("optimizer"))
        torch.set_rng_state(newest.tensors("rng")["torch"])
        self.step = newest.step
        emit("note", text=f"{self.config.phase}: going on from step {self.step} of {self.config.steps}")

    def _advance(self, metrics: Metrics) -> None:
        """One step. A non-finite loss or gradient changes nothing; too many in a row raise NonFinite."""
        scale = learning_rate_scale(self.config.schedule, self.step, self.config.steps)
        ids, targets = self.batch(self.step)
        self.optimizer.zero_grad()
        loss = accumulate(self.model, ids, targets, self.config.micro_rows)
        norm = float(self.optimizer.clip())
        self.step += 1
        if math.isfinite(loss) and math.isfinite(norm):
            self.optimizer.step(scale)
            self.skipped = 0
            metrics.step(self.step, ids.size, loss=loss, grad_norm=norm, lr=self.config.optimizer.lr * scale)
            return
        self.skipped += 1
        words = f"step {self.step}: loss {loss}, gradient norm {norm}"
        if self.skipped > MAX_SKIPPED:
            raise NonFinite(words)
        alarm(f"{words}; skipped")

    def _save(self) -> None:
        """Save. A full disk costs this save only, until it is the last few's fate too; NonFinite passes through."""
        tensors = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.tensors(),
            "rng": {"torch": torch.get_rng_state()},
        }
        try:
            self.checkpoints.save(self.step, tensors, self._facts())
            self.failed_saves = 0
        except OSError as error:
            self.failed_saves += 1
            alarm(f"step {self.step} was not saved: {error}")
            if self.failed_saves >= MAX_FAILED_SAVES:
                words = f"{self.failed_saves} saves in a row failed ({error}); free some disk, then start again"
                raise TrainerError(f"{self.checkpoints.folder}: {words}") from error

    def _facts(self) -> dict[str, Any]:
        cursor = {"step": self.step, "rows": self.config.rows, "seed": self.config.seed}
        return {**self.facts, "config_hash": self.config.digest(), "data_cursor": cursor, "rng": FILES["rng"]}

    def _tokens_per_step(self) -> int | None:
        """None for chat phases, whose rows have different lengths."""
        return None if self.config.mixture else self.config.rows * self.config.sequence_len


def accumulate(model: Decoder, ids: np.ndarray, targets: np.ndarray, micro_rows: int) -> float:
    """Add the gradients of the mean loss over every counted target of the batch, whatever the micro-batches.

    Returns that loss in nats.
    """
    device, counted = model.head.device, max(1, int((targets != IGNORED).sum()))
    total = 0.0
    for start in range(0, len(ids), micro_rows):
        micro_ids, micro_targets = (
            torch.from_numpy(np.ascontiguousarray(array[start : start + micro_rows])).to(device)
            for array in (ids, targets)
        )
        loss = model.loss(micro_ids, micro_targets) / counted
        loss.backward()
        total += float(loss.detach())
    return total


def alarm(words: str) -> None:
    """Something went wrong that training survives: for the log, and for whoever follows."""
    log.warning("%s", words)
    emit("note", text=words, alarm=True)


@contextmanager
def sigterm_noted() -> Iterator[Callable[[], bool]]:
    """While inside, SIGTERM is only noted; the function given tells whether it came."""
    came: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: came.append(number))
    try:
        yield lambda: bool(came)
    finally:
        signal.signal(signal.SIGTERM, before)
