"""File lists of a git checkout."""

import os
import subprocess
from pathlib import Path

from infra.errors import UsageError


def is_checkout(root: Path) -> bool:
    """Return whether a folder is a git checkout or lies in a git checkout."""
    return any((folder / ".git").exists() for folder in (root, *root.parents))


def listed(root: Path, *which: str) -> list[str]:
    """Return git's list of files under `root`, sorted: by default all tracked and untracked files except ignored ones.

    Raises UsageError without git or for a failure of git.
    """
    words = ["git", "-C", str(root), "ls-files", *(which or ("--cached", "--others")), "--exclude-standard", "-z"]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True)
    except FileNotFoundError:
        raise UsageError(f"{root} is a git checkout, but git is not installed; install git") from None
    if done.returncode != 0:
        raise UsageError(f"{root}: git cannot list the files: {done.stderr.decode(errors='replace').strip()}")
    return sorted({os.fsdecode(path).rstrip("/") for path in done.stdout.split(b"\0") if path})


def tracks(root: Path, path: str) -> bool:
    """Return whether git tracks a file of `root`."""
    return bool(listed(root, "--cached", "--", f":(literal){path}"))
