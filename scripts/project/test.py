"""The command `test`: the project's tests, run in the dev environment."""

import os
from dataclasses import dataclass
from pathlib import Path

from invoke import Exit

from infra.flags import flag
from scripts.cli.command import command
from scripts.cli.invoke_patch import words_after_dashes
from scripts.project.dev_environment import ROOT, bring_programs, run_in_dev

MOST_TESTS = 8  # parallel limit: each worker loads PyTorch into memory


@dataclass(frozen=True, kw_only=True)
class TestFlags:
    paths: tuple[str, ...] = flag((), "files or folders of tests (default: all)", word=True)
    k: str = flag("", "only tests whose names match")
    fast: bool = flag(False, "only tests that start no process, open no socket and are quick")
    nightly: bool = flag(False, "include the slow tests")
    yes: bool = flag(
        False, "install the Debian packages that tests need, as root or by sudo (also with CI=true)", also=("y",)
    )


@command(record=TestFlags, world="", is_here=True, example="inv test --fast")
def test(spec: TestFlags) -> None:
    """Run the tests, in an environment of their own.

    Arguments after -- go to pytest.
    """
    if not spec.fast:
        bring_programs(spec.yes)
    words = ["-m", "pytest", *spec.paths, *words_after_dashes()]
    words += ["--fast"] if spec.fast else []
    words += ["-k", spec.k] if spec.k else []
    words += ["-m", "not gpu and not account"] if spec.nightly else []
    if not spec.paths and not spec.k:
        words += ["-n", str(at_a_time()), "--dist", "loadfile", "--no-loadscope-reorder"]
    code = run_in_dev(words, Path.cwd() if spec.paths else ROOT)
    if code:
        raise Exit(code=code)


def at_a_time() -> int:
    """Return the number of parallel workers: two per core, since most tests wait for processes, at most MOST_TESTS."""
    return min(MOST_TESTS, 2 * (os.cpu_count() or 1))
