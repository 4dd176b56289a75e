"""The processes of this machine, as shown by /proc: a process that ends during the look has no entries."""

import contextlib
import os
from pathlib import Path

from infra.agent.process import identify


def pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def command_line(pid: int) -> bytes:
    """Return the command line, a zero byte after each word; b"" for a zombie and for an ended process."""
    return _read(pid, "cmdline")


def environ(pid: int) -> bytes:
    """Return `NAME=value` entries, a zero byte after each entry; b"" for a zombie and for an ended process."""
    return _read(pid, "environ")


def command_lines() -> list[bytes]:
    return [command_line(pid) for pid in pids()]


def is_running(pid: int) -> bool:
    """Return true for a running process; a zombie does not count."""
    return identify(pid) is not None


def in_network(name: str) -> list[int]:
    """Return the processes of a network namespace."""
    space, found = Path(f"/run/netns/{name}").stat().st_ino, []
    for pid in pids():
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/ns/net").stat().st_ino == space:
                found.append(pid)
    return found


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""
