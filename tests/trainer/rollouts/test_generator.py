"""Batched answers: equal to single answers, for any neighbors in the batch, with the trainer's own probabilities."""

import pytest
import torch

from trainer.model.decoder import Decoder
from trainer.model.generate import generate
from trainer.model.losses import Shape, capped
from trainer.model.token_losses import logprobs_and_entropy
from trainer.records.model_config import ModelConfig
from trainer.rollouts import generator
from trainer.rollouts.generator import generate_answers
from trainer.rollouts.sampling import Sampling, draw

PROMPTS = [[5, 6, 7], [9], [3, 4, 5, 6, 7, 8, 9, 10, 11], [12] * 20]
STOP = set(range(60))
NEW = 24


@pytest.fixture(params=[2, 1], ids=["heads", "shared"])
def model(request):
    torch.manual_seed(0)
    shape = ModelConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=request.param,
        head_dim=16,
        qk_norm=True,
        max_position_embeddings=64,
    )
    made = Decoder(shape).eval()
    for one in made.parameters():
        torch.nn.init.normal_(one, std=0.2) if one.dim() > 1 else torch.nn.init.ones_(one)
    return made


@pytest.fixture(params=["branching", "in rows"])
def decoding_method(request, monkeypatch):
    """Both decoding methods: for a CPU, and for a GPU."""
    if request.param == "in rows":
        monkeypatch.setattr(generator, "BRANCHING", ())


@pytest.mark.usefixtures("decoding_method")
def test_greedy_answers_equal_single_prompts(model):
    want = [generate(model, [prompt], STOP, NEW)[0] for prompt in PROMPTS]
    got = generate_answers(model, PROMPTS, 1, STOP, Sampling(max_new=NEW, temperature=0), torch.zeros(4, NEW), rows=2)
    found = [got.answer_ids(row)[:-1] if got.ended[row] else got.answer_ids(row) for row in range(4)]
    assert found == want
    assert not any(one.is_floating_point() and one.requires_grad for one in (got.ids, got.logprobs))


@pytest.mark.usefixtures("decoding_method")
def test_sampled_answers_depend_only_on_their_own_seed_and_report_the_trainers_probabilities(model):
    numbers = torch.rand(20, NEW, generator=torch.Generator().manual_seed(1))
    few, many = (generate_answers(model, PROMPTS, 5, STOP, Sampling(max_new=NEW), numbers, rows) for rows in (3, 64))
    assert torch.equal(few.ids, many.ids) and len({tuple(few.answer_ids(row)) for row in range(20)}) > 4
    for row in range(20):
        prompt, answer = PROMPTS[row // 5], few.answer_ids(row)
        hidden = model.hidden(torch.tensor([[*prompt, *answer][:-1]]))[0, -len(answer) :]
        mine, _ = logprobs_and_entropy(hidden, model.head, torch.tensor(answer), model.shape)
        torch.testing.assert_close(mine.detach(), few.logprobs[row, : len(answer)], atol=1e-5, rtol=0)


@pytest.mark.slow
@pytest.mark.day_cases(1)
@pytest.mark.usefixtures("decoding_method")
def test_bfloat16_answers_are_as_close_to_the_exact_probabilities_as_the_trainer(model):
    """Eight bits round differently in a different order of sums: the two differ, without a bias."""
    short = Decoder(model.config, torch.bfloat16).eval()
    short.load_state_dict(model.state_dict())
    numbers = torch.rand(400, NEW, generator=torch.Generator().manual_seed(1))
    got = generate_answers(short, PROMPTS, 100, STOP, Sampling(max_new=NEW), numbers, 64)
    off: dict[str, list[torch.Tensor]] = {"generator": [], "trainer": []}
    for row in range(400):
        ids, answer = (
            torch.tensor([[*PROMPTS[row // 100], *got.answer_ids(row)][:-1]]),
            torch.tensor(got.answer_ids(row)),
        )
        exact, told = (
            logprobs_and_entropy(one.hidden(ids)[0, -len(answer) :], one.head, answer, one.shape)[0].detach()
            for one in (model, short)
        )
        off["trainer"].append(told - exact)
        off["generator"].append(got.logprobs[row, : len(answer)] - exact)
    found = {name: torch.cat(parts) for name, parts in off.items()}
    assert found["generator"].abs().mean() < 1.25 * found["trainer"].abs().mean()
    assert all(one.mean().abs() < 0.1 * one.abs().mean() for one in found.values())


@pytest.mark.slow
def test_sampling_frequency_equals_the_probability():
    logits = torch.randn(1, 300, generator=torch.Generator().manual_seed(2)) * 2
    # As even as possible: the shares are exact up to their resolution.
    numbers = (torch.arange(200_000) + 0.5) / 200_000
    ids, found = draw(logits.expand(200_000, -1).clone(), numbers, Sampling(max_new=1, temperature=0.5))
    chances = (logits[0] / 0.5).softmax(0)
    torch.testing.assert_close(torch.bincount(ids, minlength=300) / 200_000, chances, atol=2e-5, rtol=0)
    torch.testing.assert_close(found, chances.log()[ids], atol=1e-4, rtol=0)
    ids, _ = draw(logits.expand(1000, -1).clone(), numbers[::200], Sampling(max_new=1, top_k=3))
    assert set(ids.tolist()) == set(logits[0].topk(3).indices.tolist())
    for how in ({}, {"temperature": 0}, {"top_k": 3}, {"top_p": 0.9}):  # Rows beyond the tokenizer are never drawn.
        some = logits.expand(1000, -1).clone()
        least = int(logits.argmax())  # The likeliest id is beyond the tokenizer.
        ids, logprobs = draw(some, numbers[::200], Sampling(max_new=1, num_ids=least, **how))
        want = logits.log_softmax(-1).expand(1000, -1).gather(1, ids[:, None]).squeeze(1)
        assert int(ids.max()) < least and torch.allclose(logprobs, want, atol=1e-5)
    ids, _ = draw(logits.expand(1000, -1).clone(), numbers[::200], Sampling(max_new=1, top_p=0.5))
    ordered = logits[0].softmax(0).sort(descending=True)
    assert set(ids.tolist()) == set(ordered.indices[: int((ordered.values.cumsum(0) < 0.5).sum()) + 1].tolist())


@pytest.mark.parametrize(("softcap", "temperature"), [(0.0, 1.0), (3.0, 0.7)])
def test_log_probabilities_have_a_gradient_for_each_token(softcap, temperature):
    torch.manual_seed(3)
    hidden, head = torch.randn(7, 8, requires_grad=True), torch.randn(40, 8, requires_grad=True)
    targets, weights = torch.randint(0, 40, (7,)), torch.randn(7)
    found, entropy = logprobs_and_entropy(hidden, head, targets, Shape(softcap=softcap), temperature)
    mine = torch.autograd.grad((found * weights).sum(), (hidden, head))
    whole = (capped(hidden @ head.t(), softcap) / temperature).log_softmax(1)
    theirs = torch.autograd.grad((whole.gather(1, targets[:, None])[:, 0] * weights).sum(), (hidden, head))
    torch.testing.assert_close(mine, theirs, atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(entropy, -(whole.exp() * whole).sum(1).detach(), atol=1e-5, rtol=1e-5)
