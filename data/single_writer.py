"""The single-writer lock of a folder, and the end of writers whose parent is gone.

In: a folder, or the process that started this one.
"""

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
PR_SET_PDEATHSIG, PR_GET_PDEATHSIG = 1, 2
RESUMABLE = 75
WAIT_S, LOOK_S = 10.0, 0.1


@contextmanager
def alone_in(folder: Path, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold `folder`, which is made, against other writers: also against what a killed `inv` has left behind.

    Raises DataError when somebody still writes after `wait_s`.
    """
    folder.mkdir(parents=True, exist_ok=True)
    # Not by `store.local_files`, which locks a file: the folder itself is locked, so that nothing is left in it, and
    # who has it is told.
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        until = time.monotonic() + wait_s
        while not _lock(descriptor):
            if time.monotonic() > until:
                who = f"process {pid}" if (pid := _holder(descriptor)) else "another process"
                raise DataError(f"{folder}: {who} is writing there; wait for it, end it, or choose another folder")
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
        # a file system that locks no folders: the user has to run one at a time
    return True


def _holder(descriptor: int) -> int:
    """Return the process that holds it, 0 when that is not known."""
    inode = str(os.fstat(descriptor).st_ino)
    try:
        for line in Path("/proc/locks").read_text(encoding="ascii").splitlines():
            words = line.split()
            if words[1] == "FLOCK" and words[5].rpartition(":")[2] == inode:
                return int(words[4])
    except (OSError, ValueError, IndexError):  # only for a better message
        pass
    return 0


def die_with(parent: str) -> None:
    """Ask for SIGTERM to this process when the one that started it, by its id, is gone."""
    if parent:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != int(parent):  # it was gone before
            sys.exit(RESUMABLE)


def leave_behind() -> None:
    """Ask for SIGKILL from now on, where `die_with` asked for SIGTERM.

    What this process began elsewhere goes on, and the next command follows it.
    """
    libc, number = ctypes.CDLL(None), ctypes.c_int()
    libc.prctl(PR_GET_PDEATHSIG, ctypes.byref(number))
    if number.value:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
