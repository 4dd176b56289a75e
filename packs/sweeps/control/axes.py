"""Combinations of values from lists and ranges: all of them, or a random sample. Pure."""

import itertools
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from flows.specs.files import check_keys
from infra.errors import UsageError
from packs.sweeps.control.experiment import slug
from packs.sweeps.control.trials.records import MOST_TRIALS

RANGE = ("from", "to", "step", "count", "scale")
SCALES = ("linear", "log")
EXAMPLES = "a list such as [1, 2, 3], or a range such as {from: 1e-4, to: 1e-2, count: 3, scale: log}"


def combined(where: str, axes: Any, sample: int | None) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the entries of each combination of the axes' values. Raises UsageError.

    sample: number of combinations to draw with a fixed random seed; a range without `count` or `step` then gives random
    values.
    """
    if not isinstance(axes, Mapping):
        raise UsageError(f"{where}: expected values for each flag: {EXAMPLES}")
    drawn: list[Sequence[Any]] = [values(f"{where}: {key}", said, sample) for key, said in axes.items()]
    if not drawn:
        return
    number = math.prod(map(len, drawn))
    if number > MOST_TRIALS and sample is None:
        raise UsageError(f"{where}: more than {MOST_TRIALS} trials")
    chosen: Iterator[tuple[Any, ...]] = itertools.product(*drawn)
    if sample is not None:
        chance = random.Random(0)
        places = sorted(chance.sample(range(number), min(sample, number)))
        chosen = (tuple(_at(drawn, place)) for place in places)
    for one in chosen:
        entry = dict(zip(map(str, axes), one, strict=True))
        words = [f"{key.rpartition('.')[2]}-{value}" for key, value in entry.items()]
        yield slug("-".join(words)), entry


def _at(drawn: Sequence[Sequence[Any]], place: int) -> list[Any]:
    """Return the combination with index `place` without generating the earlier combinations."""
    found = []
    for some in reversed(drawn):
        place, digit = divmod(place, len(some))
        found.append(some[digit])
    return found[::-1]


def values(where: str, said: Any, sample: int | None = None) -> list[Any]:
    """Return the values of an axis: a list, or the values of a range. Raises UsageError."""
    if isinstance(said, list) and said:
        return said
    if not isinstance(said, Mapping):
        raise UsageError(f"{where}: expected a list of values, {EXAMPLES}")
    check_keys(where, said, RANGE)
    low, high = (_number(f"{where}: {name}", said.get(name)) for name in ("from", "to"))
    scale = said.get("scale", "linear")
    if scale not in SCALES:
        raise UsageError(f"{where}: scale is {scale!r}; known: {', '.join(SCALES)}")
    if high <= low or (scale == "log" and low <= 0):
        raise UsageError(f"{where}: from {low} to {high} is empty on a {scale} scale")
    whole = isinstance(low, int) and isinstance(high, int)
    if "step" in said:
        step = _number(f"{where}: step", said["step"])
        if step <= 0 or scale == "log":
            raise UsageError(f"{where}: step is {step}; a step must be above 0, on a linear scale")
        count = math.floor((high - low) / step + 1e-9) + 1
        _few(where, count)
        return [_round(low + step * number, whole and isinstance(step, int)) for number in range(count)]
    count = said.get("count")
    if count is None:
        if whole and scale == "linear":
            _few(where, high - low + 1)
            return list(range(int(low), int(high) + 1))
        if sample is None:
            raise UsageError(f"{where}: a range of any numbers needs a count, or `sample` for random values")
        chance = random.Random(where)
        shares = [chance.random() for _ in range(sample)]
    else:
        if type(count) is not int or count < 2:
            raise UsageError(f"{where}: count is {count!r}; expected a whole number from 2")
        _few(where, count)
        shares = [number / (count - 1) for number in range(count)]
    if scale == "log":
        return list(dict.fromkeys(_round(low * (high / low) ** share, whole) for share in shares))
    return list(dict.fromkeys(_round(low + (high - low) * share, whole) for share in shares))


def _few(where: str, count: float) -> None:
    if count > MOST_TRIALS:
        raise UsageError(f"{where}: more than {MOST_TRIALS} values")


def _number(where: str, said: Any) -> Any:
    """Return a finite number; accept strings, because YAML reads 1e-3 as text. Raises UsageError."""
    try:
        found = float(said) if isinstance(said, str) else said
    except ValueError:
        found = None
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not math.isfinite(found):
        raise UsageError(f"{where} is {said!r}; expected a number")
    return found


def _round(value: float, whole: bool) -> Any:
    """Round to four significant digits, or to an integer, so that the value fits into a name."""
    return round(value) if whole else float(f"{value:.4g}")
