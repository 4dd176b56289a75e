"""Channels of remote commands: stdin, framed output, exit code and termination.

A channel of `ssh_connection` carries the framed script and the pieces for stdin; the caller gets the output between the
marks, the exit code and the process id with which the command can be killed.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from infra.transport.framing import Frame, NoFrame, login_line, shown
from infra.transport.protocol import SILENT_S, TAIL_BYTES, ConnectionLost, Silent
from infra.transport.ssh_connection import Link, hush
from infra.transport.streams import CHUNK, KeptStream, StreamEnd

ENDED_S = 2.0  # seconds from the end of the output to the exit status
KILL_S = 2.0
BEGIN_S, TICK_S = 5.0, 0.1
# Kill the process group of shell $1. A shell started by a wrapper leads no group: kill the shell and all descendants
# instead.
KILL = """
kill -s KILL -- -$1 2>/dev/null && exit 0
all=$(ps -A -o pid= -o ppid= 2>/dev/null || ps -o pid,ppid)
found=$1; last=
while [ "$found" != "$last" ]; do
    last=$found
    found=$(echo "$all" | { while read -r one parent; do
        for known in $last; do [ "$parent" != "$known" ] && [ "$one" != "$known" ] || { echo $one; break; }; done
    done; })
done
[ -z "$found" ] || kill -s KILL $found
"""


class NoExitCode(Exception):
    """A command or the connection ended without an exit code."""


class Framed:
    """The two output streams of a command, between the marks."""

    def __init__(self, channel: Any, frame: Frame) -> None:
        self._channel = channel
        self.out, self.err = frame.stdout, frame.stderr

    @property
    def shell_banner(self) -> bytes:
        """Return the beginning of the login shell's own output, outside of the marks."""
        return self.out.shell_banner + self.err.shell_banner

    def receive_stderr(self, kept: KeptStream) -> None:
        """Read the available stderr into `kept`. Raises SizeExceeded, NoFrame."""
        while self._channel.recv_stderr_ready():
            if found := self.err.feed(self._channel.recv_stderr(CHUNK)):
                kept.add(found)

    def read_until_exit(self, out: KeptStream, err: KeptStream, deadline: float) -> None:
        """Collect stdout and stderr until the command ends. Raises TimeoutError, SizeExceeded, NoFrame."""
        channel, arrived = self._channel, _Wake()
        channel.in_buffer.set_event(arrived)
        channel.in_stderr_buffer.set_event(arrived)
        while True:
            arrived.forget()
            is_last = channel.eof_received or channel.closed  # checked before the read, to miss no data
            while channel.recv_ready():
                if found := self.out.feed(channel.recv(CHUNK)):
                    out.add(found)
            self.receive_stderr(err)
            # A wrapper may merge stderr into stdout; stderr then has no marks.
            if is_last or (self.out.is_over and self.err.is_over):
                break
            if not arrived.wait(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
        # sshd counts a session until its shell has exited, and would refuse the next command.
        wait_s = ENDED_S if self.out.is_over else max(0.0, deadline - time.monotonic())
        if not channel.status_event.wait(wait_s) and not self.out.is_over:
            raise TimeoutError

    @property
    def exit_code(self) -> int:
        """Return the exit code of the ended command. Raises NoExitCode without an exit code."""
        if self.out.exit_code is None:
            raise NoExitCode
        return self.out.exit_code

    def start_problem(self) -> str:
        """Return why the command did not start, or "" if the command may have run (lost connection, killed shell)."""
        if self.out.is_open or self._channel.exit_status < 0:
            return ""
        code = self._channel.exit_status
        return f"the login shell did not run the command (exit code {code}){says(self.shell_banner)}"


def says(talk: bytes) -> str:
    """Return the login shell's own output as the end of a sentence, or "" without output."""
    return f"; it printed: {shown(talk)}" if shown(talk) else ""


def begin(link: Link, channel: Any, frame: Frame, script: str, pieces: Iterable[bytes] = ()) -> Iterable[bytes]:
    """Start a script between the marks of the frame and return the pieces to send to stdin."""
    line = login_line(frame.wrap(script), frame.opening)
    link.send(channel, "exec", line.line)
    pieces = itertools.chain([line.head], pieces) if line.head else pieces
    return _after_begin(frame, channel, pieces) if pieces != () else ()


def _after_begin(frame: Frame, channel: Any, pieces: Iterable[bytes]) -> Iterator[bytes]:
    wait_for_begin(frame, channel)
    yield from pieces


def wait_for_begin(frame: Frame, channel: Any) -> None:
    """Wait until the script has begun: a start-up file of the login shell may read stdin.

    A wrapper may hold back the output until the command ends, so the wait ends after BEGIN_S.
    """
    deadline = time.monotonic() + BEGIN_S
    while not frame.has_begun.wait(TICK_S) and not channel.closed and time.monotonic() < deadline:
        pass


def kill(link: Link, process: int | None) -> None:
    """Kill the process group of a command if the machine still responds; do nothing for None."""
    if process is not None:
        line = login_line(f"set -- {process}\n{KILL}").line
        with contextlib.suppress(TimeoutError, *connection_loss_errors()), link.open_session(KILL_S) as channel:
            link.send(channel, "exec", line)
            channel.status_event.wait(KILL_S)


def loss_error(link: Link, where: str, name: str, why: str) -> ConnectionLost:
    """Return the error for a command whose connection broke after sending: Silent or Lost."""
    return (Silent if link.is_silent else ConnectionLost)(
        f"{where}: {name}: {silence(link) or why}; the command was sent and may have run, or may"
        " still run: check before you repeat the command"
    )


def silence(link: Link) -> str:
    """Return a message about missing signs of life, or "" for a responsive link."""
    return f"no sign of life for {SILENT_S:g} s" if link.is_silent else ""


def connection_loss_errors() -> tuple[type[BaseException], ...]:
    """Return paramiko's exception types for a lost connection."""
    from paramiko import SSHException

    return SSHException, EOFError, OSError


class Duplex:
    """The stdin and stdout of a remote program."""

    def __init__(self, channel: Any, frame: Frame) -> None:
        self._channel, self._frame = channel, frame
        self._framed = Framed(channel, frame)
        self.shutdown_write = channel.shutdown_write

    def recv(self, num_bytes: int) -> bytes:
        """Return up to `num_bytes` received bytes; b"" at the end of the output or of the connection."""
        found = b""
        try:
            while not found and not self._framed.out.is_over and (piece := self._channel.recv(num_bytes)):
                found = self._framed.out.feed(bytes(piece))
        except NoFrame:
            return b""
        except connection_loss_errors():  # recv also sends a window update, which fails on a lost connection
            return b""
        return found

    def sendall(self, piece: bytes) -> None:
        """Send all bytes; a different thread receives. Raises BrokenPipeError when connection or channel is closed."""
        wait_for_begin(self._frame, self._channel)
        try:
            self._channel.sendall(piece)
        except connection_loss_errors() as error:
            raise BrokenPipeError(str(error)) from None

    def shutdown(self) -> None:
        """Wake all readers and writers of the channel, and block further traffic."""
        hush(self._channel)

    def has_ended(self) -> bool:
        """Return whether the program exited by itself; waits up to ENDED_S for the exit status."""
        return self._framed.out.is_over or bool(
            self._channel.status_event.wait(ENDED_S) and self._channel.exit_status >= 0
        )

    def stderr(self) -> str:
        """Return the end of the received stderr, or the reason why the command did not start."""
        said = StreamEnd(TAIL_BYTES)
        with contextlib.suppress(NoFrame):
            self._framed.receive_stderr(said)
        return said.value().decode(errors="replace") or self._framed.start_problem()


class StdinWriter:
    """Writer thread for the stdin of a channel, parallel to the reader of the output."""

    def __init__(self, channel: Any) -> None:
        self.error: BaseException | None = None
        self._channel = channel
        self._thread: threading.Thread | None = None

    def start(self, pieces: Iterable[bytes]) -> None:
        """Start the thread, or close stdin at once when no pieces are given."""
        if pieces == ():
            self._channel.shutdown_write()
            return
        self._thread = threading.Thread(target=self._feed, args=(iter(pieces),), daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Join the thread; call `hush` on the channel first."""
        if self._thread is not None:
            self._thread.join()

    def _feed(self, pieces: Iterator[bytes]) -> None:
        while True:
            try:
                piece = next(pieces, None)
            except Exception as error:  # raised later by the caller that runs the command
                self.error = error
                hush(self._channel)
                return
            try:
                if piece is None:
                    self._channel.shutdown_write()
                    return
                self._channel.sendall(piece)
            except connection_loss_errors():  # unread input or a lost connection; the exit code tells which
                return


class _Wake(threading.Event):
    """An event set by paramiko on arriving data and cleared by this module only.

    The pipe behind `channel.fileno()` loses wake-ups when stdout and stderr arrive at the same time.
    """

    def clear(self) -> None:
        pass

    forget = threading.Event.clear
