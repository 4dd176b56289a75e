"""The files of a checkout that go to a pod: what git would keep, minus secrets.

A secret is known by its name or by its content. Source files are never held back for their name alone.
"""

import contextlib
import fnmatch
import hashlib
import os
import re
import stat
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from infra.errors import UsageError

SCANNED_BYTES = 1 << 20
_NOT_WALKED = frozenset({".git", ".hg", ".svn", ".venv", "var", "__pycache__", ".mypy_cache", ".ruff_cache"})
_SECRET_NAMES = (".env", ".env.*", "*.pem", ".netrc", "_netrc", ".git-credentials", "journal.sqlite*")
_HARMLESS_NAMES = (".env.example", "*.py")
_SECRET_CONTENT = {  # what it is: (words of which one is in it, and are found fast; what it looks like)
    "a private key": ("PRIVATE KEY", rb"(?m)^-----BEGIN (?:[A-Z0-9]+ )*PRIVATE KEY(?: BLOCK)?-----\s*$"),
    "an AWS key": ("AKIA ASIA", rb"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b"),
    "a GitHub token": (
        "gho_ ghp_ ghr_ ghs_ ghu_ github_pat_",
        rb"\b(?:gh[opsur]_[A-Za-z0-9]{36}|github_pat_[A-Za-z0-9_]{60,})",
    ),
    "a GitLab token": ("glpat-", rb"\bglpat-[A-Za-z0-9_-]{20}"),
    "a Google key": ("AIza", rb"\bAIza[0-9A-Za-z_-]{35}"),
    "a Hugging Face token": ("hf_", rb"\bhf_[A-Za-z0-9]{30,}"),
    "a RunPod key": ("rpa_", rb"\brpa_[A-Z0-9]{30,}"),
    "a Slack token": ("xox", rb"\bxox[abprs]-[0-9A-Za-z-]{20,}"),
    "an API key": ("sk-", rb"\bsk-(?:proj-|svcacct-|ant-[a-z0-9]+-|or-v1-)?[A-Za-z0-9]{20,}"),
}


@dataclass(frozen=True)
class Refusal:
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True)
class Shipment:
    """The files of a push: what goes, and what stays behind; paths are relative to `root`."""

    root: Path
    files: Mapping[str, str]  # path of a file, or of a link to a place inside the root -> sha256
    refused: tuple[Refusal, ...]


@dataclass(frozen=True)
class SyncPlan:
    """The plan of a push, before it does anything."""

    files: int
    bytes: int
    largest: tuple[tuple[str, int], ...]  # path, bytes; ten at most
    new: tuple[str, ...]  # not on the pod yet, or changed since the last push
    gone: tuple[str, ...]  # on the pod by an earlier push, and here no more
    refused: tuple[Refusal, ...]
    ignored_files: int
    ignored_bytes: int


def survey(root: Path) -> dict[str, os.stat_result]:
    """Return the files that git would keep, by path relative to `root`, with lstat; deleted files are left out.

    Raises UsageError when there is nothing, when `root` can be no project, or when git fails in a checkout.
    """
    root = root.resolve()
    if root in (Path("/"), Path.home()):
        raise UsageError(f"{root} is the root or a home folder, not a project checkout; nothing was uploaded")
    found = {}
    for path in sorted(_listed(root) if _is_checkout(root) else _walked(root)):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # listed by git, deleted but not committed
            found[path] = os.lstat(f"{root}/{path}")
    if not found:
        raise UsageError(f"{root}: no file to send")
    return found


def check(root: Path, file: str = "") -> None:
    """Raise UsageError where nothing of a folder, or that file in it, can be sent, or a file cannot be read."""
    real = root.resolve()
    if real == Path("/dev") or real.parts[1:2] in (("proc",), ("sys",)):
        raise UsageError(f"{root} holds no files of yours, but the system's; nothing was sent")
    try:
        found = {file: os.lstat(root / file)} if file else survey(root)
    except OSError as error:
        raise UsageError(f"{error.filename or root} cannot be read to be sent: {error.strerror}") from None
    sent = [path for path, seen in found.items() if file or not _why_not(root, path, seen)]
    if not sent:
        raise UsageError(f"{root}: no file to send")
    for path in (root / one for one in sent):
        if os.path.exists(path) and not os.access(path, os.R_OK):  # a link to nothing is sent as it is
            raise UsageError(f"{path} cannot be read to be sent: permission denied")


def mode(seen: os.stat_result) -> int | str:
    """Return the mode of a file on a pod: "link", or its permissions.

    Of those only "runs" and "does not" are told apart.
    """
    return "link" if stat.S_ISLNK(seen.st_mode) else 0o755 if seen.st_mode & 0o100 else 0o644


