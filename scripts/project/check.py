"""The command `check`: format, lint, types, import floors and tests."""

from invoke import Exit

from scripts.cli.command import command
from scripts.project.dev_environment import ROOT, bring_programs, run_in_dev, say

TYPED = (
    "infra",
    "data",
    "store",
    "serve",
    "flows",
    "trainer",
    "scripts",
    "packs",
    "bench",
    "examples/own",
    "tests/programs",
)


@command(world="", is_here=True, example="inv check")
def check() -> None:
    """Run format, lint, types, import floors and tests.

    A change must pass all checks.
    """
    failed = []
    for name, words in (
        ("format", ["-m", "ruff", "format", "--check", "."]),
        ("lint", ["-m", "ruff", "check", "."]),
        ("types", ["-m", "mypy", *TYPED]),
        ("tests", ["-m", "pytest"]),  # includes tests/test_floors.py
    ):
        say(name)
        if name == "tests":
            bring_programs(yes=False)
        if run_in_dev(words, ROOT):
            failed.append(name)
    if failed:
        raise Exit(f"inv check: failed: {', '.join(failed)}", code=1)
