"""The supervisor's last look, as it is written down beside the journal whenever something has changed.

In: from the supervisor. Out: `inv supervisor`, `inv status`, the page.
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
    """Runs that it keeps."""
    services: tuple[str, ...] = ()
    """Services whose controllers it starts again."""
    given_up: Mapping[str, str] = field(default_factory=dict)
    """Runs and services that it has given up until somebody acts, with the reason."""


def state_file(settings: Settings) -> Path:
    return settings.state_file.with_name(f"{settings.state_file.stem}-supervisor.json")


def log_file(settings: Settings) -> Path:
    return settings.state_file.with_name(f"{settings.state_file.stem}-supervisor.log")


def last_state(settings: Settings) -> SupervisorState | None:
    """Return the last observations of the last supervisor; None when there has been none."""
    try:
        said = json.loads(state_file(settings).read_bytes())
        return SupervisorState(**{**said, "runs": tuple(said["runs"]), "services": tuple(said["services"])})
    except (FileNotFoundError, ValueError, KeyError, TypeError):
        return None
