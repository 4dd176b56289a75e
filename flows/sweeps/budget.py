"""One limit in dollars for many trials: what each may cost is set aside before it begins. Pure.

A trial's pods end themselves at what was set aside for it, so that all together never cost more than the limit,
whatever becomes of whoever watches. What a trial has not spent is free again when it has ended.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from infra.units import count


@dataclass
class SweepBudget:
    """Micro-dollars: a limit, what was spent, what is set aside."""

    limit: int | None
    """None: there is none."""
    spent: Mapping[str, int] = field(default_factory=dict)
    """By trial, of those that have ended or were at work before."""
    held: dict[str, int] = field(default_factory=dict)
    """By trial at work: what it may cost at most."""

    @property
    def committed(self) -> int:
        """Return what may be owed at most: of each trial what was set aside, else what it has cost."""
        return sum(max(self.held.get(run, 0), self.spent.get(run, 0)) for run in {*self.held, *self.spent})

    @property
    def free(self) -> int | None:
        """Return what can still be set aside; None where there is no limit."""
        return None if self.limit is None else max(0, self.limit - self.committed)

    def hold(self, run: str, most: int) -> bool:
        """Set aside what a trial may cost; return whether it could be. A trial's own earlier cost counts within it."""
        if run in self.held:
            return True
        if self.limit is not None and self.committed - self.spent.get(run, 0) + most > self.limit:
            return False
        self.held[run] = most
        return True

    def settle(self, run: str, cost: int) -> None:
        """Free what a trial has not spent."""
        self.held.pop(run, None)
        self.spent = {**self.spent, run: cost}


def share(limit: int, trials: int, own: int | None) -> int:
    """Return what one trial may cost: what it asks for itself, and an equal share of the limit at most."""
    each = limit // max(1, trials)
    return each if own is None else min(own, limit)


def refusal(budget: SweepBudget, waiting: int) -> str:
    """Return why trials were not begun."""
    return f"not begun, since what is left of the limit does not cover it ({count(waiting, 'trial')} so)"
