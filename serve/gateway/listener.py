"""Clients' connections: HTTP/1.1 by httptools' parser.

One task serves all requests of a connection, and a short answer is one write (what that spares: bench/RESULTS.md).
In: bytes of clients. Out: a Request, one after another, to `handle`, which answers by it. Whoever leaves cancels what
is being done for him. Called by: `server`.
"""

import asyncio
import logging
import re
import time
from collections import deque
from collections.abc import Awaitable, Callable
from email.utils import formatdate
from http import HTTPStatus

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser, parse_url

from serve.gateway.eager import EagerTask
from serve.gateway.wire import MOST_HEAD_BYTES, Broken, Message, Wire

LINGER_S = 2.0  # for the rest of a body that nobody wants
MOST_LINGER_BYTES = 16 << 20
MOST_AHEAD = 8  # requests that a client sends before it has got its answers; what follows them is parsed later
PIECE_BYTES = 16 << 10  # that are parsed at once: what they may hold in requests is more than MOST_AHEAD
SERVER = b"slipway"
STATUS_LINES = {one.value: b"HTTP/1.1 %d %b\r\n" % (one.value, one.phrase.encode()) for one in HTTPStatus}
WITHOUT_BODY = (204, 304)
FORWARDED = frozenset((b"content-type", b"accept", b"traceparent", b"tracestate"))  # headers, to the engine
_PLAIN = re.compile(rb"/[A-Za-z0-9_/]*")

log = logging.getLogger(__name__)


class Request(Message):
    """One request, and the way back to its client. Names of headers are lower case. One that `is_nonsense` was none."""

    lines = b""  # of its headers, those that are passed on
    is_begun = is_nonsense = False
    _is_open = False  # an answer in parts has begun and not ended

    def __init__(
        self, line: "Connection", method: bytes, url: bytes, headers: dict[bytes, bytes], is_new: bool, keeps: bool
    ) -> None:
        Message.__init__(self, line)
        self._line, self.method, self.headers, self.keeps = line, method, headers, keeps
        self.path = url if _PLAIN.fullmatch(url) else _path(url)
        self._chunks = is_new  # to HTTP/1.0 the end of the connection is the end of the answer

    @property
    def task(self) -> EagerTask:
        """That serves it."""
        assert self._line.task is not None
        return self._line.task

    @property
    def address(self) -> str:
        """Of the client."""
        peer = self._line.transport.get_extra_info("peername") if self._line.transport is not None else None
        return str(peer[0]) if peer else ""

    @property
    def is_behind(self) -> bool:
        """The client has not yet taken what it was sent."""
        transport = self._line.transport
        return transport is None or transport.get_write_buffer_size() > 0

    def proceed(self) -> None:
        """To a client that asks before it sends its body."""
        if self._line.transport is not None:
            self._line.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def answer(self, status: int, lines: bytes, body: bytes) -> None:
        """All at once, with these lines among its headers. Raises ConnectionError when the client has left.

        `taken` tells when it has it.
        """
        self.is_begun = True
        has_body = status not in WITHOUT_BODY
        head = self._head(status, lines, b"Content-Length: %d\r\n" % len(body) if has_body else b"")
        self._line.send(head + body if has_body and self.method != b"HEAD" else head)

    def begin(self, status: int, lines: bytes, chunk: bytes) -> None:
        """An answer in parts, and its first one. Raises ConnectionError."""
        self.is_begun = self._is_open = True
        head = self._head(status, lines, b"Transfer-Encoding: chunked\r\n" if self._chunks else b"")
        self._line.send(head + self._part(chunk))

    def write(self, chunk: bytes) -> None:
        """Another part. Raises ConnectionError."""
        self._line.send(self._part(chunk))

    @property
    def is_slow(self) -> bool:
        """The client is to take more of what it was sent before it is sent more."""
        return self._line.is_slow

    async def taken(self) -> None:
        """Returns when the client has taken all but little. Raises ConnectionError."""
        await self._line.taken()

    def end(self) -> None:
        """Of an answer in parts, once; a connection that was cut has none."""
        if self._is_open and self._chunks and self._line.is_connected:
            self._line.send(b"0\r\n\r\n")
        self._is_open = False

    def cut(self, at_once: bool = False) -> None:
        """Closes the connection, after what it was sent or at once."""
        self.keeps = False
        if self._line.transport is not None:
            self._line.transport.abort() if at_once else self._line.transport.close()

    def _part(self, chunk: bytes) -> bytes:
        return b"%x\r\n%b\r\n" % (len(chunk), chunk) if self._chunks else chunk

    def _head(self, status: int, lines: bytes, framing: bytes) -> bytes:
        self.keeps = self.keeps and not self._line.is_leaving
        first = STATUS_LINES.get(status) or b"HTTP/1.1 %d \r\n" % status
        last = b"\r\n" if self.keeps else b"Connection: close\r\n\r\n"
        return b"%b%b%bServer: %b\r\n%b%b" % (first, lines, framing, SERVER, _date(), last)