def inspect(root: Path, path: str, seen: os.stat_result) -> tuple[str, str]:
    """Return (sha256 of what would be sent, why it may not be: "" when it may)."""
    reason = _why_not(root, path, seen)
    if reason:
        return "", reason
    found = hashlib.sha256()
    head = b""
    for piece in pieces(root, path):
        found.update(piece)
        head = head or piece
    for kind, (words, pattern) in _SECRET_CONTENT.items():
        if any(word.encode() in head for word in words.split()) and re.search(pattern, head):
            return "", f"it holds {kind}"
    return found.hexdigest(), ""


def pieces(root: Path, path: str) -> Iterator[bytes]:
    """Yield the content of a file; of a link, its target.

    Raises UsageError when it cannot be read.
    """
    full = f"{root}/{path}"
    try:
        if os.path.islink(full):
            yield os.fsencode(os.readlink(full))
            return
        with open(full, "rb", buffering=0) as file:
            while piece := file.read(SCANNED_BYTES):
                yield piece
    except OSError as error:
        raise UsageError(f"{full} cannot be read to be sent: {error.strerror}") from None


def pack(root: Path) -> Shipment:
    """Return the files to send. Raises UsageError when there is nothing to send, or git fails in a checkout."""
    root = root.resolve()
    contents, refused = {}, []
    for path, seen in survey(root).items():
        sha, reason = inspect(root, path, seen)
        if reason:
            refused.append(Refusal(path, reason))
        else:
            contents[path] = sha
    if not contents:
        raise UsageError(f"{root}: no file to send")
    return Shipment(root, contents, tuple(refused))


def preview(root: Path, known: Mapping[str, str]) -> SyncPlan:
    """Return the plan of a push of `root` to a pod that holds `known` (sha256 by path).

    Raises UsageError as pack does.
    """
    packed = pack(root)
    sizes = {path: os.lstat(packed.root / path).st_size for path in packed.files}
    ignored = _ignored(packed.root)
    return SyncPlan(
        files=len(sizes),
        bytes=sum(sizes.values()),
        largest=tuple(sorted(sizes.items(), key=lambda one: (-one[1], one[0]))[:10]),
        new=tuple(path for path, sha in packed.files.items() if known.get(path) != sha),
        gone=tuple(sorted(known.keys() - packed.files.keys())),
        refused=packed.refused,
        ignored_files=len(ignored),
        ignored_bytes=sum(ignored),
    )


def _why_not(root: Path, path: str, seen: os.stat_result) -> str:
    """Return why `path` stays behind whatever it holds; "" when it may go."""
    if stat.S_ISLNK(seen.st_mode):
        target = os.readlink(root / path)
        is_inside = Path(os.path.realpath(root / path)).is_relative_to(root) and not os.path.isabs(target)
        return "" if is_inside else f"a link out of the folder, to {target}"
    if stat.S_ISDIR(seen.st_mode):
        return "a repository of its own"
    if not stat.S_ISREG(seen.st_mode):
        return "no regular file"
    name = os.path.basename(path)
    if _matches(name, _SECRET_NAMES) and not _matches(name, _HARMLESS_NAMES):
        return "its name says that it holds secrets"
    return ""


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _is_checkout(root: Path) -> bool:
    return any((folder / ".git").exists() for folder in (root, *root.parents))


def _listed(root: Path, *which: str) -> list[str]:
    """Return git's list of files under `root`: by default those it keeps and would keep."""
    words = ["git", "-C", str(root), "ls-files", *(which or ("--cached", "--others")), "--exclude-standard", "-z"]
    try:
        done = subprocess.run(words, stdin=subprocess.DEVNULL, capture_output=True)
    except FileNotFoundError:
        raise UsageError(f"{root} is a git checkout, but git is not here to list its files; install git") from None
    if done.returncode != 0:
        raise UsageError(f"{root}: git cannot list its files: {done.stderr.decode(errors='replace').strip()}")
    return sorted({os.fsdecode(path).rstrip("/") for path in done.stdout.split(b"\0") if path})


def _ignored(root: Path) -> list[int]:
    """Return the sizes in bytes of what is not even looked at."""
    if _is_checkout(root):
        paths: Iterable[str] = _listed(root, "--others", "--ignored")
    else:
        here = set(_walked(root))
        paths = [path for path in _walked(root, frozenset()) if path not in here]
    sizes = []
    for path in paths:
        with contextlib.suppress(FileNotFoundError):  # ignored files may appear and vanish at any time
            sizes.append(os.lstat(root / path).st_size)
    return sizes


def _walked(root: Path, not_walked: frozenset[str] = _NOT_WALKED) -> list[str]:
    found = []
    for here, folders, files in os.walk(root):
        links = [folder for folder in folders if os.path.islink(os.path.join(here, folder))]
        folders[:] = [folder for folder in folders if folder not in not_walked and folder not in links]
        found += [os.path.relpath(os.path.join(here, one), root) for one in (*links, *files)]
    return found
