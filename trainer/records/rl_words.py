"""What flags say about reinforcement learning, as plain values. Light: no torch here."""

import difflib
import math
from dataclasses import fields
from pathlib import Path
from typing import Any

from data.config import ConfigError
from trainer.records.rl_config import RlConfig


def parse_tasks(words: str) -> dict[str, float] | None:
    """Return tasks with their weights of `sort`, `my.jsonl`, `sort=1,gsm8k=3`; None for nothing. Raises ConfigError."""
    found: dict[str, float] = {}
    for word in filter(None, (part.strip() for part in words.split(","))):
        source, equals, weight = word.rpartition("=")
        try:
            found[source or word] = float(weight) if equals else 1.0
        except ValueError:
            found = {}
        if not found or not 0 < found[source or word] < math.inf:
            raise ConfigError(f"--task {word}: expected a task, or TASK=WEIGHT, such as sort or sort=1,gsm8k=3")
    return found or None


def parse_rl(words: str, reward: str, is_unsafe: bool) -> dict[str, Any]:
    """Return what `--rl loss=grpo,group=16`, `--reward FILE` and `--unsafe-rewards` say, as fields of RlConfig.

    Raises ConfigError.
    """
    known = {one.name: one.default for one in fields(RlConfig) if one.name != "reward"}
    found: dict[str, Any] = {}
    for word in filter(None, (part.strip() for part in words.split(","))):
        name, equals, value = word.partition("=")
        if not equals or name not in known:
            near = difflib.get_close_matches(name, known, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"known: {', '.join(known)}"
            raise ConfigError(f"--rl {word}: expected SETTING=VALUE; {hint}")
        try:
            found[name] = _as_kind(value, type(known[name]))
        except ValueError:
            raise ConfigError(f"--rl {word}: {name} is such as {known[name]}") from None
    if is_unsafe:
        found["unsafe_rewards"] = True
    if reward:
        try:
            found["reward"] = Path(reward).expanduser().read_text(encoding="utf-8")
            compile(found["reward"], reward, "exec")
        except OSError as error:
            raise ConfigError(f"--reward {reward}: {error.strerror}") from None
        except (SyntaxError, ValueError) as error:
            raise ConfigError(f"--reward {reward}: not Python: {error}") from None
    return found


def _as_kind(value: str, kind: type) -> Any:
    """Raises ValueError."""
    if kind is bool:
        if value.lower() not in ("true", "false"):
            raise ValueError(value)
        return value.lower() == "true"
    return kind(value)
