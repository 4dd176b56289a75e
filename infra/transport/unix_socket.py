"""Names of Unix sockets, which systems keep short."""

import contextlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

LONGEST_PATH = 90  # longest name of a Unix socket in bytes: systems allow about a hundred


@contextlib.contextmanager
def short(path: Path) -> Iterator[str]:
    """Yield a name of a Unix socket that is short enough for the system, by way of a link where `path` is not."""
    if len(os.fsencode(path)) <= LONGEST_PATH:
        yield str(path)
        return
    with tempfile.TemporaryDirectory(prefix="sw-") as folder:
        link = Path(folder, "d")
        link.symlink_to(path.parent)
        yield str(link / path.name)
