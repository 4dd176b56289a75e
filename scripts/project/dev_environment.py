"""Development environment for the tests, and the system programs that tests start."""

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from invoke import Exit

from infra.checkout import ROOT
from scripts.project import debian
from store import terminal


def bring_programs(yes: bool, is_nightly: bool = False) -> None:
    """Install the missing programs if allowed, else print them. Raises Exit when the installation fails."""
    packages = debian.missing(is_nightly)
    if not packages:
        return
    if (yes or debian.is_ci()) and debian.is_allowed():
        if not debian.install(packages, say):
            raise Exit(
                "inv test: the installation failed. Without --yes and CI=true, tests that need these "
                "packages are skipped",
                code=1,
            )
        return
    how = " ".join(debian.command(packages)) or "this machine has no apt-get; install the programs by hand"
    say(f"tests that need {', '.join(packages)} are skipped. To run these tests: {how}")


def run_in_dev(words: Sequence[str], cwd: Path) -> int:
    """Run `python *words` in the dev environment on this terminal; return the exit code."""
    from infra import train_env
    from infra.settings import Settings

    python = train_env.interpreter(ROOT, Settings.load(ROOT).environments, say, "dev")
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PATH": f"{os.environ.get('PATH', os.defpath)}:{debian.SBIN}"}
    process = subprocess.Popen([str(python), *words], cwd=cwd, env=environ, stdin=subprocess.DEVNULL)
    try:
        return process.wait()
    except KeyboardInterrupt:
        process.wait()  # the terminal interrupts the child, too; wait for its final output
        raise
    finally:
        process.kill()


def say(text: str) -> None:
    terminal.clear()
    print(f"inv: {text}", file=sys.stderr, flush=True)
