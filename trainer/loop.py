"""The one loop that every phase shares: a source's batch -> micro-batches -> optimizer step -> record -> save.

In: a model, a `PhaseConfig`, an objective, a source of batches, a run's `Checkpoints`. Out: the trained model and its
last checkpoint. Everything is a pure function of the step and of what a checkpoint holds, so a run that is killed and
started again has the same parameters, bit for bit, as one that was not: on a CPU always, on the same GPUs with
`deterministic: true`. Without it kernels there add up in whatever order they come, and runs differ in the last bits.
"""

import logging
import math
import os
import signal
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from data.events import emit
from data.prefetch import Ahead
from trainer.checkpoints import save_request
from trainer.checkpoints.checkpoint import Checkpoint, Checkpoints, NonFinite, file_of, require_finite
from trainer.checkpoints.saving import PULSE_S, Saver
from trainer.config import PhaseConfig
from trainer.errors import CheckpointError, Diverged, Preempted, TrainerError
from trainer.model.decoder import IGNORED, Decoder
from trainer.objectives import Batch, CrossEntropy, Objective
from trainer.objectives.passes import evenly, passes, seen_len
from trainer.objectives.source import Asked, Source
from trainer.optim import Optimizer, learning_rate_scale
from trainer.parallel.fsdp import WHOLE, FsdpCut
from trainer.parallel.process_group import Ranks, passing
from trainer.reporting.metrics import Metrics, StepTokens
from trainer.reporting.peak_flops import Peak
from trainer.reporting.samples import is_due

log = logging.getLogger(__name__)

MUST_BE_EQUAL = ("config_hash", "inputs_hash", "tokenizer_sha256", "vocab")  # equal in a checkpoint and its resumed run
MAX_SKIPPED = 3  # non-finite steps in a row before a roll-back
MAX_FAILED_SAVES = 3
Batches = Ahead[Batch] | Asked


