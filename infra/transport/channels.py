"""The channels of commands on another machine: what goes to a command, and what comes from it between the marks.

In: a channel of `ssh_connection`, the frame of the command, and pieces for its stdin. Out: its output, its exit code,
and the number of its process, by which it can be ended.
"""

import contextlib
import itertools
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

from infra.transport.protocol import SILENT_S, TAIL_BYTES, Lost, Silent
from infra.transport.ssh_connection import Link, hush
from infra.transport.streams.bounded import CHUNK, KeptStream, StreamEnd
from infra.transport.streams.framing import Frame, NoFrame, login_line, shown

ENDED_S = 2.0  # time from the end of a program's output to the news of its exit
KILL_S = 2.0
# End the process group of a shell, $1. Where a wrapper has started the shell, that leads no group: then the shell and
# what it has started.
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


class NoEnd(Exception):
    """A command has ended, or its connection, without a word of its end."""


class Framed:
    """The two output streams of one command, between their marks."""

    def __init__(self, channel: Any, frame: Frame) -> None:
        self._channel = channel
        self.out, self.err = frame.stdout, frame.stderr

    @property
    def talk(self) -> bytes:
        """Return the beginning of what the shell has printed by itself."""
        return self.out.talk + self.err.talk

    def receive_stderr(self, kept: KeptStream) -> None:
        """Take what there is on stderr. Raises Exceeded, NoFrame."""
        while self._channel.recv_stderr_ready():
            if found := self.err.feed(self._channel.recv_stderr(CHUNK)):
                kept.add(found)

    def listen(self, out: KeptStream, err: KeptStream, deadline: float) -> None:
        """Gather stdout and stderr until the command has ended. Raises TimeoutError, Exceeded, NoFrame."""
        channel, arrived = self._channel, _Wake()
        channel.in_buffer.set_event(arrived)
        channel.in_stderr_buffer.set_event(arrived)
        while True:
            arrived.forget()
            is_last = channel.eof_received or channel.closed  # asked before reading: what came before it is there
            while channel.recv_ready():
                if found := self.out.feed(channel.recv(CHUNK)):
                    out.add(found)
            self.receive_stderr(err)
            # Where a wrapper has joined stderr with stdout, stderr has no marks.
            if is_last or (self.out.is_over and self.err.is_over):
                break
            if not arrived.wait(max(0.0, deadline - time.monotonic())):
                raise TimeoutError
        # sshd counts a session until its shell has ended: the next command would be refused.
        wait_s = ENDED_S if self.out.is_over else max(0.0, deadline - time.monotonic())
        if not channel.status_event.wait(wait_s) and not self.out.is_over:
            raise TimeoutError

    @property
    def code(self) -> int:
        """Return the exit code of the command that has ended. Raises NoEnd."""
        if self.out.code is None:
            raise NoEnd
        return self.out.code

    def why_not(self) -> str:
        """Return why nothing of a command has run, "" where it may have run: the connection broke, or it was killed."""
        if self.out.is_open or self._channel.exit_status < 0:
            return ""
        return f"its login shell did not run it (exit code {self._channel.exit_status}){says(self.talk)}"


def says(talk: bytes) -> str:
    """Return what a shell has printed by itself, as the end of a sentence."""
    return f"; it printed: {shown(talk)}" if shown(talk) else ""


def begin(link: Link, channel: Any, frame: Frame, script: str, pieces: Iterable[bytes] = ()) -> Iterable[bytes]:
    """Begin a script between the marks of the frame; return what its stdin is to be sent."""
    line = login_line(frame.around(script))
    link.send(channel, "exec", line.line)
    return itertools.chain([line.head], pieces) if line.head else pieces


def kill(link: Link, process: int | None) -> None:
    """End the process group of a command, if its machine still listens."""
    if process is not None:
        line = login_line(f"set -- {process}\n{KILL}").line
        with contextlib.suppress(TimeoutError, *broken()), link.session(KILL_S) as channel:
            link.send(channel, "exec", line)
            channel.status_event.wait(KILL_S)


def lost(link: Link, where: str, name: str, why: str) -> Lost:
    """Return the error of a command whose connection broke after it was sent."""
    return (Silent if link.silent else Lost)(
        f"{where}: {name}: {silence(link) or why}; it was sent and may have run, or may still be"
        " running: check before you repeat it"
    )


def silence(link: Link) -> str:
    """Return that the machine gives no sign of life, "" where it does."""
    return f"no sign of life for {SILENT_S:g} s" if link.silent else ""


def broken() -> tuple[type[BaseException], ...]:
    """Return the errors of paramiko when a connection is gone."""
    from paramiko import SSHException

    return SSHException, EOFError, OSError


class Duplex:
    """The stdin and stdout of a program on another machine."""

    def __init__(self, channel: Any, frame: Frame) -> None:
        self._channel = channel
        self._framed = Framed(channel, frame)
        self.shutdown_write = channel.shutdown_write

    def recv(self, num_bytes: int) -> bytes:
        """Return received bytes; b"" at the end, also when that is the end of the connection."""
        found = b""
        try:
            while not found and not self._framed.out.is_over and (piece := self._channel.recv(num_bytes)):
                found = self._framed.out.feed(bytes(piece))
        except NoFrame:
            return b""
        except broken():  # it tells the machine that there is room again
            return b""
        return found

    def sendall(self, piece: bytes) -> None:
        """Send it all. Raises OSError when nobody takes it."""
        try:
            self._channel.sendall(piece)
        except broken() as error:
            raise BrokenPipeError(str(error)) from None

    def hush(self) -> None:
        """Wake whoever reads from it or writes to it; nothing more goes through."""
        hush(self._channel)

    def has_ended(self) -> bool:
        """Return whether the program has left by itself, as far as the machine has said so within a moment."""
        return self._framed.out.is_over or bool(
            self._channel.status_event.wait(ENDED_S) and self._channel.exit_status >= 0
        )

    def stderr(self) -> str:
        """Return the end of the received stderr."""
        said = StreamEnd(TAIL_BYTES)
        with contextlib.suppress(NoFrame):
            self._framed.receive_stderr(said)
        return said.value().decode(errors="replace") or self._framed.why_not()


class Feeder:
    """A writer of a channel's stdin while its output is read; then it ends it."""

    def __init__(self, channel: Any, pieces: Iterable[bytes]) -> None:
        self.error: BaseException | None = None
        self._channel = channel
        self._pieces = pieces
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to write."""
        if self._pieces == ():
            self._channel.shutdown_write()
            return
        self._thread = threading.Thread(target=self._feed, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Wait for the writer, whose channel was hushed."""
        if self._thread is not None:
            self._thread.join()

    def _feed(self) -> None:
        pieces: Iterator[bytes] = iter(self._pieces)
        while True:
            try:
                piece = next(pieces, None)
            except Exception as error:  # an error of the producer: it is raised where the command was run
                self.error = error
                hush(self._channel)
                return
            try:
                if piece is None:
                    self._channel.shutdown_write()
                    return
                self._channel.sendall(piece)
            except broken():  # the command left without reading all, or the connection is gone: its exit code tells
                return


class _Wake(threading.Event):
    """An event set by paramiko when anything arrives, cleared by us alone.

    The pipe behind `channel.fileno()` loses wake-ups when stdout and stderr arrive at once.
    """

    def clear(self) -> None:
        pass

    forget = threading.Event.clear
