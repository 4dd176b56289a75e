"""Compile the modules and the tests of the project once, before the workers start.

Every worker collects all tests, and pytest rewrites the asserts of a test module at its collection: in a new clone each
worker would compile everything, all at the same time.
"""

import compileall
import multiprocessing
import os
from collections.abc import Sequence
from importlib.util import MAGIC_NUMBER, source_hash
from pathlib import Path
from typing import Any

import pytest
from _pytest.assertion import rewrite

ROOT = Path(__file__).parents[1]
FOLDERS = ("data", "flows", "infra", "packs", "scripts", "serve", "store", "tests", "trainer", "ui")


class Compiler:
    """A plugin of the process that starts the workers. `modules`: the test modules that the workers will collect."""

    def __init__(self, config: pytest.Config, modules: Sequence[Path]) -> None:
        self.config = config
        self.modules = modules

    def pytest_xdist_setupnodes(self, config: pytest.Config, specs: Sequence[Any]) -> None:
        """Compile what has changed, on all cores."""
        cores = os.cpu_count() or 1
        for name in FOLDERS:
            if (ROOT / name).is_dir():
                compileall.compile_dir(ROOT / name, quiet=2, workers=cores)
        fork = multiprocessing.get_context("fork")
        processes = [fork.Process(target=self._rewrite, args=(self.modules[number::cores],)) for number in range(cores)]
        for one in processes:
            one.start()
        for one in processes:
            one.join()

    def _rewrite(self, modules: Sequence[Path]) -> None:
        """Write the cache files that pytest's import hook reads; the hook itself reports what cannot be compiled."""
        state = self.config.stash[rewrite.assertstate_key]
        for module in modules:
            folder = rewrite.get_cache_dir(module)
            cached = folder / (module.name.removesuffix(".py") + rewrite.PYC_TAIL)
            if not is_fresh(cached, module) and rewrite.try_makedirs(folder):
                digest, code = rewrite._rewrite_test(module, self.config)
                rewrite._write_pyc(state, code, digest, cached)


def is_fresh(cached: Path, module: Path) -> bool:
    """Return whether a cache file has the hash of the module. The code is not loaded, which takes most of the time."""
    try:
        with cached.open("rb") as file:
            head = file.read(16)
    except OSError:
        return False
    return head[:4] == MAGIC_NUMBER and head[8:] == source_hash(module.read_bytes())