@dataclass
class Training:
    """One run: everything that a step reads or changes."""

    model: Decoder
    config: PhaseConfig
    source: Source
    checkpoints: Checkpoints
    facts: Mapping[str, Any]  # facts for the manifest: run, phase, tokenizer_sha256, vocab
    folder: Path  # folder of metrics.jsonl
    ranks: Ranks = Ranks()
    cut: FsdpCut = WHOLE  # cut of the model
    objective: Objective = field(default_factory=CrossEntropy)
    peak: Peak | None = None  # peak of one device, where it is known
    sample: Callable[[], list[dict[str, str]]] | None = None  # asks the model a few questions, on the first process
    step: int = 0  # number of steps done
    skipped: int = 0  # non-finite steps in a row
    failed_saves: int = 0  # in a row
    rolled_back: bool = False
    figures: dict[str, float] = field(default_factory=dict)  # figures of the last step

    def run(self) -> Checkpoint | None:
        """Train to the end, from the newest checkpoint when there is one; the last step's checkpoint, read back.

        None on every process but the first. Raises Preempted after SIGTERM or Ctrl-C (saved), PeerLost,
        Diverged, CheckpointError, TrainerError when the disk stays full.
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

    def _run_from_newest(self) -> Checkpoint | None:
        steps, every = self.config.steps, self.checkpoints.keeping.save_every
        self.saver = Saver(self.checkpoints, self.ranks)
        newest = self.checkpoints.newest() if self.ranks.is_first else None
        # before the first exchange with the others: TensorBoard and W&B take their time, on the first process alone
        metrics = self._metrics(newest.step if newest else 0) if self.ranks.is_first else None
        is_quick = False
        try:
            self._resume(newest)
            asked_to_save = save_request.of(os.environ) if self.ranks.is_first else save_request.never
            with stop_noted() as asked_to_stop, self._batches() as batches:
                while self.step < steps:
                    stop, save = self._advance(batches, metrics, asked_to_stop, asked_to_save)
                    if not is_quick:
                        is_quick = True
                        self.ranks.hurry(*([self.cut.group] if self.cut.group else []))
                    if self.step == steps or self.step % every == 0 or stop or save:
                        self._save()
                    self._collect(wait=stop or self.step == steps)
                    if stop and self.step < steps:
                        raise Preempted(f"stopped at step {self.step} of {steps}; start it again to go on")
        except NonFinite:  # all processes agree on that
            self._collect(wait=True)
            raise
        finally:
            self.saver.leave()
            if metrics is not None:
                metrics.close()
        if not self.ranks.is_first:
            return None
        final = self.checkpoints.newest()
        if final is None or final.step != steps:
            raise TrainerError(f"{self.checkpoints.folder}: step {steps} is done but not safely saved; start again")
        return final

    def _batches(self) -> Batches:
        if self.source.sees_model:
            return Asked(self.source, self.model, self.step)
        return Ahead(self.source.batch, self.step, self.config.steps)

    def _resume(self, newest: Checkpoint | None) -> None:
        """Load the newest whole checkpoint, if there is one; on the first process it is given."""
        self.optimizer = Optimizer(self.model, self.config.optimizer, self.cut)
        self.skipped = 0
        found = self.ranks.tell(_cursor(newest) if newest else None)
        if found is None:
            log.info("No checkpoints found in %s: starting at step 0", self.checkpoints.folder)
            if self.rolled_back:
                raise Diverged("the loss is not finite and nothing was saved before; lower the learning rate")
            torch.manual_seed(self.config.seed)
            if self.cut.is_whole:  # otherwise the parts are already distributed
                self.ranks.spread(self.model.state_dict().values())
            return
        self._take_over(newest)
        self.source.resume(found)
        self.step = found["step"]
        emit("note", text=f"{self.config.phase}: going on from step {self.step} of {self.config.steps}")

    def _take_over(self, newest: Checkpoint | None) -> None:
        """Load the newest checkpoint, or begin.

        newest: on the first process, from which the others have all of it.
        """
        if newest is not None:
            for name, expected in self._facts().items():
                if newest.manifest.get(name) != expected and name in MUST_BE_EQUAL:
                    words = f"{name} is {newest.manifest.get(name)}, this run has {expected}"
                    raise CheckpointError(f"{newest.folder}: {words}; remove the folder to begin again")
        state, rng = self.optimizer.tensors(), random_state()
        saved = newest.tensors("rng") if newest else {}
        if not self.ranks.tell("cuda" in saved):  # saved on a CPU, or before this was saved
            rng.pop("cuda", None)
        model, of_model = self.model.state_dict(), self.cut
        if self.cut.is_whole:
            of_model = WHOLE
        else:
            model = {name: self.cut.part(one) for name, one in model.items()}
        for kind, mine, how in (("model", model, of_model), ("optimizer", state, self.cut), ("rng", rng, WHOLE)):
            how.deal(mine, newest.tensors(kind) if newest else {}, self.ranks)
        self.optimizer.load(state)
        set_random_state(rng)
        if told := self.ranks.tell_tensors(newest.tensors("source") if newest else {}):
            self.source.load(told)
        if newest is not None:
            log.info("Successfully loaded checkpoint from step %d: %s", newest.step, newest.folder)

    def _advance(
        self, batches: Batches, metrics: Metrics | None, asked_to_stop: Callable[[], bool],
        asked_to_save: Callable[[], bool],
    ) -> tuple[bool, bool]:  # fmt: skip
        """Run one step; return whether a process was asked to stop, and whether one was asked to save.

        A non-finite loss or gradient changes nothing; too many in a row raise NonFinite.
        """
        scale = learning_rate_scale(self.config.schedule, self.step, self.config.steps)
        self.objective.at(self.step)
        batch, waited_s = batches.take()
        self.optimizer.zero_grad()
        count: float = self.objective.count(batch)
        tokens, learnt, row_len = float(tokens_in(batch)), float(targets_in(batch)), batch["ids"].shape[1]
        is_packed = "documents" in batch and not self.config.reads_text
        if is_packed:
            row_len = seen_len(batch["documents"])
        if self.source.is_dealt:
            count, tokens, learnt = self.ranks.total(count, tokens, learnt)
        else:
            batch = {name: self.ranks.share(one, _fill(name)) for name, one in batch.items()}
        rows = self.config.micro_rows
        if is_packed:  # their number changes from step to step
            rows = evenly(len(batch["ids"]), rows)
        with passing() if self.ranks.size > 1 else nullcontext():
            sums = accumulate(self.model, batch, rows, count, self.objective, self.cut.before_pass)
        asked = [torch.full((), float(one()), device=sums["loss"].device) for one in (asked_to_stop, asked_to_save)]
        said = self.ranks.add_up(torch.stack([*asked, *sums.values()]))
        norm_of_all = self.optimizer.clip()
        # the one place in a step that waits for a GPU: all else is queued behind what it computes
        norm, stop, save, *found = torch.cat([norm_of_all.reshape(1).to(said.dtype), said]).tolist()
        others = dict(zip(sums, found, strict=True))
        loss = others.pop("loss")
        self.step += 1
        if math.isfinite(loss) and math.isfinite(norm):
            self.optimizer.step(scale)
            self.skipped = 0
            figures = {**others, **self.source.figures()}
            self.figures = {"loss": loss, "grad_norm": norm, "lr": self.config.optimizer.lr * scale, **figures}
            if metrics is not None:
                counts = StepTokens(int(tokens), int(learnt), row_len)
                metrics.step(self.step, counts, **self.figures, data_wait_s=round(waited_s, 6))
                if self.sample and is_due(self.step, self.config.steps, self.checkpoints.keeping.samples):
                    began = time.monotonic()
                    metrics.samples(self.step, self.sample(), time.monotonic() - began)
            return stop > 0, save > 0
        self.skipped += 1
        words = f"step {self.step}: loss {loss}, gradient norm {norm}"
        if self.skipped > MAX_SKIPPED:
            raise NonFinite(words)
        alarm(f"{words}; skipped")
        return stop > 0, save > 0

    def _save(self) -> None:
        """Copy, in every process, what it is to save, and write it while all go on.

        Raises NonFinite on all, TrainerError, PeerLost.
        """
        self._collect(wait=True)
        model = {name: self.cut.part(one) for name, one in self.model.state_dict().items()}
        problem = ""
        try:
            require_finite(self.step, model)
        except NonFinite as error:
            problem = str(error)
        for said in filter(None, self.ranks.tell_all(problem)):
            raise NonFinite(said)
        tensors = {"model": model, "optimizer": self.optimizer.tensors()}
        if self.ranks.is_first:
            tensors["rng"] = random_state()
            if state := self.source.state():
                tensors["source"] = state
        try:
            self.saver.begin(self.step, self._mine(tensors), self._facts())
        except OSError as error:
            self._has_failed(error)

    def _mine(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """Return the tensors that this process is to write: none that earlier processes have too."""
        if self.ranks.rank >= self.cut.size:
            return {}
        if not self.ranks.is_first:
            del tensors["optimizer"]["updates"]
        return {kind: {name: one for name, one in named.items() if one.numel()} for kind, named in tensors.items()}

    def _collect(self, wait: bool) -> None:
        """Record how the save under way has ended. A full disk costs this save, unless others failed before."""
        while self.saver.is_busy:
            if wait:
                self.saver.wait(PULSE_S if self.ranks.size > 1 else None)
            try:
                if self.saver.collect():
                    self.failed_saves = 0
            except OSError as error:
                self._has_failed(error)
            if not wait:
                return

    def _has_failed(self, error: OSError) -> None:
        self.failed_saves += 1
        alarm(f"a checkpoint was not saved: {error}")
        if self.failed_saves >= MAX_FAILED_SAVES:
            words = f"{self.failed_saves} saves in a row failed ({error}); free some disk, then start again"
            raise TrainerError(f"{self.checkpoints.folder}: {words}") from error

    def _facts(self) -> dict[str, Any]:
        cursor = {"step": self.step, **self.source.cursor(self.step)}
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
        return Metrics(self.folder, start, self.config, self.peak, self.ranks.size, self.source.conversations())


def random_state() -> dict[str, Tensor]:
    """Return the state of this process's random generators: the CPU's, and the GPU's where there is one."""
    states = {"torch": torch.get_rng_state()}
    return {**states, "cuda": torch.cuda.get_rng_state()} if torch.cuda.is_available() else states


