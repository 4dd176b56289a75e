"""The timing of a hand-over's stages, reported as they end."""

import contextlib
import time
from collections.abc import Callable, Iterator

Say = Callable[[str], None]


@contextlib.contextmanager
def stage(name: str, say: Say) -> Iterator[list[str]]:
    """Report `push 0.42 s` and what was put into the list meanwhile, or that it failed; what is raised goes on."""
    began, details = time.monotonic(), list[str]()
    try:
        yield details
    except BaseException:
        say(f"{name} failed after {time.monotonic() - began:.2f} s")
        raise
    say(": ".join([f"{name} {time.monotonic() - began:.2f} s", *filter(None, [", ".join(details)])]))
