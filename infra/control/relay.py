"""The control host's end of a command: it runs there as if it ran on the terminal of whoever typed it.

In: frames on stdin (`infra.control.frames`), the first of which says what is run, in which folder, and which of its
three streams are a terminal over there. Out: frames on stdout: what the command says, its exit code, and a copy of the
journal where it has changed. Streams that are a terminal there are one here, too, with its size; the others are pipes.

Whoever typed it may vanish: when nothing is heard for GONE_S, or the connection ends, the command gets SIGHUP, as from
a terminal that is closed, and is waited for. A launch then leaves a keeper behind; nothing is ended.
"""

import contextlib
import errno
import fcntl
import json
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from infra.control import frames
from infra.control.frames import COPY, END, ERR, GONE, INPUT, OUT, OVER, SIGNAL, SIZE, frame, told

GONE_S = 20.0
DRAIN_S = 0.2
HELD_BYTES = 1 << 18  # bytes that wait to be sent before reading from the command pauses
SIGNALS = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT}


@dataclass
class Relay:
    """One command. `line_of` makes the command's words, folder and variables of what BEGIN says."""

    line_of: Callable[[dict[str, Any]], tuple[list[str], str, dict[str, str]]]
    copy_of: Callable[[], tuple[str, str]]  # the archive and its digest
    look_after: Callable[[], None]  # exit code of a command whose terminal has vanished
    source: int = 0
    sink: int = 1
    heard_at: float = field(default_factory=time.monotonic)
    is_gone: bool = False
    out: bytearray = field(default_factory=bytearray)  # frames that wait to be sent
    input: bytearray = field(default_factory=bytearray)  # bytes that wait to be read by the command
    has_ended_input: bool = False
    reader: frames.Reader = field(default_factory=frames.Reader)
    waiting: list[tuple[bytes, bytes]] = field(default_factory=list)  # frames that arrived with the first one

    def run(self) -> int:
        """Return the exit code of the command."""
        os.set_blocking(self.source, False)
        os.set_blocking(self.sink, False)
        signal.signal(signal.SIGPIPE, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)  # from sshd: the command is told by us
        about = self._begin()
        if about is None:
            return 1
        try:
            words, folder, environ = self.line_of(about)
            child, ends = _start(words, folder, environ, about["tty"], about["size"])
        except OSError as error:
            self._over(1, "", f"on the control host the command cannot be run: {error}")
            return 1
        self._serve(child, ends)
        code = child.returncode if child.returncode >= 0 else 128 - child.returncode
        digest, problem = "", ""
        if self.is_gone:
            self.look_after()
        else:
            try:
                archive, digest = self.copy_of()
                if digest != about["holds"]:
                    text = archive.encode()
                    for at in range(0, len(text), frames.CHUNK):
                        self._send(frame(COPY, text[at : at + frames.CHUNK]))
            except Exception as error:  # the command has ended well, and its exit code must arrive
                problem = f"{type(error).__name__}: {error}"
            self._over(code, digest, problem)
        return code

    def _begin(self) -> dict[str, Any] | None:
        while not self.is_gone:
            arrived = self._hear(1.0)
            if arrived:
                (_, content), *self.waiting = arrived
                return dict(json.loads(content))
        return None

    def _over(self, code: int, digest: str, problem: str) -> None:
        self._send(told(OVER, {"code": code, "digest": digest, "problem": problem}))
        deadline = time.monotonic() + GONE_S
        while self.out and not self.is_gone and time.monotonic() < deadline:
            select.select([], [self.sink], [], 1.0)
            self._flush()

    def _serve(self, child: "subprocess.Popen[bytes]", ends: "_Ends") -> None:
        """Pass on whatever arrives, until the command has ended and all that it said is on its way."""
        ended_at = 0.0
        for kind, content in self.waiting:
            self._do(kind, content, child, ends)
        while True:
            if not ended_at and child.poll() is not None:
                ended_at = time.monotonic()
            sources = list(ends.sources) if len(self.out) < HELD_BYTES or self.is_gone else []
            if ended_at and (not ends.sources or time.monotonic() > ended_at + GONE_S):
                return
            reads = [*sources, *([] if self.is_gone else [self.source])]
            writes = [self.sink] if self.out and not self.is_gone else []
            writes += [ends.input] if self.input and ends.input is not None else []
            ready, writable, _ = select.select(reads, writes, [], 0.02 if ended_at else 0.1)
            for one in sources:
                if one in ready:
                    piece = _read(one)
                    if piece:
                        self._send(frame(ends.sources[one], piece))
                    else:
                        ends.close(one)
                elif ended_at and len(self.out) < HELD_BYTES and time.monotonic() > ended_at + DRAIN_S:
                    ends.close(one)  # its children have it, too, and say nothing
            if self.source in ready:
                for kind, content in self._hear(0.0):
                    self._do(kind, content, child, ends)
            if ends.input in writable:
                self._feed(ends)
            if self.sink in writable:
                self._flush()
            was_gone, self.is_gone = self.is_gone, self.is_gone or time.monotonic() > self.heard_at + GONE_S
            if self.is_gone:
                self.out.clear()
                if not was_gone or not ends.was_told:
                    ends.was_told = True
                    _signal(child, signal.SIGHUP)

    def _do(self, kind: bytes, content: bytes, child: "subprocess.Popen[bytes]", ends: "_Ends") -> None:
        if kind == INPUT:
            self.input += content
            self._feed(ends)
        elif kind == END:
            self.has_ended_input = True
            self._feed(ends)
        elif kind == SIGNAL and int(content) in SIGNALS:
            _signal(child, int(content))
        elif kind == SIZE and ends.terminal is not None:
            _resize(ends.terminal, *json.loads(content))
            _signal(child, signal.SIGWINCH)  # not every kernel tells it by itself
        elif kind == GONE:
            for one in [one for one, name in ends.sources.items() if name == content and one != ends.terminal]:
                ends.close(one)

    def _feed(self, ends: "_Ends") -> None:
        if ends.input is None:
            self.input.clear()
            return
        try:
            while self.input:
                del self.input[: os.write(ends.input, self.input)]
        except BlockingIOError:
            return
        except OSError:  # it does not read any more
            self.input.clear()
            ends.close_input()
            return
        if self.has_ended_input and ends.input != ends.terminal:
            ends.close_input()

    def _hear(self, wait_s: float) -> list[tuple[bytes, bytes]]:
        if wait_s:
            select.select([self.source], [], [], wait_s)
        try:
            piece = os.read(self.source, 1 << 16)
        except BlockingIOError:
            self.is_gone = self.is_gone or time.monotonic() > self.heard_at + GONE_S
            return []
        except OSError:
            piece = b""
        self.heard_at = time.monotonic()
        self.is_gone = self.is_gone or not piece
        return list(self.reader.feed(piece))

    def _send(self, content: bytes) -> None:
        if not self.is_gone:
            self.out += content
            self._flush()

    def _flush(self) -> None:
        try:
            while self.out:
                del self.out[: os.write(self.sink, self.out)]
        except BlockingIOError:
            return
        except OSError:
            self.is_gone = True


