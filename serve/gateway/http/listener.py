"""HTTP/1.1 connections of clients, with httptools' parser.

One task serves all requests of a connection, and a short answer is a single write (savings: bench/RESULTS.md). Bytes of
a client become ClientRequests, passed in order to `handle`, which answers through the request object. A client that
disconnects cancels the work in progress for the client.
"""

import asyncio
import contextlib
import logging
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser

from serve.gateway.http.acceptor import AT_ONCE, Acceptor
from serve.gateway.http.connection_pool import ConnectionPool
from serve.gateway.http.eager import EagerTask
from serve.gateway.http.heads import ONCE, PLAIN, SERVER, STATUS_LINES, check_host, date, target
from serve.gateway.http.limits import GatewayLimits
from serve.gateway.http.wire import MOST_HEAD_BYTES, MalformedMessage, Message, Wire

LINGER_S = 2.0  # time to read the unread rest of a body
MOST_LINGER_BYTES = 16 << 20
MOST_AHEAD = 8  # requests parsed ahead of their answers; later bytes wait unparsed
PIECE_BYTES = 16 << 10  # bytes parsed at once; a piece may hold more requests than MOST_AHEAD
WITHOUT_BODY = (204, 304)
FORWARDED = frozenset((b"content-type", b"accept", b"traceparent", b"tracestate"))  # headers forwarded to the engine
UNREADABLE = (400, "the request is not valid HTTP")

log = logging.getLogger(__name__)


