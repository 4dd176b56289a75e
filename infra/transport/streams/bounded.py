"""Readers for program output and files with a byte limit.

A reader keeps a whole stream and raises `SizeExceeded` beyond the limit, or keeps only the end of the stream of a
long-running program.
"""

import contextlib
import os
import selectors
import stat
import subprocess
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Protocol

CHUNK = 1 << 16


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


def drained(source: IO[bytes], kept: KeptStream) -> threading.Thread:
    """Start and return a thread that reads a stream to the end."""

    def drain() -> None:
        while piece := os.read(source.fileno(), CHUNK):
            kept.add(piece)

    thread = threading.Thread(target=drain, daemon=True)
    thread.start()
    return thread
