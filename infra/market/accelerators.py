"""Kinds and numbers of GPUs under `accelerators` of a job or service file."""

import re
from collections.abc import Mapping, Sequence

from infra.errors import UsageError

MOST_GPUS = 1024  # of a machine


def read(said: str | Sequence[str] | Mapping[str, float | None]) -> list[tuple[str, int]]:
    """Parse `H100:8`, a list or a mapping into (kind, count) pairs; the usual count is 1. Raises UsageError.

    In YAML, `{A100:8, H100:4}` is a mapping of two keys without values, because the colons have no space after them.
    """
    given = said if isinstance(said, Mapping) else dict.fromkeys([said] if isinstance(said, str) else said)
    found = []
    for word, value in given.items():
        gpu, colon, number = word.partition(":") if value is None else (word, "", "")
        if colon and not re.fullmatch(r"-?[0-9]{1,9}(\.[0-9]{1,9})?", number.strip()):
            raise UsageError(f"accelerators: {word!r}; expected a kind and a number, such as H100:8")
        if not gpu.strip() or re.search(r"[,:\s]", gpu.strip()):
            raise UsageError(f"accelerators: {gpu!r} is not a known GPU")
        count = float(number) if colon else 1.0 if value is None else value
        if not 1 <= count <= MOST_GPUS or count != int(count):
            why = f"expected a whole number from 1 to {MOST_GPUS}"
            why = "vendors rent whole GPUs only; write 1, or add --provider skypilot" if 0 < count < 1 else why
            raise UsageError(f"accelerators: {gpu}:{count:g}: {why}")
        found.append((gpu.strip(), int(count)))
    return found
