"""A small tasks.py, for real `inv` processes."""

import errno
import signal
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

from invoke import Collection

from data.config import ConfigError
from infra import errors
from scripts.cli import invoke_patch as program
from scripts.cli.command import command
from store.manifest import StoreError

program.mend()
FLAGS = "tests.programs.small_flags"


@command("", f"{FLAGS}:Launch", example="inv launch --num-gpus 2")
def launch(c, spec):
    """Launch."""
    program.print_json({**asdict(replace(spec, options={})), "options": dict(spec.options)})


@command("", f"{FLAGS}:Status")
def status(c, spec):
    """Status."""
    program.print_json([spec.run, spec.watch])


@command("", f"{FLAGS}:Test")
def test(c, spec):
    """Test."""
    program.print_json([spec.paths, program.words_after_dashes()])


@command("", f"{FLAGS}:Fail")
def fail(c, spec):
    """Fail."""
    kinds: dict[str, Callable[[str], Exception]] = {
        "usage": errors.UsageError,
        "limit": errors.LimitHit,
        "config": ConfigError,
        "bug": KeyError,
    }
    kinds |= {"store": StoreError, "disk": lambda said: OSError(errno.ENOSPC, said)}
    raise kinds[spec.kind]("so it is")


@command()
def wait(c):
    """Wait."""
    Path("ready").touch()
    signal.pause()


@command()
def flood(c):
    """Flood."""
    for number in range(100_000):
        print(number)


namespace = Collection(launch, status, test, fail, wait, flood)
