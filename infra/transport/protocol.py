"""`Transport`, the protocol for commands and files on a machine, and `ThisMachine`, the local implementation.

`infra.transport.ssh.Ssh` implements the same protocol over SSH. A `Meter` counts the traffic of a connection, and may
limit the rate.
"""

import contextlib
import os
import shlex
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeVar

from infra.errors import SlipwayError
from infra.transport import streams
from infra.transport.streams import LOOPBACK, relay
from infra.units import size as in_words
from store import local_files

READ_BYTES = 8 << 20
# Default limit of a command's stdout, of a command's stderr, and of a file read as a whole.
LIMIT_BYTES = 16 << 20
TAIL_BYTES = 1 << 16  # kept end of the output of a long-running program
OPEN_S = 10.0  # timeout of each phase: TCP, banner, key exchange, authentication
TAIL_S = 1.0  # seconds from the end of a program to the end of the output
SILENT_S = 12.0  # a dead connection is detected within 15 s, including scheduling delays

HERE = "this machine"

# `sh -c` script to list the files matching the patterns $2 in the folder $1, with their sizes, up to $3 bytes. A
# transport without a shell recognizes this script and the log patterns by their exact text.
LIST = r"""cd -- "$1" 2>/dev/null || exit 0
for file in $2; do
    if [ -f "$file" ] && [ ! -L "$file" ]; then printf '%d %s\0' "$(wc -c < "$file")" "$file"; fi
done | head -c "$3"
exit 0"""
LOGS = "logs/*.log logs/*.times state/earlier/*.log"

T = TypeVar("T")


@dataclass(frozen=True)
class Result:
    exited: int  # negative: killed by signal
    stdout: str
    stderr: str


class TimedOut(SlipwayError):
    """The command exceeded its timeout and was killed with its process group, if reachable."""


class TooLarge(SlipwayError):
    """A file or the output of a command exceeds the caller's limit; the command was killed."""

    def __init__(self, where: str, what: str, limit_bytes: int) -> None:
        super().__init__(
            f"{where}: {what}: the output exceeded the limit of {in_words(limit_bytes)}; the rest was not read,"
            " and the command was ended"
        )


class Unreachable(SlipwayError):
    """The connection could not be opened, so no data was sent."""


class ConnectionLost(SlipwayError):
    """The connection broke after the command was sent: the command may have run, or may still run."""


class Silent(ConnectionLost):
    """The connection timed out (no keep-alive replies); do not retry at once."""


def end_with_stdin(words: Sequence[str]) -> list[str]:
    """Return shell words to run a program, and to terminate the program when stdin closes.

    The shell exits with the program's exit code.
    """
    script = """
exec 3<&0
"$@" </dev/null 3<&- & child=$!
{ while read -r _; do :; done <&3; kill $child; } >/dev/null 2>&1 & watch=$!
exec 3<&-
wait $child; code=$?
kill $watch 2>/dev/null  # later its number may be another program's
exit $code"""
    return ["sh", "-c", script, "sh", *words]


def retry_once(action: Callable[[], T]) -> T:
    """Run an action; retry once after `ConnectionLost`, not after `Silent`. The action must be safe to repeat."""
    try:
        return action()
    except Silent:
        raise
    except ConnectionLost:
        return action()


class Transport(Protocol):
    @property
    def python(self) -> str:
        """Return the interpreter for the agent: Python 3.9 or later."""

    @property
    def agent(self) -> str:
        """Return the module by which the agent is started, stopped and queried on the machine."""

    @property
    def shell_banner(self) -> bytes:
        """Return the beginning of the login shell's own output around the last command."""

    def run(
        self,
        words: Sequence[str],
        *,
        stdin: bytes | Iterable[bytes] | None = None,
        timeout_s: float,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        limit_bytes: int = LIMIT_BYTES,
    ) -> Result:
        """Run a program to the end, with `env` added to the machine's environment.

        Raises TimedOut, ConnectionLost or SlipwayError, and TooLarge if stdout or stderr exceeds `limit_bytes`.
        Exceptions of the `stdin` iterator propagate.
        """

    def put(self, content: bytes, path: str | Path, mode: int = 0o644) -> None:
        """Replace the file atomically and durably; create missing parent folders."""

    def get(self, path: str | Path, limit_bytes: int = LIMIT_BYTES) -> bytes:
        """Return the content of a regular file. Raises FileNotFoundError, TooLarge."""

    def read(self, path: str | Path, offset: int) -> bytes:
        """Return at most READ_BYTES of a regular file, from `offset`; empty at the end of the file.

        Raises FileNotFoundError.
        """

    def forward(self, local_port: int, remote_port: int) -> contextlib.AbstractContextManager[int]:
        """Forward the machine's `remote_port` to a local loopback port (0: any free port); yield the local port."""

    def run_in_background(
        self, words: Sequence[str], cwd: str | Path | None = None
    ) -> contextlib.AbstractContextManager[Callable[[], Result | None]]:
        """Run a program on the machine during the block; the program ends with the block or with the caller's process.

        Yields a function: None while the program runs, then the exit code and the end of the output.
        """

    def shell(self, words: Sequence[str] | None = None, cwd: str | Path | None = None) -> int:
        """Run a shell, or the program `words`, on the user's terminal and return the exit code."""


