"""Timing of the stages of a hand-over, reported at the end of each stage."""

import contextlib
import time
from collections.abc import Callable, Iterator

from infra.units import duration

Say = Callable[[str], None]


@contextlib.contextmanager
def stage(name: str, say: Say, scale: float = 1.0) -> Iterator[list[str]]:
    """Time the block as a stage, and report `push 0.4 s` with the yielded details, or the failure.

    Exceptions pass through.

    `scale` is the speed of the reported clock, which differs from 1 in a rehearsal.
    """
    began, details = time.monotonic(), list[str]()
    try:
        yield details
    except BaseException:
        say(f"{name} failed after {duration((time.monotonic() - began) * scale)}")
        raise
    say(": ".join([f"{name} {duration((time.monotonic() - began) * scale)}", *filter(None, [", ".join(details)])]))
