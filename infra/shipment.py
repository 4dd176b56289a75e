"""Which files of a checkout go to a pod: what git would keep, minus secrets.

A secret is known by its name or by its content. Source files are never held back for their name alone.
"""

import fnmatch
import os
import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

from infra.errors import UsageError

SCANNED_BYTES = 1 << 20
_NOT_WALKED = frozenset({".git", ".hg", ".svn", ".venv", "var", "__pycache__", ".mypy_cache", ".ruff_cache"})
_SECRET_NAMES = (".env", ".env.*", "*.pem", ".netrc", "_netrc", ".git-credentials", "journal.sqlite*")
_HARMLESS_NAMES = (".env.example", "*.py")
_SECRET_CONTENT = {
    "a private key": rb"(?m)^-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----\s*$",
    "an AWS key": rb"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b",
    "a GitHub token": rb"\b(?:gh[opsur]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,})",
    "a GitLab token": rb"\bglpat-[A-Za-z0-9_-]{20}",
    "a Google key": rb"\bAIza[0-9A-Za-z_-]{35}",
    "a Hugging Face token": rb"\bhf_[A-Za-z0-9]{30,}",
    "a RunPod key": rb"\brpa_[A-Z0-9]{30,}",
    "a Slack token": rb"\bxox[abprs]-[0-9A-Za-z-]{20,}",
    "an API key": rb"\bsk-(?:proj-|svcacct-|ant-[a-z0-9]+-|or-v1-)?[A-Za-z0-9]{20,}",
}


@dataclass(frozen=True)
class Refusal:
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True)
class Shipment:
    """What goes, and what stays behind; paths are relative to `root`."""

    root: Path
    files: tuple[str, ...]  # files, and links to places inside the root
    refused: tuple[Refusal, ...]


def pack(root: Path) -> Shipment:
    """Raises UsageError when there is nothing to send, or git fails in a checkout."""
    root = root.resolve()
    files, refused = [], []
    for path in _listed(root) if _is_checkout(root) else _walked(root):
        reason = _why_not(root, path)
        if reason:
            refused.append(Refusal(path, reason))
        elif os.path.lexists(root / path):  # git lists what was deleted but not committed
            files.append(path)
    if not files:
        raise UsageError(f"{root}: no file to send")
    return Shipment(root, tuple(sorted(files)), tuple(refused))


def _why_not(root: Path, path: str) -> str:
    """Why `path` stays behind; "" when it may go."""
    full, name = root / path, os.path.basename(path)
    if full.is_symlink():
        target = os.readlink(full)
        is_inside = Path(os.path.realpath(full)).is_relative_to(root) and not os.path.isabs(target)
        return "" if is_inside else f"a link out of the folder, to {target}"
    if full.is_dir():
        return "a repository of its own"
    if full.exists() and not full.is_file():
        return "no regular file"
    if _matches(name, _SECRET_NAMES) and not _matches(name, _HARMLESS_NAMES):
        return "its name says that it holds secrets"
    if full.exists():
        with open(full, "rb") as file:
            head = file.read(SCANNED_BYTES)
        for kind, pattern in _SECRET_CONTENT.items():
            if re.search(pattern, head):
                return f"it holds {kind}"
    return ""


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _is_checkout(root: Path) -> bool:
    return any((folder / ".git").exists() for folder in (root, *root.parents))


def _listed(root: Path) -> list[str]:
    words = ["git", "-C", str(root), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True)
    except FileNotFoundError:
        raise UsageError(f"{root} is a git checkout, but git is not here to list its files; install git") from None
    if done.returncode != 0:
        raise UsageError(f"{root}: git cannot list its files: {done.stderr.decode(errors='replace').strip()}")
    return sorted({os.fsdecode(path).rstrip("/") for path in done.stdout.split(b"\0") if path})


def _walked(root: Path) -> list[str]:
    found = []
    for here, folders, files in os.walk(root):
        links = [folder for folder in folders if os.path.islink(os.path.join(here, folder))]
        folders[:] = [folder for folder in folders if folder not in _NOT_WALKED and folder not in links]
        found += [os.path.relpath(os.path.join(here, one), root) for one in (*links, *files)]
    return found
