"""Execution of a single step on this machine in a training environment, with progress output."""

import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from types import MappingProxyType
from typing import Any

from infra import train_env
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.job_environment import secrets
from infra.settings import Settings
from scripts.cli import render, steps_text
from store.artifacts.artifacts import Store


def python(settings: Settings, name: str = "train") -> Path:
    """Return the interpreter of an environment, built on first use; the `train` environment has torch."""
    return train_env.interpreter(ROOT, settings.environments, render.say, name)


def run(
    name: str,
    step: Sequence[str],
    config: Mapping[str, Any],
    settings: Settings,
    quiet: bool,
    environ: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Any]:
    """Run a step and return the result; show progress as bars on a terminal, else as lines, or not at all if `quiet`.

    environ: variables added to the default step environment; they override the defaults.
    """
    around = {**words_environ(settings), **environ}
    records = train_env.run(step, config, root=ROOT, python=python(settings), environ=around)
    result: dict[str, Any] = {}
    state: dict[str, Any] = {"name": name, "state": "running", "started_at": time.time()}
    with _showing(quiet) as show, closing(records):
        for record in records:
            state["record"] = record
            if record["kind"] == "result":
                result = {key: value for key, value in record.items() if key not in ("kind", "at", "step")}
            show(state)
        state.update(state="done", result=result, ended_at=time.time())
        show(state)
    return result


def words_environ(settings: Settings) -> dict[str, str]:
    """Return the environment variables of a step: the job's secrets and the work folder."""
    return {**secrets(settings), "SLIPWAY_WORK": str(ROOT / "var" / "work")}


@contextmanager
def _showing(quiet: bool) -> Iterator[Any]:
    if quiet:
        yield lambda state: None
    elif sys.stderr.isatty():
        from rich.live import Live

        with Live(console=render.console(), refresh_per_second=8) as live:
            yield lambda state: live.update(steps_text.steps_table({"steps": [state]}, time.time()))
    else:
        told = [0.0]

        def line(state: Mapping[str, Any]) -> None:
            if state["state"] == "done" or time.monotonic() - told[0] > 10:
                told[0] = time.monotonic()
                render.say(steps_text.step_line(state, time.time()))

        yield line


def require_artifact(settings: Settings, name: str, otherwise: str) -> Path:
    """Return the folder of a complete artifact. Raises UsageError with the command `otherwise` to make the artifact."""
    store = Store(settings.store)
    found = store.check(name)
    if found.problem:
        raise UsageError(f"{name} in {settings.store}: {found.problem}; make it with: {otherwise}")
    return store.path(name, found.fingerprint)
