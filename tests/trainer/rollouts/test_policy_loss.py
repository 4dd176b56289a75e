"""The losses of reinforcement learning compared with their formulas, computed one token at a time."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from tests.trainer.conftest import TINY
from trainer.model.decoder import Decoder, initialize
from trainer.objectives.rl import PolicyLoss, advantages, has_signal, row_weights, worth
from trainer.objectives.shared_rows import hidden_of, pack_answers, scatter_to_targets
from trainer.records.rl_config import LOSSES, RlConfig, pass_at, soft_overlong

REWARDS = np.array([[1.0, 0.0, 0.0, 1.0], [0.5, 0.5, 0.5, 0.5]])
PROMPTS = [[5, 6, 7]] * 4 + [[8, 9]] * 4
ANSWERS = [[11, 12], [13], [11, 12, 16, 17], [11, 12], [21], [22, 23], [24], [22, 26]]


@pytest.fixture
def model():
    made = Decoder(TINY)
    initialize(made, 1)
    return made


def drift(seed: int) -> list[list[float]]:
    """Return a small change for each token of the answers: equal for answers with an equal prefix."""

    def of(prompt: list[int], answer: list[int]) -> list[float]:
        read = ([seed, *prompt, *answer[: place + 1]] for place in range(len(answer)))
        return [float(np.random.default_rng(words).normal(0, 0.4)) for words in read]

    return [of(*pair) for pair in zip(PROMPTS, ANSWERS, strict=True)]


def logprobs(model: Decoder) -> list[torch.Tensor]:
    """Return ln p of each answer's tokens, one answer at a time."""
    found = []
    for prompt, answer in zip(PROMPTS, ANSWERS, strict=True):
        logits = model(torch.tensor([[*prompt, *answer][:-1]]))[0, -len(answer) :]
        found.append(logits.log_softmax(-1).gather(1, torch.tensor(answer)[:, None])[:, 0])
    return found


def reference_loss(config: RlConfig, now, old, sampled, reference) -> torch.Tensor:
    """Return the loss over all answers, as in the papers."""
    better, per_answer = advantages(REWARDS, config).flatten(), []
    for row, mine in enumerate(now):
        a, before = float(better[row]), mine.detach() + torch.tensor(old[row])
        ratio = (mine - before).exp()
        if config.loss == "gspo":
            ratio = (mine - before).mean().exp().expand(len(mine))
        clipped = ratio.clamp(1 - config.clip_low, 1 + config.clip_high)
        each = -torch.minimum(ratio * a, clipped * a) if config.has_ratio else -mine * a
        each = each * (before - (mine.detach() + torch.tensor(sampled[row]))).exp().clamp(max=config.correction)
        apart = torch.tensor(reference[row]) + mine.detach() - mine
        per_answer.append(each + config.beta * (apart.exp() - apart - 1))
    if config.loss in ("dapo", "plain"):
        return torch.cat(per_answer).mean()
    if config.loss == "dr_grpo":
        return torch.stack([one.sum() for one in per_answer]).sum() / (len(now) * config.max_new)
    return torch.stack([one.mean() for one in per_answer]).mean()


