"""The choice of tests for `--fast`: tests that start no process, open no socket and do not compute for seconds.

All other tests are marked `process` or `slow`. A test without `process` that starts a process or opens a socket fails
in every run, with a hint to the mark. Sockets opened by a C library (uvloop, torch.distributed) are not detected.

A run does not even import a module whose `pytestmark` leaves out all tests, unless the command names the file.
"""

import _posixsubprocess
import re
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import urllib3  # noqa: F401 (it opens a socket when it is first imported, by whichever test that is)

MARK = "process"
NIGHT = "nightly"
SLOW = "slow"
PYTESTMARK = re.compile(r"^pytestmark\s*=(.*?)(?=^[^\s\])]|\Z)", re.MULTILINE | re.DOTALL)
STARTS = ("subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system", "os.exec", "os.spawn")
CONNECTS = (
    "socket.bind", "socket.connect", "socket.sendto", "socket.sendmsg",
    "socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr",
)  # fmt: skip


class Guard:
    """Fail a test without the mark when the test starts a process or opens a socket.

    Threads of an earlier test may still be active, so a full run checks only the main thread.
    """

    def __init__(self, is_fast: bool) -> None:
        self.is_fast = is_fast
        self.is_watching = False
        self.seen: list[str] = []
        sys.addaudithook(self._hear)
        # multiprocessing starts processes by this function, which raises no audit event.
        self._fork_exec = _posixsubprocess.fork_exec
        _posixsubprocess.fork_exec = self._start  # type: ignore[assignment]

    def _start(self, *words: Any) -> int:
        self._hear("os.spawn", words)
        return self._fork_exec(*words)

    def _hear(self, event: str, args: tuple[Any, ...]) -> None:
        if not self.is_watching or event not in STARTS + CONNECTS:
            return
        if not self.is_fast and threading.current_thread() is not threading.main_thread():
            return
        what = "starts a process" if event in STARTS else "opens a socket"
        self.seen.append(f"{what} ({event}): mark the test, or its module, with pytest.mark.{MARK}")
        pytest.fail(f"this test {self.seen[-1]}")

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self, item: pytest.Item) -> Any:
        self.seen.clear()
        # Nightly tests are in no fast run, marked or not.
        self.is_watching = not any(map(item.get_closest_marker, (MARK, NIGHT)))
        try:
            return (yield)
        finally:
            self.is_watching = False

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self) -> Any:
        found = yield
        if self.seen:  # raised in a thread, or swallowed
            pytest.fail(f"this test {self.seen[0]}")
        return found


def marks_of(module: Path) -> set[str]:
    """Return the names of the marks of a top-level `pytestmark`, which marks all tests of the module."""
    return set(re.findall(r"\bmark\.(\w+)", " ".join(PYTESTMARK.findall(module.read_text(encoding="utf-8")))))


def left_out(markexpr: str) -> set[str]:
    """Return the marks without any selected test, from an expression of `-m` such as `not gpu and not account`.

    Returns an empty set for an expression with `or` or parentheses.
    """
    terms = [] if re.search(r"\bor\b|\(", markexpr) else markexpr.split(" and ")
    return {one.removeprefix("not ") for one in terms if one.startswith("not ")}
