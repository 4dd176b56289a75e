"""Processes that are killed: forked from a rig, they tell it what they pass, and end at a blow."""

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
    """The moment of a kill: `delay_s` after the `nth` passing of `label` ("" = any label)."""

    label: str
    nth: int
    delay_s: float


@dataclass(frozen=True)
class Life:
    """The life of a child process until its end or its kill."""

    labels: tuple[str, ...]
    told: tuple[tuple[str, str], ...]
    was_killed: bool


@dataclass(frozen=True)
class Child:
    """One that was forked; what it says is read by whoever waits for it."""

    pid: int
    ear: int

    def wait(self, deadline_s: float = 600.0) -> list[list[str]]:
        """Return its output, in words; raise Wrong when it failed. After `deadline_s` it is killed."""
        said, deadline = b"", true_monotonic() + deadline_s
        while chunk := self.hear(deadline):
            said += chunk
        self.end(0)
        return words_of(said)

    def leave(self, deadline_s: float) -> tuple[list[list[str]], int]:
        """Return its output until its end, and its exit code, whatever that is. After `deadline_s` it is killed."""
        said, deadline = b"", true_monotonic() + deadline_s
        while chunk := self.hear(deadline):
            said += chunk
        os.close(self.ear)
        return words_of(said), os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def hear(self, deadline: float | None) -> bytes:
        """Return its next output, b"" when it has ended; it is killed at `deadline`."""
        wait_s = None if deadline is None else max(0.0, deadline - true_monotonic())
        if not select.select([self.ear], [], [], wait_s)[0]:
            os.kill(self.pid, signal.SIGKILL)
        return os.read(self.ear, 1 << 16)

    def end(self, *codes: int) -> int:
        """Return its exit code, or minus the signal's number. Raises Wrong unless it is one of `codes`."""
        os.close(self.ear)
        code = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        if code not in codes:
            raise Wrong(f"a child left with exit code {code}")
        return code


def fork(work: Callable[[Tell], None]) -> Child:
    """A child that works, tells, and ends."""
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
    """Forget the threads of PyTorch's compiler, which do not live through a fork; it forgets its processes alone."""
    if (compiler := sys.modules.get("torch._inductor.async_compile")) is not None:
        compiler.AsyncCompile.pool.cache_clear()


def live(work: Callable[[Points, Tell], None], blow: Blow) -> Life:
    """Fork, let it work, kill it."""

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
