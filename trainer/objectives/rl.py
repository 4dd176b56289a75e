"""The loss of reinforcement learning with groups of answers: DAPO, GRPO, Dr. GRPO, GSPO and nanochat's plain one.

In: answers as rows with their advantages. Out: the summed loss and summed figures; `RlConfig` says which loss. Rows
carry what they weigh (`row_weights`), which is why answers that nothing can be learnt from may be left out of a batch.
"""

from collections.abc import Mapping, Sequence

import numpy as np
import torch
from torch import Tensor

from trainer.model.decoder import IGNORED, Decoder
from trainer.model.token_losses import logprobs_and_entropy
from trainer.objectives.passes import counted_in
from trainer.records.rl_config import RlConfig

Batch = Mapping[str, np.ndarray]


class PolicyLoss:
    """The objective of learning from what answers are worth.

    A batch has `ids`, `targets` (rows, T) and `advantages`, `weights` (rows,); and, all of them ln p (rows, T) of the
    targets, `old` of the policy that answered, as the trainer computes it (absent = it is the policy that is changed),
    `sampled` as the engine computed it, and `reference` of the model that the phase began with.
    """

    def __init__(self, config: RlConfig) -> None:
        self.config = config

    def count(self, batch: Batch) -> float:
        """Return the number of tokens that figures are means over."""
        return float((batch["targets"] != IGNORED).sum())

    def at(self, step: int) -> None:
        """Do nothing: it does not hang on the step."""

    def loss(self, model: Decoder, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the sum over tokens, and sums of the figures.

        They are `entropy` (nats), `clipped` (tokens whose gradient was cut off), `mismatch` (|ln p| between engine and
        trainer) and `kl` (nats).
        """
        config, width = self.config, batch["targets"].shape[1]
        counted = counted_in(batch)
        row = counted // width
        hidden = model.hidden(batch["ids"]).flatten(0, 1).index_select(0, counted)
        now, entropy = logprobs_and_entropy(
            hidden, model.head, batch["targets"].flatten()[counted], model.shape, config.temperature
        )

        def given(name: str) -> Tensor | None:
            return batch[name].flatten()[counted] if name in batch else None

        before = now.detach()
        old, sampled, reference = given("old"), given("sampled"), given("reference")
        old = before if old is None else old
        advantage = batch["advantages"][row]
        figures = {"entropy": entropy.sum()}
        if config.has_ratio:
            apart = now - old
            if config.loss == "gspo":
                apart = of_rows(apart, row, len(batch["targets"])) + now - before
            ratio = apart.exp()
            plain = ratio * advantage
            clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high) * advantage
            each = -torch.minimum(plain, clipped)
            figures["clipped"] = (clipped < plain).sum().float()
        else:
            each = -now * advantage
        if sampled is not None:
            figures["mismatch"] = (old - sampled).abs().sum()
            if config.correction:
                each = each * (old - sampled).exp().clamp(max=config.correction)
        if reference is not None:
            kl = k3(now, reference)
            each = each + config.beta * kl
            figures["kl"] = kl.detach().sum()
        return (each * batch["weights"][row]).sum(), figures


def of_rows(each: Tensor, row: Tensor, rows: int) -> Tensor:
    """Return, for each token, the mean over its row, without a gradient: that goes through the token's own alone.

    Source of the gradient: GSPO-token, arXiv 2507.18071, equation 14; at one advantage a row it is that of GSPO.
    """
    sums = torch.zeros(rows, device=each.device).index_add_(0, row, each.detach())
    sizes = torch.zeros(rows, device=each.device).index_add_(0, row, torch.ones_like(each.detach()))
    return (sums / sizes.clamp(min=1))[row]


def k3(now: Tensor, reference: Tensor) -> Tensor:
    """Return an estimate of KL(now || reference) for ids that `now` has drawn: never negative, unbiased.

    Source: Schulman, "Approximating KL divergence" (2020).
    """
    apart = reference - now
    return apart.exp() - apart - 1


def advantages(rewards: np.ndarray, config: RlConfig) -> np.ndarray:
    """Return how much better each answer is than its group: fp32 (prompts, group) for rewards of that shape."""
    centred = rewards - rewards.mean(axis=1, keepdims=True)
    if config.divides_by_spread:
        centred = centred / (rewards.std(axis=1, ddof=1, keepdims=True) + 1e-4)
    return np.where(has_signal(rewards)[:, None], centred, 0.0).astype(np.float32)


def has_signal(rewards: np.ndarray) -> np.ndarray:
    """Return for which groups answers differ in what they are worth: bool (prompts,)."""
    return np.ptp(rewards, axis=1) > 1e-6


def row_weights(lengths: np.ndarray, kept: np.ndarray, config: RlConfig) -> np.ndarray:
    """Return what a token of each answer weighs, fp32 (rows,).

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


def as_rows(
    prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], pad: int, multiple: int = 16
) -> dict[str, np.ndarray]:
    """Return `ids` and `targets`, int64 (rows, T): each prompt with its answer, whose ids alone are targets."""
    longest = max(len(prompt) + len(answer) for prompt, answer in zip(prompts, answers, strict=True)) - 1
    width = longest + -longest % multiple
    ids = np.full((len(prompts), width), pad, np.int64)
    targets = np.full((len(prompts), width), IGNORED, np.int64)
    for row, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        whole = [*prompt, *answer]
        ids[row, : len(whole) - 1] = whole[:-1]
        targets[row, len(prompt) - 1 : len(whole) - 1] = answer
    return {"ids": ids, "targets": targets}


def at_targets(targets: np.ndarray, values: Sequence[Sequence[float]]) -> np.ndarray:
    """Return the values of each row's answer where its targets stand, fp32 (rows, T), 0 elsewhere."""
    found = np.zeros(targets.shape, np.float32)
    for row, some in enumerate(values):
        found[row, targets[row] != IGNORED] = some
    return found
