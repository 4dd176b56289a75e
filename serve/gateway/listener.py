"""Clients' connections: HTTP/1.1 by aiohttp's parser, and without the rest of its server.

One task serves all requests of a connection, and a short answer is one write (what that spares: bench/RESULTS.md).
In: bytes of clients. Out: a Request, one after another, to `handle`, which answers by it. Whoever leaves cancels what
is being done for him. Called by: `server`.
"""

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from email.utils import formatdate
from http import HTTPStatus
from typing import Any

from aiohttp.base_protocol import BaseProtocol
from aiohttp.client_exceptions import ClientPayloadError
from aiohttp.http import HttpProcessingError, HttpRequestParser, HttpVersion11
from aiohttp.streams import EMPTY_PAYLOAD

LINGER_S = 2.0  # for the rest of a body that nobody wants
READ_BYTES = 64 << 10  # so much of a body that is not yet read is kept, twice at most
MOST_LINE_BYTES = 8190
MOST_HEADERS = 64
MOST_AHEAD = 8  # requests that a client sends before it has got its answers
SERVER = "slipway"
STATUS_LINES = {one.value: f"HTTP/1.1 {one.value} {one.phrase}\r\n" for one in HTTPStatus}
WITHOUT_BODY = (204, 304)
_PLAIN = re.compile(r"/[A-Za-z0-9_/]*")

log = logging.getLogger(__name__)


class Request:
    """One request, and the way back to its client. Where bytes were no request it is `broken`."""

    __slots__ = ("method", "path", "headers", "body", "broken", "keeps", "is_begun", "_line", "_framing", "_is_open")

    def __init__(self, line: "Connection", message: Any, body: Any) -> None:
        self._line, self.body = line, body
        self.is_begun = self._is_open = False
        self._framing = True
        if isinstance(message, HttpProcessingError):
            self.broken: HttpProcessingError | None = message
            self.method = self.path = ""
            self.headers: Mapping[str, str] = {}
            self.keeps = False
            return
        self.broken = None
        self.method, self.headers = message.method, message.headers
        path = message.path
        self.path = path if _PLAIN.fullmatch(path) else message.url.path
        is_new = message.version >= HttpVersion11
        self.keeps = is_new and not message.should_close  # HTTP/1.0 ends each answer with its connection
        self._framing = is_new

    @property
    def is_behind(self) -> bool:
        """The client has not yet taken what it was sent."""
        transport = self._line.transport
        return transport is None or transport.get_write_buffer_size() > 0

    def proceed(self) -> None:
        """To a client that asks before it sends its body."""
        if self._line.transport is not None:
            self._line.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def answer(self, status: int, headers: Mapping[str, str], body: bytes) -> None:
        """All at once; `taken` tells when the client has it. Raises ConnectionError when it has left."""
        self.is_begun = True
        has_body = status not in WITHOUT_BODY
        head = self._head(status, headers, f"Content-Length: {len(body)}\r\n" if has_body else "")
        self._line.send(head + body if has_body and self.method != "HEAD" else head)

    def begin(self, status: int, headers: Mapping[str, str], chunk: bytes) -> None:
        """An answer in parts, and its first one. Raises ConnectionError."""
        self.is_begun = self._is_open = True
        head = self._head(status, headers, "Transfer-Encoding: chunked\r\n" if self._framing else "")
        self._line.send(head + self._part(chunk))

    def write(self, chunk: bytes) -> None:
        """Another part. Raises ConnectionError."""
        self._line.send(self._part(chunk))

    @property
    def is_slow(self) -> bool:
        """The client is to take more of what it was sent before it is sent more."""
        return self._line.writing_paused

    async def taken(self) -> None:
        """Returns when the client has taken all but little. Raises ConnectionError."""
        await self._line._drain_helper()

    def end(self) -> None:
        """Of an answer in parts, once; a connection that was cut has none."""
        if self._is_open and self._framing and self._line.is_connected:
            self._line.send(b"0\r\n\r\n")
        self._is_open = False

    def cut(self, at_once: bool = False) -> None:
        """Closes the connection, after what it was sent or at once."""
        self.keeps = False
        if self._line.transport is not None:
            self._line.transport.abort() if at_once else self._line.transport.close()

    def _part(self, chunk: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(chunk), chunk) if self._framing else chunk

    def _head(self, status: int, headers: Mapping[str, str], framing: str) -> bytes:
        """Values come from a parser that lets no line end through, or are ours."""
        self.keeps = self.keeps and not self._line.is_leaving
        lines = "".join([f"{name}: {value}\r\n" for name, value in headers.items()])
        first = STATUS_LINES.get(status) or f"HTTP/1.1 {status} \r\n"
        last = "\r\n" if self.keeps else "Connection: close\r\n\r\n"
        return f"{first}{lines}{framing}Server: {SERVER}\r\n{_date()}{last}".encode("utf-8", "surrogateescape")


