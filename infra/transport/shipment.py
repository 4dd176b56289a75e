"""Selection of a checkout's files for a pod: all files that git would keep except secrets.

File names and complete contents are scanned for secrets (`scan`). A name alone never excludes a source file. A refused
file is sent only if the user names the file and, in a git checkout, git tracks it.
"""

import contextlib
import os
import stat
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra.errors import UsageError
from infra.transport.scan.inspector import FileInspector, is_checkout, listed_by_git, listed_with_submodules, why_unfit
from store import packs

POINTER_BYTES = 1024  # a pointer is smaller
_NOT_WALKED = frozenset({".git", ".hg", ".svn", ".venv", "var", "__pycache__", ".mypy_cache", ".ruff_cache"})


@dataclass(frozen=True)
class FileRefusal:
    path: str
    reason: str

    def __str__(self) -> str:
        return f"{self.path}: {self.reason}"


@dataclass(frozen=True)
class Shipment:
    """The files of a push and the refused files; paths are relative to `root`."""

    root: Path
    files: Mapping[str, str]  # path of a file, or of a link to a target inside the root -> sha256
    refused: tuple[FileRefusal, ...]


@dataclass(frozen=True)
class SendSize:
    """The number and total size of the files to send, and the refused files."""

    files: int
    bytes: int
    refused: tuple[FileRefusal, ...]
    pointers: tuple[str, ...] = ()
    """Pointers of Git LFS among the files: the content of the files is not here."""


@dataclass(frozen=True)
class SyncPlan:
    """The plan of a push before the start."""

    files: int
    bytes: int
    largest: tuple[tuple[str, int], ...]  # (path, bytes), at most ten
    new: tuple[str, ...]  # missing on the pod, or changed since the last push
    gone: tuple[str, ...]  # on the pod from an earlier push, deleted locally
    refused: tuple[FileRefusal, ...]
    ignored_files: int
    ignored_bytes: int
    pointers: tuple[str, ...] = ()  # as in `SendSize`


def survey(root: Path) -> dict[str, os.stat_result]:
    """Return the lstat of the files kept by git, by path relative to `root`, without deleted files.

    Raises UsageError for an empty result, for a `root` that is or contains the home folder, and for a failure of git.
    """
    root = root.resolve()
    if Path.home().resolve().is_relative_to(root):  # would include all hidden folders of the home
        raise UsageError(f"{root} is the root or a home folder, not a project checkout; nothing was uploaded")
    found = {}
    if os.path.lexists(root / ".skyignore"):
        paths = packs.load("infra.transport.sky_ignore:kept")(root, _walked(root))
    else:
        paths = listed_with_submodules(root) if is_checkout(root) else _walked(root)
    for path in sorted(paths):
        with contextlib.suppress(FileNotFoundError, NotADirectoryError):  # deleted, but listed by git
            found[path] = os.lstat(f"{root}/{path}")
    if not found:
        raise UsageError(f"{root}: no file to send")
    return found


def measure(root: Path, file: str = "", anyway: Sequence[str] = ()) -> SendSize:
    """Return the weight of a push of `root`, or of the single `file` in `root`; inspect all files and send none.

    Raises UsageError if no file is fit to send, or a file cannot be read. If all files are secrets, the weight counts
    zero files.
    """
    real = root.resolve()
    if real == Path("/dev") or real.parts[1:2] in (("proc",), ("sys",)):
        raise UsageError(f"{root} is a folder of the system, not a project; nothing was sent")
    try:
        found = {file: os.lstat(root / file)} if file else survey(root)
    except OSError as error:
        raise UsageError(f"{error.filename or root} cannot be read for sending: {error.strerror}") from None
    for path in (root / one for one, seen in found.items() if stat.S_ISREG(seen.st_mode)):
        if not os.access(path, os.R_OK):
            raise UsageError(f"{path} cannot be read for sending: permission denied")
    if all(why_unfit(real, path, seen) for path, seen in found.items()):
        raise UsageError(f"{root}: no file to send")
    inspector = FileInspector.for_folder(real, anyway)
    refused = {path: reason for path, seen in found.items() if (reason := inspector.inspect(path, seen)[1])}
    num_bytes = sum(seen.st_size for path, seen in found.items() if path not in refused)
    told = tuple(FileRefusal(*one) for one in sorted(refused.items()))
    return SendSize(len(found) - len(refused), num_bytes, told, _pointers(real, found))


def _pointers(root: Path, found: Mapping[str, os.stat_result]) -> tuple[str, ...]:
    """Return the files with a pointer of Git LFS in place of their content; see the specification of git-lfs."""
    attributes = [root / path for path in found if path.rpartition("/")[2] == ".gitattributes"]
    for folder in (root, *root.parents):  # git reads the attributes of all folders of the checkout
        attributes += [folder / name for name in (".gitattributes", ".git/info/attributes")]
    if not any(b"filter=lfs" in path.read_bytes() for path in attributes if path.is_file()):
        return ()
    small = [path for path, seen in found.items() if stat.S_ISREG(seen.st_mode) and seen.st_size < POINTER_BYTES]
    return tuple(
        path for path in small if (root / path).read_bytes().startswith(b"version https://git-lfs.github.com/")
    )


def mode(seen: os.stat_result) -> int | str:
    """Return the mode of a file on a pod: "link", or the permissions.

    Permissions are reduced to 0o755 for executable files and 0o644 for others.
    """
    return "link" if stat.S_ISLNK(seen.st_mode) else 0o755 if seen.st_mode & 0o100 else 0o644


def pack(root: Path, anyway: Sequence[str] = ()) -> Shipment:
    """Return the files to send. Raises UsageError if no file can be sent, or if git fails in a checkout."""
    root = root.resolve()
    inspector = FileInspector.for_folder(root, anyway)
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
    """Return the plan of a push of `root` to a pod with the files `known` (sha256 by path).

    Raises UsageError as `pack` does.
    """
    packed = pack(root, anyway)
    found = {path: os.lstat(packed.root / path) for path in packed.files}
    sizes = {path: seen.st_size for path, seen in found.items()}
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
        pointers=_pointers(packed.root, found),
    )


def _ignored(root: Path) -> list[int]:
    """Return the sizes in bytes of the files ignored by a push."""
    if is_checkout(root):
        paths: Iterable[str] = listed_by_git(root, "--others", "--ignored")
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