class ClientRequest(Message):
    """One request and the channel for the answer. Header names are lower case."""

    lines = b""  # header lines to forward to the engine
    cors_lines = b""  # header lines of each answer to a web page of an allowed origin
    fault: tuple[int, str] | None = None  # status and text of the answer to an invalid request
    fields: list[tuple[bytes, bytes]] | None = None  # all header fields, for a program of the user
    tunnel: Message | None = None  # bytes after a WebSocket handshake, for a program of the user
    is_begun = False
    _is_open = False  # an answer in parts has begun and not ended

    def __init__(
        self,
        line: "Connection",
        method: bytes,
        url: bytes,
        headers: dict[bytes, bytes],
        is_new: bool,
        keeps: bool,
        host: bytes,
    ) -> None:
        Message.__init__(self, line)
        self._line, self.method, self.headers, self.keeps = line, method, headers, keeps
        self.url = url  # with the query
        self.path, self.host = (url, host) if PLAIN.fullmatch(url) else target(url, host)
        self._chunks = is_new  # in HTTP/1.0 the end of the connection ends the answer

    @property
    def task(self) -> EagerTask:
        """Return the task of the request."""
        assert self._line.task is not None
        return self._line.task

    @property
    def address(self) -> str:
        """Return the accounting address of a client without a key."""
        return self._line.address

    @property
    def peer(self) -> bytes:
        """Return the IP address of the client."""
        said = self._line.transport.get_extra_info("peername") if self._line.transport is not None else None
        return said[0].partition("%")[0].removeprefix("::ffff:").encode() if said else b"unknown"

    @property
    def is_tls(self) -> bool:
        return self._line.transport is not None and self._line.transport.get_extra_info("sslcontext") is not None

    def admit(self, key: str) -> None:
        """Count the connection against the key named `key`, from the first admitted request on."""
        if self._line.is_stranger:
            self._line.is_stranger = False
            self._line.listener.pool.admit(self._line, key)

    @property
    def has_unsent_bytes(self) -> bool:
        """Return whether sent bytes still wait for the client."""
        transport = self._line.transport
        return transport is None or transport.get_write_buffer_size() > 0

    def send_continue(self) -> None:
        """Send 100 Continue to a client waiting to send the body."""
        if self._line.transport is not None:
            self._line.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def answer(self, status: int, lines: bytes, body: bytes) -> None:
        """Send a complete answer with extra header lines. Raises ConnectionError when the client has left.

        `taken` waits until the client has received the answer.
        """
        self.is_begun = True
        has_body = status not in WITHOUT_BODY
        head = self._head(status, lines, b"Content-Length: %d\r\n" % len(body) if has_body else b"")
        self._line.send(head + body if has_body and self.method != b"HEAD" else head)

    def start_answer(self, status: int, lines: bytes, chunk: bytes) -> None:
        """Begin an answer in parts with the first chunk. Raises ConnectionError."""
        self.is_begun = self._is_open = True
        head = self._head(status, lines, b"Transfer-Encoding: chunked\r\n" if self._chunks else b"")
        self._line.send(head + self._part(chunk))

    def start_program_answer(self, head: bytes, length: bytes | None, has_body: bool, chunk: bytes) -> None:
        """Begin an answer with the header lines of a program, and with the first bytes of the body.

        Without a `length` the body is chunked. Raises ConnectionError.
        """
        self.is_begun = True
        self._is_open = self._chunks = self._chunks and has_body and length is None
        self.keeps = self.keeps and not self._line.is_leaving
        framing = b"Transfer-Encoding: chunked\r\n" if self._chunks else b""
        if length is not None:
            framing = b"Content-Length: %b\r\n" % length
        last = b"\r\n" if self.keeps else b"Connection: close\r\n\r\n"
        self._line.send(b"%b%b%b%b" % (head, framing, last, self._part(chunk) if chunk else b""))

    def start_tunnel(self, head: bytes) -> None:
        """Answer a WebSocket handshake; `write` sends bytes of the tunnel from now on. Raises ConnectionError."""
        self.is_begun, self._chunks, self.keeps = True, False, False
        self._line.send(head + b"\r\n")

    def write(self, chunk: bytes) -> None:
        """Send a further chunk. Raises ConnectionError."""
        self._line.send(self._part(chunk))

    @property
    def is_slow(self) -> bool:
        """Return whether the send buffer is full, so the sender must wait for the client."""
        return self._line.is_slow

    async def drain(self) -> None:
        """Wait until the client has received most of the sent bytes. Raises ConnectionError."""
        await self._line.drain()

    def end_answer(self) -> None:
        """End an answer in parts, once; a closed connection gets no final chunk."""
        if self._is_open and self._chunks and self._line.is_connected:
            self._line.send(b"0\r\n\r\n")
        self._is_open = False

    def close_connection(self, at_once: bool = False) -> None:
        """Close the connection after flushing sent bytes, or immediately with `at_once`."""
        self.keeps = False
        if self._line.transport is not None:
            self._line.transport.abort() if at_once else self._line.transport.close()

    def _part(self, chunk: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(chunk), chunk) if self._chunks else chunk

    def _head(self, status: int, lines: bytes, framing: bytes) -> bytes:
        self.keeps = self.keeps and not self._line.is_leaving
        first = STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
        last = b"\r\n" if self.keeps else b"Connection: close\r\n\r\n"
        return b"%b%b%b%bServer: %b\r\n%b%b" % (first, lines, self.cors_lines, framing, SERVER, date(), last)


