"""The local file primitives: atomic writes, locks, and a cache of verified digests.

All code uses these functions except the agent, which has its own `infra.agent.job.write_durably` and
`infra.agent.state.acquire_lock`. Other exceptions (folders renamed as a whole, resumable drafts) are explained where
they occur.
"""

import contextlib
import fcntl
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from store import untrusted_input

LOCK = ".lock"
VERIFIED = ".verified.json"
VERIFIED_BYTES = 64 * untrusted_input.MIB  # about 200,000 files
LOOK_S = 0.02  # polling interval for a lock
# Minimum age of a cached digest: a younger file could change again within the resolution of its timestamps.
SETTLED_NS = 2_000_000_000


@contextlib.contextmanager
def locked(root: str, exclusive: bool) -> Iterator[None]:
    """Hold the lock of the store: exclusive for writers that swap artifacts, shared for readers that verify."""
    path = os.path.join(root, LOCK)
    if exclusive:
        os.makedirs(root, exist_ok=True)
    elif not os.path.exists(path):  # no artifact was ever published
        yield
        return
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT if exclusive else os.O_RDONLY | os.O_NONBLOCK, 0o644)
    # Do not use `acquire_lock`: `acquire_lock` opens the file for writing, which a reader may lack permission for.
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def acquire_lock(
    path: str | os.PathLike[str],
    wait_s: float | None = 0.0,
    *,
    mode: int = 0o644,
    look_s: float = LOOK_S,
    must_lock: bool = True,
) -> int | None:
    """Create and lock the file `path`; return a descriptor that holds the lock until closed or until the process dies.

    Return None if another process still holds the lock after `wait_s` seconds; a `wait_s` of None waits forever.
    must_lock: raise on a file system without lock support; otherwise assume that the lock is free.
    """
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, mode)
    deadline = time.monotonic() + (wait_s or 0.0)
    try:
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX if wait_s is None else fcntl.LOCK_EX | fcntl.LOCK_NB)
                return descriptor
            except BlockingIOError:
                if time.monotonic() >= deadline:
                    os.close(descriptor)
                    return None
            except OSError:
                if must_lock:
                    raise
                return descriptor
            time.sleep(look_s)
    except BaseException:
        os.close(descriptor)
        raise


@contextlib.contextmanager
def holding_lock(
    path: str | os.PathLike[str], busy: Exception | None = None, wait_s: float | None = 0.0, **options: Any
) -> Iterator[int]:
    """Hold the lock file `path` for the `with` block, as in `acquire_lock`; yield the descriptor.

    Raise `busy` if another process still holds the lock after `wait_s`; without `busy`, wait forever.
    """
    descriptor = acquire_lock(path, None if busy is None else wait_s, **options)
    if descriptor is None:
        assert busy is not None
        raise busy
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def claim(folder: str) -> int | None:
    """Return a descriptor that marks `folder` as in use until closed or until the process dies.

    Return None if another process uses the folder or the folder is gone.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:  # the writer has just removed the folder
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def sync(path: str) -> None:
    """Flush a file, or the directory entries of a folder, to disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def replace(path: str | os.PathLike[str], content: bytes, mode: int | None = None) -> None:
    """Replace a file atomically: readers and crashes see either the old or the new bytes. Create missing folders.

    mode: exact permissions from the first byte on; the default follows the umask.
    """
    write_whole(path, [content], mode=mode)


def write_whole(
    path: str | os.PathLike[str], pieces: Iterable[bytes], *, mode: int | None = None, draft_name: str = ""
) -> None:
    """Replace a file atomically with the concatenated pieces.

    draft_name: fixed name of the temporary file, for the only writer in a folder: the next attempt overwrites the
    leftover of a killed process.
    """
    with _draft(path, pieces, mode, draft_name) as draft:
        os.replace(draft, path)


def create(path: str | os.PathLike[str], content: bytes, mode: int | None = None) -> None:
    """Create a file with its full content in a single step.

    Raise FileExistsError for an existing file; of two concurrent writers exactly one succeeds.
    """
    with _draft(path, [content], mode) as draft:
        os.link(draft, path)
        os.unlink(draft)


@contextlib.contextmanager
def _draft(
    path: str | os.PathLike[str], pieces: Iterable[bytes], mode: int | None, draft_name: str = ""
) -> Iterator[str]:
    """Yield a synced temporary file beside `path`; remove the file if the body fails, since it may be filling the disk.

    The default name is unique to this thread, so an existing file of this name is a leftover of a dead process.
    """
    folder, name = os.path.split(os.fspath(path))
    os.makedirs(folder or ".", exist_ok=True)
    own = draft_name or f".{name[:200]}.{os.getpid()}.{threading.get_native_id()}.draft"
    draft = os.path.join(folder, own)
    with contextlib.suppress(FileNotFoundError):
        os.unlink(draft)
    try:
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666 if mode is None else mode)
        with open(descriptor, "wb") as file:
            if mode is not None:  # override the umask
                os.fchmod(descriptor, mode)
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(descriptor)
        yield draft
    except BaseException:
        with contextlib.suppress(OSError):  # keep the first error
            os.unlink(draft)
        raise


class Verified:
    """The cache of sha256 digests, valid while size, timestamps and inode of a file are unchanged."""

    def __init__(self, root: str) -> None:
        self._root, self._changed = root, False
        try:
            self._known = untrusted_input.load(os.path.join(root, VERIFIED), VERIFIED_BYTES, VERIFIED_BYTES // 16)
        except (OSError, ValueError):  # missing or damaged: hash all files again
            self._known = {}
        self._names: dict[Any, str] = {}  # path by inode number
        for path, one in self._known.items():
            if type(one) is list and len(one) == 5 and type(one[3]) is int:
                self._names[one[3]] = path

    def get(self, path: str, stat: os.stat_result) -> str | None:
        """Return the cached sha256 of a file under this name or a different name, or None without a valid entry."""
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
        known = {path: seen for path, seen in self._known.items() if os.path.lexists(os.path.join(self._root, path))}
        with contextlib.suppress(OSError):  # read-only or full disk: the next reader hashes again
            replace(os.path.join(self._root, VERIFIED), json.dumps(known).encode())


def _stamp(stat: os.stat_result) -> list[int]:
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
