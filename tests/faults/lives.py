"""Killable processes: a rig forks the processes, learns which points they pass, and kills them."""

import os
import select
import signal
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from tests.faults.points import Points, die
from tests.faults.rented import Wrong, true_monotonic

Tell = Callable[[str, str], None]


@dataclass(frozen=True)
class Blow:
    """The moment of a kill: `delay_s` after pass number `nth` of `label` ("" = any label)."""

    label: str
    nth: int
    delay_s: float


@dataclass(frozen=True)
class Life:
    """The life of a child process until exit or kill."""

    labels: tuple[str, ...]
    told: tuple[tuple[str, str], ...]
    was_killed: bool


@dataclass(frozen=True)
class Child:
    """A forked process; the waiting caller reads the output."""

    pid: int
    ear: int

    def wait(self, deadline_s: float = 600.0) -> list[list[str]]:
        """Return the output as text; raise Wrong if the process failed. Kill the process after `deadline_s`."""
        said, deadline = b"", true_monotonic() + deadline_s
        while chunk := self.hear(deadline):
            said += chunk
        self.end(0)
        return words_of(said)

    def leave(self, deadline_s: float) -> tuple[list[list[str]], int]:
        """Return the complete output and the exit code, without a check. Kill the process after `deadline_s`."""
        said, deadline = b"", true_monotonic() + deadline_s
        while chunk := self.hear(deadline):
            said += chunk
        os.close(self.ear)
        return words_of(said), os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def hear(self, deadline: float | None) -> bytes:
        """Return the next output, b"" after the end of the process; kill the process at `deadline`."""
        wait_s = None if deadline is None else max(0.0, deadline - true_monotonic())
        if not select.select([self.ear], [], [], wait_s)[0]:
            os.kill(self.pid, signal.SIGKILL)
        return os.read(self.ear, 1 << 16)

    def end(self, *codes: int) -> int:
        """Return the exit code, or minus the number of the signal. Raises Wrong for a code outside `codes`."""
        os.close(self.ear)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        if code not in codes:
            raise Wrong(f"a child left with exit code {code}")
        return code


def fork(work: Callable[[Tell], None]) -> Child:
    """Fork a working child, with reports of points."""
    ear, mouth = os.pipe()
    pid = os.fork()
    if pid:
        os.close(mouth)
        return Child(pid, ear)
    try:
        os.close(ear)
        forget_threads()
        work(lambda what, about: _say(mouth, what, about))
        os._exit(0)
    except BaseException:
        traceback.print_exc()
        os._exit(1)


def forget_threads() -> None:
    """Forget the threads of PyTorch's compiler, which do not survive a fork; PyTorch forgets only the processes."""
    if (compiler := sys.modules.get("torch._inductor.async_compile")) is not None:
        compiler.AsyncCompile.pool.cache_clear()


def live(work: Callable[[Points, Tell], None], blow: Blow) -> Life:
    """Fork a child, let the child work, and kill the child."""

    def until_dead(tell: Tell) -> None:
        total = 0

        def passed(label: str, nth: int) -> None:
            nonlocal total
            total += 1
            tell("at", label)
            if blow.label in ("", label) and (nth if blow.label else total) == blow.nth:
                if not blow.delay_s:
                    die()
                tell("armed", label)

        work(Points(passed), tell)

    child, said, deadline = fork(until_dead), b"", None
    while chunk := child.hear(deadline):
        said += chunk
        if deadline is None and b"armed\t" in chunk:
            deadline = true_monotonic() + blow.delay_s
    code = child.end(0, -signal.SIGKILL)
    lines = words_of(said)
    labels = tuple(about for what, about in lines if what == "at")
    told = tuple((what, about) for what, about in lines if what not in ("at", "armed"))
    return Life(labels, told, code != 0)


def words_of(said: bytes) -> list[list[str]]:
    return [line.split("\t") for line in said.decode().split("\n") if line]


def _say(mouth: int, what: str, about: str) -> None:
    os.write(mouth, f"{what}\t{about}\n".encode())
