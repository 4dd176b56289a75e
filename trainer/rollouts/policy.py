"""Policy: a model answering problems, with rewards for the answers.

The policy takes problems and a model and returns a `Round`: prompts, answers as ids with log-probabilities, rewards.
`measure` evaluates problems outside of the training set.
"""

import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from data.chat import conversations
from data.errors import InputError
from data.events import add_part
from data.tokens.tokenizer import Tokenizer
from trainer.model.changes import ModelChange
from trainer.model.decoder import Decoder, uninitialized_decoder
from trainer.records.rl_config import RlConfig, pass_at
from trainer.rewards.reward import Judge, JudgedAnswer, Reward
from trainer.rollouts.generator import BatchedAnswers, generate_answers
from trainer.rollouts.problem_sampler import Drawn, uniform
from trainer.rollouts.sampling import Sampling
from trainer.speed import uncompiled

MEASURED = 7919  # part of the seed of measurements, never used in training


@dataclass(frozen=True)
class Round:
    """Answers to some problems, with the answers to a problem in sequence."""

    problems: list[Drawn]
    prompts: list[list[int]]
    ids: list[list[int]]
    """Ids of each answer, including the end id."""
    logprobs: list[list[float]]
    """Log-probabilities of these ids, as computed by the engine."""
    ended: list[bool]
    rewards: list[Reward]
    texts: list[str]
    took_s: float

    def to_json(self) -> list[Any]:
        """Return the round as JSON values, without the problems."""
        rewards = [[one.parts, one.is_right] for one in self.rewards]
        return [self.prompts, self.ids, self.logprobs, self.ended, self.texts, rewards, self.took_s]

    @staticmethod
    def from_json(said: Sequence[Any]) -> "Round":
        """Return the round from the result of `said`, without the problems."""
        prompts, ids, logprobs, ended, texts, rewards, took_s = said
        return Round([], prompts, ids, logprobs, ended, [Reward(*one) for one in rewards], texts, took_s)


class RolloutEngine(Protocol):
    """Engine that generates answers."""

    @property
    def is_external(self) -> bool:
        """Return True if the engine runs outside of the training: shared by all processes, and parallel to updates."""

    @property
    def transfer(self) -> Mapping[str, float]:
        """Return metrics of the last `load_weights`: seconds and MB, {} without a transfer to another process."""

    def load_weights(self, model: Decoder) -> None:
        """Use the weights of this model from now on."""

    def close(self) -> None:
        """Terminate the processes started by the engine."""

    def generate(self, prompts: Sequence[Sequence[int]], each: int, how: Sampling, numbers: Tensor) -> BatchedAnswers:
        """Return `each` answers per prompt; numbers: see `uniform` in `answer_all`."""


class Embedded:
    """Engine inside the training process, with a copy of the weights in the model's compute dtype.

    A model with float32 as the compute dtype is used without a copy. A change of a frozen model is merged into a copy
    of the changed weights.
    """

    is_external = False
    transfer: Mapping[str, float] = MappingProxyType({})

    def __init__(self, stop: Sequence[int], side_by_side: int, change: ModelChange | None = None) -> None:
        self.stop, self.side_by_side, self.change = stop, side_by_side, change
        self.model: Decoder | None = None
        self.copy: Decoder | None = None

    def load_weights(self, model: Decoder) -> None:
        """Use the weights of this model from now on."""
        self.model = model
        if self.change is not None:
            self.copy = self.change.merged(model, self.copy)
            return
        if model.compute_dtype == torch.float32:
            return
        if self.copy is None:
            self.copy = uninitialized_decoder(model.config, model.compute_dtype).to(model.compute_dtype)
            self.copy.to_empty(device=model.head.device)
        for mine, its in zip(self.copy.parameters(), model.parameters(), strict=True):
            mine.data.copy_(its.data)

    def close(self) -> None:
        """Do nothing: this engine starts no process."""

    def generate(self, prompts: Sequence[Sequence[int]], each: int, how: Sampling, numbers: Tensor) -> BatchedAnswers:
        """Return `each` answers per prompt; numbers: see `uniform` in `answer_all`."""
        assert self.model is not None
        with uncompiled(self.model) if self.copy is None else nullcontext():
            return generate_answers(self.copy or self.model, prompts, each, self.stop, how, numbers, self.side_by_side)


class RemoteEngine:
    """Placeholder for the engine of the first process; this process receives the answers from the first process."""

    is_external = True
    transfer: Mapping[str, float] = MappingProxyType({})

    def load_weights(self, model: Decoder) -> None:
        """Do nothing: the weights of all processes are equal."""

    def close(self) -> None:
        """Do nothing: this engine starts no process."""

    def generate(self, prompts: Sequence[Sequence[int]], each: int, how: Sampling, numbers: Tensor) -> BatchedAnswers:
        """Raise RuntimeError: only the first process may ask the engine."""
        raise RuntimeError("only the first process has the engine")


