"""Policy-gradient losses over groups of answers: DAPO, GRPO, Dr. GRPO, GSPO and nanochat's plain loss.

`PolicyLoss` maps rows of answers with advantages to a summed loss and summed metrics; `RlConfig.loss` selects the loss.
Rows carry weights (`row_weights`), so a batch may omit answers without a learning signal. A token shared by several
answers is a single term: at equal probability ratios, the terms of the answers differ only in the advantage.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from trainer.model.decoder import Decoder
from trainer.model.token_losses import logprobs_and_entropy
from trainer.objectives.passes import target_indices
from trainer.objectives.shared_rows import Spots, added_up, hidden_of
from trainer.records.rl_config import RlConfig

Batch = Mapping[str, np.ndarray]
WORTH = ("better", "worse", "weights", "times")


class PolicyLoss:
    """The policy-gradient objective.

    A batch holds the arrays of `pack_answers` and, from `worth`, sums over the answers sharing a target, each (rows,
    T): `better` and `worse`, positive and negative advantages times weights; `weights`, the weights; `times`, the
    number of answers. Further arrays hold ln p (rows, T) of the targets: `old` under the weights before the first
    update on the answers, computed by the trainer (absent in this first update); `sampled` under the weights of the
    answers, computed by the engine; `reference` under the initial model of the phase.
    """

    def __init__(self, config: RlConfig) -> None:
        self.config = config

    def loss_divisor(self, batch: Batch) -> float:
        """Return the number of tokens over all answers, the divisor of loss and metrics."""
        return float(batch["times"].sum())

    def set_step(self, step: int, steps: int) -> None:
        """Do nothing: the loss does not depend on the step."""

    def loss(self, model: Decoder, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the loss summed over tokens, and summed metrics.

        Metrics: `entropy` (nats), `clipped` (tokens with a clipped gradient for at least one answer), `mismatch`
        (|difference of ln p| between engine and trainer, with `lag` also of one update), `moved` (|difference of ln p|
        since the first update on the answers) and `kl` (nats).
        """
        config, width = self.config, batch["targets"].shape[1]
        counted = target_indices(batch)
        hidden = hidden_of(model, batch).flatten(0, 1).index_select(0, counted)
        now, entropy = logprobs_and_entropy(
            hidden, model.head, batch["targets"].flatten()[counted], model.shape, config.temperature
        )

        def given(name: str) -> Tensor | None:
            return batch[name].flatten()[counted] if name in batch else None

        before = now.detach()
        old, sampled, reference = given("old"), given("sampled"), given("reference")
        is_older = old is not None
        old = before if old is None else old
        better, worse, weights, times = (batch[name].flatten()[counted] for name in WORTH)
        figures = {"entropy": (entropy * times).sum()}
        if is_older:
            figures["moved"] = ((before - old).abs() * times).sum()
        if config.has_ratio:
            apart = now - old
            if config.loss == "gspo":
                answer = counted // width * width + batch["parts"].flatten()[counted]
                apart = of_answers(apart, answer, batch["targets"].numel()) + now - before
            ratio = apart.exp()
            clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
            each = -(better * torch.minimum(ratio, clipped) + worse * torch.maximum(ratio, clipped))
            is_cut = ((clipped < ratio) & (better > 0)) | ((clipped > ratio) & (worse < 0))
            figures["clipped"] = (is_cut * times).sum()
        else:
            each = -now * (better + worse)
        if sampled is not None:
            figures["mismatch"] = ((old - sampled).abs() * times).sum()
            if config.correction:
                each = each * (old - sampled).exp().clamp(max=config.correction)
        if reference is not None:
            kl = k3(now, reference)
            each = each + config.beta * kl * weights
            figures["kl"] = (kl.detach() * times).sum()
        return each.sum(), figures


def of_answers(each: Tensor, answer: Tensor, most: int) -> Tensor:
    """Return, for each token, the detached mean of `each` over the tokens of the same answer.

    The caller adds the gradient through the token's own ln p. answer: index of the answer per token, below `most`.
    Source: GSPO-token, arXiv 2507.18071, equation 14; with a single advantage per row the gradient equals GSPO.
    """
    sums = torch.zeros(most, device=each.device).index_add_(0, answer, each.detach())
    sizes = torch.zeros(most, device=each.device).index_add_(0, answer, torch.ones_like(each.detach()))
    return (sums / sizes.clamp(min=1))[answer]


def k3(now: Tensor, reference: Tensor) -> Tensor:
    """Return the k3 estimate of KL(now || reference) per token from ids sampled by `now`: non-negative and unbiased.

    Source: Schulman, "Approximating KL divergence" (2020).
    """
    apart = reference - now
    return apart.exp() - apart - 1


def advantages(rewards: np.ndarray, config: RlConfig) -> np.ndarray:
    """Return the advantages fp32 (prompts, group): rewards of the same shape minus the group mean.

    Divide by the group's standard deviation if `divides_by_spread`. Groups with equal rewards have advantage 0.
    """
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    if config.divides_by_spread:
        centred = centred / (rewards.std(axis=1, ddof=1, keepdims=True) + 1e-4)
    return np.where(has_signal(rewards)[:, None], centred, 0.0).astype(np.float32)


def has_signal(rewards: np.ndarray) -> np.ndarray:
    """Return bool (prompts,), True for groups with differing rewards."""
    return np.ptp(rewards, axis=1) > 1e-6


def row_weights(lengths: np.ndarray, kept: np.ndarray, config: RlConfig) -> np.ndarray:
    """Return the weight of each token of an answer, fp32 (rows,).

    With these weights, the sum over the kept tokens divided by the number of kept tokens equals the loss over all
    answers.

    lengths: counted tokens per answer. kept: bool (rows,), True for answers in the batch.
    """
    tokens, rows = float(lengths[kept].sum()), len(lengths)
    if config.loss in ("dapo", "plain"):
        weights = np.full(rows, tokens / max(1.0, float(lengths.sum())))
    elif config.loss == "dr_grpo":
        weights = np.full(rows, tokens / (rows * config.max_new))
    else:
        weights = tokens / (rows * np.maximum(1, lengths))
    return weights.astype(np.float32)


def worth(targets: np.ndarray, spots: Spots, advantages: np.ndarray, weights: np.ndarray) -> dict[str, np.ndarray]:
    """Return the arrays `better`, `worse`, `weights` and `times` for `PolicyLoss`, each fp32 (rows, T).

    advantages, weights: (answers,). targets, spots: from `pack_answers`.
    """
    weighted = advantages * weights
    each = {
        "better": np.maximum(weighted, 0),
        "worse": np.minimum(weighted, 0),
        "weights": weights,
        "times": np.ones(len(weights)),
    }
    return {name: added_up(targets, spots, values.tolist()) for name, values in each.items()}
