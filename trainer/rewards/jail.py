"""Jail for model-written code: the code can read Python's standard library and do nothing else.

A jail takes the code of an answer, expressions and assertions, and returns one outcome for each expression and
assertion. The jail is Landlock if the kernel supports Landlock (Linux 5.13), else bubblewrap if installed; both use the
same list of system calls (`sandbox.system_calls`, x86_64 and aarch64), resource limits and user. Without Landlock and
bubblewrap, mbpp is refused. The answer process runs the code and evaluates expressions; the check process runs the
assertions: see `sandbox.answering` and `sandbox.checking`.
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
from trainer.rewards.processes import NoReply, SandboxParent, SandboxProcess
from trainer.rewards.sandbox import kernel, plain, system_calls

TRIES = 3  # attempts to start a process before the machine counts as broken
PROBE_S = 60.0  # generous, for busy machines
WALL_S = 5.0  # wall-clock limit for an answer with all tests
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
    """Result of an expression or assertion."""

    plain: Any = None
    """Value of the expression, or True for an assertion that holds."""
    error: str = ""
    """Reason for a missing value; "" = the value exists."""

    @property
    def value(self) -> str | None:
        """Return the repr of the value, or None after an error."""
        return None if self.error else repr(self.plain)


@dataclass(frozen=True)
class Verdicts:
    """Results of an answer."""

    compiles: Outcome
    calls: list[Outcome]
    asserts: list[Outcome]


@functools.cache
def kind() -> str:
    """Return the first working jail on this machine, by probing each kind: `landlock`, `bubblewrap`, or "" for none."""
    return next((one for one in KINDS if not problem(one)), "")


def problem(jail: str, version: int = 0) -> str:
    """Return why a jail cannot work on this machine, after probing forbidden operations; "" = the jail works.

    version: Landlock ABI version to limit the jail to; 0 = the kernel's version.
    """
    if sys.platform != "linux":
        return "needs Linux"
    if platform.machine() not in system_calls.AUDIT:
        return f"{platform.machine()} is not {' or '.join(system_calls.AUDIT)}"
    if jail == "landlock" and not kernel.abi():
        return "the kernel has no Landlock (Linux 5.13), or the container forbids it"
    if jail == "bubblewrap" and not shutil.which("bwrap"):
        return "bwrap is not installed (apt-get install bubblewrap)"
    with contextlib.closing(Jail(jail, version, PROBE_S)) as one:
        try:
            (seen,) = one.run_answer(PROBE, ["seen"], [], "").calls
        except SandboxError as error:
            return str(error)
    if seen.error or not isinstance(seen.plain, list):
        return f"a probe did not finish: {seen.error or seen.plain!r}"
    return f"the jail lets {', '.join(map(str, seen.plain))} through" if seen.plain else ""


def refusal() -> str:
    """Return why this machine cannot run code safely, with a remedy for the user; "" if a jail works."""
    if kind():
        return ""
    seen = "; ".join(f"{one}: {problem(one)}" for one in KINDS)
    return (
        "mbpp runs code that the model writes, and this machine has no sandbox for the code: "
        f"{seen}. Use a machine with either sandbox, or --unsafe-rewards. Then only limits of time and memory apply: "
        "the code can read your keys and use the network"
    )


def words(kind: str, layers: Mapping[str, Any]) -> str:
    """Return a description of the layers that confine the processes of answers: see `kernel.Layers`."""
    if not kind:
        return "the code of mbpp's answers runs without a sandbox, with limits of time and memory only"
    held = [f"Landlock {layers['landlock']}" if layers["landlock"] else "bubblewrap", "the list of system calls"]
    held += [f"separate namespaces ({', '.join(layers['namespaces'])})"] if layers["namespaces"] else []
    held += ["a user other than root"] if layers["has_changed_user"] else []
    library = (
        ""
        if layers["reads_library"]
        else "; the user cannot read Python's library, so the sandbox loads the library in advance"
    )
    return f"the code of mbpp's answers is confined by {', '.join(held)}{library}"


def run(code: str, calls: Sequence[str], asserts: Sequence[str], jail: str, setup: str = "") -> list[Outcome]:
    """Run the setup and the code, then return one outcome per call and per assertion, in that order."""
    with contextlib.closing(Jail(jail)) as one:
        found = one.run_answer(code, calls, asserts, setup)
    return [*found.calls, *found.asserts]


class Jail:
    """Sandbox shared by the answers of several threads; each running answer has a starter of its own."""

    def __init__(self, kind: str, version: int = 0, wall_s: float = WALL_S) -> None:
        """Store the settings. kind: result of `kind()` ("" = resource limits only). version: see `problem`."""
        self.kind, self.version, self.wall_s = kind, version or kernel.abi(), wall_s
        self.free: queue.SimpleQueue[SandboxParent] = queue.SimpleQueue()

    def layers(self) -> dict[str, Any]:
        """Return the layers that confine the processes of an answer: see `kernel.Layers`. Raises SandboxError."""
        one = self._starter()
        self.free.put(one)
        return one.layers

    def run_answer(self, code: str, calls: Sequence[str], asserts: Sequence[str], setup: str) -> Verdicts:
        """Run the setup and the code of an answer, then evaluate each call and each assertion.

        Raises SandboxError if the machine cannot start a process for reasons unrelated to the answer.
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
        """Terminate all idle starters and their processes."""
        with contextlib.suppress(queue.Empty):
            while True:
                self.free.get_nowait().close()

    def _starter(self) -> "SandboxParent":
        """Return a running starter: an idle starter if available, else a new starter after at most TRIES attempts."""
        with contextlib.suppress(queue.Empty):
            while True:
                one = self.free.get_nowait()
                if one.child.poll() is None:
                    return one
                one.close()
        for _ in range(TRIES - 1):
            with contextlib.suppress(SandboxError):
                return SandboxParent(self.kind, self.version)
        return SandboxParent(self.kind, self.version)


def judged(
    starter: SandboxParent, until: float, code: str, calls: Sequence[str], asserts: Sequence[str], setup: str
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
    """Return the outcome of an expression in the answer process."""
    try:
        answer.write({"ask": call, "given": {}})
        return found(answer.read())
    except NoReply as error:
        return Outcome(error=str(error))


def found(said: Any) -> Outcome:
    """Return the outcome in a reply from an untrusted process, validated."""
    if isinstance(said, dict) and "value" in said:
        try:
            return Outcome(plain.read(said["value"]))
        except plain.NotPlainData as error:
            return Outcome(error=f"NotPlain: {error}")
    words = said.get("error") if isinstance(said, dict) else None
    return Outcome(error=words[:200] if isinstance(words, str) and words else "it wrote what is no answer")


def checked(starter: SandboxParent, answer: SandboxProcess, setup: str, asserts: Sequence[str]) -> list[Outcome]:
    """Return one outcome per assertion, from a check process that requests plain data from the answer process."""
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
    """Return a reply of the answer process for the check process: validated plain data or two short error texts."""
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
