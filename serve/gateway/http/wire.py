"""The common part of both sides of the gateway: a connection, and a message of which the body is still to come.

Bytes come by `data_received` of a side's own protocol, which feeds the message they belong to. One task reads them; who
does not read stops the sender, and who is not read stops the task.
"""

import asyncio
from typing import cast

from serve.gateway.http.eager import Signal

MOST_HEAD_BYTES = 32 << 10  # bytes of the first line and all headers; checked when received bytes were parsed
MOST_PIECES = 32 << 10  # pieces of a body: chunks, or what was received at once; each costs work, however short it is
HELD_BYTES = 128 << 10  # bytes of a message that wait to be read; beyond that the sender is stopped


class Broken(ConnectionError):
    """A message ended early, or was none."""


class Wire(asyncio.Protocol):
    """A connection. `news`: something was received, or nothing will be any more. `room`: the other side has taken."""

    __slots__ = ("transport", "news", "room", "is_slow", "is_stopped")

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.news, self.room = Signal(), Signal()
        self.is_slow = False  # the other side is to take more of what it was sent before it is sent more
        self.is_stopped = False

    @property
    def is_connected(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.transport = None
        self.news.set()
        self.room.set()

    def pause_writing(self) -> None:
        self.is_slow = True

    def resume_writing(self) -> None:
        self.is_slow = False
        self.room.set()

    def send(self, data: bytes) -> None:
        """Send bytes. Raises ConnectionError."""
        transport = self.transport
        if transport is None or transport.is_closing():
            raise ConnectionResetError("the connection is closed")
        transport.write(data)

    async def taken(self) -> None:
        """Wait until the other side has taken all but little. Raises ConnectionError."""
        while self.is_slow:
            if self.transport is None:
                raise ConnectionResetError("the connection is closed")
            await self.room

    def stop(self) -> None:
        """Stop receiving until `go_on`."""
        if self.transport is not None and not self.is_stopped:
            self.is_stopped = True
            self.transport.pause_reading()

    def go_on(self) -> None:
        if self.transport is not None and self.is_stopped:
            self.is_stopped = False
            self.transport.resume_reading()


class Message:
    """A message and its body, as it comes."""

    is_whole = False  # it is all here
    error: Broken | None = None  # nothing more will come
    pieces = 0  # in which it has come so far
    _held = 0

    def __init__(self, wire: Wire) -> None:
        self.wire = wire
        self._parts: list[bytes] = []  # parts that were not read

    @property
    def is_full(self) -> bool:
        return self._held > HELD_BYTES

    @property
    def is_torn(self) -> bool:
        return self.pieces > MOST_PIECES

    def feed(self, part: bytes) -> None:
        self._parts.append(part)
        self.pieces += 1
        self._held += len(part)
        if self._held > HELD_BYTES:
            self.wire.stop()

    def fail(self, error: Broken) -> None:
        """Note that nothing more will come. Who reads gets first what is here."""
        if not self.is_whole and self.error is None:
            self.error = error

    def rest(self) -> bytes:
        """Return all that is here and was not read."""
        said = b"".join(self._parts)
        self._parts.clear()
        self._held = 0
        if self.wire.is_stopped:
            self.wire.go_on()
        return said

    async def more(self) -> None:
        """Wait until something has come. Raises Broken when nothing will."""
        if self.error is not None:
            raise self.error
        await self.wire.news

    async def readany(self) -> bytes:
        """Return the received bytes, or the next that come; b"" at the end. Raises Broken."""
        while not self._parts:
            if self.is_whole:
                return b""
            await self.more()
        return self.rest()
