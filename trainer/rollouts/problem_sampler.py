"""Choice of problems for the model, and random numbers for the answers: pure functions of a seed.

The functions take problems by task and the weight of each task, and return the problems of each round, identically on
every call.
"""

from collections.abc import Mapping, Sequence
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from data.errors import InputError
from data.problems.problem import Problem
from data.tokens.shuffle import Shuffle

Drawn = tuple[str, Problem]  # task name and problem


class Problems:
    """Problems of several tasks, drawn by weight. Within a task, every epoch has a new seeded order."""

    def __init__(self, material: Mapping[str, Sequence[Problem]], weights: Mapping[str, float], seed: int) -> None:
        """Store the problems of each task. Raises InputError for a task without problems."""
        if empty := [task for task in weights if not material.get(task)]:
            raise InputError(f"the task {empty[0]!r} has no problems")
        self.tasks = sorted(weights, key=lambda task: (weights[task], task))
        self.weights = [weights[task] / sum(weights.values()) for task in self.tasks]
        self.material, self.seed = material, seed
        self._order = lru_cache(maxsize=4 * len(self.tasks))(self._epoch)

    def draw(self, first: int, count: int) -> list[Drawn]:
        """Return the `count` problems after the first `first` problems."""
        before, after = self._counts(first), self._counts(first + count)
        return [
            (task, self._pick(number, place))
            for number, task in enumerate(self.tasks)
            for place in range(before[number], after[number])
        ]

    def _counts(self, total: int) -> list[int]:
        """Return the number of problems per task among the first `total`.

        The last task, which has the largest weight, takes the remainder.
        """
        counts = [int(total * weight) for weight in self.weights[:-1]]
        return [*counts, total - sum(counts)]

    def _pick(self, number: int, place: int) -> Problem:
        some = self.material[self.tasks[number]]
        epoch, at = divmod(place, len(some))
        return some[int(self._order(number, epoch)[np.array([at])][0])]

    def _epoch(self, number: int, epoch: int) -> Shuffle:
        return Shuffle(len(self.material[self.tasks[number]]), np.random.default_rng([self.seed, number, epoch]))


def uniform(answers: int, max_new: int, *seeds: int) -> Tensor:
    """Return the random numbers for sampling answers, fp32 (answers, max_new) in [0, 1)."""
    found = np.random.default_rng(seeds).random((answers, max_new), dtype=np.float32)
    return torch.from_numpy(found)
