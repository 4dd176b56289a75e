"""Short names for Unix sockets, since systems limit the path length."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

LONGEST_PATH = 90  # bytes; systems allow about a hundred


@contextlib.contextmanager
def short(path: Path) -> Iterator[str]:
    """Yield a path to the Unix socket within LONGEST_PATH; a longer `path` is reached via a temporary symlink."""
    if len(os.fsencode(path)) <= LONGEST_PATH:
        yield str(path)
        return
    with tempfile.TemporaryDirectory(prefix="sw-") as folder:
        link = Path(folder, "d")
        link.symlink_to(path.parent)
        yield str(link / path.name)
