"""The choice of tests for `--fast`: tests that start no process, open no socket and do not compute for seconds.

All other tests are marked `process` or `slow`. A test without `process` that starts a process or opens a socket fails
in every run, with a hint to the mark. `--fast` does not even import modules with a mark for the whole module. Sockets
opened by a C library (uvloop, torch.distributed) are not detected.
"""

import _posixsubprocess
import ast
import sys
import threading
from pathlib import Path
from typing import Any

import pytest
import urllib3  # noqa: F401 (it opens a socket when it is first imported, by whichever test that is)

MARK = "process"
NIGHT = "nightly"
SLOW = "slow"
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


def is_marked(module: Path) -> bool:
    """Return true if a top-level `pytestmark` marks all tests of the module."""
    text = module.read_text()
    if "pytestmark" not in text:
        return False
    return any(
        isinstance(node, ast.Assign)
        and getattr(node.targets[0], "id", "") == "pytestmark"
        and any(isinstance(one, ast.Attribute) and one.attr in (MARK, SLOW) for one in ast.walk(node.value))
        for node in ast.parse(text).body
    )
