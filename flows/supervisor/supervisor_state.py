"""Last state of the supervisor, in a file beside the journal.

The supervisor writes the file; `inv supervisor`, `inv status` and the web page read the file.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from infra.settings import Settings


@dataclass(frozen=True, kw_only=True)
class SupervisorState:
    """The supervisor's last observations; times are UTC epoch seconds."""

    pid: int
    since: float
    looked_at: float
    runs: tuple[str, ...] = ()
    """Runs kept by the supervisor."""
    services: tuple[str, ...] = ()
    """Services with a controller under supervision."""
    given_up: Mapping[str, str] = field(default_factory=dict)
    """Runs and services given up until a user acts, with the reason."""


def state_file(settings: Settings) -> Path:
    return settings.state_file.with_name(f"{settings.state_file.stem}-supervisor.json")


def log_file(settings: Settings) -> Path:
    return settings.state_file.with_name(f"{settings.state_file.stem}-supervisor.log")


def last_state(settings: Settings) -> SupervisorState | None:
    """Return the last state of the last supervisor, or None without a readable file."""
    try:
        said = json.loads(state_file(settings).read_bytes())
        return SupervisorState(**{**said, "runs": tuple(said["runs"]), "services": tuple(said["services"])})
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
