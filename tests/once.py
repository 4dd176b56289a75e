"""Content made once for all workers of a run: the first worker makes the content, and other workers wait."""

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], Path]) -> Path:
    """Return the folder of this name, which all workers only read.

    make: makes the folder below a draft folder, and returns its path; the content must not depend on the path.
    """
    own = factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    folder = shared / name
    with (shared / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            make(factory.mktemp(f"draft-{name}")).rename(folder)
    return folder