class Connection(Wire):
    """Connection of a client."""

    __slots__ = (
        "address",
        "is_stranger",
        "task",
        "listener",
        "_parser",
        "_pending",
        "_incoming",
        "_unparsed",
        "_framing",
        "_ignores_input",
        "_url",
        "_headers",
        "_lines",
        "_head_bytes",
        "is_idle",
        "_timer",
        "idle_until",
        "_doubled",
        "_host",
        "_name",
        "near",
    )

    def __init__(self, listener: "Listener", address: str) -> None:
        super().__init__()
        self.address = address
        self.is_stranger = True
        self.task: EagerTask | None = None
        self.listener = listener
        self._parser = HttpRequestParser(self)
        self._pending: deque[ClientRequest] = deque()  # parsed requests in front of the handler
        self._incoming: ClientRequest | None = None  # request with a body in progress
        self._unparsed: bytes | memoryview = b""  # kept while MOST_AHEAD requests wait
        self._framing = b""  # framing header of a body after an offer to upgrade the protocol
        self._ignores_input = False  # True if further input is ignored
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._lines = b""
        self._head_bytes = 0
        self.is_idle = False  # True while the client is idle
        self._timer: asyncio.TimerHandle | None = None
        self.idle_until = 0.0
        self._doubled = b""  # name of a repeated header
        self._host: bytes | None = b" "  # last valid Host header; most requests repeat the same value
        self._name = b""  # host in the Host header, without the port
        self.near: socket.socket | None = None  # socket of a connection in setup, such as a TLS handshake

    @property
    def is_leaving(self) -> bool:
        return self.listener.is_closed

    def close_for_room(self) -> None:
        """Close the connection to make room for a newer connection."""
        self._ignores_input = True
        if self.transport is not None:
            self.transport.abort()
        elif self.near is not None:
            with contextlib.suppress(OSError):  # the client has left
                self.near.shutdown(socket.SHUT_RDWR)  # wakes `_connect`, which closes the socket

    # Callbacks of the transport.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self.near = None
        if self._ignores_input or self.listener.is_closed:
            self.close_for_room()
            return
        self.listener.connections.add(self)
        self.task = EagerTask(self._serve())

    def connection_lost(self, exc: BaseException | None) -> None:
        self._ignores_input = True
        super().connection_lost(exc)
        self.listener.connections.discard(self)
        self.listener.pool.remove(self)
        if self._timer is not None:
            self._timer.cancel()
        if self.task is not None:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        if self._unparsed:
            self._unparsed = bytes(self._unparsed) + data
        elif len(data) <= PIECE_BYTES and len(self._pending) < MOST_AHEAD:
            self._parse(data)
        else:
            self._unparsed = data
            self._parse_more()
        self.received.set()

    def resume_reading(self) -> None:
        if not self._unparsed and (self._incoming is None or not self._incoming.is_full):
            super().resume_reading()

    def _parse_more(self) -> None:
        """Parse waiting bytes until MOST_AHEAD requests are ahead; stop reading while bytes are left."""
        rest = memoryview(self._unparsed)
        while rest and len(self._pending) < MOST_AHEAD:
            self._parse(rest[:PIECE_BYTES])
            rest = rest[PIECE_BYTES:]
        self._unparsed = rest
        if rest:
            self.pause_reading()

    def _parse(self, data: bytes | memoryview) -> None:
        self._head_bytes += len(data)
        while data and not self._ignores_input:
            try:
                self._parser.feed_data(data)
                break
            except HttpParserUpgrade as offer:
                data = self._switch(bytes(data[offer.args[0] :]))
            except HttpParserError as error:
                self._fail_parsing(repr(error))
        if self._head_bytes > MOST_HEAD_BYTES and not self._ignores_input:
            self._fail_parsing(f"headers of more than {MOST_HEAD_BYTES} bytes")

    def _fail_parsing(self, why: str) -> None:
        self._ignores_input = True
        if self._incoming is not None:
            self._incoming.fail(MalformedMessage(why))
            return
        self._refuse(*UNREADABLE)

    def _refuse(self, status: int, why: str) -> None:
        """Queue a refusal of invalid input, and ignore later input, which cannot be delimited."""
        self._ignores_input = True
        none = ClientRequest(self, b"", b"", {}, is_new=True, keeps=False, host=b"")
        none.fault, none.is_whole = (status, why), True
        self._pending.append(none)

    def _switch(self, rest: bytes) -> bytes:
        """Answer an offer to upgrade the protocol; return the bytes to parse in place of the `rest`."""
        return self._decline_upgrade() + rest

    def _decline_upgrade(self) -> bytes:
        """Decline an offer to upgrade the protocol, as Java's client sends; a new parser takes the rest.

        Return the bytes that tell the new parser the framing of this request's body, or b"" without a body.
        """
        self._ignores_input = self._ignores_input or self._parser.get_method() == b"CONNECT"
        self._parser = HttpRequestParser(self)
        framing, self._framing = self._framing, b""
        return b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing if framing else b""

    # Callbacks of the parser. The parser may not be fed again before a callback returns, so callbacks wake no task.

    def on_message_begin(self) -> None:
        self._url, self._headers, self._lines = b"", {}, b""

    def on_url(self, part: bytes) -> None:
        self._url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._incoming is None:  # a later header is a trailer after the body
            name = name.lower()
            if name not in self._headers:  # the first value of a repeated header counts
                self._headers[name] = value = value.strip()
                if name in FORWARDED:
                    self._lines += b"%b: %b\r\n" % (name, value)
            elif name in ONCE:
                self._doubled = name

    def on_headers_complete(self) -> None:
        parser, headers = self._parser, self._headers
        self._head_bytes = 0
        if self._incoming is not None or self._ignores_input:
            return  # made up by `_decline_upgrade`, or behind a refused request
        method, keeps = parser.get_method(), parser.should_keep_alive()
        if b"upgrade" in headers and parser.should_upgrade():
            # Clients with an upgrade offer also work without the upgrade.
            keeps = keeps and headers[b"upgrade"].lower() == b"h2c"
            for name in (b"transfer-encoding", b"content-length"):
                if name in headers and method != b"CONNECT":
                    self._framing = b"%b: %b" % (name, headers[name])
        # Reading the version is slow. Keep-alive without a Connection header implies HTTP/1.1: HTTP/1.0 closes by
        # default.
        says_so = b"connection" in headers or b"proxy-connection" in headers
        version = "1.1" if keeps and not says_so else parser.get_http_version()
        is_new, host = version == "1.1", headers.get(b"host")
        if host != self._host or self._doubled or b"transfer-encoding" in headers or not is_new:
            name, fault = check_host(version, headers, self._doubled)
            if fault is not None:
                self._refuse(*fault)
                return
            self._host, self._name = host, name
        self._incoming = ClientRequest(self, method, self._url, headers, is_new, is_new and keeps, self._name)
        self._incoming.lines = self._lines
        self._pending.append(self._incoming)

    def on_body(self, part: bytes) -> None:
        self._head_bytes = 0
        if self._incoming is not None:
            self._incoming.feed(part)

    def on_message_complete(self) -> None:
        if self._incoming is not None and not self._framing:
            self._incoming.is_whole = True
            self._incoming = None

    # Handling of requests.

    async def _serve(self) -> None:
        try:
            while True:
                if not self._pending:
                    await self._wait()
                    if not self._pending:
                        break
                request = self._pending.popleft()
                if self._unparsed:
                    self._parse_more()
                    self.resume_reading()
                try:
                    await self.listener.handle(request)
                    request.end_answer()
                except ConnectionError:
                    raise
                except Exception as error:
                    self._handle_error(request, error)
                if not request.is_whole:
                    await self._discard_body(request)
                if self.is_reading_paused:
                    request.take_unread()  # drop the unread rest of a body, which precedes the next request
                if not request.keeps or (self._ignores_input and not self._pending):
                    break
                if self.is_slow:  # the client sends requests without reading answers
                    await self._wait_received()
        except ConnectionError:
            pass  # the client has left
        finally:
            if self.transport is not None:
                self.transport.close()
                if self.transport.get_write_buffer_size():
                    self._restart_idle_limit()

    async def _wait(self) -> None:
        """Wait for a request with complete headers; the idle limit closes the connection."""
        self._restart_idle_limit()
        try:
            while not self._pending and not self._ignores_input:
                await self.received
        finally:
            self.is_idle = False

    async def _wait_received(self) -> None:
        self._restart_idle_limit()
        try:
            await self.drain()
        finally:
            self.is_idle = False

    def _restart_idle_limit(self) -> None:
        """Give the client `keepalive_s` seconds from now on, for the next request or to receive sent bytes."""
        self.idle_until = self.listener.loop.time() + self.listener.keepalive_s
        if self._timer is None:
            self._timer = self.listener.loop.call_at(self.idle_until, self._check_idle)
        self.is_idle = True

    def _check_idle(self) -> None:
        """Apply the idle limit; a timer per connection serves all waits, and is set again after firing too early."""
        self._timer = None
        if not self.is_idle or self.task is None or self.transport is None:
            return
        if self.listener.loop.time() < self.idle_until - 0.001:
            self._timer = self.listener.loop.call_at(self.idle_until, self._check_idle)
        elif self.transport.get_write_buffer_size():
            self.transport.abort()  # a graceful close would wait until the client reads
        else:
            self.task.cancel()

    def _handle_error(self, request: ClientRequest, error: Exception) -> None:
        log.error("gateway: %s %s: %r", request.method.decode(), request.path.decode("latin-1"), error, exc_info=error)
        request.keeps = False
        if not request.is_begun:  # an answer in progress can only be cut off
            self.listener.mistaken(request)

    async def _discard_body(self, request: ClientRequest) -> None:
        """Discard the rest of a body: closing the connection before the rest arrives would lose the answer."""
        timer, size = self.listener.loop.call_later(LINGER_S, request.task.cancel), 0
        try:
            while not request.is_whole and size < MOST_LINGER_BYTES and not request.has_too_many_pieces:
                size += len(await request.readany())
            request.keeps = request.keeps and request.is_whole
        except MalformedMessage:
            self._ignores_input = True
        finally:
            timer.cancel()


