"""The one loop that every phase shares: batch(step) -> micro-batches -> optimizer step -> record -> save.

In: a model, a `PhaseConfig`, a pure function `batch(step)`, a run's `Checkpoints`. Out: the trained model and its last
checkpoint. Everything is a pure function of the step and of what a checkpoint holds, so a run that is killed and
started again has the same parameters, bit for bit, as one that was not.
"""

import logging
import math
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from data.events import emit
from data.prefetch import Ahead
from trainer.checkpoints.checkpoint import Checkpoint, Checkpoints, NonFinite, file_of, require_finite
from trainer.checkpoints.saving import PULSE_S, Saver
from trainer.config import PhaseConfig
from trainer.errors import CheckpointError, Diverged, Preempted, TrainerError
from trainer.model.decoder import IGNORED, Decoder
from trainer.optim import Optimizer, learning_rate_scale
from trainer.parallel.fsdp import WHOLE, Cut, last_pass, parts_of
from trainer.parallel.process_group import Ranks, passing
from trainer.reporting.metrics import Metrics
from trainer.reporting.peak_flops import Peak
from trainer.reporting.samples import is_due

log = logging.getLogger(__name__)

# step -> ids, targets (rows, T), targets -1 = not counted; where a token sees its own document only, their numbers too.
# Asked for early, by another thread: it never sees the model.
Batch = Callable[[int], tuple[np.ndarray, ...]]
MUST_BE_EQUAL = ("config_hash", "inputs_hash", "tokenizer_sha256", "vocab")  # of who saved and who goes on
MAX_SKIPPED = 3  # non-finite steps in a row before a roll-back
MAX_FAILED_SAVES = 3


class Data(Protocol):
    """What batches are cut from, where the step alone does not say which come next."""

    def cursor(self, step: int) -> dict[str, Any]: ...

    def resume(self, cursor: Mapping[str, Any]) -> None: ...


@dataclass
class Training:
    """One run: everything that a step reads or changes."""

    model: Decoder
    config: PhaseConfig
    batch: Batch
    checkpoints: Checkpoints
    facts: Mapping[str, Any]  # for the manifest: run, phase, tokenizer_sha256, vocab
    folder: Path  # of metrics.jsonl
    ranks: Ranks = Ranks()
    cut: Cut = WHOLE  # of the model
    data: Data | None = None
    peak: Peak | None = None  # of one device, where it is known
    sample: Callable[[], list[dict[str, str]]] | None = None  # what the model says, asked a few times of the first
    step: int = 0  # how many are done
    skipped: int = 0  # non-finite steps in a row
    failed_saves: int = 0  # in a row
    rolled_back: bool = False
    figures: dict[str, float] = field(default_factory=dict)  # of the last step

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
        self._resume()
        metrics = self._metrics() if self.ranks.is_first else None
        try:
            with stop_noted() as asked_to_stop, Ahead(self.batch, self.step, steps) as batches:
                while self.step < steps:
                    stop = self._advance(batches, metrics, asked_to_stop)
                    if self.step == steps or self.step % every == 0 or stop:
                        self._save()
                    self._collect(wait=stop or self.step == steps)
                    if stop and self.step < steps:
                        raise Preempted(f"stopped at step {self.step} of {steps}; start it again to go on")
        except NonFinite:  # all agree on that
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

    def _resume(self) -> None:
        """Take over the newest whole checkpoint, if there is one."""
        self.optimizer = Optimizer(self.model, self.config.optimizer, self.cut)
        self.skipped = 0
        newest = self.checkpoints.newest() if self.ranks.is_first else None
        found = self.ranks.tell(_cursor(newest) if newest else None)
        if found is None:
            log.info("No checkpoints found in %s: starting at step 0", self.checkpoints.folder)
            if self.rolled_back:
                raise Diverged("the loss is not finite and nothing was saved before; lower the learning rate")
            torch.manual_seed(self.config.seed)
            if self.cut.size == 1:  # else the parts were dealt
                self.ranks.spread(self.model.state_dict().values())
            return
        self._take_over(newest)
        if self.data is not None:
            self.data.resume(found)
        self.step = found["step"]
        emit("note", text=f"{self.config.phase}: going on from step {self.step} of {self.config.steps}")

    def _take_over(self, newest: Checkpoint | None) -> None:
        """newest: on the first process, from which the others have all of it."""
        if newest is not None:
            for name, expected in self._facts().items():
                if newest.manifest.get(name) != expected and name in MUST_BE_EQUAL:
                    words = f"{name} is {newest.manifest.get(name)}, this run has {expected}"
                    raise CheckpointError(f"{newest.folder}: {words}; remove the folder to begin again")
        state, rng = self.optimizer.tensors(), {"torch": torch.get_rng_state()}
        model = parts_of(self.model.state_dict())
        for kind, mine, how in (("model", model, self.cut), ("optimizer", state, self.cut), ("rng", rng, WHOLE)):
            how.deal(mine, newest.tensors(kind) if newest else {}, self.ranks)
        self.optimizer.load(state)
        torch.set_rng_state(rng["torch"])
        if newest is not None:
            log.info("Successfully loaded checkpoint from step %d: %s", newest.step, newest.folder)

    def _advance(self, batches: Ahead, metrics: Metrics | None, asked_to_stop: Callable[[], bool]) -> bool:
        """One step; whether a process was asked to stop. A non-finite loss or gradient changes nothing; too many in a
        row raise NonFinite."""
        scale = learning_rate_scale(self.config.schedule, self.step, self.config.steps)
        (ids, targets, *documents), waited_s = batches.take()
        self.optimizer.zero_grad()
        counted, share = int((targets != IGNORED).sum()), self.ranks.share
        arrays = [share(ids, 0), share(targets, IGNORED), *(share(one, 0) for one in documents)]
        if self.cut.size == 1:
            loss = accumulate(self.model, arrays, self.config.micro_rows, counted)
            loss, stop = self.ranks.add_up(list(self.optimizer.names), loss, asked_to_stop())
        else:
            with passing():
                loss = accumulate(self.model, arrays, self.config.micro_rows, counted, last_pass)
            loss, stop = self.ranks.total(loss, asked_to_stop())
        norm = float(self.optimizer.clip())
        self.step += 1
        if math.isfinite(loss) and math.isfinite(norm):
            self.optimizer.step(scale)
            self.skipped = 0
            self.figures = {"loss": loss, "grad_norm": norm, "lr": self.config.optimizer.lr * scale}
            if metrics is not None:
                metrics.step(self.step, ids.size, ids.shape[1], **self.figures, data_wait_s=round(waited_s, 6))
                if self.sample and is_due(self.step, self.config.steps, self.checkpoints.keeping.samples):
                    began = time.monotonic()
                    metrics.samples(self.step, self.sample(), time.monotonic() - began)
            return stop > 0
        self.skipped += 1
        words = f"step {self.step}: loss {loss}, gradient norm {norm}"
        if self.skipped > MAX_SKIPPED:
            raise NonFinite(words)
        alarm(f"{words}; skipped")
        return stop > 0

    def _save(self) -> None:
        """Every process copies what it is to save, and writes it while all go on.

        Raises NonFinite on all, TrainerError, PeerLost.
        """
        self._collect(wait=True)
        model = parts_of(self.model.state_dict())
        problem = ""
        try:
            require_finite(self.step, model)
        except NonFinite as error:
            problem = str(error)
        for said in filter(None, self.ranks.tell_all(problem)):
            raise NonFinite(said)
        tensors = {"model": model, "optimizer": self.optimizer.tensors()}
        if self.ranks.is_first:
            tensors["rng"] = {"torch": torch.get_rng_state()}
        try:
            self.saver.begin(self.step, self._mine(tensors), self._facts())
        except OSError as error:
            self._has_failed(error)

    def _mine(self, tensors: dict[str, Any]) -> dict[str, Any]:
        """What of them this process is to write: nothing of a model that others have too, if they come before."""
        if self.ranks.rank >= self.cut.size:
            return {}
        if not self.ranks.is_first:
            del tensors["optimizer"]["updates"]
        return {kind: {name: one for name, one in named.items() if one.numel()} for kind, named in tensors.items()}

    def _collect(self, wait: bool) -> None:
        """How the save under way has ended, if it has. A full disk costs this save, unless others failed before."""
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
        cursor = {"step": self.step, **(self.data.cursor(self.step) if self.data else {})}
        return {
            **self.facts,
            "config": asdict(self.config),
            "config_hash": self.config.digest(),
            "data_cursor": cursor,
            "metrics": self.figures,
            "model_type": "Decoder",
            "rng": file_of("rng", 0),
        }

    def _metrics(self) -> Metrics:
        run = str(self.facts.get("run", ""))
        return Metrics(self.folder, self.step, self.config, run, self.peak, self.ranks.size)


