"""Answers that are one update old: generated during training, trained on with the correct ratio, kept over a kill."""

import copy
import threading

import numpy as np
import pytest
import torch

from data.problems.problem import Problem
from tests.trainer.conftest import tiny
from tests.trainer.parallel.together import together
from trainer.model.decoder import IGNORED, Decoder, initialize
from trainer.objectives.rl import PolicyLoss
from trainer.parallel.process_group import ALONE, Ranks
from trainer.records.rl_config import RlConfig
from trainer.rewards.reward import Reward
from trainer.rollouts import source
from trainer.rollouts.policy import Embedded, Policy
from trainer.rollouts.problem_sampler import Problems
from trainer.rollouts.source import Rollouts


class ParallelEngine(Embedded):
    """An engine that works during training, on a copy of the weights."""

    is_external = True

    def load_weights(self, model):
        super().load_weights(copy.deepcopy(model))

    def generate(self, *words):
        self.thread = threading.current_thread()
        return super().generate(*words)


class Words:
    """The part of a tokenizer that a policy needs: each letter is an id."""

    vocab_size = 0  # all ids of the model

    def decode(self, ids):
        return "".join(chr(97 + one % 26) for one in ids)


class LetterPolicy(Policy):
    def _prompt(self, task, messages):
        return [3 + ord(one) % 50 for one in messages[0]["content"]]


def judge(said):
    return [Reward({"letters": float(len(set(one.text)))}, True) for one in said]


@pytest.fixture
def make_rollouts():
    def source(engine, ranks=ALONE, reference=None, watched=(), **changes):
        rl = RlConfig(**{"group": 4, "max_new": 6, "lag": 1, "eval_every": 0, **changes})
        config = tiny(phase="rl", steps=5, rows=16, micro_rows=8, sequence_len=32, mixture={"sort": 1.0}, rl=rl)
        problems = [Problem(question="abcdefg"[one:], answer="") for one in range(5)]
        policy = LetterPolicy(engine, Words(), {"sort": judge}, rl, 32)
        return Rollouts(config, rl, policy, Problems({"sort": problems}, {"sort": 1.0}, 0), watched, reference, ranks)

    return source


def models(count):
    made = [Decoder(tiny().model) for _ in range(count)]
    for seed, one in enumerate(made):
        initialize(one, seed)
        for weights in one.parameters():
            weights.data += 0.1 * torch.randn(weights.shape, generator=torch.Generator().manual_seed(seed))
    return made


def target_logprobs(model, batch):
    """Return ln p of the targets of a batch."""
    source = Rollouts.__new__(Rollouts)
    source.config, source.rl, source.ranks = tiny(), RlConfig(), ALONE
    return source._logprobs(model, batch)


@pytest.mark.parametrize("kind", [Embedded, ParallelEngine])
def test_answers_of_a_step_come_from_the_previous_weights_with_their_importance_weight(make_rollouts, kind):
    weights, source = models(5), make_rollouts(kind([0], 16))
    made = [copy.deepcopy(source.batch(step, one)) for step, one in enumerate(weights)]
    for step, batch in enumerate(made):
        counted, before = batch["targets"] != IGNORED, weights[max(0, step - 1)]
        np.testing.assert_allclose(batch["sampled"][counted], target_logprobs(before, batch)[counted], atol=1e-4)
        if step:
            assert np.abs(batch["sampled"] - target_logprobs(weights[step], batch))[counted].mean() > 0.01
    tensors = {name: torch.from_numpy(values) for name, values in made[3].items()}
    _, figures = PolicyLoss(source.rl).loss(weights[3], tensors)
    assert figures["mismatch"] > 0 and figures["clipped"] == 0 and "moved" not in figures
    if kind is ParallelEngine:
        assert source.policy.engine.thread is not threading.main_thread()


def test_finished_process_waits_for_the_others_as_long_as_for_a_read_or_write(make_rollouts, monkeypatch):
    """The first process measures in between, on hundreds of answers: longer than the timeout of a step's exchange."""
    asked = []

    def all_gather(heard, said, group):
        asked.append(group)
        for one in heard:
            one.copy_(said)

    monkeypatch.setattr(torch.distributed, "all_gather", all_gather)
    source = make_rollouts(Embedded([0], 16), Ranks(0, 2, words="patient", quick="quick"), lag=0)
    assert source.batch(0, models(1)[0])["ids"].size
    assert asked and set(asked) == {"patient"}


@pytest.mark.process
def test_two_processes_compute_the_compared_values_each_for_its_rows(make_rollouts, monkeypatch):
    monkeypatch.setattr(source, "ROOM", 1)  # So that several rows exist.

    def work(ranks, tell):
        model, reference = models(2)
        seen, hidden = [], reference.hidden
        reference.hidden = lambda ids, **more: seen.append(len(ids)) or hidden(ids, **more)
        found = make_rollouts(Embedded([0], 16), ranks, reference, lag=0, beta=0.1, num_iterations=2).batch(0, model)
        tell("rows", f"{sum(seen)} {len(found['ids'])}")
        for name, one in (("old", model), ("reference", reference)):  # For the owner of any row.
            np.testing.assert_allclose(found[name], target_logprobs(one, found), atol=1e-5)

    shares, rows = zip(*(map(int, one["rows"].split()) for one in together(2, work)), strict=True)
    assert sum(shares) == rows[0] == rows[1] > 1 and max(shares) - min(shares) <= 1


@pytest.mark.process
def test_two_processes_are_measured_on_half_of_the_problems_each_with_equal_results(make_rollouts):
    watched = [("sort", Problem(question="abcdefg"[one:], answer="")) for one in range(5)]
    how = {"lag": 0, "eval_every": 1, "samples_each": 2, "eval_problems": 5}

    def work(ranks, tell):
        source = make_rollouts(Embedded([0], 16), ranks, None, watched, **how)
        asked, greedy = [], source.policy.greedy
        source.policy.greedy = lambda problems: asked.append(len(problems)) or greedy(problems)
        source.policy.judges = {"sort": lambda said: [Reward({}, "c" in one.problem.question) for one in said]}
        source.batch(0, models(1)[0])
        tell("asked", str(sum(asked)))
        tell("right", " ".join(f"{source.last_metrics[name]:.2f}" for name in ("greedy", "pass_at_1", "pass_at_2")))

    (alone,), two = together(1, work), together(2, work)
    assert [alone["asked"], *(one["asked"] for one in two)] == ["5", "3", "2"]
    assert alone["right"] == "0.60 0.60 0.60" and all(one["right"] == alone["right"] for one in two)


def test_checkpoint_keeps_answers_of_discarded_weights(make_rollouts):
    weights, source = models(5), make_rollouts(Embedded([0], 16))
    made = [copy.deepcopy(source.batch(step, one)) for step, one in enumerate(weights[:3])]
    kept = {name: one.clone() for name, one in source.state().items()}
    made += [copy.deepcopy(source.batch(step, weights[step])) for step in (3, 4)]
    another = make_rollouts(Embedded([0], 16))
    another.load(kept)
    for step in (3, 4):
        batch = another.batch(step, weights[step])
        assert batch.keys() == made[step].keys()
        for name, values in batch.items():
            np.testing.assert_array_equal(values, made[step][name])
    assert not source.next_round.state(), "nothing is made that no step reads"
