"""The training loop shared by all phases.

Every step is a pure function of the step number and the checkpoint contents, so a killed and resumed run ends with
bitwise the same parameters as an uninterrupted run: on a CPU always, on the same GPUs with `deterministic: true`.
Without `deterministic`, GPU kernels sum in varying order and runs differ in the last bits.

`Source` -> batch -> micro-batches -> optimizer step -> metrics -> checkpoint
"""

import logging
import math
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data.events import emit
from data.prefetch import PrefetchIterator
from trainer.checkpoints import save_request
from trainer.checkpoints.checkpoint import Checkpoint, Checkpoints, NonFinite, file_of, require_finite
from trainer.checkpoints.random_state import random_state, set_random_state
from trainer.checkpoints.saving import PULSE_S, Saver
from trainer.config import PhaseConfig, ScheduleConfig
from trainer.errors import CheckpointError, Diverged, Preempted, TrainerError
from trainer.model.decoder import Decoder
from trainer.objectives import Batch, CrossEntropy, Objective
from trainer.objectives.passes import evenly, padding_of, passes, seen_len, targets_in, tokens_in
from trainer.objectives.source import Source, SynchronousBatches
from trainer.optim import Optimizer, learning_rate_scale
from trainer.parallel.fsdp import WHOLE, FsdpSharding
from trainer.parallel.process_group import Ranks, convert_peer_errors
from trainer.reporting.metrics import Metrics, StepTokens
from trainer.reporting.peak_flops import Peak
from trainer.reporting.samples import is_due
from trainer.schedule_end import ScheduleEnd, end_of
from trainer.stop_signals import defer_stop_signals

log = logging.getLogger(__name__)

MUST_BE_EQUAL = ("config_hash", "inputs_hash", "tokenizer_sha256", "vocab")  # manifest entries checked on resume
MAX_SKIPPED = 3  # consecutive non-finite steps before a rollback
MAX_FAILED_SAVES = 3
Batches = PrefetchIterator[Batch] | SynchronousBatches