@dataclass
class _Ends:
    """Our ends of the command's streams."""

    sources: dict[int, bytes]  # descriptors with its output, and the kind of frame for each
    input: int | None
    terminal: int | None
    was_told: bool = False

    def close(self, one: int) -> None:
        del self.sources[one]
        if one != self.terminal:
            os.close(one)

    def close_input(self) -> None:
        if self.input is not None and self.input != self.terminal:
            os.close(self.input)
        self.input = None


def _start(
    words: list[str], folder: str, environ: dict[str, str], tty: list[bool], size: list[int]
) -> "tuple[subprocess.Popen[bytes], _Ends]":
    """Start a command in a session of its own, with a terminal for those of its streams that are to be one."""
    terminal = inside = None
    if any(tty):
        terminal, inside = pty.openpty()
        _resize(terminal, *size)
        _prepare(inside, echo=tty[1] or tty[2])

    def begin() -> None:  # in the child, before it becomes the command
        os.setsid()
        for number in (signal.SIGHUP, signal.SIGPIPE):  # signals that we ignore are not ignored by the command
            signal.signal(number, signal.SIG_DFL)
        if inside is not None:
            fcntl.ioctl(inside, termios.TIOCSCTTY, 0)

    pipes: list[Any] = [inside if one else subprocess.PIPE for one in tty]
    child = subprocess.Popen(
        words, cwd=folder, env=environ, stdin=pipes[0], stdout=pipes[1], stderr=pipes[2], preexec_fn=begin
    )
    if inside is not None:
        os.close(inside)
    sources = {}
    for pipe, kind in ((child.stdout, OUT), (child.stderr, ERR)):
        if pipe is not None:
            sources[_own(pipe)] = kind
    if terminal is not None:
        os.set_blocking(terminal, False)
        sources[terminal] = OUT if tty[1] else ERR
    entrance = terminal if tty[0] else _own(child.stdin)
    return child, _Ends(sources, entrance, terminal)


def _own(pipe: Any) -> int:
    """Return a descriptor of ours for a pipe of Popen's, which is closed."""
    number = os.dup(pipe.fileno())
    pipe.close()
    os.set_blocking(number, False)
    return number


def _prepare(inside: int, echo: bool) -> None:
    """Leave out the key that stops a program: nobody over there could wake it up again."""
    found = termios.tcgetattr(inside)
    found[6][termios.VSUSP] = os.fpathconf(inside, "PC_VDISABLE").to_bytes(1, sys.byteorder)
    if not echo:
        found[3] &= ~termios.ECHO
    termios.tcsetattr(inside, termios.TCSANOW, found)


def _resize(terminal: int, rows: int, columns: int) -> None:
    with contextlib.suppress(OSError):  # the command has ended: its terminal is closed
        fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))


def _read(source: int) -> bytes:
    """Return the available bytes, b"" at the end: a terminal ends with an error."""
    try:
        return os.read(source, frames.CHUNK)
    except OSError as error:
        if error.errno in (errno.EAGAIN, errno.EINTR):
            raise
        return b""


def _signal(child: "subprocess.Popen[bytes]", number: int) -> None:
    """Signal the command with its process group."""
    if child.poll() is None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, number)
