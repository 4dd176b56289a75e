"""Lock a folder for a single writer, and end writers after the exit of their parent process."""

import ctypes
import errno
import fcntl
import os
import signal
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from data.errors import DataError

PARENT = "SLIPWAY_PARENT"
PR_SET_PDEATHSIG = 1
RESUMABLE = 75
WAIT_S, LOOK_S = 10.0, 0.1


@contextmanager
def lock_folder(folder: Path, wait_s: float = WAIT_S) -> Iterator[None]:
    """Create `folder` and hold an exclusive lock against other writers, including processes left by a killed `inv`.

    Raises DataError if a different process holds the lock for longer than `wait_s` seconds.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # `store.local_files` locks a file; locking the folder leaves no file behind, and lets the error name the process
    # with the lock.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        until = time.monotonic() + wait_s
        while not _lock(descriptor):
            if time.monotonic() > until:
                who = f"process {pid}" if (pid := _holder(descriptor)) else "another process"
                raise DataError(
                    f"{folder}: {who} is writing to the folder; wait for the process, end the process, or choose a "
                    "different folder"
                )
            time.sleep(LOOK_S)
        yield
    finally:
        os.close(descriptor)


def _lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno not in (errno.EBADF, errno.ENOLCK, errno.EINVAL, errno.ENOTSUP, errno.ENOSYS):
            raise
        # this file system cannot lock folders: users must not run two writers at once
    return True


def _holder(descriptor: int) -> int:
    """Return the id of the process with the lock, or 0 if unknown."""
    inode = str(os.fstat(descriptor).st_ino)
    try:
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode:
                return int(words[4])
    except (OSError, ValueError, IndexError):  # the process id only improves an error message
        pass
    return 0


def exit_with_parent(parent: str) -> None:
    """Request SIGTERM for this process when the parent process, with id `parent`, exits; no-op for "".

    If the parent exited earlier, exit with RESUMABLE.
    """
    if parent:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):  # the parent exited earlier
            sys.exit(RESUMABLE)
