"""The timing of a hand-over's stages, reported as they end."""

import contextlib
import time
from collections.abc import Callable, Iterator

from infra.units import duration

Say = Callable[[str], None]


@contextlib.contextmanager
def stage(name: str, say: Say, scale: float = 1.0) -> Iterator[list[str]]:
    """Report `push 0.4 s` and what was put into the list meanwhile, or that it failed; what is raised goes on.

    scale: speed of the clock by which it is told, that of a rehearsal.
    """
    began, details = time.monotonic(), list[str]()
    try:
        yield details
    except BaseException:
        say(f"{name} failed after {duration((time.monotonic() - began) * scale)}")
        raise
    say(": ".join([f"{name} {duration((time.monotonic() - began) * scale)}", *filter(None, [", ".join(details)])]))
