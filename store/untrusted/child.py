"""The child process that handles untrusted input within limits, one question at a time.

The parent names a module that calls `limited.answer_all`, an initial message and questions; questions and answers are
bytes. The child has limits on memory, CPU time per question and file size, gets no secrets, and exits with its parent.
A failure raises ChildFailed with the reason from the child or the exit status. If the failure ended the child, the next
question starts a new child.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from store.untrusted import limited

ROOT = Path(__file__).parents[2]
KNOWN = ("PATH", "HOME", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONPATH", "VIRTUAL_ENV", "TMPDIR")
# One thread per library, since threads multiply the CPU time of a question.
THREADS = {"OMP_NUM_THREADS": "1", "RAYON_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}


class ChildFailed(Exception):
    """A failed question; the message gives the reason as a predicate, and the caller adds the subject."""


@dataclass(frozen=True, kw_only=True)
class ChildLimits:
    """The resource limits of a child."""

    room_bytes: int = 256 << 20
    """Memory in addition to the memory used by imports."""
    cpu_s: float = 2.0
    """CPU time per question in seconds."""
    answer_s: float = 8.0
    """Wall time per question in seconds, generous for a busy machine."""
    start_s: float = 60.0
    """Wall time for the imports in seconds."""
    answer_bytes: int = 16 << 20


class LimitedChild:
    """A child process, started by the first question. Thread-safe; a forked process starts a new child."""

    def __init__(self, module: str, words: Sequence[str], first: bytes, limits: ChildLimits) -> None:
        """Store the command without starting the child. first: the initial question for each new child."""
        self.module, self.words, self.first, self.limits = module, list(words), first, limits
        self._process: subprocess.Popen[bytes] | None = None
        self._owner = 0
        self._lock = threading.Lock()

    def ask(self, question: bytes) -> bytes:
        """Return the answer to a question. Raise ChildFailed."""
        with self._lock:
            process = self._running_process()
            try:
                return self._answer(process, question, self.limits.answer_s)
            except ChildFailed:
                if process.poll() is not None:
                    self._process = None
                raise

    def _running_process(self) -> "subprocess.Popen[bytes]":
        """Return the running child of this process, started if necessary. Raise ChildFailed."""
        if self._process is not None and self._owner == os.getpid():
            return self._process
        limits = self.limits
        command = [sys.executable, "-m", self.module, str(limits.room_bytes), str(limits.cpu_s), *self.words]
        environ = {name: os.environ[name] for name in KNOWN if name in os.environ} | THREADS
        process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=ROOT,
            env=environ,
            start_new_session=True,
        )
        weakref.finalize(self, _end, process, os.getpid())
        self._process, self._owner = process, os.getpid()
        try:
            self._answer(process, self.first, limits.start_s)
        except ChildFailed:
            _end(process, os.getpid())
            self._process = None
            raise
        return process

    def _answer(self, process: "subprocess.Popen[bytes]", question: bytes, limit_s: float) -> bytes:
        until = time.monotonic() + limit_s
        try:
            _send(process, limited.framed(question), until)
            size = int.from_bytes(_received(process, limited.HEAD_BYTES, until), "big")
            if size > self.limits.answer_bytes:
                raise ChildFailed(f"returns more than {self.limits.answer_bytes >> 20} MiB")
            answer = _received(process, size, until)
        except TimeoutError:
            _end(process, os.getpid())
            raise ChildFailed(f"is not done in {limit_s:g} s") from None
        except (OSError, EOFError):
            _end(process, os.getpid())
            raise ChildFailed(self._ended(process.returncode)) from None
        except ChildFailed:
            _end(process, os.getpid())
            raise
        if answer[:1] == limited.GOOD:
            return answer[1:]
        if answer[:1] == limited.LAST:
            _end(process, os.getpid())
        raise ChildFailed(answer[1:].decode("utf-8", "replace"))

    def _ended(self, code: int) -> str:
        if code == -signal.SIGPROF:
            return f"uses more than {self.limits.cpu_s:g} s of CPU time"
        if code in (-signal.SIGKILL, -signal.SIGABRT):
            return f"ended its process ({signal.Signals(-code).name}; out of memory?)"
        return f"ended its process with {code}"


def _end(process: "subprocess.Popen[bytes]", owner: int) -> None:
    """Kill the process group of a child, but only from the process that started the child."""
    if os.getpid() != owner:
        return
    if process.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for pipe in (process.stdin, process.stdout):
        assert pipe is not None
        with contextlib.suppress(OSError):  # unread input of the child
            pipe.close()


def _send(process: "subprocess.Popen[bytes]", words: bytes, until: float) -> None:
    assert process.stdin is not None
    pipe, rest = process.stdin.fileno(), memoryview(words)
    os.set_blocking(pipe, False)
    while rest:
        if not select.select([], [pipe], [], max(0.0, until - time.monotonic()))[1]:
            raise TimeoutError
        rest = rest[os.write(pipe, rest) :]


def _received(process: "subprocess.Popen[bytes]", count: int, until: float) -> bytes:
    assert process.stdout is not None
    pipe, parts = process.stdout.fileno(), list[bytes]()
    while count:
        if not select.select([pipe], [], [], max(0.0, until - time.monotonic()))[0]:
            raise TimeoutError
        part = os.read(pipe, min(count, 1 << 20))
        if not part:
            process.wait()
            raise EOFError
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