def accumulate(
    model: Decoder,
    arrays: Sequence[np.ndarray],
    micro_rows: int,
    counted: int,
    before: Callable[[Decoder, bool], None] = lambda model, is_last: None,
) -> float:
    """Add the gradients of the summed loss of these rows over `counted`, which is of the whole batch.

    arrays: ids, targets and, where there are any, documents, all (rows, T). before: called before each pass, told
    whether it is the last. Returns that share of the loss in nats.
    """
    device, total, rows = model.head.device, torch.zeros((), device=model.head.device), len(arrays[0])
    for start in range(0, rows, micro_rows):
        before(model, start + micro_rows >= rows)
        parts = (np.ascontiguousarray(one[start : start + micro_rows]) for one in arrays)
        loss = model.loss(*(torch.from_numpy(part).to(device, non_blocking=True) for part in parts)) / max(1, counted)
        loss.backward()
        total += loss.detach()
    return float(total)  # asked for once: a GPU works on while the next part is made


def alarm(words: str) -> None:
    """Something went wrong that training survives: for the log, and for whoever follows."""
    log.warning("%s", words)
    emit("note", text=words, alarm=True)


@contextmanager
def stop_noted() -> Iterator[Callable[[], bool]]:
    """While inside, SIGTERM and Ctrl-C are only noted; the function given tells whether one came."""
    came: list[int] = []
    numbers = (signal.SIGTERM, signal.SIGINT)
    before = {number: signal.signal(number, lambda number, frame: came.append(number)) for number in numbers}
    try:
        yield lambda: bool(came)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _cursor(newest: Checkpoint) -> dict[str, Any]:
    """Where in the data it stands. Raises CheckpointError."""
    cursor = newest.manifest.get("data_cursor")
    if type(cursor) is not dict or type(cursor.get("step")) is not int:
        raise CheckpointError(f"{newest.folder} does not say where in the data it stands; remove the folder")
    return cursor