class Connection(Wire):
    """A client's."""

    __slots__ = (
        "task", "_listener", "_parser", "_ahead", "_coming", "_unparsed", "_framing", "_is_deaf",
        "_url", "_headers", "_lines", "_head_bytes", "_is_waiting", "_timer", "_idle_until",
    )  # fmt: skip

    def __init__(self, listener: "Listener") -> None:
        super().__init__()
        self.task: EagerTask | None = None
        self._listener = listener
        self._parser = HttpRequestParser(self)
        self._ahead: deque[Request] = deque()  # of which nothing was done yet
        self._coming: Request | None = None  # its body is being received
        self._unparsed: bytes | memoryview = b""  # while enough is ahead
        self._framing = b""  # of a body that comes behind an offer of another protocol
        self._is_deaf = False  # whatever still comes is not for us
        self._url = b""
        self._headers: dict[bytes, bytes] = {}
        self._lines = b""
        self._head_bytes = 0
        self._is_waiting = False  # for the client
        self._timer: asyncio.TimerHandle | None = None
        self._idle_until = 0.0

    @property
    def is_leaving(self) -> bool:
        return self._listener.is_closed

    # What comes.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if not self._listener.admit(self):
            transport.close()
            return
        self.task = EagerTask(self._serve())

    def connection_lost(self, exc: BaseException | None) -> None:
        self._is_deaf = True
        super().connection_lost(exc)
        self._listener.connections.discard(self)
        if self._timer is not None:
            self._timer.cancel()
        if self.task is not None:
            self.task.cancel()

    def data_received(self, data: bytes) -> None:
        if self._unparsed:
            self._unparsed = bytes(self._unparsed) + data
        elif len(data) <= PIECE_BYTES and len(self._ahead) < MOST_AHEAD:
            self._parse(data)
        else:
            self._unparsed = data
            self._parse_more()
        self.news.set()

    def go_on(self) -> None:
        if not self._unparsed and (self._coming is None or not self._coming.is_full):
            super().go_on()

    def _parse_more(self) -> None:
        """Of what came, as much as there is room for ahead."""
        rest = memoryview(self._unparsed)
        while rest and len(self._ahead) < MOST_AHEAD:
            self._parse(rest[:PIECE_BYTES])
            rest = rest[PIECE_BYTES:]
        self._unparsed = rest
        if rest:
            self.stop()

    def _parse(self, data: bytes | memoryview) -> None:
        self._head_bytes += len(data)
        while data and not self._is_deaf:
            try:
                self._parser.feed_data(data)
                break
            except HttpParserUpgrade as offer:
                data = self._declined() + bytes(data[offer.args[0] :])
            except HttpParserError as error:
                self._break(repr(error))
        if self._head_bytes > MOST_HEAD_BYTES and not self._is_deaf:
            self._break(f"headers of more than {MOST_HEAD_BYTES} bytes")

    def _break(self, why: str) -> None:
        self._is_deaf = True
        if self._coming is not None:
            self._coming.fail(Broken(why))
            return
        nonsense = Request(self, b"", b"", {}, is_new=True, keeps=False)
        nonsense.is_nonsense = nonsense.is_whole = True
        self._ahead.append(nonsense)

    def _declined(self) -> bytes:
        """An offer of another protocol, as Java's client makes. A parser goes no further; another one takes the rest.

        Returns what that is to read before it, so that it knows the body of this request.
        """
        self._is_deaf = self._parser.get_method() == b"CONNECT"
        self._parser = HttpRequestParser(self)
        framing, self._framing = self._framing, b""
        return b"POST / HTTP/1.1\r\n%b\r\n\r\n" % framing if framing else b""

    # What the parser tells. It may not be fed again before it has returned, so nobody is woken here.

    def on_message_begin(self) -> None:
        self._url, self._headers, self._lines = b"", {}, b""

    def on_url(self, part: bytes) -> None:
        self._url += part

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._coming is None:  # else it comes after the body
            name = name.lower()
            if name not in self._headers:  # of one that is there twice the first one counts
                self._headers[name] = value = value.strip()
                if name in FORWARDED:
                    self._lines += b"%b: %b\r\n" % (name, value)

    def on_headers_complete(self) -> None:
        parser, headers = self._parser, self._headers
        self._head_bytes = 0
        if self._coming is not None:
            return  # made up by `_declined`
        method, keeps = parser.get_method(), parser.should_keep_alive()
        if b"upgrade" in headers and parser.should_upgrade():
            keeps = keeps and headers[b"upgrade"].lower() == b"h2c"  # who asks for that can do with less
            for name in (b"transfer-encoding", b"content-length"):
                if name in headers and method != b"CONNECT":
                    self._framing = b"%b: %b" % (name, headers[name])
        # HTTP/1.0 ends each answer with its connection, unless it says so: the version is slow to be had.
        says_so = b"connection" in headers or b"proxy-connection" in headers
        is_new = (keeps and not says_so) or parser.get_http_version() >= "1.1"
        self._coming = Request(self, method, self._url, headers, is_new, is_new and keeps)
        self._coming.lines = self._lines
        self._ahead.append(self._coming)

    def on_body(self, part: bytes) -> None:
        self._head_bytes = 0
        if self._coming is not None:
            self._coming.feed(part)

    def on_message_complete(self) -> None:
        if self._coming is not None and not self._framing:
            self._coming.is_whole = True
            self._coming = None

    # What is done about it.

    async def _serve(self) -> None:
        try:
            while True:
                if not self._ahead:
                    await self._wait()
                    if not self._ahead:
                        break
                request = self._ahead.popleft()
                if self._unparsed:
                    self._parse_more()
                    self.go_on()
                try:
                    await self._listener.handle(request)
                    request.end()
                except ConnectionError:
                    raise
                except Exception as error:
                    self._mistaken(request, error)
                if not request.is_whole:
                    await self._pass_over(request)
                if self.is_stopped:
                    request.rest()  # of a body that nobody wanted: the next request comes behind it
                if not request.keeps or (self._is_deaf and not self._ahead):
                    break
                if self.is_slow:  # it goes on asking and takes no answers
                    await self._until_taken()
        except ConnectionError:
            pass  # the client has left
        finally:
            if self.transport is not None:
                self.transport.close()
                if self.transport.get_write_buffer_size():
                    self._limit()

    async def _wait(self) -> None:
        """For a request whose headers are whole, or the limit, which closes the connection."""
        self._limit()
        try:
            while not self._ahead and not self._is_deaf:
                await self.news
        finally:
            self._is_waiting = False

    async def _until_taken(self) -> None:
        self._limit()
        try:
            await self.taken()
        finally:
            self._is_waiting = False

    def _limit(self) -> None:
        """From now on the client has `keepalive_s`: to ask, or to take what it was sent."""
        self._idle_until = self._listener.loop.time() + self._listener.keepalive_s
        if self._timer is None:
            self._timer = self._listener.loop.call_at(self._idle_until, self._look)
        self._is_waiting = True

    def _look(self) -> None:
        """One timer for all waits of a connection: it looks again when it went off too early."""
        self._timer = None
        if not self._is_waiting or self.task is None or self.transport is None:
            return
        if self._listener.loop.time() < self._idle_until - 0.001:
            self._timer = self._listener.loop.call_at(self._idle_until, self._look)
        elif self.transport.get_write_buffer_size():
            self.transport.abort()  # else it would stand until all of that is taken
        else:
            self.task.cancel()

    def _mistaken(self, request: Request, error: Exception) -> None:
        log.error("gateway: %s %s: %r", request.method.decode(), request.path.decode("latin-1"), error, exc_info=error)
        request.keeps = False
        if not request.is_begun:  # one that has begun can only be broken off
            self._listener.mistaken(request)

    async def _pass_over(self, request: Request) -> None:
        """The rest of a body: a connection that is closed before that takes the answer along."""
        timer, size = self._listener.loop.call_later(LINGER_S, request.task.cancel), 0
        try:
            while not request.is_whole and size < MOST_LINGER_BYTES and not request.is_torn:
                size += len(await request.readany())
            request.keeps = request.keeps and request.is_whole
        except Broken:
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
        self.loop = asyncio.get_running_loop()
        self.is_closed = False  # nobody else is let in, and answers say that they are the last
        self._server: asyncio.Server | None = None

    async def start(self, host: str, port: int) -> int:
        """The port. Raises OSError."""
        self._server = await self.loop.create_server(lambda: Connection(self), host, port, backlog=1024)
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
        there = list(self.connections)
        for one in there:
            if one.task is not None:
                one.task.cancel()
        await asyncio.sleep(0)  # uvloop sends at the end of a turn what was written in it
        while any(one.task is not None and not one.task.is_done for one in there):
            await asyncio.sleep(0)
        for one in there:
            if one.transport is not None:
                one.transport.abort()  # it may have something to be sent that nobody takes
        server, self._server = self._server, None
        if server is not None:
            await server.wait_closed()


def _path(url: bytes) -> bytes:
    """Of what is more than a path: with a query, or a host before it. Not a route of ours when it is neither."""
    try:
        return parse_url(url).path or b""
    except HttpParserError:
        return b""


_dated = (0, b"")


def _date() -> bytes:
    """The header, made once a second."""
    global _dated
    now = int(time.time())
    if _dated[0] != now:
        _dated = (now, f"Date: {formatdate(now, usegmt=True)}\r\n".encode())
    return _dated[1]
