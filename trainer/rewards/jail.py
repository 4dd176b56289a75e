"""Code that a model wrote, run where it can do no harm: it reads Python's own library, and nothing else.

In: the code of an answer, expressions to evaluate, assertions. Out: what each gave. The jail is Landlock where the
kernel has it (Linux 5.13), else bubblewrap where it is installed; both with the same list of system calls
(`sandbox.system_calls`, x86_64 and aarch64), limits and user. With neither there is none, and mbpp is refused. One
process runs the code and evaluates expressions, another one the assertions: see `sandbox.answering` and
`sandbox.checking`.
"""

import contextlib
import functools
import platform
import queue
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.errors import SandboxError
from trainer.rewards.processes import NoReply, SandboxProcess, Starter
from trainer.rewards.sandbox import kernel, plain, system_calls

TRIES = 3  # to start a process, before the machine is at fault
PROBE_S = 60.0  # on a machine that is busy
WALL_S = 5.0  # of an answer with all its tests
KINDS = ("landlock", "bubblewrap")
PROBE = """
import os
def tried(what):
    try:
        what()
    except OSError:
        return False
    return True
attempts = {
    'a folder of processes': lambda: os.listdir('/proc/1'), 'a file': lambda: open('/etc/passwd').read(),
    'a write': lambda: open('/tmp/.probe', 'w'), 'truncate': lambda: os.truncate('/tmp', 0),
    'chmod': lambda: os.chmod('/tmp', 0), 'a process': os.fork, 'a signal': lambda: os.kill(os.getppid(), 0),
    'a socket': lambda: __import__('socket').socket(),
}
seen = [name for name, one in attempts.items() if tried(one)]
"""


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


@functools.cache
def kind() -> str:
    """Return the jail that can be had on this machine: `landlock`, `bubblewrap`, or ""; tried, not read off."""
    return next((one for one in KINDS if not problem(one)), "")


def problem(jail: str, version: int = 0) -> str:
    """Return why a jail cannot be had on this machine, after a probe of what it refuses; "" = it can.

    version: of Landlock, to use no more than it has; 0 = the kernel's.
    """
    if sys.platform != "linux":
        return "it needs Linux"
    if platform.machine() not in system_calls.AUDIT:
        return f"{platform.machine()} is not {' or '.join(system_calls.AUDIT)}"
    if jail == "landlock" and not kernel.abi():
        return "the kernel has no Landlock (Linux 5.13), or the container forbids it"
    if jail == "bubblewrap" and not shutil.which("bwrap"):
        return "bwrap is not installed (apt-get install bubblewrap)"
    with contextlib.closing(Jail(jail, version, PROBE_S)) as one:
        try:
            (seen,) = one.tried(PROBE, ["seen"], [], "").calls
        except SandboxError as error:
            return str(error)
    if seen.error or not isinstance(seen.plain, list):
        return f"a probe did not come to its end: {seen.error or seen.plain!r}"
    return f"it lets {', '.join(map(str, seen.plain))} through" if seen.plain else ""


def refusal() -> str:
    """Return why code cannot be run on this machine, and what to do; "" where a jail can be had."""
    if kind():
        return ""
    seen = "; ".join(f"{one}: {problem(one)}" for one in KINDS)
    return (
        "mbpp runs code that the model writes, and this machine has nothing to lock it in: "
        f"{seen}. Use a machine with either, or --unsafe-rewards, which runs the code with limits of time and memory "
        "alone: it can read your keys and use the network"
    )


def words(kind: str, layers: Mapping[str, Any]) -> str:
    """Return what holds the processes of answers here, in words: see `kernel.Layers`."""
    if not kind:
        return "the code of mbpp's answers runs with limits of time and memory alone"
    held = [f"Landlock {layers['landlock']}" if layers["landlock"] else "bubblewrap", "the list of system calls"]
    held += [f"namespaces of its own ({', '.join(layers['namespaces'])})"] if layers["namespaces"] else []
    held += ["another user than root"] if layers["has_changed_user"] else []
    library = (
        "" if layers["reads_library"] else "; its user cannot read Python's library, of which all was loaded before"
    )
    return f"the code of mbpp's answers is held by {', '.join(held)}{library}"


