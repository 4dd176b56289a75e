"""What the user typed, as values: settings, durations. Shared by the tasks."""

import shlex
import sys
from typing import Any

from infra import job_environment
from infra.checkout import ROOT
from infra.settings import Settings
from infra.units import seconds
from store import credentials


def settings(**flags: Any) -> Settings:
    """From flags (those that were given), environment, .env and slipway.yaml; stores are asked in their name."""
    found = Settings.load(ROOT, flags)
    credentials.lend(job_environment.secrets(found))
    return found


def again(*more: str) -> str:
    """Return the command that was typed, with more flags."""
    return shlex.join(["./inv", *sys.argv[1:], *more])


def watch_seconds(value: Any) -> float | None:
    """None: not asked for. A bare `--watch` means every 60 s."""
    if value in (None, False):
        return None
    if value is True:
        return 60.0
    found = seconds(str(value))
    assert found is not None
    return found
