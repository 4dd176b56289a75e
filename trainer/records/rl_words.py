"""Parser for the flags about reinforcement learning. Light: no torch here."""

import math
from typing import Any

from data.config import ConfigError
from data.references import COLUMNS
from trainer.records.rl_config import ENGINES


def parse_tasks(words: str) -> dict[str, float] | None:
    """Return the weights of `sort`, `my.jsonl` or `sort=1,gsm8k=3`; None for an empty text. Raises ConfigError."""
    found: dict[str, float] = {}
    for word in filter(None, (part.strip() for part in words.split(","))):
        source, equals, weight = word.rpartition("=")
        if COLUMNS.search(word) and not COLUMNS.search(source):  # the last = belongs to a column
            source, equals = word, ""
        try:
            found[source or word] = float(weight) if equals else 1.0
        except ValueError:
            found = {}
        if not found or not 0 < found[source or word] < math.inf:
            raise ConfigError(f"--task {word}: expected a task, or TASK=WEIGHT, such as sort or sort=1,gsm8k=3")
    return found or None


def parse_reward(
    code: str,
    is_unsafe: bool,
    engine: str = "",
    lag: int = 0,
    answering: str = "",
    training: str = "",
    tensor_parallel: int | None = None,
) -> dict[str, Any]:
    """Return the flags of rl as fields of RlConfig.

    code: text of the file in `--reward`; the other arguments are `--unsafe-rewards`, `--engine`, `--lag`, the validated
    numbers of `--engine-devices` and `--train-devices`, and `--engine-tensor-parallel`. Raises ConfigError for an
    unknown engine.
    """
    if engine and engine not in ENGINES:
        raise ConfigError(f"--engine {engine}: known: {', '.join(ENGINES)}")
    found: dict[str, Any] = {"unsafe_rewards": True} if is_unsafe else {}
    found |= {"engine": engine} if engine else {}
    for name, devices in (("engine_devices", answering), ("train_devices", training)):
        found |= {name: tuple(map(int, devices.split(",")))} if devices else {}
    found |= {"lag": lag} if lag else {}
    found |= {} if tensor_parallel is None else {"engine_tensor_parallel": tensor_parallel}
    return {**found, "reward": code} if code else found