def set_random_state(states: Mapping[str, Tensor]) -> None:
    torch.set_rng_state(states["torch"])
    if "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"])


def accumulate(
    model: Decoder,
    batch: Batch,
    micro_rows: int,
    count: float,
    objective: Objective,
    before: Callable[[Decoder, bool], None] = lambda model, is_last: None,
) -> dict[str, Tensor]:
    """Add the gradients of the summed loss of these rows over `count`, which is of the whole batch.

    before: called before each pass, told whether it is the last. Returns `loss`, the share of these rows in nats, and
    the figures of the objective by name, divided likewise; nothing here waits for them.
    """
    device, rows, share = model.head.device, len(batch["ids"]), count or 1.0
    sums = {"loss": torch.zeros((), device=device)}
    model.begin_step()
    for start, part in zip(range(0, rows, micro_rows), passes(batch, micro_rows, model), strict=True):
        before(model, start + micro_rows >= rows)
        loss, figures = model.through(objective, part)
        loss = loss / share
        loss.backward()
        sums["loss"] += loss.detach()
        for name in sorted(figures):
            sums[name] = sums.get(name, 0.0) + figures[name].detach().float() / share
    return sums


def tokens_in(batch: Batch) -> int:
    """Return the number of tokens in the rows, without the padding behind their last target."""
    counted = batch["targets"] != IGNORED
    lengths = counted.shape[1] - counted[:, ::-1].argmax(axis=1)
    return int(lengths[counted.any(axis=1)].sum())


def targets_in(batch: Batch) -> int:
    """Return the number of tokens that the loss is computed over."""
    return int((batch["targets"] != IGNORED).sum())


def _fill(name: str) -> int:
    """Return the value in rows that only fill up."""
    return IGNORED if name == "targets" else 0


def alarm(words: str) -> None:
    """Report an error that training survives: in the log, and to whoever follows."""
    log.warning("%s", words)
    emit("note", text=words, alarm=True)


@contextmanager
def stop_noted() -> Iterator[Callable[[], bool]]:
    """Note SIGTERM and Ctrl-C, and no more, while inside; the function given tells whether one came."""
    came: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda number, frame: came.append(number)) for number in numbers}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _cursor(newest: Checkpoint) -> dict[str, Any]:
    """Return the cursor in the data. Raises CheckpointError."""
    cursor = newest.manifest.get("data_cursor")
    if type(cursor) is not dict or type(cursor.get("step")) is not int:
        raise CheckpointError(f"{newest.folder} does not record its position in the data; remove the folder")
    return cursor
