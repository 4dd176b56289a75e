"""95 % confidence intervals, and comparisons of two models. No torch or numpy import.

Shares use Wilson's score interval (1927). Nats per byte, a ratio of two sums, use the linearised variance of the ratio
estimator (Cochran, Sampling Techniques, 6.4) over rows, with a normal interval. Differences on the same questions use
Agresti and Min's adjusted interval (2005) and McNemar's exact test; on different questions, Newcombe's hybrid of two
Wilson intervals (1998), or the sum of both variances.
"""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

Z = 1.959963984540054  # for 95 %, two-sided
WILSON = "Wilson score"


@dataclass(frozen=True)
class Interval:
    value: float
    low: float
    high: float

    def to_dict(self) -> dict[str, Any]:
        """Return a dict for JSON, with None for nan."""
        return {name: value if math.isfinite(value) else None for name, value in asdict(self).items()}


def share(true: int, of: int) -> Interval:
    """Return Wilson's interval for `true` successes out of `of` >= 1."""
    value, square = true / of, Z * Z
    middle = (value + square / (2 * of)) / (1 + square / of)
    reach = Z / (1 + square / of) * math.sqrt(value * (1 - value) / of + square / (4 * of * of))
    return Interval(value, max(0.0, middle - reach), min(1.0, middle + reach))


def ratio(above: Sequence[float], below: Sequence[float], factor: float = 1.0) -> Interval:
    """Return factor * sum(above) / sum(below) with an interval over randomly sampled rows.

    A single row has no interval: low and high are nan.
    """
    rows, total = len(above), math.fsum(below)
    value = math.fsum(above) / total
    if rows < 2:
        return Interval(factor * value, math.nan, math.nan)
    residuals = math.fsum((a - value * b) ** 2 for a, b in zip(above, below, strict=True))
    error = Z * math.sqrt(rows / (rows - 1) * residuals) / total
    return Interval(factor * value, factor * (value - error), factor * (value + error))


def paired_ratio(ours: Sequence[float], theirs: Sequence[float], below: Sequence[float], factor: float) -> Interval:
    """Return the difference of two ratios, `theirs` minus `ours`, over identical rows."""
    return ratio([b - a for a, b in zip(ours, theirs, strict=True)], below, factor)


def unpaired_difference(first: Interval, second: Interval) -> Interval:
    """Return `second` minus `first` for different questions, with Newcombe's interval from both intervals."""
    value = second.value - first.value
    low = value - math.hypot(second.value - second.low, first.high - first.value)
    high = value + math.hypot(second.high - second.value, first.value - first.low)
    return Interval(value, low, high)


def paired_share(first: Sequence[int], second: Sequence[int]) -> tuple[Interval, float]:
    """Return share `second` minus `first` over identical questions (1 = right), and McNemar's exact p value."""
    count = len(first)
    gained = sum(b > a for a, b in zip(first, second, strict=True))
    lost = sum(b < a for a, b in zip(first, second, strict=True))
    more, fewer, total = gained + 0.5, lost + 0.5, count + 2  # add half a question to each of the four cells
    middle = (more - fewer) / total
    error = Z * math.sqrt(more + fewer - (more - fewer) ** 2 / total) / total
    value = (gained - lost) / count
    return Interval(value, max(-1.0, middle - error), min(1.0, middle + error)), mcnemar(gained, lost)


def mcnemar(gained: int, lost: int) -> float:
    """Return the exact two-sided p value: the chance of a split at least as uneven between equal models."""
    total = gained + lost
    tail = sum(math.comb(total, one) for one in range(min(gained, lost) + 1))
    return min(1.0, 2 * tail / 2**total)