class Connection(BaseProtocol):
    """A client's. aiohttp's parser and its bodies ask for a BaseProtocol, which knows when to stop reading."""

    __slots__ = ("_listener", "_ahead", "_body", "_next", "_task", "_timer", "_idle_until", "_is_deaf")

    def __init__(self, listener: "Listener") -> None:
        loop = asyncio.get_running_loop()
        parser = HttpRequestParser(
            self, loop, READ_BYTES, max_line_size=MOST_LINE_BYTES, max_field_size=MOST_LINE_BYTES,
            max_headers=MOST_HEADERS, payload_exception=ClientPayloadError, auto_decompress=False,
            max_msg_queue_size=MOST_AHEAD,
        )  # fmt: skip
        super().__init__(loop, parser)
        self._listener = listener
        self._ahead: deque[tuple[Any, Any]] = deque()
        self._body: Any = EMPTY_PAYLOAD  # that is being received
        self._next: asyncio.Future[None] | None = None  # while the client is waited for
        self._task: asyncio.Task[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._idle_until = 0.0
        self._is_deaf = False

    @property
    def is_connected(self) -> bool:
        return self.transport is not None and not self.transport.is_closing()

    @property
    def is_leaving(self) -> bool:
        return self._listener.is_closed

    def send(self, data: bytes) -> None:
        if self.transport is None or self.transport.is_closing():
            raise ConnectionResetError("the client has left")
        self.transport.write(data)

    def leave(self) -> asyncio.Task[None] | None:
        """The task that ends now, whatever it is doing."""
        if self._task is not None:
            self._task.cancel()
        return self._task

    # What comes.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._listener.admit(self):
            transport.close()
            return
        self._task = self._loop.create_task(self._serve())

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._is_deaf = True
        self._listener.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self._task is not None:
            self._task.cancel()

    def data_received(self, data: bytes) -> None:
        if self._is_deaf:
            return
        assert self._parser is not None
        try:
            messages, is_upgraded, _ = self._parser.feed_data(data)
        except HttpProcessingError as error:
            self._is_deaf = True
            if not self._body.is_eof():
                self._body.set_exception(ClientPayloadError(str(error)))
                return
            messages, is_upgraded = [(error, EMPTY_PAYLOAD)], False
        if is_upgraded:
            self._is_deaf = True  # there is nothing to change to; what comes after is not looked at
        if messages:
            self._ahead.extend(messages)
            self._body = messages[-1][1]
            if self._next is not None and not self._next.done():
                self._next.set_result(None)
            if len(self._ahead) >= MOST_AHEAD and not self._buffer_paused:
                self._pause_reading_for_buffer()

    # What is done about it.

    async def _serve(self) -> None:
        try:
            while True:
                if not self._ahead:
                    if self._is_deaf:
                        break
                    await self._wait()
                message, body = self._ahead.popleft()
                self._parser.message_consumed()  # type: ignore[union-attr]
                if self._buffer_paused and len(self._ahead) <= MOST_AHEAD // 2:
                    self.data_received(b"")  # what the parser has kept back
                    if len(self._ahead) < MOST_AHEAD:
                        self._resume_reading_for_buffer()
                request = Request(self, message, body)
                await self._answered(request)
                if not body.is_eof():
                    await self._pass_over(body)
                if not request.keeps or (self._is_deaf and not self._ahead):
                    break
        except ConnectionError:
            pass  # the client has left
        finally:
            if self.transport is not None:
                self.transport.close()

    async def _wait(self) -> None:
        """For a request whose headers are whole, or the limit, which closes the connection."""
        self._idle_until = self._loop.time() + self._listener.keepalive_s
        if self._timer is None:
            self._timer = self._loop.call_at(self._idle_until, self._look)
        self._next = self._loop.create_future()
        try:
            await self._next
        finally:
            self._next = None

    def _look(self) -> None:
        """One timer for all waits of a connection: it looks again when it went off too early."""
        self._timer = None
        if self._next is None:
            return
        if self._loop.time() < self._idle_until - 0.001:
            self._timer = self._loop.call_at(self._idle_until, self._look)
        elif self._task is not None:
            self._task.cancel()

    async def _answered(self, request: Request) -> None:
        try:
            await self._listener.handle(request)
            request.end()
        except ConnectionError:
            raise
        except Exception as error:
            log.error("gateway: %s %s: %r", request.method, request.path, error, exc_info=error)
            request.keeps = False
            if not request.is_begun:  # one that has begun can only be broken off
                self._listener.mistaken(request)

    async def _pass_over(self, body: Any) -> None:
        """The rest of a body: a connection that is closed before that takes the answer along."""
        timer = self._loop.call_later(LINGER_S, self.leave)
        try:
            while not body.is_eof():
                await body.readany()
        except ClientPayloadError:
            self._is_deaf = True
        finally:
            timer.cancel()


class Listener:
    """The port, and all who are connected. Use it within one event loop."""

    def __init__(
        self,
        handle: Callable[[Request], Awaitable[None]],
        mistaken: Callable[[Request], None],
        keepalive_s: float,
        most: int,
    ) -> None:
        self.handle, self.mistaken, self.keepalive_s, self.most = handle, mistaken, keepalive_s, most
        self.connections: set[Connection] = set()
        self.is_closed = False  # nobody else is let in, and answers say that they are the last
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """The port. Raises OSError."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Connection(self), host, port, backlog=1024)
        return int(self._server.sockets[0].getsockname()[1])

    def admit(self, one: Connection) -> bool:
        if self.is_closed or len(self.connections) >= self.most:
            return False
        self.connections.add(one)
        return True

    async def close(self) -> None:
        """The port; who is connected stays so until `leave`."""
        self.is_closed = True
        if self._server is not None:
            self._server.close()
            await asyncio.sleep(0)  # which the loop does the next time round

    async def leave(self) -> None:
        """Whatever is still being answered is cut off."""
        ended = [one for one in [each.leave() for each in self.connections] if one is not None]
        await asyncio.gather(*ended, return_exceptions=True)
        for one in list(self.connections):
            if one.transport is not None:
                one.transport.abort()  # it may have something to be sent that nobody takes
        server, self._server = self._server, None
        if server is not None:
            await server.wait_closed()


_dated = (0, "")


def _date() -> str:
    """The header, made once a second."""
    global _dated
    now = int(time.time())
    if _dated[0] != now:
        _dated = (now, f"Date: {formatdate(now, usegmt=True)}\r\n")
    return _dated[1]
