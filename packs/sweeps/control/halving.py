"""Asynchronous successive halving: stops the weaker trials at a rung; the others continue to the next rung.

At a rung, a trial is compared with all trials at the rung so far. The trial continues when it is among the best
1/factor of the trials; with fewer than `factor` trials, when it is the best so far. The rungs lie at `first *
factor**k` of the steps, for k = 0, 1, 2, ... Pure. Source: Li et al., A System for Massively Parallel Hyperparameter
Tuning, arXiv 1810.05934 (ASHA), in the variant that stops and never pauses, as in Optuna's SuccessiveHalvingPruner.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from packs.sweeps.control.trials.records import EarlyStop


def rungs(steps: int, early: EarlyStop) -> list[int]:
    """Return the steps after which trials are compared, ascending."""
    found = []
    at = max(1, round(steps * early.first))
    while at < steps:
        found.append(at)
        at *= early.factor
    return found


def goes_on(value: float, competing: Sequence[float], factor: int) -> bool:
    """Return whether a trial continues.

    competing: values of all trials at the rung, including `value`; lower is better.
    """
    if math.isnan(value):
        return False
    place = max(0, len(competing) // factor - 1)
    return value <= sorted(one for one in competing if not math.isnan(one))[place]


@dataclass
class Halving:
    """Scores of the trials at each rung."""

    factor: int
    rungs: Sequence[int]
    """Steps of the rungs, ascending."""
    values: dict[int, dict[str, float]] = field(default_factory=dict)
    """Scores by rung, then by trial."""

    def record(self, trial: str, values: Mapping[int, float]) -> int | None:
        """Record a trial's values; return the rung at which the trial must stop, or None to continue.

        values: the trial's value at each rung reached so far; lower is better. Rungs already passed are not evaluated
        again.
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
