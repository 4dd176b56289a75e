"""Sandbox processes from the trainer's side: the starter process, and the processes forked by the starter.

The trainer sends requests and reads JSON values from the processes until a deadline. See `sandbox.start` for the code
inside the sandbox.
"""

import contextlib
import json
import os
import platform
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from trainer.errors import SandboxError
from trainer.rewards.sandbox import start, system_calls

START_S = 60.0
MEMORY_BYTES = 1 << 30
LINE_BYTES, OUT_BYTES, WORDS_BYTES = 1 << 20, 4 << 20, 1 << 12
START = Path(start.__file__)


class NoReply(Exception):
    """A sandbox process exited, wrote an invalid reply, or missed the deadline."""


class SandboxParent:
    """Parent process of the sandbox processes: see `sandbox.start`."""

    def __init__(self, jail: str, version: int) -> None:
        """Start the starter process inside the jail. Raises SandboxError."""
        self.requests, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.requests.settimeout(START_S)
        inside = [sys.executable, "-I", "-S", str(START), jail or "none", str(version), str(MEMORY_BYTES)]
        with theirs, _around(jail) as (words, descriptors):
            self.child = subprocess.Popen(
                [*words, *inside, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                env={},
                cwd="/",
                start_new_session=True,
                pass_fds=(theirs.fileno(), *descriptors),
            )
        try:
            self.layers: dict[str, Any] = json.loads(self._read_reply())
        except (ValueError, SandboxError) as error:
            self.close()
            raise SandboxError(f"the sandbox of code ({jail}) does not start: {error}") from None
        if "error" in self.layers:
            self.close()
            raise SandboxError(f"the sandbox of code ({jail}) does not start: {self.layers['error']}")

    def start(self, role: str) -> tuple[int, int, int]:
        """Return the PID of a new process, the write end of the question pipe and the read end of the answer pipe.

        Raises SandboxError.
        """
        (their_questions, questions), (answers, their_answers) = os.pipe(), os.pipe()
        try:
            socket.send_fds(self.requests, [f"start {role}".encode()], [their_questions, their_answers])
            return int(self._read_reply()), questions, answers
        except (OSError, ValueError, SandboxError) as error:
            os.close(questions)
            os.close(answers)
            raise SandboxError(f"the sandbox of code did not start a process: {error}") from None
        finally:
            os.close(their_questions)
            os.close(their_answers)

    def kill(self, process: int) -> None:
        """Kill a process. Raises SandboxError."""
        try:
            self.requests.send(f"end {process}".encode())
        except OSError as error:
            raise SandboxError(f"the sandbox of code has exited: {error}") from None
        self._read_reply()

    def close(self) -> None:
        """Kill the starter and every process in the starter's process group."""
        self.requests.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.child.pid, signal.SIGKILL)
        self.child.wait()

    def _read_reply(self) -> bytes:
        try:
            found = self.requests.recv(WORDS_BYTES)
        except OSError as error:
            raise SandboxError(str(error)) from None
        if not found:
            raise SandboxError("it ended")
        return found


class SandboxProcess:
    """Sandbox process with a deadline: reads JSON lines and replies with JSON lines."""

    def __init__(self, starter: SandboxParent, role: str, until: float) -> None:
        self.starter, self.until, self.rest, self.heard = starter, until, b"", 0
        self.process, self.questions, self.answers = starter.start(role)
        os.set_blocking(self.questions, False)

    def write(self, value: Any) -> None:
        """Write a value as a JSON line. Raises NoReply."""
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
        """Kill the process with all threads, and close both pipes."""
        os.close(self.questions)
        os.close(self.answers)
        self.starter.kill(self.process)

    def _wait(self, descriptor: int, event: int) -> None:
        waiting = select.poll()
        waiting.register(descriptor, event)
        if not waiting.poll(max(0.0, self.until - time.monotonic()) * 1000):
            raise NoReply("no end in time")


@contextlib.contextmanager
def _around(jail: str) -> Iterator[tuple[list[str], list[int]]]:
    """Yield the bubblewrap command prefix and the descriptors for bubblewrap; both empty for other jails."""
    if jail != "bubblewrap":
        yield [], []
        return
    with tempfile.TemporaryFile() as file:
        file.write(system_calls.starter(platform.machine()))
        file.seek(0)
        yield _bubblewrap(file.fileno()), [file.fileno()]


def _bubblewrap(list_of_calls: int) -> list[str]:
    """Return the bubblewrap command: namespaces, read-only mounts of the library, and the starter's seccomp program."""
    words = [
        shutil.which("bwrap") or "bwrap",
        "--unshare-pid",
        "--unshare-net",
        "--unshare-ipc",
        "--unshare-uts",
        "--unshare-cgroup-try",
    ]
    words += ["--new-session", "--clearenv", "--cap-drop", "ALL", "--seccomp", str(list_of_calls)]
    if os.geteuid() == 0:  # the starter needs these to change the user, then drops them
        words += [word for one in ("SETUID", "SETGID", "SETPCAP") for word in ("--cap-add", f"CAP_{one}")]
    else:
        words += ["--unshare-user"]
    words += ["--size", str(16 << 20), "--tmpfs", "/tmp", "--dev-bind", "/dev/null", "/dev/null"]
    folders = dict.fromkeys([sys.base_prefix, str(Path(sys.executable).parent), "/usr", "/lib", "/lib64"])
    house = START.parents[2]
    for path in (*folders, str(house / "__init__.py"), str(START.parents[1] / "__init__.py"), str(START.parent)):
        words += ["--ro-bind-try", path, path]
    return [*words, "--remount-ro", "/"]
