"""The loss of reinforcement learning with groups of answers: DAPO, GRPO, Dr. GRPO, GSPO and nanochat's plain one.

In: answers as rows with their advantages. Out: the summed loss and summed figures; `RlConfig` says which loss. Rows
carry what they weigh (`row_weights`), which is why answers that nothing can be learnt from may be left out of a batch,
and why a token that several answers share is one term: at one ratio, their terms differ in the advantage alone.
"""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from trainer.model.decoder import Decoder
from trainer.model.token_losses import logprobs_and_entropy
from trainer.objectives.passes import counted_in
from trainer.objectives.shared_rows import Spots, added_up, hidden_of
from trainer.records.rl_config import RlConfig

Batch = Mapping[str, np.ndarray]
WORTH = ("better", "worse", "weights", "times")


class PolicyLoss:
    """The objective of learning from what answers are worth.

    A batch has what `as_rows` gives, and of the answers that a target belongs to (rows, T), see `worth`: `better` and
    `worse`, the sums of their positive and of their negative advantages times what they weigh; `weights`, the sum of
    what they weigh; `times`, how many they are. And, all of them ln p (rows, T) of the targets, `old` of the policy
    that answered, as the trainer computes it, or the engine where nobody else knows it (absent = it is the policy that
    is changed), `sampled` as the engine computed it, and `reference` of the model that the phase began with.
    """

    def __init__(self, config: RlConfig) -> None:
        self.config = config

    def count(self, batch: Batch) -> float:
        """Return the number of tokens, of all answers, that figures are means over."""
        return float(batch["times"].sum())

    def at(self, step: int) -> None:
        """Do nothing: it does not hang on the step."""

    def loss(self, model: Decoder, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum over tokens, and sums of the figures.

        They are `entropy` (nats), `clipped` (tokens whose gradient was cut off, for one of their answers at least),
        `mismatch` (|ln p| between engine and trainer), `moved` (|ln p| since the policy that answered) and `kl` (nats).
        """
        config, width = self.config, batch["targets"].shape[1]
        counted = counted_in(batch)
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
    """Return, for each token, the mean over its answer, without a gradient: that goes through the token's own alone.

    answer: a number below `most` for each token.
    Source of the gradient: GSPO-token, arXiv 2507.18071, equation 14; at one advantage a row it is that of GSPO.
    """
    sums = torch.zeros(most, device=each.device).index_add_(0, answer, each.detach())
    sizes = torch.zeros(most, device=each.device).index_add_(0, answer, torch.ones_like(each.detach()))
    return (sums / sizes.clamp(min=1))[answer]


def k3(now: Tensor, reference: Tensor) -> Tensor:
    """Return an estimate of KL(now || reference) for ids that `now` has drawn: never negative, unbiased.

    Source: Schulman, "Approximating KL divergence" (2020).
    """
    apart = reference - now
    return apart.exp() - apart - 1


def advantages(rewards: np.ndarray, config: RlConfig) -> np.ndarray:
    """Return the advantage of each answer over its group: fp32 (prompts, group) for rewards of that shape."""
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    if config.divides_by_spread:
        centred = centred / (rewards.std(axis=1, ddof=1, keepdims=True) + 1e-4)
    return np.where(has_signal(rewards)[:, None], centred, 0.0).astype(np.float32)


def has_signal(rewards: np.ndarray) -> np.ndarray:
    """Return for which groups answers differ in what they are worth: bool (prompts,)."""
    return np.ptp(rewards, axis=1) > 1e-6


def row_weights(lengths: np.ndarray, kept: np.ndarray, config: RlConfig) -> np.ndarray:
    """Return the weight of a token of each answer, fp32 (rows,).

    The sum over the tokens that are kept, divided by their number, is then the loss over all answers.

    lengths: tokens of each answer that count; kept: bool, which answers are in the batch.
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
    """Return the arrays of a batch for `PolicyLoss`, from the answers that its targets belong to.

    advantages, weights: (answers,), of each answer; targets, spots: as `as_rows` gave them.
    """
    weighted = advantages * weights
    each = {"better": np.maximum(weighted, 0), "worse": np.minimum(weighted, 0), "weights": weights,
            "times": np.ones(len(weights))}  # fmt: skip
    return {name: added_up(targets, spots, values.tolist()) for name, values in each.items()}