@dataclass
class Training:
    """The state of one training run."""

    model: Decoder
    config: PhaseConfig
    source: Source
    checkpoints: Checkpoints
    facts: Mapping[str, Any]  # manifest entries: run, phase, tokenizer_sha256, vocab, inputs_hash
    folder: Path  # folder of metrics.jsonl
    ranks: Ranks = Ranks()
    sharding: FsdpSharding = WHOLE  # sharding of the learning parameters, or of the optimizer state alone
    objective: Objective = field(default_factory=CrossEntropy)
    peak: Peak | None = None  # peak FLOPs of one device, if known
    sample: Callable[[], list[dict[str, str]]] | None = None  # generate sample answers; first process only
    after_first_step: Callable[[], None] = lambda: None  # called once, after the compilations of the first step
    after_last_step: Callable[[], None] = lambda: None  # called once the last step is saved, on every process
    frozen_groups: Sequence[Any] = ()  # process groups with the shards of frozen models
    step: int = 0  # completed steps
    steps: int = field(init=False)  # steps of the whole run
    schedule: ScheduleConfig = field(init=False)  # schedule of a run planned for this number of steps
    end: ScheduleEnd = field(init=False)
    skipped: int = 0  # consecutive non-finite steps
    failed_saves: int = 0  # consecutive
    rolled_back: bool = False
    figures: dict[str, float] = field(default_factory=dict)  # metrics of the last step

    def __post_init__(self) -> None:
        self._plan_steps(self.config.steps)
        self.end = ScheduleEnd(self.config)

    def run(self) -> Checkpoint | None:
        """Train to the last step, resuming from the newest checkpoint, and return the verified final checkpoint.

        Return None on every process but the first. After too many non-finite steps, roll back once to the newest
        checkpoint. Raises Preempted after SIGTERM or Ctrl-C (with the step saved), PeerLost, Diverged, CheckpointError,
        and TrainerError for a disk that stays full.
        """
        try:
            return self._run_from_newest()
        except NonFinite as error:
            self.rolled_back = True
            alarm(f"{error}; the trainer goes back to the newest checkpoint")
        try:
            return self._run_from_newest()
        except NonFinite as error:
            raise Diverged(f"{error}, again after a roll-back to a checkpoint. Lower the learning rate") from None

    def _run_from_newest(self) -> Checkpoint | None:
        every = self.checkpoints.keeping.save_every
        self.saver = Saver(self.checkpoints, self.ranks)
        newest = self.checkpoints.find_newest() if self.ranks.is_first else None
        # Open metrics before the first collective: TensorBoard and W&B start slowly, on the first process only.
        metrics = self._metrics(newest.step if newest else 0) if self.ranks.is_first else None
        is_quick = False
        try:
            self._resume(newest)
            self._require_space()
            self.source.prepare(self.model)
            if self.ranks.is_first:
                self.end = end_of(self.config)
            if metrics is not None:
                metrics.steps = self.steps
                metrics.begin()
            asked_to_save = save_request.of(os.environ) if self.ranks.is_first else save_request.never
            with defer_stop_signals() as asked_to_stop, self._batches() as batches:
                while self.step < self.steps:
                    stop, save = self._advance(batches, metrics, asked_to_stop, asked_to_save)
                    if not is_quick:
                        is_quick = True
                        if not self.skipped:  # kernels of a step that is not finite may be wrong
                            self.after_first_step()
                        groups = (self.sharding.group, *self.frozen_groups)
                        self.ranks.shorten_timeout(*(one for one in groups if one is not None))
                    if self.step == self.steps or self.step % every == 0 or stop or save:
                        self._save()
                    self._collect(wait=stop or self.step == self.steps)
                    if stop and self.step < self.steps:
                        raise Preempted(
                            f"the trainer stopped at step {self.step} of {self.steps}. To resume, start the run again"
                        )
            self.after_last_step()
        except NonFinite:  # raised on all processes alike
            self._collect(wait=True)
            raise
        finally:
            self.saver.stop()
            if metrics is not None:
                metrics.close()
        if not self.ranks.is_first:
            return None
        final = self.checkpoints.find_newest()
        if final is None or final.step != self.steps:
            raise TrainerError(
                f"{self.checkpoints.folder}: step {self.steps} is done, but the checkpoint is not saved. Start again"
            )
        return final

    def _batches(self) -> Batches:
        if self.source.sees_model:
            return SynchronousBatches(self.source, self.model, self.step)
        return PrefetchIterator(self.source.batch, self.step, self.config.steps)

    def _resume(self, newest: Checkpoint | None) -> None:
        """Create the optimizer and load `newest` on all processes, or seed and broadcast the initial weights.

        newest: given on the first process only; None there starts at step 0. Raises Diverged for a failed rollback.
        """
        self.optimizer = Optimizer(self.model, self.config.optimizer, self.sharding)
        self.skipped = 0
        self._plan_steps(self.config.steps)
        found = self.ranks.broadcast(_cursor(newest) if newest else None)
        if found is None:
            log.info("No checkpoints found in %s: starting at step 0", self.checkpoints.folder)
            if self.rolled_back:
                raise Diverged(
                    "the loss is not finite, and the run has no checkpoint to go back to. Lower the learning rate"
                )
            torch.manual_seed(self.config.seed)
            if self.sharding.has_full_params:  # shards are distributed already
                self.ranks.broadcast_tensors(self.model.learning_state().values())
            return
        self._load_checkpoint(newest)
        self.source.resume(found)
        self.step = found["step"]
        self._plan_steps(found.get("steps", self.config.steps))
        emit("note", text=f"{self.config.phase}: resuming from step {self.step} of {self.steps}")

    def _load_checkpoint(self, newest: Checkpoint | None) -> None:
        """Load model, optimizer, random state and source state from a checkpoint.

        newest: given on the first process, which distributes the contents to the others. Raises CheckpointError when
        the manifest does not match this run.
        """
        if newest is not None:
            for name, expected in self._facts().items():
                if newest.manifest.get(name) != expected and name in MUST_BE_EQUAL:
                    words = f"{name} is {newest.manifest.get(name)} in the checkpoint and {expected} in this run"
                    raise CheckpointError(f"{newest.folder}: {words}. To start from step 0, remove the folder")
        state, rng = self.optimizer.tensors(), random_state()
        saved = newest.tensors("rng") if newest else {}
        if not self.ranks.broadcast("cuda" in saved):  # saved on a CPU or by an older trainer
            rng.pop("cuda", None)
        model, of_model = self.model.learning_state(), self.sharding
        if self.sharding.has_full_params:
            of_model = WHOLE
        else:
            model = {name: self.sharding.local_rows(one) for name, one in model.items()}
        for kind, mine, how in (("model", model, of_model), ("optimizer", state, self.sharding), ("rng", rng, WHOLE)):
            how.scatter_weights(mine, newest.tensors(kind) if newest else {}, self.ranks)
        self.optimizer.load(state)
        set_random_state(rng)
        if told := self.ranks.broadcast_named_tensors(newest.tensors("source") if newest else {}):
            self.source.load(told)
        if newest is not None:
            log.info("Successfully loaded checkpoint from step %d: %s", newest.step, newest.folder)

    def _advance(
        self,
        batches: Batches,
        metrics: Metrics | None,
        asked_to_stop: Callable[[], bool],
        asked_to_save: Callable[[], bool],
    ) -> tuple[bool, bool]:
        """Run one step and return (stop, save): whether any process received a request to stop, or to save.

        Skip the update for a non-finite loss or gradient norm. Raises NonFinite after over MAX_SKIPPED skips in a row.
        """
        scale, progress = learning_rate_scale(self.schedule, self.step, self.steps), self.step / self.steps
        self.objective.set_step(self.step, self.steps)
        batch, waited_s = batches.next_batch()
        self.optimizer.zero_grad()
        count: float = self.objective.loss_divisor(batch)
        tokens, learnt, row_len = float(tokens_in(batch)), float(targets_in(batch)), batch["ids"].shape[1]
        is_packed = "documents" in batch and not self.config.reads_text
        if is_packed:
            row_len = seen_len(batch["documents"])
        if self.source.is_dealt:
            count, tokens, learnt = self.ranks.sum_values(count, tokens, learnt)
        else:
            batch = {name: self.ranks.shard_rows(one, padding_of(name)) for name, one in batch.items()}
        rows = self.config.micro_rows
        if is_packed:  # the number of packed rows varies by step
            rows = evenly(len(batch["ids"]), rows)
        with convert_peer_errors() if self.ranks.size > 1 else nullcontext():
            sums = accumulate(self.model, batch, rows, count, self.objective, self.sharding.prepare_pass)
        # The number of steps applies from the next step on; all processes but the first add 0.
        new_steps = self.end.num_steps(self.step + 1, self.steps) if self.ranks.is_first else 0
        said_here = (asked_to_stop(), asked_to_save(), new_steps)
        asked = [torch.full((), float(one), device=sums["loss"].device) for one in said_here]
        said = self.ranks.all_reduce(torch.stack([*asked, *sums.values()]))
        norm_of_all = self.optimizer.clip()
        # The only synchronization with the GPU in a step; all other work is queued.
        norm, stop, save, new_steps, *found = torch.cat([norm_of_all.reshape(1).to(said.dtype), said]).tolist()
        others = dict(zip(sums, found, strict=True))
        loss = others.pop("loss")
        self.step += 1
        self._set_steps(int(new_steps), metrics)
        if math.isfinite(loss) and math.isfinite(norm):
            self.optimizer.step(scale, progress)
            self.skipped = 0
            figures = {**others, **self.source.metrics()}
            self.figures = {"loss": loss, "grad_norm": norm, "lr": self.config.optimizer.lr * scale, **figures}
            if metrics is not None:
                counts = StepTokens(int(tokens), int(learnt), row_len)
                metrics.step(self.step, counts, **self.figures, data_wait_s=round(waited_s, 6))
                if self.sample and is_due(self.step, self.steps, self.checkpoints.keeping.samples):
                    began = time.monotonic()
                    metrics.log_samples(self.step, self.sample(), time.monotonic() - began)
            return stop > 0, save > 0
        self.skipped += 1
        words = f"step {self.step}: loss {loss}, gradient norm {norm}"
        if self.skipped > MAX_SKIPPED:
            raise NonFinite(words)
        alarm(f"{words}; skipped")
        return stop > 0, save > 0

    def _plan_steps(self, steps: int) -> None:
        self.steps, self.schedule = steps, self.config.with_steps(steps).schedule

    def _set_steps(self, steps: int, metrics: Metrics | None) -> None:
        """Change the number of steps of the run, on all processes."""
        if steps == self.steps:
            return
        self._plan_steps(steps)
        if metrics is not None:
            metrics.steps = steps
            emit("note", text=f"{self.config.phase}: the schedule now ends at step {steps} of {self.config.steps}")

    def _require_space(self) -> None:
        """Raise TrainerError on all processes before the first step if the disk cannot hold the checkpoints."""
        model = {name: self.sharding.local_rows(one) for name, one in self.model.learning_state().items()}
        tensors = self._local_tensors({"model": model, "optimizer": self.optimizer.tensors()})
        sizes = self.ranks.all_gather(sum(one.nbytes for named in tensors.values() for one in named.values()))
        problem = ""
        try:
            if self.ranks.is_first:
                self.checkpoints.require_space_for_run(sum(sizes))
        except OSError as error:
            problem = str(error)
        for said in filter(None, self.ranks.all_gather(problem)):
            raise TrainerError(said)

    def _save(self) -> None:
        """Start a background save of the current step on all processes, after the previous save has ended.

        Raises NonFinite on all processes for a non-finite parameter, TrainerError after too many failed saves,
        PeerLost.
        """
        self._collect(wait=True)
        model = {name: self.sharding.local_rows(one) for name, one in self.model.learning_state().items()}
        problem = ""
        try:
            require_finite(self.step, model)
        except NonFinite as error:
            problem = str(error)
        for said in filter(None, self.ranks.all_gather(problem)):
            raise NonFinite(said)
        tensors = {"model": model, "optimizer": self.optimizer.tensors()}
        if self.ranks.is_first:
            tensors["rng"] = random_state()
            if state := self.source.state():
                tensors["source"] = state
        try:
            self.saver.start(self.step, self._local_tensors(tensors), self._facts())
        except OSError as error:
            self._count_failed_save(error)

    def _local_tensors(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Return the non-empty tensors to write on this process, {} on a replica of an earlier process."""
        if self.ranks.rank >= self.sharding.size:
            return {}
        if not self.ranks.is_first:
            del tensors["optimizer"]["updates"]
        return {kind: {name: one for name, one in named.items() if one.numel()} for kind, named in tensors.items()}

    def _collect(self, wait: bool) -> None:
        """Collect the outcome of the running save, waiting for the end if `wait`.

        A failed save is only reported; raises TrainerError after MAX_FAILED_SAVES consecutive failures.
        """
        while self.saver.is_busy:
            if wait:
                self.saver.wait(PULSE_S if self.ranks.size > 1 else None)
            try:
                if self.saver.collect():
                    self.failed_saves = 0
            except OSError as error:
                self._count_failed_save(error)
            if not wait:
                return

    def _count_failed_save(self, error: OSError) -> None:
        self.failed_saves += 1
        alarm(f"saving a checkpoint failed: {error}")
        if self.failed_saves >= MAX_FAILED_SAVES:
            words = f"{self.failed_saves} saves in a row failed ({error}). Free disk space, then start the run again"
            raise TrainerError(f"{self.checkpoints.folder}: {words}") from error

    def _facts(self) -> dict[str, Any]:
        cursor = {"step": self.step, **self.source.cursor(self.step)}
        if self.steps != self.config.steps:
            cursor["steps"] = self.steps
        return {
            **self.facts,
            "config": asdict(self.config),
            "config_hash": self.config.digest(),
            "data_cursor": cursor,
            "metrics": self.figures,
            "model_type": "Decoder",
            "rng": file_of("rng", 0),
        }

    def _metrics(self, start: int) -> Metrics:
        return Metrics(self.folder, start, self.config, self.peak, self.ranks.size, self.source.conversation_counts())


def accumulate(
    model: Decoder,
    batch: Batch,
    micro_rows: int,
    count: float,
    objective: Objective,
    before: Callable[[Decoder, bool], None] = lambda model, is_last: None,
) -> dict[str, Tensor]:
    """Run forward and backward over micro-batches, accumulating gradients of the summed loss divided by `count`.

    count: divisor of the whole batch over all processes. before: called before each pass with (model, is_last). Return
    `loss`, the contribution of these rows in nats, and the objective's figures, divided alike, without synchronizing
    with the GPU.
    """
    device, rows, share = model.head.device, len(batch["ids"]), count or 1.0
    sums = {"loss": torch.zeros((), device=device)}
    model.begin_step()
    for start, part in zip(range(0, rows, micro_rows), passes(batch, micro_rows, model), strict=True):
        before(model, start + micro_rows >= rows)
        loss, figures = model.compute_objective(objective, part)
        loss = loss / share
        loss.backward()
        sums["loss"] += loss.detach()
        for name in sorted(figures):
            sums[name] = sums.get(name, 0.0) + figures[name].detach().float() / share
    return sums


def alarm(words: str) -> None:
    """Report a non-fatal error to the log and to followers of the event stream."""
    log.warning("%s", words)
    emit("note", text=words, alarm=True)


def _cursor(newest: Checkpoint) -> dict[str, Any]:
    """Return the data cursor of a checkpoint. Raises CheckpointError for a missing or malformed cursor."""
    cursor = newest.manifest.get("data_cursor")
    if type(cursor) is not dict or type(cursor.get("step")) is not int:
        raise CheckpointError(
            f"{newest.folder} does not record the position in the data. To start again, remove the folder"
        )
    return cursor
