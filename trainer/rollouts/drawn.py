"""The choice of problems for the model, and of random numbers for its answers: pure functions of a seed.

In: problems by task, how often each task is wanted. Out: the problems of each round, as often as a run asks for it.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from data.errors import InputError
from data.problems.problem import Problem
from data.tokens.shuffle import Shuffle

Drawn = tuple[str, Problem]  # a task and one of its problems


class Problems:
    """The problems of several tasks, drawn by weight. Those of a task come in a seeded order, each once, then again."""

    def __init__(self, material: Mapping[str, Sequence[Problem]], weights: Mapping[str, float], seed: int) -> None:
        """Take the problems of each task. Raises InputError for a task without any."""
        if empty := [task for task in weights if not material.get(task)]:
            raise InputError(f"no problems of the task {empty[0]!r}")
        self.tasks = sorted(weights, key=lambda task: (weights[task], task))
        self.weights = [weights[task] / sum(weights.values()) for task in self.tasks]
        self.material, self.seed = material, seed
        self._order = lru_cache(maxsize=4 * len(self.tasks))(self._epoch)

    def drawn(self, first: int, count: int) -> list[Drawn]:
        """Return the problems that come after the first `first` ones."""
        before, after = self._counts(first), self._counts(first + count)
        return [
            (task, self._pick(number, place))
            for number, task in enumerate(self.tasks)
            for place in range(before[number], after[number])
        ]

    def _counts(self, total: int) -> list[int]:
        """Return how many of each task the first `total` hold; the heaviest, which is last, takes the rest."""
        counts = [int(total * weight) for weight in self.weights[:-1]]
        return [*counts, total - sum(counts)]

    def _pick(self, number: int, place: int) -> Problem:
        some = self.material[self.tasks[number]]
        epoch, at = divmod(place, len(some))
        return some[int(self._order(number, epoch)[np.array([at])][0])]

    def _epoch(self, number: int, epoch: int) -> Shuffle:
        return Shuffle(len(self.material[self.tasks[number]]), np.random.default_rng([self.seed, number, epoch]))


def uniform(answers: int, max_new: int, *seeds: int) -> Tensor:
    """Return the numbers that answers are drawn with, fp32 (answers, max_new) in [0, 1)."""
    found = np.random.default_rng(seeds).random((answers, max_new), dtype=np.float32)
    return torch.from_numpy(found)