class Listener:
    """Listener of a gateway with all client connections. Use within a single event loop."""

    def __init__(
        self,
        handle: Callable[[ClientRequest], Awaitable[None]],
        mistaken: Callable[[ClientRequest], None],
        limits: GatewayLimits,
    ) -> None:
        self.handle, self.mistaken = handle, mistaken
        self.keepalive_s, self.handshake_s = limits.keepalive_s, limits.handshake_s
        self.tls: ssl.SSLContext | None = None
        """TLS context of new connections; None = plain HTTP."""
        self.pool: ConnectionPool[Connection] = ConnectionPool(limits, Connection.close_for_room)
        self.connections: set[Connection] = set()  # established connections
        self.loop = asyncio.get_running_loop()
        self.kind: type[Connection] = Connection
        """Class of new connections."""
        self.is_closed = False  # no new connection is accepted, and answers announce the close
        self._acceptor = Acceptor(self._accept, lambda: self.pool.close_oldest(AT_ONCE))

    async def start(self, host: str, port: int) -> int:
        """Start listening and return the port. Raises OSError."""
        return await self._acceptor.open(host, port)

    def set_limits(self, limits: GatewayLimits) -> None:
        self.pool.limits = limits
        self.keepalive_s, self.handshake_s = limits.keepalive_s, limits.handshake_s

    def _accept(self, near: socket.socket, address: str) -> None:
        line = self.kind(self, address)
        if self.pool.add(line, address):
            EagerTask(self._connect(line, near))
        else:
            near.close()

    async def _connect(self, line: Connection, near: socket.socket) -> None:
        line.near = near
        try:
            await self.loop.connect_accepted_socket(
                lambda: line, near, ssl=self.tls, ssl_handshake_timeout=self.handshake_s if self.tls else None
            )
        except OSError:  # no memory, or a failed TLS handshake
            line.near = None
            self.pool.remove(line)
            near.close()

    async def close(self) -> None:
        """Close the port; open connections stay open until `leave`."""
        self.is_closed = True
        self._acceptor.close()

    async def close_connections(self) -> None:
        """Cancel all answers in progress and close all connections."""
        there = list(self.connections)
        for one in there:
            if one.task is not None:
                one.task.cancel()
        await asyncio.sleep(0)  # uvloop sends written bytes at the end of a turn
        while any(one.task is not None and not one.task.is_done for one in there):
            await asyncio.sleep(0)
        for one in there:
            if one.transport is not None:
                one.transport.abort()  # drop bytes unread by the client
        await asyncio.sleep(0)  # the aborts take effect
