"""Successive halving without waiting: who is behind after some steps is stopped, the others go on to the next rung.

A trial that comes to a rung is compared with all that have come there before it, and goes on when it is among the best
one in `factor` of them; of fewer than `factor`, when it is the best so far. The rungs lie at first, first * factor,
first * factor**2, ... of the steps. Pure. Source: Li et al., A System for Massively Parallel Hyperparameter Tuning,
arXiv 1810.05934 (ASHA), in the form that stops and never pauses, as Optuna's SuccessiveHalvingPruner has it.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from packs.sweeps.control.trials.records import EarlyStop


def rungs(steps: int, early: EarlyStop) -> list[int]:
    """Return the steps after which trials are compared."""
    found = []
    at = max(1, round(steps * early.first))
    while at < steps:
        found.append(at)
        at *= early.factor
    return found


def goes_on(value: float, competing: Sequence[float], factor: int) -> bool:
    """Return whether a trial goes on. `competing`: the values of all at its rung, with its own; less is better."""
    if math.isnan(value):
        return False
    place = max(0, len(competing) // factor - 1)
    return value <= sorted(one for one in competing if not math.isnan(one))[place]


@dataclass
class Halving:
    """The scores of trials at each rung."""

    factor: int
    rungs: Sequence[int]
    """Steps of the rungs, ascending."""
    values: dict[int, dict[str, float]] = field(default_factory=dict)
    """Scores by rung, then by trial."""

    def hear(self, trial: str, values: Mapping[int, float]) -> int | None:
        """Return the rung at which a trial is to stop, None when it goes on.

        `values`: what it has come to at each rung that it has reached, less being better. A rung that it has passed is
        not asked again.
        """
        for rung in self.rungs:
            if rung not in values:
                return None
            there = self.values.setdefault(rung, {})
            if trial in there:
                continue
            there[trial] = values[rung]
            if not goes_on(values[rung], list(there.values()), self.factor):
                return rung
        return None
