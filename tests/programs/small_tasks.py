"""A small tasks.py, for real `inv` processes."""

import errno
import signal
from collections.abc import Callable
from pathlib import Path

from invoke import Collection

from data.config import ConfigError
from infra import errors
from scripts.cli import invoke_patch as program
from store import StoreError

program.mend()


@program.command(help={"num-gpus": "how many"}, iterable=["set_"])
def launch(c, num_gpus=8, take: int | None = None, lr=0.1, phase="sft", yes=True, set_=None):
    """Launch."""
    program.print_json({"num_gpus": num_gpus, "take": take, "lr": lr, "phase": phase, "yes": yes, "set": set_})


@program.command(word="run", optional=["watch"])
def status(c, run="", watch: float | None = None):
    """Status."""
    program.print_json([run, watch])


@program.command(word="paths", iterable=["paths"])
def test(c, paths=None):
    """Test."""
    program.print_json([paths, program.words_after_dashes()])


@program.command()
def fail(c, kind, json=False):
    """Fail."""
    kinds: dict[str, Callable[[str], Exception]] = {
        "usage": errors.UsageError,
        "limit": errors.LimitHit,
        "config": ConfigError,
        "bug": KeyError,
    }
    kinds |= {"store": StoreError, "disk": lambda said: OSError(errno.ENOSPC, said)}
    raise kinds[kind]("so it is")


@program.command()
def wait(c):
    """Wait."""
    Path("ready").touch()
    signal.pause()


@program.command()
def flood(c):
    """Flood."""
    for number in range(100_000):
        print(number)


namespace = Collection(launch, status, test, fail, wait, flood)
