"""Reward of an answer by component, and the protocol of the judges.

A judge takes problems with the model's answers and returns one `Reward` per answer. Each task has one judge;
`trainer.rewards.task_rewards` maps tasks to judges.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

from data.problems.problem import Problem


@dataclass(frozen=True)
class Reward:
    """Reward of an answer."""

    parts: dict[str, float] = field(default_factory=dict)
    """Reward by component, already multiplied by the component's weight."""
    is_right: bool = False

    @property
    def total(self) -> float:
        """Return the sum of all components."""
        return sum(self.parts.values())


@dataclass(frozen=True)
class JudgedAnswer:
    """An answer to judge."""

    problem: Problem
    text: str
    ended: bool
    """False if the answer reached the maximum length before the end token."""


class Judge(Protocol):
    def __call__(self, some: Sequence[JudgedAnswer], /) -> list[Reward]:
        """Return the reward of each answer. Raises RewardError if judging an answer fails."""

    def close(self) -> None:
        """Terminate the processes started by the judge."""
