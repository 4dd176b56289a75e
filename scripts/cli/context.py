"""Settings, environment variables and durations from the typed flags, shared by all commands."""

import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from infra import job_environment
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.settings import Settings, read_dotenv, read_overrides
from infra.units import seconds
from store import credentials

OF_SETTINGS = ("provider", "profile", "source", "store")  # flags with a setting of the same name
_given: list[str] = []  # `--env` words of this line


def settings(**flags: Any) -> Settings:
    """Load the settings from flags, environment, .env and slipway.yaml, and lend their credentials to the stores."""
    found = Settings.load(ROOT, flags, tuple(_given))
    found.lend_environment()
    credentials.set_credentials(job_environment.secrets(found))
    return found


def settings_of(spec: Any) -> Settings:
    """Load the settings, overridden by the record's flags of equal name in OF_SETTINGS."""
    return settings(**{name: getattr(spec, name) for name in OF_SETTINGS if hasattr(spec, name)})


def set_environment(words: Sequence[str], file: str = "") -> None:
    """Set the variables of `--env` and `--env-file` for this process and all later child processes.

    `--env` overrides the file. Raises UsageError for a missing file or a malformed variable.
    """
    if file:
        path = Path(file).expanduser()
        if not path.is_file():
            raise UsageError(f"--env-file: the file {file} does not exist")
        words = [*(f"{name}={value}" for name, value in read_dotenv(path).items()), *words]
    os.environ.update(read_overrides(words, os.environ))
    _given.extend(words)


def rerun_command(*more: str) -> str:
    """Return the typed command line with `more` flags added."""
    return shlex.join(["./inv", *sys.argv[1:], *more])


def watch_seconds(value: Any, usual_s: float) -> float | None:
    """Parse a `--watch` interval in seconds: None without the flag, `usual_s` for a bare `--watch`."""
    if value in (None, False):
        return None
    if value is True:
        return usual_s
    found = seconds(str(value))
    assert found is not None
    return found
