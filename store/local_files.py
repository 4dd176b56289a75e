"""What only a store in a local folder has: locks, fsync, and a memory of files already verified."""

import contextlib
import fcntl
import json
import os
import time
import uuid
from collections.abc import Iterable, Iterator
from typing import Any

from store import outside

LOCK = ".lock"
VERIFIED = ".verified.json"
VERIFIED_BYTES = 64 * outside.MIB  # some 200,000 files
SETTLED_NS = 2_000_000_000  # a younger file could change again without its time stamps showing it


@contextlib.contextmanager
def locked(root: str, exclusive: bool) -> Iterator[None]:
    """Hold the store's lock: writers swap artifacts under the exclusive one, readers verify under the shared one."""
    path = os.path.join(root, LOCK)
    if exclusive:
        os.makedirs(root, exist_ok=True)
    elif not os.path.exists(path):  # nobody has ever published here
        yield
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT if exclusive else os.O_RDONLY | os.O_NONBLOCK, 0o644)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def claim(folder: str) -> int | None:
    """A descriptor that marks `folder` as in use until it is closed or this process dies; None = somebody else's."""
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:  # its writer has just removed it
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def sync(path: str) -> None:
    """Make a file, or the list of files of a folder, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(path: str | os.PathLike[str], content: bytes) -> None:
    """Replace a file at once: a reader, or a crash, sees the old bytes or the new ones."""
    write_whole(path, [content])


def write_whole(path: str | os.PathLike[str], pieces: Iterable[bytes]) -> None:
    """As `replace`, from pieces; its folder is made."""
    folder, name = os.path.split(os.fspath(path))
    os.makedirs(folder, exist_ok=True)
    draft = os.path.join(folder, f".{name}.{os.getpid()}.draft")
    with open(draft, "wb") as file:
        for piece in pieces:
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    os.replace(draft, path)


class Verified:
    """The sha256 of files as they were last read, good for as long as size, times and inode stay the same."""

    def __init__(self, root: str) -> None:
        self._root, self._changed = root, False
        try:
            self._known = outside.load(os.path.join(root, VERIFIED), VERIFIED_BYTES, VERIFIED_BYTES // 16)
        except (OSError, ValueError):  # absent or damaged: everything is read again
            self._known = {}
        self._names: dict[Any, str] = {}  # by inode
        for path, one in self._known.items():
            if type(one) is list and len(one) == 5 and type(one[3]) is int:
                self._names[one[3]] = path

    def get(self, path: str, stat: os.stat_result) -> str | None:
        """The sha256 that this file had under that name, or under another one."""
        known = self._known.get(path) or self._known.get(self._names.get(stat.st_ino, ""))
        if type(known) is not list or known[:-1] != _stamp(stat) or type(known[-1]) is not str:
            return None
        return known[-1]

    def put(self, path: str, before: os.stat_result, after: os.stat_result, digest: str) -> None:
        settled = time.time_ns() - max(before.st_mtime_ns, before.st_ctime_ns) > SETTLED_NS
        if settled and _stamp(before) == _stamp(after):
            self._known[path] = [*_stamp(before), digest]
            self._names[before.st_ino] = path
            self._changed = True

    def save(self) -> None:
        if not self._changed:
            return
        draft = os.path.join(self._root, f"{VERIFIED}.{uuid.uuid4().hex}")
        try:
            known = {
                path: seen for path, seen in self._known.items() if os.path.lexists(os.path.join(self._root, path))
            }
            with open(draft, "w", encoding="utf-8") as file:
                json.dump(known, file)
            os.replace(draft, os.path.join(self._root, VERIFIED))
        except OSError:  # a read-only or full disk: the next reader hashes again
            with contextlib.suppress(OSError):
                os.remove(draft)


def _stamp(stat: os.stat_result) -> list[int]:
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