class Policy:
    """Sends problems to an engine, and the answers to the judges."""

    def __init__(
        self, engine: RolloutEngine, tokenizer: Tokenizer, judges: Mapping[str, Judge], config: RlConfig, room: int
    ) -> None:
        """Store the engine, and the judges by task.

        room: maximum tokens of a prompt and an answer together.
        """
        self.engine, self.tokenizer, self.judges, self.config = engine, tokenizer, judges, config
        self.room = room - config.max_new
        self.sampling = Sampling(
            max_new=config.max_new,
            temperature=config.temperature,
            top_k=config.top_k,
            top_p=config.top_p,
            num_ids=tokenizer.vocab_size,
        )

    def round(self, problems: Sequence[Drawn], each: int, how: Sampling, *seeds: int) -> Round:
        """Return `each` answers per problem. Raises InputError for an overlong prompt, RewardError."""
        began = time.perf_counter()
        prompts = [self._prompt(task, problem.messages) for task, problem in problems]
        found = self.engine.generate(prompts, each, how, uniform(len(prompts) * each, how.max_new, *seeds))
        ids = [found.answer_ids(row) for row in range(len(found.ids))]
        logprobs = [found.logprobs[row, : len(one)].tolist() for row, one in enumerate(ids)]
        ended: list[bool] = found.ended.tolist()
        texts = [self.tokenizer.decode(one[:-1] if end else one) for one, end in zip(ids, ended, strict=True)]
        took_s = time.perf_counter() - began
        asked = [one for one in problems for _ in range(each)]
        rewards = self.judge(asked, texts, ended)
        return Round(list(problems), prompts, ids, logprobs, ended, rewards, texts, took_s)

    def judge(self, asked: Sequence[Drawn], texts: Sequence[str], ended: Sequence[bool]) -> list[Reward]:
        """Return the reward of each answer. Raises RewardError."""
        found: list[Reward] = [Reward()] * len(asked)
        for task, judge in self.judges.items():
            rows = [row for row, one in enumerate(asked) if one[0] == task]
            said = [JudgedAnswer(asked[row][1], texts[row], ended[row]) for row in rows]
            for row, reward in zip(rows, judge(said) if said else [], strict=True):
                found[row] = reward
        return found

    def measure(self, problems: Sequence[Drawn], k: int, seed: int) -> dict[str, float]:
        """Return the shares of right answers, for greedy and for sampled answers.

        `greedy` is the share of right greedy answers. `pass_at_1` and `pass_at_<k>` are computed from k answers sampled
        as in training, for at most `drawn_problems` of the problems, evenly spread.
        """
        return shares(*self.count_right(problems, k, seed), k)

    def count_right(self, problems: Sequence[Drawn], k: int, *seeds: int) -> tuple[list[bool], list[int]]:
        """Return per problem whether the greedy answer is right, then per selected problem the number of right samples.

        Each selected problem has k samples. At most `drawn_problems` of the problems are selected, evenly spread.
        """
        if not problems:
            return [], []
        began = time.monotonic()
        greedy = self.greedy(problems)
        some = problems[:: -(-len(problems) // self.config.drawn_problems)]
        drawn = self.round(some, k, self.sampling, *seeds, MEASURED)
        right = np.array([one.is_right for one in drawn.rewards]).reshape(-1, k).sum(axis=1).tolist()
        add_part("evaluation", time.monotonic() - began)
        return [one.is_right for one in greedy.rewards], right

    def greedy(self, problems: Sequence[Drawn]) -> Round:
        """Return the greedy answer to every problem."""
        return self.round(problems, 1, replace(self.sampling, temperature=0, top_k=0, top_p=1.0), MEASURED)

    def _prompt(self, task: str, messages: Sequence[conversations.Message]) -> list[int]:
        ids = conversations.prompt(messages, self.tokenizer)
        if len(ids) > self.room:
            raise InputError(
                f"a problem of {task} has {len(ids)} tokens, but the prompt may have at most {self.room}, because "
                f"max_new reserves {self.config.max_new} for the answer. Increase sequence_len or decrease max_new"
            )
        return ids


def shares(greedy: Sequence[bool], drawn: Sequence[int], k: int) -> dict[str, float]:
    """Return the metrics of `Policy.measure` from the result of `Policy.count_right`."""
    return {
        "greedy": float(np.mean(greedy)),
        "pass_at_1": float(np.mean([pass_at(1, one, k) for one in drawn])),
        f"pass_at_{k}": float(np.mean([pass_at(k, one, k) for one in drawn])),
    }


def stops(tokenizer: Tokenizer) -> list[int]:
    """Return the end ids of an answer."""
    return list(tokenizer.stops)
