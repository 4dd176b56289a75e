"""Files of this machine: atomic writes, locks, and a cache of those already verified.

Everything but the agent, whose own are `infra.agent.job.write_durably` and `infra.agent.state.hold`, goes through here.
What stays apart says why where it stands: folders that are renamed as a whole, and drafts that are resumed.
"""

import contextlib
import fcntl
import json
import os
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from store import outside

LOCK = ".lock"
VERIFIED = ".verified.json"
VERIFIED_BYTES = 64 * outside.MIB  # some 200,000 files
LOOK_S = 0.02  # between two tries for a lock
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
    try:  # not by `hold`, which writes: a reader may not be allowed to
        fcntl.flock(descriptor, fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH)
        yield
    finally:
        os.close(descriptor)


def hold(
    path: str | os.PathLike[str], wait_s: float | None = 0.0, *, mode: int = 0o644, look_s: float = LOOK_S,
    must_lock: bool = True,
) -> int | None:  # fmt: skip
    """Return a descriptor that holds the lock file `path`, which is made, until it is closed or this process dies.

    Return None when another process still holds it after `wait_s`; where that is None, wait without end.
    must_lock: without it a file system that has no locks counts as one where nobody else holds this one.
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
def held(
    path: str | os.PathLike[str], busy: Exception | None = None, wait_s: float | None = 0.0, **options: Any
) -> Iterator[int]:
    """Hold the lock file `path` meanwhile, as `hold` does; yield its descriptor.

    Raise `busy` when another process still has it after `wait_s`; without a `busy`, wait without end.
    """
    descriptor = hold(path, None if busy is None else wait_s, **options)
    if descriptor is None:
        assert busy is not None
        raise busy
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def claim(folder: str) -> int | None:
    """Return a descriptor that marks `folder` as in use until it is closed or this process dies, or None.

    None means that somebody else uses the folder, or that it is gone.
    """
    try:
        descriptor = os.open(folder, os.O_RDONLY)
    except FileNotFoundError:  # the writer has just removed it
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


def replace(path: str | os.PathLike[str], content: bytes, mode: int | None = None) -> None:
    """Replace a file at once: a reader, or a crash, sees the old bytes or the new ones. Its folder is made.

    mode: exactly these permissions, from the first byte on; by default those of any new file.
    """
    write_whole(path, [content], mode=mode)


def write_whole(
    path: str | os.PathLike[str], pieces: Iterable[bytes], *, mode: int | None = None, draft_name: str = ""
) -> None:
    """Replace a file as `replace` does, from pieces.

    draft_name: for who is alone in the folder and wants what a kill left behind to be written over by the next try.
    """
    with _draft(path, pieces, mode, draft_name) as draft:
        os.replace(draft, path)


def create(path: str | os.PathLike[str], content: bytes, mode: int | None = None) -> None:
    """Make a file that is whole as soon as it is there.

    Raise FileExistsError when there is one: of two who want the name at the same time, one gets it.
    """
    with _draft(path, [content], mode) as draft:
        os.link(draft, path)
        os.unlink(draft)


@contextlib.contextmanager
def _draft(
    path: str | os.PathLike[str], pieces: Iterable[bytes], mode: int | None, draft_name: str = ""
) -> Iterator[str]:
    """Yield a synced file beside `path`, which goes when the body fails: what is half there may be what fills the disk.

    The name is of this thread alone, so what has it already was left by a process that is gone.
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
            if mode is not None:  # regardless of the umask
                os.fchmod(descriptor, mode)
            for piece in pieces:
                file.write(piece)
            file.flush()
            os.fsync(descriptor)
        yield draft
    except BaseException:
        with contextlib.suppress(OSError):  # the first error is the one to report
            os.unlink(draft)
        raise


class Verified:
    """The sha256 of files as they were last read, good for as long as size, times and inode stay the same."""

    def __init__(self, root: str) -> None:
        self._root, self._changed = root, False
        try:
            self._known = outside.load(os.path.join(root, VERIFIED), VERIFIED_BYTES, VERIFIED_BYTES // 16)
        except (OSError, ValueError):  # absent or damaged: everything is read again
            self._known = {}
        self._names: dict[Any, str] = {}  # paths by inode
        for path, one in self._known.items():
            if type(one) is list and len(one) == 5 and type(one[3]) is int:
                self._names[one[3]] = path

    def get(self, path: str, stat: os.stat_result) -> str | None:
        """Return the sha256 that this file had under that name, or under another one."""
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
        with contextlib.suppress(OSError):  # a read-only or full disk: the next reader hashes again
            replace(os.path.join(self._root, VERIFIED), json.dumps(known).encode())


def _stamp(stat: os.stat_result) -> list[int]:
    return [stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_ino]
