"""Values of what the user typed: settings, durations. Shared by the tasks."""

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

OF_SETTINGS = ("provider", "profile", "source", "store")  # flags that are settings, too
_given: list[str] = []  # the words of --env on this line


def settings(**flags: Any) -> Settings:
    """Return the settings: flags that were given, environment, .env, slipway.yaml; stores are asked in their name."""
    found = Settings.load(ROOT, flags, tuple(_given))
    credentials.lend(job_environment.secrets(found))
    return found


def settings_of(spec: Any) -> Settings:
    """Return the settings by the flags of a record that are settings as well."""
    return settings(**{name: getattr(spec, name) for name in OF_SETTINGS if hasattr(spec, name)})


def give(words: Sequence[str], file: str = "") -> None:
    """Set the variables of `--env` and `--env-file` for this process and those that it starts from here on.

    Raises UsageError.
    """
    if file:
        path = Path(file).expanduser()
        if not path.is_file():
            raise UsageError(f"--env-file: there is no file {file}")
        words = [*(f"{name}={value}" for name, value in read_dotenv(path).items()), *words]
    os.environ.update(read_overrides(words, os.environ))
    _given.extend(words)


def again(*more: str) -> str:
    """Return the command that was typed, with more flags."""
    return shlex.join(["./inv", *sys.argv[1:], *more])


def watch_seconds(value: Any, usual_s: float) -> float | None:
    """Return the seconds between two looks, None when `--watch` was not given; a bare `--watch` means `usual_s`."""
    if value in (None, False):
        return None
    if value is True:
        return usual_s
    found = seconds(str(value))
    assert found is not None
    return found
