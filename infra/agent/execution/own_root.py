"""A private root file system for a process: the machine's files, plus folders of a pod at paths that the machine lacks.

A job file may name `/checkpoint`. A rented machine belongs to the job and gets such a folder. A rehearsed pod is a
folder of this machine and must not touch files outside, so the job runs in a private mount namespace.

Standard library only, and syntax that Python 3.9 accepts. Linux only: needs root or a user namespace.
"""

import ctypes
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Dict, List, Sequence, Tuple

NEW_MOUNTS, NEW_USERS = 0x00020000, 0x10000000  # CLONE_NEWNS and CLONE_NEWUSER of sched.h
# MS_BIND, MS_REC, MS_PRIVATE and MNT_DETACH of sys/mount.h
BIND, RECURSIVE, PRIVATE, DETACH = 0x1000, 0x4000, 0x40000, 2
FAILED = 1


def enter(binds: Sequence[Tuple[str, str]], folder: str, at: str) -> None:
    """Move this process into a private root for good, and change to `folder` in the new root. Raises OSError.

    `binds` are pairs of an existing file or folder and the absolute path in the new root. `at` is an empty folder, the
    mount point of the new root. The process must have a single thread, as a child before exec has.
    """
    libc, user, group = ctypes.CDLL(None, use_errno=True), os.getuid(), os.getgid()
    _call(libc.unshare(NEW_MOUNTS | (NEW_USERS if user else 0)), "unshare")
    if user:
        Path("/proc/self/setgroups").write_text("deny", encoding="ascii")
        Path("/proc/self/uid_map").write_text(f"{user} {user} 1", encoding="ascii")
        Path("/proc/self/gid_map").write_text(f"{group} {group} 1", encoding="ascii")
    _mount(libc, None, "/", None, PRIVATE | RECURSIVE)
    _mount(libc, "none", at, b"tmpfs", 0)
    _furnish(libc, Path("/"), Path(at), [(Path(source), Path(path)) for source, path in binds])
    # The parent folders of `at` appear in the new root, with the new root mounted again at `at`; detach this copy.
    libc.umount2(os.fsencode(f"{at}/{at}"), DETACH)
    os.chroot(at)
    os.chdir(folder)


def problem() -> str:
    """Return the reason why processes on this machine cannot enter a private root, or ""."""
    code = Path(__file__).resolve().parents[3]
    with tempfile.TemporaryDirectory() as at:
        words = [sys.executable, "-c", f"from infra.agent.execution import own_root; own_root.enter((), '/', {at!r})"]
        done = subprocess.run(
            words, cwd=code, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def enter_or_exit(binds: Sequence[Tuple[str, str]], folder: str, at: str) -> None:
    """Call `enter`; on failure print the reason to stderr and exit with 1.

    No caller could see an exception of a child before exec.
    """
    try:
        enter(binds, folder, at)
    except OSError as error:
        paths = ", ".join(path for _, path in binds)
        os.write(2, f"a private {paths} cannot be created for this job: {error}; use ~{binds[0][1]} instead\n".encode())
        os._exit(FAILED)


def _furnish(libc: ctypes.CDLL, old: Path, new: Path, binds: List[Tuple[Path, Path]]) -> None:
    """Show all entries of `old` in `new`, replacing the paths of `binds`, which are relative to `old`."""
    here: Dict[str, List[Tuple[Path, Path]]] = {}
    for source, at in binds:
        first, *rest = at.relative_to(at.anchor).parts
        here.setdefault(first, []).append((source, Path("/", *rest)))
    names = os.listdir(old) if old.is_dir() else []
    for name in names:
        if name not in here:
            _show(libc, old / name, new / name)
    for name, some in here.items():
        exact = [source for source, rest in some if rest == Path("/")]
        if exact:
            _show(libc, exact[0], new / name)
        else:
            (new / name).mkdir()
            _furnish(libc, old / name, new / name, some)


def _show(libc: ctypes.CDLL, source: Path, at: Path) -> None:
    """Show `source` at a new path."""
    if source.is_symlink():
        at.symlink_to(os.readlink(source))
        return
    if source.is_dir():
        at.mkdir()
    else:
        at.touch()
    _mount(libc, str(source), str(at), None, BIND | RECURSIVE)


def _mount(libc: ctypes.CDLL, source: "str | None", at: str, kind: "bytes | None", flags: int) -> None:
    name = None if source is None else os.fsencode(source)
    _call(libc.mount(name, os.fsencode(at), kind, ctypes.c_ulong(flags), None), f"mount {at}")


def _call(code: int, what: str) -> None:
    if code:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
