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

    A batch has what `as_rows` gives, and `advantages` and `weights` of the answer that a target belongs to, (rows, T);
    and, all of them ln p (rows, T) of the targets, `old` of the policy that answered, as the trainer computes it
    (absent = it is the policy that is changed), `sampled` as the engine computed it, and `reference` of the model that
    the phase began with.
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
        hidden = hidden_of(model, batch).flatten(0, 1).index_select(0, counted)
        now, entropy = logprobs_and_entropy(
            hidden, model.head, batch["targets"].flatten()[counted], model.shape, config.temperature
        )

        def given(name: str) -> Tensor | None:
            return batch[name].flatten()[counted] if name in batch else None

        before = now.detach()
        old, sampled, reference = given("old"), given("sampled"), given("reference")
        old = before if old is None else old
        advantage = batch["advantages"].flatten()[counted]
        figures = {"entropy": entropy.sum()}
        if config.has_ratio:
            apart = now - old
            if config.loss == "gspo":
                answer = counted // width * width + batch["parts"].flatten()[counted]
                apart = of_answers(apart, answer, batch["targets"].numel()) + now - before
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
        return (each * batch["weights"].flatten()[counted]).sum(), figures


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
    prompts: Sequence[Sequence[int]], answers: Sequence[Sequence[int]], pad: int, multiple: int = 16, room: int = 0
) -> dict[str, np.ndarray]:
    """Return `ids`, `targets` and `parts`, int64 (rows, T): prompts with their answers, whose ids alone are targets.

    Answers to the same prompt, which follow one another, share a row of up to `room` tokens: the prompt is computed
    once. `parts` is 0 at a prompt, and counts the answers of its row; where any row is shared, `places` says where each
    token stands in its own prompt and answer. A part begins with the prompt's last id, which its first target follows.
    """
    rows: list[list[int]] = []  # answers by their numbers
    sizes: list[int] = []
    for number, (prompt, answer) in enumerate(zip(prompts, answers, strict=True)):
        if rows and prompts[rows[-1][0]] == prompt and sizes[-1] + len(answer) <= room:
            rows[-1].append(number)
            sizes[-1] += len(answer)
        else:
            rows.append([number])
            sizes.append(len(prompt) - 1 + len(answer))
    width = max(sizes) + -max(sizes) % multiple
    ids, targets = np.full((len(rows), width), pad, np.int64), np.full((len(rows), width), IGNORED, np.int64)
    parts, places = np.zeros_like(ids), np.zeros_like(ids)
    for row, numbers in enumerate(rows):
        prompt = prompts[numbers[0]]
        begin = at = len(prompt) - 1
        ids[row, :begin], places[row, :begin] = prompt[:-1], np.arange(begin)
        for part, answer in enumerate((answers[number] for number in numbers), 1):
            here = slice(at, at + len(answer))
            ids[row, here], targets[row, here] = [prompt[-1], *answer[:-1]], answer
            parts[row, here], places[row, here] = part, np.arange(begin, begin + len(answer))
            at = here.stop
    shared = {"places": places} if len(rows) < len(answers) else {}
    return {"ids": ids, "targets": targets, "parts": parts, **shared}


def hidden_of(model: Decoder, batch: Mapping[str, Tensor]) -> Tensor:
    """Return hidden states (rows, T, d) of what `as_rows` gave: each token sees its prompt and its own answer."""
    if "places" not in batch:
        return model.hidden(batch["ids"])
    parts = batch["parts"]
    sees = (parts[:, :, None] == parts[:, None, :]) | (parts == 0)[:, None, :]
    return model.hidden(batch["ids"], at=model.positions(batch["places"], sees.tril()[:, None], is_causal=True))


def at_targets(targets: np.ndarray, values: Sequence[Sequence[float]]) -> np.ndarray:
    """Return the values of each answer's ids where these are targets, fp32 (rows, T), 0 elsewhere."""
    found = np.zeros(targets.shape, np.float32)
    found[targets != IGNORED] = np.concatenate([np.asarray(one, np.float32) for one in values])
    return found