@pytest.mark.parametrize("room", [0, 10])
@pytest.mark.parametrize("beta", [0.0, 0.1])
@pytest.mark.parametrize("loss", LOSSES)
def test_loss_and_gradient_follow_the_formula_with_omitted_or_packed_answers(model, loss, beta, room):
    config = RlConfig(loss=loss, group=4, max_new=8, beta=beta)
    now = logprobs(model)
    # With a ratio of whole answers, each token's gradient would be corrected by the token's own share.
    old, sampled, reference = drift(1), drift(1 if loss == "gspo" else 2), drift(3)
    want = reference_loss(config, now, old, sampled, reference)
    mine = torch.autograd.grad(want, list(model.parameters()), retain_graph=True)

    better = advantages(REWARDS, config).flatten()
    kept = np.ones(8, bool) if beta else better != 0
    assert kept.sum() == (8 if beta else 4)
    rows, merged = np.flatnonzero(kept), loss != "gspo"
    asked, said = [PROMPTS[row] for row in rows], [ANSWERS[row] for row in rows]
    batch, spots = pack_answers(asked, said, 0, room=room, merged=merged)
    want_rows = {(0, True): (7, 3), (0, False): (8, 4), (10, True): (2, 1), (10, False): (3, 2)}[room, merged]
    assert len(batch["ids"]) == want_rows[not beta]
    lengths = np.array([len(one) for one in ANSWERS])
    values = {"old": old, "sampled": sampled, "reference": reference}
    for name, some in values.items():
        whole = [(now[row].detach() + torch.tensor(some[row])).tolist() for row in rows]
        batch[name] = scatter_to_targets(batch["targets"], spots, whole)
    if not beta:
        del batch["reference"]
    batch |= worth(batch["targets"], spots, better[rows], row_weights(lengths, kept, config)[rows])
    assert batch["times"].sum() == lengths[rows].sum()
    objective = PolicyLoss(config)
    found, figures = objective.loss(model, {name: torch.from_numpy(one) for name, one in batch.items()})
    found = found / objective.loss_divisor(batch)
    torch.testing.assert_close(found, want, atol=1e-6, rtol=1e-4)
    for a, b in zip(torch.autograd.grad(found, list(model.parameters())), mine, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-3)
    assert float(figures["entropy"]) > 0 and ("clipped" in figures) == (loss != "plain")


def test_shared_prefix_of_answers_is_computed_once_with_the_same_values(model):
    chance = np.random.default_rng(5)
    prompts = [[1, 2, 3]] * 6 + [[1, 2]] * 6 + [[4]] * 6
    answers = [chance.integers(5, 7, chance.integers(1, 7)).tolist() for _ in prompts]
    batch, spots = pack_answers(prompts, answers, 0, room=20)
    assert (batch["targets"] >= 0).sum() < sum(map(len, answers)) and len(batch["ids"]) < 9
    hidden = hidden_of(model, {name: torch.from_numpy(one) for name, one in batch.items()}).flatten(0, 1)
    for prompt, answer, here in zip(prompts, answers, spots, strict=True):
        assert batch["targets"].flatten()[here].tolist() == answer
        alone = model.hidden(torch.tensor([[*prompt, *answer][:-1]]))[0, -len(answer) :]
        torch.testing.assert_close(hidden[here], alone, atol=1e-5, rtol=1e-4)


def test_ratio_without_an_older_policy_is_exactly_one(model):
    batch, spots = pack_answers(PROMPTS[:4], ANSWERS[:4], 0)
    batch |= worth(batch["targets"], spots, np.array([1.0, -1.0, -1.0, 1.0]), np.ones(4))
    found, figures = PolicyLoss(RlConfig(group=4)).loss(
        model, {name: torch.from_numpy(one) for name, one in batch.items()}
    )
    assert float(found.detach()) == -(2 - 1 - 4 + 2) and float(figures["clipped"]) == 0


def test_group_with_equal_rewards_gives_no_gradient():
    assert has_signal(REWARDS).tolist() == [True, False]
    plain, spread = (advantages(REWARDS, RlConfig(loss=one)) for one in ("dr_grpo", "grpo"))
    assert plain.tolist() == [[0.5, -0.5, -0.5, 0.5], [0.0] * 4]
    assert spread[0].tolist() == pytest.approx([0.8660, -0.8660, -0.8660, 0.8660], abs=1e-3)


def test_overlong_answers_are_penalised_and_pass_at_k_grows():
    config = replace(RlConfig(max_new=100), overlong=20)
    assert [soft_overlong(length, config) for length in (10, 80, 90, 100)] == [0.0, 0.0, -0.5, -1.0]
    assert [pass_at(k, 2, 8) for k in (1, 8)] == [0.25, 1.0]
    assert pass_at(2, 2, 8) == pytest.approx(1 - 6 / 8 * 5 / 7) and pass_at(8, 0, 8) == 0.0
