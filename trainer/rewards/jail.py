"""Code that a model wrote, run where it can do no harm: it reads Python's own library, and nothing else.

In: the code of an answer, expressions to evaluate, assertions. Out: what each gave. The jail is Landlock and seccomp
where the kernel has both (Linux 5.13, x86_64 and aarch64), else bubblewrap where it is installed; with neither there is
none, and mbpp is refused. One process runs the code and evaluates expressions, another one the assertions: see
`sandbox.answering` and `sandbox.checking`.
"""

import contextlib
import functools
import json
import os
import platform
import select
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trainer.rewards.sandbox import kernel, plain, start

WALL_S = 5.0
MEMORY_BYTES = 1 << 30
LINE_BYTES, OUT_BYTES = 1 << 20, 4 << 20
START = Path(start.__file__)
PROBE = "import os\ntry:\n    os.listdir('/proc/1')\n    seen = 'files'\nexcept OSError:\n    seen = 'none'"


@dataclass(frozen=True)
class Outcome:
    """The result of one expression or assertion."""

    plain: Any = None
    """Value of the expression; True of an assertion that holds."""
    error: str = ""
    """Reason that there is no value; "" = there is one."""

    @property
    def value(self) -> str | None:
        """Return the repr of the value, None where there is none."""
        return None if self.error else repr(self.plain)


@dataclass(frozen=True)
class Verdicts:
    """The results of an answer."""

    compiles: Outcome
    calls: list[Outcome]
    asserts: list[Outcome]


class NoReply(Exception):
    """A process of the sandbox has ended, has said what is no answer, or has not answered in time."""


@functools.cache
def kind() -> str:
    """Return the jail that can be had on this machine: `landlock`, `bubblewrap`, or ""; tried, not read off."""
    for one in ("landlock", "bubblewrap"):
        if one == "landlock" and not (platform.machine() in kernel.ARCHITECTURES and kernel.abi()):
            continue
        if one == "bubblewrap" and not shutil.which("bwrap"):
            continue
        (seen,) = run(PROBE, ["seen"], [], one)
        if seen.value == "'none'":
            return one
    return ""


def run(code: str, calls: Sequence[str], asserts: Sequence[str], jail: str, setup: str = "") -> list[Outcome]:
    """Run the setup and the code, then evaluate each call and each assertion; one outcome for each, in that order."""
    found = tried(code, calls, asserts, jail, setup)
    return [*found.calls, *found.asserts]


def tried(code: str, calls: Sequence[str], asserts: Sequence[str], jail: str, setup: str) -> Verdicts:
    """Run the code of an answer behind the setup, then evaluate each call and each assertion.

    jail: as `kind` gives it; "" = limits alone.
    """
    until = time.monotonic() + WALL_S
    with contextlib.closing(SandboxProcess("answer", jail, until)) as answer:
        try:
            answer.write({"setup": setup, "code": code})
            compiles = found(answer.read())
            ran = compiles if compiles.error else found(answer.read())
        except NoReply as error:
            compiles, ran = Outcome(error=str(error)), Outcome(error=str(error))
        if ran.error:
            return Verdicts(compiles, [ran] * len(calls), [ran] * len(asserts))
        values = [asked(answer, one) for one in calls]
        return Verdicts(compiles, values, checked(answer, setup, asserts, jail, until) if asserts else [])


def asked(answer: "SandboxProcess", call: str) -> Outcome:
    """Return the value of an expression in the process of the answer."""
    try:
        answer.write({"ask": call, "given": {}})
        return found(answer.read())
    except NoReply as error:
        return Outcome(error=str(error))


def found(said: Any) -> Outcome:
    """Return what an untrusted process said of an expression."""
    if isinstance(said, dict) and "value" in said:
        try:
            return Outcome(plain.read(said["value"]))
        except plain.NotPlain as error:
            return Outcome(error=f"NotPlain: {error}")
    words = said.get("error") if isinstance(said, dict) else None
    return Outcome(error=words[:200] if isinstance(words, str) and words else "it wrote what is no answer")


