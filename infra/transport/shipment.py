"""The files of a checkout that go to a pod: what git would keep, minus secrets.

A secret is known by its name or by its content, all of which is read (`scan`). Source files are never held back for
their name alone. A refused file goes only if the user names it, and git, where there is a checkout, tracks it.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.errors import UsageError
from infra.transport.scan import git_files
from infra.transport.scan.inspector import FileInspector, why_unfit

_NOT_WALKED = frozenset({".git", ".hg", ".svn", ".venv", "var", "__pycache__", ".mypy_cache", ".ruff_cache"})


@dataclass(frozen=True)
class FileRefusal:
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True)
class Shipment:
    """The files of a push: what goes, and what stays behind; paths are relative to `root`."""

    root: Path
    files: Mapping[str, str]  # path of a file, or of a link to a place inside the root -> sha256
    refused: tuple[FileRefusal, ...]


@dataclass(frozen=True)
class SendWeight:
    """The number and the size of the files that would be sent, and the files that stay behind."""

    files: int
    bytes: int
    refused: tuple[FileRefusal, ...]


@dataclass(frozen=True)
class SyncPlan:
    """The plan of a push, before it does anything."""

    files: int
    bytes: int
    largest: tuple[tuple[str, int], ...]  # path, bytes; ten at most
    new: tuple[str, ...]  # not on the pod yet, or changed since the last push
    gone: tuple[str, ...]  # on the pod by an earlier push, and here no more
    refused: tuple[FileRefusal, ...]
    ignored_files: int
    ignored_bytes: int


def survey(root: Path) -> dict[str, os.stat_result]:
    """Return the files that git would keep, by path relative to `root`, with lstat; deleted files are left out.

    Raises UsageError when there is nothing, when `root` can be no project, or when git fails in a checkout.
    """
    root = root.resolve()
    if Path.home().resolve().is_relative_to(root):  # with all hidden folders of the home
        raise UsageError(f"{root} is the root or a home folder, not a project checkout; nothing was uploaded")
    found = {}
    for path in sorted(git_files.listed(root) if git_files.is_checkout(root) else _walked(root)):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # listed by git, deleted but not committed
            found[path] = os.lstat(f"{root}/{path}")
    if not found:
        raise UsageError(f"{root}: no file to send")
    return found


def weigh(root: Path, file: str = "", anyway: Sequence[str] = ()) -> SendWeight:
    """Return what would be sent of a folder, or of that file in it; every file is inspected, none is sent.

    Raises UsageError where there is nothing that could be sent, or a file cannot be read. Where all are secrets, the
    weight is that of no file.
    """
    real = root.resolve()
    if real == Path("/dev") or real.parts[1:2] in (("proc",), ("sys",)):
        raise UsageError(f"{root} holds no files of yours, but the system's; nothing was sent")
    try:
        found = {file: os.lstat(root / file)} if file else survey(root)
    except OSError as error:
        raise UsageError(f"{error.filename or root} cannot be read to be sent: {error.strerror}") from None
    for path in (root / one for one, seen in found.items() if stat.S_ISREG(seen.st_mode)):
        if not os.access(path, os.R_OK):
            raise UsageError(f"{path} cannot be read to be sent: permission denied")
    if all(why_unfit(real, path, seen) for path, seen in found.items()):
        raise UsageError(f"{root}: no file to send")
    inspector = FileInspector.of(real, anyway)
    refused = {path: reason for path, seen in found.items() if (reason := inspector.inspect(path, seen)[1])}
    num_bytes = sum(seen.st_size for path, seen in found.items() if path not in refused)
    return SendWeight(len(found) - len(refused), num_bytes, tuple(FileRefusal(*one) for one in sorted(refused.items())))


def mode(seen: os.stat_result) -> int | str:
    """Return the mode of a file on a pod: "link", or its permissions.

    Of those only "runs" and "does not" are told apart.
    """
    return "link" if stat.S_ISLNK(seen.st_mode) else 0o755 if seen.st_mode & 0o100 else 0o644


def pack(root: Path, anyway: Sequence[str] = ()) -> Shipment:
    """Return the files to send. Raises UsageError when there is nothing to send, or git fails in a checkout."""
    root = root.resolve()
    inspector = FileInspector.of(root, anyway)
    contents, refused = {}, []
    for path, seen in survey(root).items():
        sha, reason = inspector.inspect(path, seen)
        if reason:
            refused.append(FileRefusal(path, reason))
        else:
            contents[path] = sha
    if not contents:
        raise UsageError(f"{root}: no file to send")
    return Shipment(root, contents, tuple(refused))


def preview(root: Path, known: Mapping[str, str], anyway: Sequence[str] = ()) -> SyncPlan:
    """Return the plan of a push of `root` to a pod that holds `known` (sha256 by path).

    Raises UsageError as pack does.
    """
    packed = pack(root, anyway)
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


def _ignored(root: Path) -> list[int]:
    """Return the sizes in bytes of what is not even looked at."""
    if git_files.is_checkout(root):
        paths: Iterable[str] = git_files.listed(root, "--others", "--ignored")
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
