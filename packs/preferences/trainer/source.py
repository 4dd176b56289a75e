"""Batches of pairs with ln p of the answers under the reference, which is the model at the start of the phase.

Before the first step, `PairBatches` computes ln p of all answers that the phase draws, once, with the model itself, so
that no second model takes memory. Checkpoints hold the values. A process that is killed before the first checkpoint
continues from a file beside the checkpoints.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from data.chat.conversation_counts import ConversationCounts
from data.events import emit
from packs.preferences.records.dpo_config import DpoConfig
from packs.preferences.trainer.objective import AnswerReading
from packs.preferences.trainer.pairs import Pairs
from trainer import tensor_file
from trainer.model.decoder import IGNORED, Decoder
from trainer.objectives import Batch
from trainer.objectives.passes import passes
from trainer.objectives.source import Source
from trainer.parallel.process_group import Ranks, convert_peer_errors

TELL_EVERY_S, KEEP_EVERY_S = 1.0, 30.0


class PairBatches(Source):
    """The source of the phase dpo."""

    sees_model = True

    def __init__(self, config: DpoConfig, pairs: Pairs, ranks: Ranks, file: Path) -> None:
        """Store the pairs. file: file of the values computed so far, used by the first process."""
        self.config, self.pairs, self.ranks, self.file = config, pairs, ranks, file
        self.reference: np.ndarray | None = None  # fp32 (all pairs, 2); NaN for pairs that no step draws

    def prepare(self, model: Decoder) -> None:
        """Compute ln p of the reference, unless a checkpoint holds the values. Raises PeerLost."""
        if self.reference is None:
            self.reference = self._compute_reference(model)

    def batch(self, step: int, *models: Decoder) -> Batch:
        """Return the rows of a step. Raises PeerLost."""
        (model,) = models
        assert self.reference is not None, "`prepare` computes the values"
        drawn = self.pairs.drawn(step)
        reference = self.reference[drawn]
        if self.config.loss != "kto":
            return {**self.pairs.batch(drawn), "reference": reference}
        return {**self.pairs.batch(drawn, (0,)), "reference": reference, "judged": self._judged(model, drawn)}

    def conversation_counts(self) -> ConversationCounts | None:
        return self.pairs.counts

    def state(self) -> dict[str, Tensor]:
        return {} if self.reference is None else {"reference": torch.from_numpy(self.reference)}

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.reference = state["reference"].numpy().copy()

    def _judged(self, model: Decoder, drawn: Sequence[int]) -> np.ndarray:
        """Return the array `judged` of `PreferenceLoss`.

        The divergence is the mean gain of answers to other questions, at least 0.
        """
        config, reference = self.config, self.reference
        assert reference is not None, "`prepare` computes the values"
        gains = self._logprobs(model, self.pairs.batch(drawn, (1,)))[:, 1] - reference[drawn, 1]
        wanted = np.array([self.pairs.pairs[one].is_wanted for one in drawn])
        sizes = np.where(wanted, wanted.sum(), (~wanted).sum())
        weights = np.where(wanted, config.desirable_weight, config.undesirable_weight)
        divergence = np.full(len(drawn), max(0.0, float(gains.mean())))
        return np.stack([wanted, weights, len(drawn) / sizes, divergence], axis=1).astype(np.float32)

    def _compute_reference(self, model: Decoder) -> np.ndarray:
        """Return ln p of both answers of each pair that the phase draws, under `model`."""
        order, found = self.pairs.drawn_before(self.config.steps), np.full((len(self.pairs.pairs), 2), np.nan)
        found = found.astype(np.float32)
        at_once = self.config.micro_rows * self.ranks.size
        done = self._restore(found, order) // at_once * at_once
        told, kept = 0.0, time.monotonic()
        for start in range(done, len(order), at_once):
            some = order[start : start + at_once]
            found[some] = self._logprobs(model, self.pairs.batch(some))
            now, count = time.monotonic(), start + len(some)
            if now - told > TELL_EVERY_S or count == len(order):
                told = now
                text = f"{self.config.phase}: ln p of the reference for {count:,} of {len(order):,} pairs"
                emit("progress", done=count, total=len(order), unit="pairs", text=text)
            if self.ranks.is_first and now - kept > KEEP_EVERY_S and count < len(order):
                kept = now
                self._keep(found)
        return found

    def _keep(self, found: np.ndarray) -> None:
        draft = self.file.with_suffix(".draft")
        with suppress(OSError):  # without the file, a killed process begins again
            draft.unlink(missing_ok=True)
            tensor_file.write(draft, {"reference": torch.from_numpy(found)})
            draft.replace(self.file)

    def _restore(self, found: np.ndarray, order: Sequence[int]) -> int:
        """Fill `found` with the values of the file; return the number of values, in the order of computation."""
        known: dict[str, Tensor] = {}
        if self.ranks.is_first and self.file.is_file():
            known = tensor_file.read(self.file)
            known = known if [one.shape for one in known.values()] == [found.shape] else {}
        for one in self.ranks.broadcast_named_tensors(known).values():
            found[:] = one.numpy()
        return int(np.isfinite(found[list(order)]).all(axis=1).argmin()) if len(order) else 0

    @torch.no_grad()
    def _logprobs(self, model: Decoder, batch: Batch) -> np.ndarray:
        """Return ln p of the answers in each row, fp32 (rows, 2). Each process computes a share of the rows."""
        rows = len(batch["ids"])
        parts = {name: self.ranks.shard_rows(one, IGNORED if name == "targets" else 0) for name, one in batch.items()}
        model.begin_step()
        with convert_peer_errors():
            found = [
                model.compute_objective(AnswerReading(), one)[0] for one in passes(parts, self.config.micro_rows, model)
            ]
        mine = torch.cat(found).float().cpu().numpy()
        if self.ranks.size == 1:
            return mine
        each = self.ranks.all_gather(mine.tolist(), is_patient=True)
        sizes = [len(some) for some in np.array_split(np.arange(rows), self.ranks.size)]  # without padding
        return np.concatenate([np.array(one[:size], np.float32) for one, size in zip(each, sizes, strict=True) if size])
