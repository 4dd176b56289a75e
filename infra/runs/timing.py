"""The timing of a hand-over's stages, reported as they end."""

import contextlib
import time
from collections.abc import Callable, Iterator

from infra.units import duration

Say = Callable[[str], None]


@contextlib.contextmanager
def stage(name: str, say: Say) -> Iterator[list[str]]:
    """Report `push 0.4 s` and what was put into the list meanwhile, or that it failed; what is raised goes on."""
    began, details = time.monotonic(), list[str]()
    try:
        yield details
    except BaseException:
        say(f"{name} failed after {duration(time.monotonic() - began)}")
        raise
    say(": ".join([f"{name} {duration(time.monotonic() - began)}", *filter(None, [", ".join(details)])]))
