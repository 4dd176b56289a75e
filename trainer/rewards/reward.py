"""The reward of an answer, by component, and whether it is right.

In: problems and what a model said to them. Out: a `Reward` each. Every task has a judge; `trainer.rewards.task_rewards`
knows them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from data.problems.problem import Problem


@dataclass(frozen=True)
class Reward:
    """The reward of one answer."""

    parts: dict[str, float] = field(default_factory=dict)
    """Reward by component, already multiplied by its weight."""
    is_right: bool = False

    @property
    def total(self) -> float:
        """Return the sum of all components."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class Said:
    """An answer that is to be judged."""

    problem: Problem
    text: str
    ended: bool
    """False where the longest length came before the end."""


class Judge(Protocol):
    def __call__(self, some: Sequence[Said], /) -> list[Reward]:
        """Return the reward of each answer. Raises RewardError when one cannot be judged."""

    def close(self) -> None:
        """End what it has started."""
