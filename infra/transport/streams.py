"""Streams between machines: reading of output and files with a byte limit, and port forwards.

A reader keeps a whole stream and raises `SizeExceeded` beyond the limit, or keeps only the end of the stream of a
long-running program. A forward joins a local loopback port with a remote machine.
"""

import contextlib
import logging
import os
import selectors
import socket
import stat
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import IO, Any, Protocol

from infra.errors import SlipwayError, UsageError

CHUNK = 1 << 16
LOOPBACK = "127.0.0.1"
TICK_S = 0.2


class SizeExceeded(Exception):
    """A stream or a file exceeds the limit; the caller adds the machine and the command."""


class NotRegularFile(Exception):
    """The path is a pipe, a device or a folder."""


class KeptStream(Protocol):
    """The kept part of a stream."""

    def add(self, piece: bytes) -> None:
        """Append the next piece. Raises SizeExceeded."""

    def value(self) -> bytes:
        """Return the kept bytes."""


class WholeStream:
    """A whole stream of at most `limit_bytes`."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held = bytearray()

    def add(self, piece: bytes) -> None:
        """Append the next piece. Raises SizeExceeded."""
        if len(self._held) + len(piece) > self._limit_bytes:
            raise SizeExceeded
        self._held += piece

    def value(self) -> bytes:
        """Return the stream so far."""
        return bytes(self._held)


class StreamEnd:
    """The last `limit_bytes` of a stream."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._held = bytearray()

    def add(self, piece: bytes) -> None:
        """Append the next piece and drop older bytes beyond the limit."""
        self._held += piece
        del self._held[: -self._limit_bytes]

    def value(self) -> bytes:
        """Return the end of the stream so far."""
        return bytes(self._held)


def gather(child: "subprocess.Popen[bytes]", out: KeptStream, err: KeptStream, timeout_s: float) -> int:
    """Read a program's stdout and stderr to the end and return the exit code. Raises SizeExceeded, TimeoutError."""
    deadline = time.monotonic() + timeout_s
    assert child.stdout is not None and child.stderr is not None
    with selectors.DefaultSelector() as waiting:
        waiting.register(child.stdout, selectors.EVENT_READ, out)
        waiting.register(child.stderr, selectors.EVENT_READ, err)
        while waiting.get_map():
            ready = waiting.select(max(0.0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError
            for key, _ in ready:
                if piece := os.read(key.fd, CHUNK):
                    key.data.add(piece)
                else:
                    waiting.unregister(key.fileobj)
    try:
        return child.wait(max(0.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise TimeoutError from None


@contextlib.contextmanager
def opened(path: str | Path) -> Iterator[IO[bytes]]:
    """Open a regular file for reading, without blocking on a pipe. Raises NotRegularFile, OSError."""
    number = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(number).st_mode):
        os.close(number)
        raise NotRegularFile("not a regular file")
    with open(number, "rb") as file:
        yield file


def whole_file(path: str | Path, limit_bytes: int) -> bytes:
    """Return the content of a regular file. Raises SizeExceeded, NotRegularFile, OSError."""
    kept = WholeStream(limit_bytes)
    with opened(path) as file:
        while piece := file.read(CHUNK):
            kept.add(piece)
    return kept.value()


def start_draining(source: IO[bytes], kept: KeptStream) -> threading.Thread:
    """Start and return a thread that reads a stream to the end."""

    def drain() -> None:
        while piece := os.read(source.fileno(), CHUNK):
            kept.add(piece)

    thread = threading.Thread(target=drain, daemon=True)
    thread.start()
    return thread


@contextlib.contextmanager
def relay(port: int, dial: Callable[[], AbstractContextManager[Any]]) -> Iterator[int]:
    """Listen on `port` (0: any) and connect each caller with a new connection of `dial`; yield the port.

    `dial` returns a context manager with a connected socket, or any object with recv, sendall and shutdown. An error of
    `dial` closes the caller's connection and logs a warning. Raises UsageError if the port is in use.
    """
    try:
        listener = socket.create_server((LOOPBACK, port))
    except OSError as error:
        raise UsageError(f"port {port} of this machine cannot be used: {error}") from None
    listener.settimeout(TICK_S)
    calls: list[_Call] = []
    stop = threading.Event()

    def serve() -> None:
        while not stop.is_set():
            try:
                near, _ = listener.accept()
            except TimeoutError:  # check `stop`
                continue
            except OSError as error:  # out of file descriptors
                logging.getLogger(__name__).warning("cannot accept connections on the forwarded port: %s", error)
                stop.wait(TICK_S)
                continue
            near.settimeout(None)
            calls[:] = [call for call in calls if call.is_alive()]
            call = _Call(near, dial)
            try:
                call.start()
            except RuntimeError:  # no new thread possible
                near.close()
            else:
                calls.append(call)

    server = threading.Thread(target=serve, daemon=True)
    server.start()
    try:
        yield listener.getsockname()[1]
    finally:
        stop.set()
        server.join()
        listener.close()
        for call in calls:
            call.close()
        for call in calls:
            call.join()


class _Call(threading.Thread):
    """A caller with the remote connection."""

    def __init__(self, near: socket.socket, dial: Callable[[], AbstractContextManager[Any]]) -> None:
        super().__init__(daemon=True)
        self._dial = dial
        self._ends: list[Any] = [near]
        self._is_over = False

    def run(self) -> None:
        near = self._ends[0]
        try:
            with near, self._dial() as far:
                self._ends.append(far)
                if self._is_over:
                    return
                back = threading.Thread(target=_pump, args=(far, near), daemon=True)
                back.start()
                _pump(near, far)
                back.join()
        except (OSError, SlipwayError) as error:
            logging.getLogger(__name__).warning("the remote port does not answer: %s", error)

    def close(self) -> None:
        self._is_over = True
        for end in tuple(self._ends):
            _hang_up(end)


def _pump(source: Any, sink: Any) -> None:
    """Copy until `source` ends, then shut down writing on `sink`; shut down both after an error."""
    try:
        while piece := source.recv(CHUNK):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)
    except (OSError, EOFError):  # one side hung up, so close the other side too
        _hang_up(source)
        _hang_up(sink)


def _hang_up(end: Any) -> None:
    with contextlib.suppress(OSError, EOFError):  # already closed
        end.shutdown(socket.SHUT_RDWR)
