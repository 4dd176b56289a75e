"""The command `test`: the project's tests, run in the dev environment."""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from invoke import Exit

from infra.flags import flag
from scripts.cli.command import command
from scripts.cli.invoke_patch import words_after_dashes
from scripts.project.dev_environment import ROOT, bring_programs, run_in_dev

MOST_TESTS = 8  # parallel limit: each worker loads PyTorch into memory

# Parts of the suite, each at most an hour at night. The first part whose folder holds a file has the file. A part must
# not have the name of a command, which would begin the next command of the line.
PARTS = {
    "core": ("tests/test_without_packs.py",),
    "vendors": ("tests/packs/drill",),
    "street": ("tests/end_to_end",),
    "faults": ("tests/faults",),
    "packs": ("tests/packs",),
    "infra": ("tests/infra", "tests/store"),
    "trainer": ("tests/trainer", "tests/data"),
    "rest": ("tests",),
}


@dataclass(frozen=True, kw_only=True)
class TestFlags:
    paths: tuple[str, ...] = flag(
        (), f"files or folders of tests, or a part: {', '.join(PARTS)} (default: all)", word=True
    )
    k: str = flag("", "run only tests with a matching name")
    fast: bool = flag(False, "run only fast tests without processes and sockets")
    nightly: bool = flag(False, "include the slow tests")
    yes: bool = flag(
        False, "install the Debian packages that the tests need, as root or with sudo (also with CI=true)", also=("y",)
    )


@command(record=TestFlags, world="", is_here=True, example="inv test --fast")
def test(spec: TestFlags) -> None:
    """Run the tests in a separate environment.

    Arguments after -- are passed to pytest.
    """
    if not spec.fast:
        bring_programs(spec.yes, spec.nightly)
    words = ["-m", "pytest", *chosen(spec.paths), *words_after_dashes()]
    words += ["--fast"] if spec.fast else []
    # Files of passed tests, 4 GB of the default tier, are removed before a disk writes them.
    words += ["-o", "tmp_path_retention_policy=failed"]
    words += ["-k", spec.k] if spec.k else []
    words += ["-m", "not gpu and not account"] if spec.nightly else []
    if not spec.k and PARTS.keys() >= set(spec.paths):
        words += ["-n", str(worker_count(spec)), "--dist", "loadfile", "--no-loadscope-reorder"]
    code = run_in_dev(words, ROOT if PARTS.keys() >= set(spec.paths) else Path.cwd())
    if code:
        raise Exit(code=code)


def chosen(paths: Sequence[str]) -> list[str]:
    """Return pytest's words for typed paths: a part's name becomes its folders, less the folders of earlier parts."""
    words: list[str] = []
    names = list(PARTS)
    for path in paths:
        words += PARTS.get(path, (path,))
        if path in PARTS:
            earlier = {folder for name in names[: names.index(path)] if name not in paths for folder in PARTS[name]}
            words += [f"--ignore={folder}" for folder in sorted(earlier)]
    return words


def worker_count(spec: TestFlags) -> int:
    """Return the number of parallel workers, at most MOST_TESTS.

    Tests by day mostly wait for processes and share each core by three. A night's tests start engines and clusters.
    """
    per_core = 1 if spec.fast else 2 if spec.nightly else 3
    return min(MOST_TESTS, per_core * (os.cpu_count() or 1))
