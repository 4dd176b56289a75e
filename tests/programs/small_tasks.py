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
from scripts.cli.render import print_json
from store.manifest import StoreError
from tests.programs import small_flags

program.patch_invoke()


@command(record=small_flags.Launch, world="", example="inv launch --num-gpus 2")
def launch(spec):
    """Launch."""
    print_json({**asdict(replace(spec, options={})), "options": dict(spec.options)})


@command(record=small_flags.Status, world="")
def status(spec):
    """Status."""
    print_json([spec.run, spec.watch])


@command(record=small_flags.Test, world="")
def test(spec):
    """Test."""
    print_json([spec.paths, program.words_after_dashes()])


@command(record=small_flags.Fail, world="")
def fail(spec):
    """Fail."""
    kinds: dict[str, Callable[[str], Exception]] = {
        "usage": errors.UsageError,
        "limit": errors.LimitHit,
        "config": ConfigError,
        "bug": KeyError,
    }
    kinds |= {"store": StoreError, "disk": lambda said: OSError(errno.ENOSPC, said)}
    raise kinds[spec.kind]("so it is")


@command(world="")
def wait():
    """Wait."""
    Path("ready").touch()
    signal.pause()


@command(world="")
def flood():
    """Flood."""
    for number in range(100_000):
        print(number)


namespace = Collection(launch, status, test, fail, wait, flood)
