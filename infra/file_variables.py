"""Variables of `envs` in other values of a job or service file: `$NAME` and `${NAME}`, as in SkyPilot."""

import re
from collections.abc import Callable, Mapping
from typing import Any

NAMED = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")


def names_in(said: Any) -> list[str]:
    """Return the names of the variables in all texts and keys of a value."""
    if isinstance(said, str):
        return [found[1] or found[2] for found in NAMED.finditer(said)]
    if isinstance(said, Mapping):
        return [name for pair in said.items() for one in pair for name in names_in(one)]
    return [name for one in said for name in names_in(one)] if isinstance(said, list) else []


def filled(said: Any, values: Mapping[str, str | None], unknown: Callable[[str], None]) -> Any:
    """Return a value with the variables in all texts and keys replaced by their values.

    A variable without a value stays as written. `unknown` receives each name that is not a variable.
    """

    def value_of(found: re.Match[str]) -> str:
        name = found[1] or found[2]
        if name not in values:
            unknown(name)
        value = values.get(name)
        return found[0] if value is None else value

    if isinstance(said, str):
        return NAMED.sub(value_of, said)
    if isinstance(said, Mapping):
        return {filled(key, values, unknown): filled(one, values, unknown) for key, one in said.items()}
    return [filled(one, values, unknown) for one in said] if isinstance(said, list) else said
