"""Batches of answers in which each token has an advantage: ln p under the teacher minus ln p under the student.

The mean of the loss is the estimate of the reverse KL divergence, KL(student || teacher), from the tokens that the
student has drawn; the gradient of the policy loss is an unbiased estimate of the gradient of this divergence, with the
earlier tokens of each answer as given.
Sources: Agarwal et al., arXiv 2306.13649 (on-policy distillation); Gu et al., arXiv 2306.08543 (reverse KL, MiniLLM).
"""

from collections.abc import Sequence
from typing import Any

import numpy as np

from packs.preferences.records.opd_config import OpdConfig
from packs.preferences.trainer.served_teacher import ServedTeacher
from trainer.config import PhaseConfig
from trainer.model.decoder import IGNORED, Decoder
from trainer.objectives.shared_rows import Spots, scatter_to_targets
from trainer.rollouts.policy import Round
from trainer.rollouts.source import Batch, Rollouts


class Judged(Rollouts):
    """Source of batches for the phase opd; `reference` is the teacher."""

    learns_from_all = True

    def _make_batch(self, place: int, model: Decoder) -> tuple[Batch, dict[str, float], dict[str, float]]:
        batch, figures, speed = super()._make_batch(place, model)
        del figures["silent_groups"]
        return batch, {**figures, "kl": divergence(batch)}, speed

    def _rows(self, found: Round, rewards: np.ndarray, model: Decoder) -> Batch:
        batch = super()._rows(found, np.zeros_like(rewards), model)
        student = batch.get("old", None if self.rl.lag else batch.get("sampled"))
        return judged(batch, self._logprobs(model, batch) if student is None else student)

    def _check_signal(self, signal: float) -> None:
        """Do nothing: rewards are only measured."""


class JudgedByServer(Judged):
    """Source of batches for the phase opd with a teacher behind an address."""

    def __init__(self, config: PhaseConfig, *given: Any) -> None:
        super().__init__(config, *given)
        assert isinstance(config, OpdConfig) and config.teacher is not None, "the phase has chosen the class"
        self.teacher = ServedTeacher(config.teacher, self.policy.tokenizer)

    def prepare(self, model: Decoder) -> None:
        """Ask the server for the model. Raises Refused, TrainerError."""
        super().prepare(model)
        self.teacher.check_length(self.config.sequence_len)

    def _reference_logprobs(self, batch: Batch, found: Round, rows: Sequence[int], spots: Spots) -> np.ndarray:
        mine = list(rows)[self.ranks.rank :: self.ranks.size]
        asked = [found.prompts[row // self.rl.group] for row in mine], [found.ids[row] for row in mine]
        heard = self.ranks.all_gather(self.teacher.logprobs(*asked), is_patient=True)
        each = [heard[place % self.ranks.size][place // self.ranks.size] for place in range(len(rows))]
        return scatter_to_targets(batch["targets"], spots, each)


def judged(batch: Batch, student: np.ndarray) -> Batch:
    """Return a batch with the advantages of tokens in place of ln p under the teacher, `reference`.

    student: ln p under the student, (rows, T).
    """
    found = dict(batch)
    gap = (found.pop("reference") - student) * (found["targets"] != IGNORED)
    for name, part in (("better", np.maximum(gap, 0)), ("worse", np.minimum(gap, 0))):
        found[name] = (part * found["weights"]).astype(np.float32)
    return found


def divergence(batch: Batch) -> float:
    """Return the estimate of the reverse KL divergence, in nats per token of the answers."""
    gaps = (batch["better"] + batch["worse"]) / np.maximum(batch["weights"], 1e-9) * batch["times"]
    return -float(gaps.sum() / max(1.0, float(batch["times"].sum())))