def checked(answer: "SandboxProcess", setup: str, asserts: Sequence[str], jail: str, until: float) -> list[Outcome]:
    """Return whether each assertion holds, by a process that asks the answer's for plain data."""
    outcomes: list[Outcome] = []
    with contextlib.closing(SandboxProcess("check", jail, until)) as check:
        try:
            check.write({"setup": setup, "tests": list(asserts)})
            while len(outcomes) < len(asserts):
                said = check.read()
                if isinstance(said, dict) and "ask" in said:
                    answer.write(said)
                    check.write(relayed(answer.read()))
                else:
                    holds = isinstance(said, dict) and said.get("holds") is True
                    outcomes.append(Outcome(True) if holds else found(said))
        except NoReply as error:
            outcomes += [Outcome(error=str(error))] * (len(asserts) - len(outcomes))
    return outcomes


def relayed(said: Any) -> dict[str, str]:
    """Return what the answer's process said as the check hears it: plain data, or two short texts."""
    outcome = found(said)
    if not outcome.error:
        return {"value": said["value"]}
    raised = said.get("raised") if isinstance(said, dict) else None
    return {"error": outcome.error, "raised": raised[:60] if isinstance(raised, str) else ""}


class SandboxProcess:
    """One process of the sandbox, which answers a line with lines until a time."""

    def __init__(self, role: str, jail: str, until: float) -> None:
        self.until, self.rest, self.heard = until, b"", 0
        self.child = subprocess.Popen(
            [*_around(jail), sys.executable, "-I", "-S", str(START), role, jail or "none", str(MEMORY_BYTES)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}, cwd="/",
            start_new_session=True, bufsize=0,
        )  # fmt: skip
        assert self.child.stdin is not None and self.child.stdout is not None
        self.questions, self.answers = self.child.stdin.fileno(), self.child.stdout.fileno()
        os.set_blocking(self.questions, False)

    def write(self, value: Any) -> None:
        """Write a value. Raises NoReply."""
        words = json.dumps(value).encode() + b"\n"
        while words:
            self._wait(self.questions, select.POLLOUT)
            try:
                words = words[os.write(self.questions, words) :]
            except OSError:
                raise NoReply("it ended before") from None

    def read(self) -> Any:
        """Return the next value. Raises NoReply."""
        while b"\n" not in self.rest:
            self._wait(self.answers, select.POLLIN)
            more = os.read(self.answers, 1 << 16)
            self.heard += len(more)
            if not more or len(self.rest) > LINE_BYTES or self.heard > OUT_BYTES:
                raise NoReply("it wrote too much" if more else "it ended before")
            self.rest += more
        line, _, self.rest = self.rest.partition(b"\n")
        try:
            return json.loads(line)
        except Exception:  # ValueError, RecursionError, MemoryError
            raise NoReply("it wrote what is no answer") from None

    def close(self) -> None:
        """End it, with all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.communicate()

    def _wait(self, descriptor: int, event: int) -> None:
        waiting = select.poll()
        waiting.register(descriptor, event)
        if not waiting.poll(max(0.0, self.until - time.monotonic()) * 1000):
            raise NoReply(f"no end after {WALL_S:g} s")


def _around(jail: str) -> list[str]:
    """Return the command that bubblewrap puts before ours."""
    if jail != "bubblewrap":
        return []
    words = ["bwrap", "--unshare-all", "--die-with-parent", "--new-session", "--clearenv", "--cap-drop", "ALL"]
    words += ["--size", str(16 << 20), "--tmpfs", "/tmp", "--proc", "/proc", "--dev", "/dev"]
    folders = dict.fromkeys([sys.base_prefix, str(Path(sys.executable).parent), "/usr", "/lib", "/lib64"])
    for folder in (
        *folders,
        str(START.parents[2] / "__init__.py"),
        str(START.parents[1] / "__init__.py"),
        str(START.parent),
    ):
        words += ["--ro-bind-try", folder, folder]
    return words
