"""Losses on preferred answers: DPO, robust DPO, IPO and KTO.

`PreferenceLoss` maps rows of answers, with ln p of the answers under the reference, to a summed loss and figures:
`reward_chosen` and `reward_rejected` (beta times the gain in ln p over the reference), `margin` (their difference) and
`accuracy` (share of pairs with a margin above 0). The values equal `DPOTrainer` and `KTOTrainer` of TRL. Sources:
Rafailov et al., arXiv 2305.18290 (DPO); Mitchell, "A note on DPO with noisy preferences" (label smoothing of dpo);
Chowdhury et al., arXiv 2403.00409 (robust DPO); Azar et al., arXiv 2310.12036 (IPO, with the mean over the tokens of an
answer); Ethayarajh et al., arXiv 2402.01306 (KTO).
"""

from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor

from packs.preferences.records.dpo_config import DpoConfig
from trainer.model.decoder import IGNORED, Decoder
from trainer.model.token_losses import token_logprobs
from trainer.objectives import Batch
from trainer.objectives.passes import target_indices


def answer_logprobs(model: Decoder, batch: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return ln p of both answers of each row and their numbers of tokens, fp32 (rows, 2), 0 for a missing answer."""
    targets, documents = batch["targets"], batch["documents"]
    hidden = model.hidden(batch["ids"], None, documents, batch.get("bounds")).flatten(0, 1)
    counted = target_indices(batch)
    each = token_logprobs(hidden.index_select(0, counted), model.head, targets.flatten()[counted], model.shape)
    rows, length = targets.shape
    place = 2 * (counted // length) + documents.flatten()[counted]
    sums, sizes = (each.new_zeros(2 * rows).index_add(0, place, one) for one in (each, torch.ones_like(each)))
    return sums.view(rows, 2), sizes.view(rows, 2)


class AnswerReading:
    """An objective whose value is ln p of both answers of each row, for forward passes without gradients."""

    def loss(self, model: Decoder, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        return answer_logprobs(model, batch)[0], {}


class PreferenceLoss:
    """The objective of the phase dpo.

    A batch has `ids`, `targets` and `documents` (rows, T) with 0 for the tokens of the first answer and 1 for the
    tokens of the second answer, and `reference` fp32 (rows, 2), ln p under the reference. With the loss kto, a row has
    a single answer, and `judged` fp32 (rows, 4): 1 for a wanted answer, the weight of the row, the weight of the row in
    the figures, and the divergence from the reference.
    """

    def __init__(self, config: DpoConfig) -> None:
        self.config = config

    def loss_divisor(self, batch: Batch) -> float:
        """Return the number of rows."""
        return float((batch["targets"] != IGNORED).any(axis=1).sum())

    def loss(self, model: Decoder, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        config = self.config
        counts = (batch["targets"] != IGNORED).any(dim=1)  # False for rows added by the loop
        logprobs, sizes = answer_logprobs(model, batch)
        gains = logprobs - batch["reference"]
        if config.loss == "kto":
            return self._judged(gains[:, 0], batch["judged"], counts)
        if config.loss == "ipo":
            better, worse = (gains / sizes.clamp(min=1)).unbind(dim=1)
            each = (better - worse - 1 / (2 * config.beta)).square()
        else:
            scaled, smooth = config.beta * (gains[:, 0] - gains[:, 1]), config.label_smoothing
            right, wrong = -(1 - smooth) * F.logsigmoid(scaled), -smooth * F.logsigmoid(-scaled)
            each = (right - wrong) / (1 - 2 * smooth) if config.loss == "robust" else right + wrong
        rewards = config.beta * gains.detach()
        figures = {
            "reward_chosen": rewards[:, 0],
            "reward_rejected": rewards[:, 1],
            "margin": rewards[:, 0] - rewards[:, 1],
            "accuracy": (rewards[:, 0] > rewards[:, 1]).float(),
        }
        return (each * counts).sum(), {name: (one * counts).sum() for name, one in figures.items()}

    def _judged(self, gains: Tensor, judged: Tensor, counts: Tensor) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the summed loss and the figures of kto. The figures are means over the answers of each kind."""
        wanted, weight, share, divergence = judged.unbind(dim=1)
        sign = 2 * wanted - 1
        each = weight * (1 - F.sigmoid(self.config.beta * sign * (gains - divergence)))
        rewards = self.config.beta * gains.detach() * share * counts
        chosen, rejected = (rewards * wanted).sum(), (rewards * (1 - wanted)).sum()
        right = (sign * (gains.detach() - divergence) > 0).float()
        figures = {
            "reward_chosen": chosen,
            "reward_rejected": rejected,
            "margin": chosen - rejected,
            "accuracy": (right * counts).sum(),
            "kl": (divergence * counts).sum(),
        }
        return (each * counts).sum(), figures

    def set_step(self, step: int, steps: int) -> None:
        """Ignore the step; the loss does not depend on the step."""
