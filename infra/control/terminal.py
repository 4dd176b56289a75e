"""The near end of a command on a control host: it lends its streams, its terminal and its signals to the command there.

In: an exchange with `infra.control.relay`. Out: the command's exit code, and a copy of the journal where it changed.
"""

import contextlib
import fcntl
import os
import queue
import select
import signal
import struct
import termios
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Any

from infra.control import frames
from infra.control.archive import MOST_TEXT
from infra.control.frames import BEGIN, COPY, END, ERR, GONE, INPUT, OUT, OVER, PING, SIGNAL, SIZE, frame, told
from infra.errors import SlipwayError
from infra.transport.protocol import Lost
from infra.transport.ssh import Conversation
from infra.units import size as size_of
from store import outside

PASSED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
LOOK_S = 0.2
SIZE_BEFORE = (24, 80)
MOST_PROBLEM = 1000  # letters of a reason
CHECK = "see: ./inv status"


@dataclass(frozen=True)
class RemoteOutcome:
    code: int
    archive: str  # the copy of the journal; "" = it is as it was
    digest: str  # digest of that; "" = none could be made
    problem: str  # reason why it has none


def tty() -> list[bool]:
    """Return which of our three streams are a terminal that we may use: another job may have it in front of us."""
    found = [os.isatty(number) for number in (0, 1, 2)]
    if found[0]:
        with contextlib.suppress(OSError):  # a terminal that is not ours to control: it can be read all the same
            found[0] = os.tcgetpgrp(0) == os.getpgrp()
    return found


def size(streams: list[bool]) -> tuple[int, int]:
    """Return rows and columns of the terminal."""
    for number, is_tty in ((1, streams[1]), (2, streams[2]), (0, streams[0])):
        if is_tty:
            with contextlib.suppress(OSError):  # it has no size: the next stream, or the default
                rows, columns, *_ = struct.unpack("HHHH", fcntl.ioctl(number, termios.TIOCGWINSZ, bytes(8)))
                if rows and columns:
                    return rows, columns
    return SIZE_BEFORE


def lend(exchange: Conversation, about: dict[str, Any]) -> RemoteOutcome:
    """Run the command that `about` says on these streams, to its end. Raises Lost; SlipwayError: it did not begin."""
    streams = tty()
    outbox: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
    outbox.put(told(BEGIN, {**about, "tty": streams, "size": size(streams)}))
    over = threading.Event()
    threads = [
        threading.Thread(target=_send, args=(exchange, outbox), daemon=True),
        threading.Thread(target=_read_input, args=(outbox, over, streams[0]), daemon=True),
    ]
    try:
        with _signals(outbox, streams), _raw(streams):
            for thread in threads:
                thread.start()
            return _listen(exchange, outbox)
    finally:
        over.set()
        outbox.put(None)


def _listen(exchange: Conversation, outbox: "queue.SimpleQueue[bytes | None]") -> RemoteOutcome:
    reader, copy = frames.Reader(), bytearray()
    gone: set[bytes] = set()
    while piece := exchange.receive():
        try:
            arrived = list(reader.feed(piece))
        except ValueError as error:
            raise SlipwayError(f"the control host sent what this version of Slipway cannot read: {error}") from None
        for kind, content in arrived:
            if kind in (OUT, ERR) and kind not in gone:
                try:
                    _write(1 if kind == OUT else 2, content)
                except OSError:  # nobody reads our output: the command is told, as it would be here
                    gone.add(kind)
                    outbox.put(frame(GONE, kind))
            elif kind == COPY:
                copy += content
                if len(copy) > MOST_TEXT:
                    raise SlipwayError(f"the control host has sent {size_of(len(copy))} as a copy of its journal, at "
                                       f"most {size_of(MOST_TEXT)} are taken; {CHECK}")  # fmt: skip
            elif kind == OVER:
                return _outcome(content, bytes(copy))
    words = exchange.errors.decode(errors="replace").strip()
    raise SlipwayError(
        words.removeprefix("inv: ")
        or "the control host has heard nothing from here for too long, as when a laptop sleeps, and has closed the "
        f"terminal of the command (exit code {exchange.exited}); see: ./inv status"
    )


def _outcome(content: bytes, copy: bytes) -> RemoteOutcome:
    """Return what the last frame says. Raises SlipwayError for one that no end of ours has sent."""
    try:
        said = outside.mapping(content)
        code, digest = outside.typed(said, "code", int), outside.typed(said, "digest", str)
        problem = outside.printable(outside.typed(said, "problem", str))[:MOST_PROBLEM]
        if not 0 <= code <= 255:
            raise outside.Unreadable(f"its code is {code}, expected 0 to 255")
        return RemoteOutcome(code, copy.decode("ascii"), outside.printable(digest)[:MOST_PROBLEM], problem)
    except ValueError as error:
        raise SlipwayError(
            f"the command on the control host has ended, and how cannot be read: {error}; {CHECK}"
        ) from None


def _write(number: int, content: bytes) -> None:
    while content:
        try:
            content = content[os.write(number, content) :]
        except BlockingIOError:  # another program on this terminal has made it so
            select.select([], [number], [], LOOK_S)


def _send(exchange: Conversation, outbox: "queue.SimpleQueue[bytes | None]") -> None:
    """Send what is put there; in between a sign of life."""
    while True:
        try:
            content = outbox.get(timeout=frames.PING_S)
        except queue.Empty:
            content = frame(PING)
        if content is None:
            return
        try:
            exchange.send(content)
        except Lost:  # the listener hears of it
            return


def _read_input(outbox: "queue.SimpleQueue[bytes | None]", over: threading.Event, is_tty: bool) -> None:
    if os.isatty(0) and not is_tty:
        return  # another job has the terminal
    while not over.is_set():
        try:
            if not select.select([0], [], [], LOOK_S)[0]:
                continue
            piece = os.read(0, frames.CHUNK)
        except (OSError, ValueError):
            piece = b""
        outbox.put(frame(INPUT, piece) if piece else frame(END))
        if not piece:
            return


@contextlib.contextmanager
def _signals(outbox: "queue.SimpleQueue[bytes | None]", streams: list[bool]) -> Iterator[None]:
    """Pass on the signals that ask a command to leave, and changes of the terminal's size."""

    def leave(number: int, _: FrameType | None) -> None:
        outbox.put(frame(SIGNAL, str(number).encode()))

    def resize(number: int, _: FrameType | None) -> None:
        outbox.put(told(SIZE, size(streams)))

    handlers: dict[int, Callable[[int, FrameType | None], None]] = dict.fromkeys(PASSED, leave)
    handlers[signal.SIGWINCH] = resize
    before = {}
    for number, handler in handlers.items():
        if signal.getsignal(number) is not signal.SIG_IGN:  # as `nohup` wants it
            before[number] = signal.signal(number, handler)
    try:
        yield
    finally:
        for number, handler_before in before.items():
            signal.signal(number, handler_before)


@contextlib.contextmanager
def _raw(streams: list[bool]) -> Iterator[None]:
    """Leave keys to the terminal over there, where the command has one both to read and to write."""
    if not (streams[0] and (streams[1] or streams[2])):
        yield
        return
    import tty as modes

    before = termios.tcgetattr(0)
    modes.setraw(0, termios.TCSADRAIN)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