class ThisMachine:
    # The interpreter below the control environment, which may be rebuilt while the agent runs.
    python: str = getattr(sys, "_base_executable", sys.executable)
    agent: str = "infra.agent"
    shell_banner: bytes = b""

    def run(
        self,
        words: Sequence[str],
        *,
        stdin: bytes | Iterable[bytes] | None = None,
        timeout_s: float,
        cwd: str | Path | None = None,
        env: Mapping[str, str] | None = None,
        limit_bytes: int = LIMIT_BYTES,
    ) -> Result:
        with tempfile.TemporaryFile() as source:  # a file, since two pipes are read already
            if stdin is not None:
                source.writelines((stdin,) if isinstance(stdin, bytes) else stdin)
                source.seek(0)
            try:
                child = subprocess.Popen(
                    words,
                    stdin=source,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.PIPE,
                    cwd=cwd,
                    env={**os.environ, **(env or {})},
                    start_new_session=True,
                )
            except OSError as error:
                raise SlipwayError(f"{words[0]} cannot be run: {error}") from error
        out, err = streams.WholeStream(limit_bytes), streams.WholeStream(limit_bytes)
        try:
            code = streams.gather(child, out, err, timeout_s)
        except TimeoutError:
            raise TimedOut(f"{' '.join(words)}: no end after {timeout_s:g} s") from None
        except streams.SizeExceeded:
            raise TooLarge(HERE, shlex.join(words), limit_bytes) from None
        finally:
            _end(child)
        return Result(code, out.value().decode(errors="replace"), err.value().decode(errors="replace"))

    def put(self, content: bytes, path: str | Path, mode: int = 0o644) -> None:
        place = Path(path)
        place.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
        local_files.replace(place, content, mode)

    def get(self, path: str | Path, limit_bytes: int = LIMIT_BYTES) -> bytes:
        try:
            return streams.whole_file(path, limit_bytes)
        except streams.SizeExceeded:
            raise TooLarge(HERE, f"get {path}", limit_bytes) from None
        except streams.NotRegularFile as error:
            raise SlipwayError(f"{HERE}: get {path}: {error}") from None

    def read(self, path: str | Path, offset: int) -> bytes:
        try:
            with streams.opened(path) as file:
                file.seek(offset)
                return file.read(READ_BYTES)
        except streams.NotRegularFile as error:
            raise SlipwayError(f"{HERE}: read {path}: {error}") from None

    @contextlib.contextmanager
    def forward(self, local_port: int, remote_port: int) -> Iterator[int]:
        if local_port == remote_port:
            yield local_port
            return
        with relay(local_port, lambda: socket.create_connection((LOOPBACK, remote_port), timeout=OPEN_S)) as port:
            yield port

    @contextlib.contextmanager
    def run_in_background(
        self, words: Sequence[str], cwd: str | Path | None = None
    ) -> Iterator[Callable[[], Result | None]]:
        said = streams.StreamEnd(TAIL_BYTES)
        with subprocess.Popen(
            end_with_stdin(words),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            cwd=cwd,
            start_new_session=True,
        ) as child:
            assert child.stdout is not None
            reader = streams.start_draining(child.stdout, said)

            def look() -> Result | None:
                if child.poll() is None:
                    return None
                reader.join(TAIL_S)
                return Result(child.returncode, "", said.value().decode(errors="replace"))

            try:
                yield look
            finally:
                assert child.stdin is not None
                child.stdin.close()  # closing stdin ends the program
                child.wait()
                reader.join(TAIL_S)

    def shell(self, words: Sequence[str] | None = None, cwd: str | Path | None = None) -> int:
        return subprocess.run(words or [os.environ.get("SHELL") or "/bin/sh"], cwd=cwd).returncode


def _end(child: "subprocess.Popen[bytes]") -> None:
    """Kill the process group of a running program, and close the pipes."""
    if child.returncode is None:
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
    for pipe in (child.stdout, child.stderr):
        if pipe:
            pipe.close()


@dataclass
class Meter:
    """Counters of a transfer: moved bytes, interruptions, and the transfer methods used."""

    bytes_per_s: float | None = None
    num_bytes: int = 0
    interruptions: int = 0
    kept_bytes: int = 0
    """Bytes already on the receiving side, from an interrupted attempt or an older version."""
    ways: set[str] = field(default_factory=set)
    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], object] = time.sleep
    _free_at: float = 0.0
    _turn: threading.Lock = field(default_factory=threading.Lock)

    def count(self, num_bytes: int) -> None:
        """Add `num_bytes` to the count and sleep as long as the rate limit requires."""
        with self._turn:
            self.num_bytes += num_bytes
            if self.bytes_per_s is None:
                return
            now = self.now()
            self._free_at = max(self._free_at, now) + num_bytes / self.bytes_per_s
            wait_s = self._free_at - now
        if wait_s > 0:
            self.sleep(wait_s)
