"""Variables of `envs` in other values of a job or service file: `$NAME` and `${NAME}`, as in SkyPilot."""

import re
from collections.abc import Callable, Mapping
from typing import Any

NAMED = re.compile(r"\$(?:\{([A-Za-z_]\w*)\}|([A-Za-z_]\w*))")


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
