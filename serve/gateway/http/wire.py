"""Shared base of both sides of the gateway: a connection, and a message with a body in transit.

The `data_received` of each side feeds the current message. One task reads a message; an unread message pauses the
sender, and a slow receiver pauses the task.
"""

import asyncio
from typing import cast

from serve.gateway.http.eager import Signal

MOST_HEAD_BYTES = 32 << 10  # bytes of the first line and all headers; checked after parsing
MOST_PIECES = 32 << 10  # pieces of a body, chunks or reads; each piece costs work, however short
HELD_BYTES = 128 << 10  # unread bytes of a message; above this the connection stops receiving


class MalformedMessage(ConnectionError):
    """A message ended early or was malformed."""


class Wire(asyncio.Protocol):
    """A connection. `news` signals received bytes or the end, `room` signals that the peer has taken bytes."""

    __slots__ = ("transport", "received", "writable", "is_slow", "is_reading_paused")

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.received, self.writable = Signal(), Signal()
        self.is_slow = False  # True while the send buffer is full
        self.is_reading_paused = False

    @property
    def is_connected(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.transport = None
        self.received.set()
        self.writable.set()

    def pause_writing(self) -> None:
        self.is_slow = True

    def resume_writing(self) -> None:
        self.is_slow = False
        self.writable.set()

    def send(self, data: bytes) -> None:
        """Send bytes. Raises ConnectionError on a closed connection."""
        transport = self.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        transport.write(data)

    async def drain(self) -> None:
        """Wait until the peer has received most of the sent bytes. Raises ConnectionError."""
        while self.is_slow:
            if self.transport is None:
                raise ConnectionResetError("the connection is closed")
            await self.writable

    def pause_reading(self) -> None:
        """Stop receiving until `resume_reading`."""
        if self.transport is not None and not self.is_reading_paused:
            self.is_reading_paused = True
            self.transport.pause_reading()

    def resume_reading(self) -> None:
        if self.transport is not None and self.is_reading_paused:
            self.is_reading_paused = False
            self.transport.resume_reading()


class Message:
    """A message with a body in pieces."""

    is_whole = False  # the message is complete
    error: MalformedMessage | None = None  # set when no more data will come
    pieces = 0  # number of received pieces
    _held = 0

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._parts: list[bytes] = []  # unread pieces

    @property
    def is_full(self) -> bool:
        return self._held > HELD_BYTES

    @property
    def has_too_many_pieces(self) -> bool:
        return self.pieces > MOST_PIECES

    def feed(self, part: bytes) -> None:
        self._parts.append(part)
        self.pieces += 1
        self._held += len(part)
        if self._held > HELD_BYTES:
            self.wire.pause_reading()

    def fail(self, error: MalformedMessage) -> None:
        """Record that no more data will come. A reader receives the pieces already here first."""
        if not self.is_whole and self.error is None:
            self.error = error

    def take_unread(self) -> bytes:
        """Return all unread bytes and resume receiving."""
        said = b"".join(self._parts)
        self._parts.clear()
        self._held = 0
        if self.wire.is_reading_paused:
            self.wire.resume_reading()
        return said

    async def wait_data(self) -> None:
        """Wait until data has come. Raises MalformedMessage when no more data will come."""
        if self.error is not None:
            raise self.error
        await self.wire.received

    async def readany(self) -> bytes:
        """Return the unread bytes, or the next bytes; b"" at the end. Raises MalformedMessage."""
        while not self._parts:
            if self.is_whole:
                return b""
            await self.wait_data()
        return self.take_unread()