def run(code: str, calls: Sequence[str], asserts: Sequence[str], jail: str, setup: str = "") -> list[Outcome]:
    """Run the setup and the code, then evaluate each call and each assertion; one outcome for each, in that order."""
    with contextlib.closing(Jail(jail)) as one:
        found = one.tried(code, calls, asserts, setup)
    return [*found.calls, *found.asserts]


class Jail:
    """A sandbox that answers of several threads share; each has a starter of its own while it runs an answer."""

    def __init__(self, kind: str, version: int = 0, wall_s: float = WALL_S) -> None:
        """Take note of the kind, as `kind` gives it ("" = limits alone). version: as `problem` has it."""
        self.kind, self.version, self.wall_s = kind, version or kernel.abi(), wall_s
        self.free: queue.SimpleQueue[Starter] = queue.SimpleQueue()

    def layers(self) -> dict[str, Any]:
        """Return what holds the processes of an answer here: see `kernel.Layers`. Raises SandboxError."""
        one = self._starter()
        self.free.put(one)
        return one.layers

    def tried(self, code: str, calls: Sequence[str], asserts: Sequence[str], setup: str) -> Verdicts:
        """Run the code of an answer behind the setup, then evaluate each call and each assertion.

        Raises SandboxError where the machine starts no process, for reasons that are not the answer's.
        """
        one = self._starter()
        try:
            found = judged(one, time.monotonic() + self.wall_s, code, calls, asserts, setup)
        except BaseException:
            one.close()
            raise
        self.free.put(one)
        return found

    def close(self) -> None:
        """End all processes."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.free.get_nowait().close()

    def _starter(self) -> "Starter":
        """Return a starter that lives."""
        with contextlib.suppress(queue.Empty):
            while True:
                one = self.free.get_nowait()
                if one.child.poll() is None:
                    return one
                one.close()
        for _ in range(TRIES - 1):
            with contextlib.suppress(SandboxError):
                return Starter(self.kind, self.version)
        return Starter(self.kind, self.version)


def judged(
    starter: Starter, until: float, code: str, calls: Sequence[str], asserts: Sequence[str], setup: str
) -> Verdicts:
    """Return the results of an answer. Raises SandboxError."""
    with contextlib.closing(SandboxProcess(starter, "answer", until)) as answer:
        try:
            answer.write({"setup": setup, "code": code})
            compiles = found(answer.read())
            ran = compiles if compiles.error else found(answer.read())
        except NoReply as error:
            compiles, ran = Outcome(error=str(error)), Outcome(error=str(error))
        if ran.error:
            return Verdicts(compiles, [ran] * len(calls), [ran] * len(asserts))
        values = [asked(answer, one) for one in calls]
        return Verdicts(compiles, values, checked(starter, answer, setup, asserts) if asserts else [])


def asked(answer: SandboxProcess, call: str) -> Outcome:
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


def checked(starter: Starter, answer: SandboxProcess, setup: str, asserts: Sequence[str]) -> list[Outcome]:
    """Return whether each assertion holds, by a process that asks the answer's for plain data."""
    outcomes: list[Outcome] = []
    with contextlib.closing(SandboxProcess(starter, "check", answer.until)) as check:
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


def relayed(said: Any) -> dict[str, Any]:
    """Return what the answer's process said as the check hears it: plain data, or two short texts."""
    outcome = found(said)
    if not outcome.error:
        given = said.get("given")
        changed = given.items() if isinstance(given, dict) else ()
        return {
            "value": said["value"],
            "given": {name: text for name, text in changed if not found({"value": text}).error},
        }
    raised = said.get("raised") if isinstance(said, dict) else None
    return {"error": outcome.error, "raised": raised[:60] if isinstance(raised, str) else ""}
