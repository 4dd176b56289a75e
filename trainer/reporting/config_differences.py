"""Comparison of the recipes of several runs. Standard library only."""

from collections.abc import Iterator, Mapping
from typing import Any


def differences(configs: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return the settings with differences between runs: a `name`, and the `values` by run; None = not set in a run."""
    flat = {run: dict(flattened(config)) for run, config in configs.items()}
    names = dict.fromkeys(name for one in flat.values() for name in one)
    found = []
    for name in names:
        values = {run: one.get(name) for run, one in flat.items()}
        if len({repr(one) for one in values.values()}) > 1:
            found.append({"name": name, "values": values})
    return found


def flattened(values: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, Any]]:
    """Yield the values of a nested configuration with dotted names, without None values."""
    for key, value in values.items():
        if isinstance(value, Mapping):
            yield from flattened(value, f"{above}{key}.")
        elif value is not None:
            yield f"{above}{key}", list(value) if isinstance(value, tuple) else value
