"""Connections to engines, reused between requests: HTTP/1.1 by httptools' parser.

A request is a single write, and a short answer wakes the waiting task once. `Line.send_request` sends the bytes of a
request and returns an EngineReply, which the caller reads to the end or closes. Raises OSError.
"""

import asyncio
from collections import deque
from urllib.parse import urlsplit

from httptools import HttpParserError, HttpParserUpgrade, HttpResponseParser

from serve.gateway.http.wire import MOST_HEAD_BYTES, MalformedMessage, Message, Wire

IDLE_S = 4.0  # engines close an idle connection after 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE)
# Forwarded to the client.
PASSED = {
    one.lower(): one + b": %b\r\n" for one in (b"Content-Type", b"Content-Encoding", b"Retry-After", b"Cache-Control")
}
FRAMING = frozenset((b"content-length", b"transfer-encoding"))


class EngineReply(Message):
    """Answer of an engine while the bytes arrive."""

    status = 0  # 0 before the headers
    lines = b""  # headers to forward to the client
    is_events = False  # True for an event stream
    has_length = False  # without a length the end of the connection ends the body

    def __init__(self, line: "Line", home: "Home") -> None:
        Message.__init__(self, line)
        self._home = home

    def close(self) -> None:
        """Release the connection once: keep it for reuse after a complete answer, else close it to stop the engine."""
        line = self.wire
        assert isinstance(line, Line)
        if self.is_whole and not line.is_spent and not line.is_reading_paused:
            self._home.release(line)
        else:
            line.close()


class Line(Wire):
    """Connection to an engine, with a single request in flight and a single parser for all answers."""

    __slots__ = ("is_spent", "_parser", "_reply", "_head_bytes")

    def __init__(self) -> None:
        super().__init__()
        self.is_spent = False  # True if the connection must not be reused
        self._parser = HttpResponseParser(self)
        self._reply: EngineReply | None = None  # answer in progress
        self._head_bytes = 0  # bytes since the last part of a body

    @property
    def is_free(self) -> bool:
        return not self.is_spent and self.transport is not None and not self.transport.is_closing()

    def send_request(self, request: bytes, home: "Home") -> EngineReply:
        """Send a request and return the pending answer. Raises ConnectionError."""
        self.send(request)
        self._reply = reply = EngineReply(self, home)
        return reply

    def close(self) -> None:
        self.is_spent = True
        if self.transport is not None:
            self.transport.abort()  # a graceful close would wait for the engine to read the request

    def data_received(self, data: bytes) -> None:
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except HttpParserUpgrade as offer:
            self._switch(data[offer.args[0] :])
        except HttpParserError as error:
            self._fail(f"{type(error).__name__}: {error}")
        else:
            if self._head_bytes > MOST_HEAD_BYTES:
                self._fail(f"headers of more than {MOST_HEAD_BYTES} bytes")
        self.received.set()

    def connection_lost(self, exc: BaseException | None) -> None:
        reply = self._reply
        if exc is None and reply is not None and reply.status and not reply.has_length:
            self.on_message_complete()
        self._fail(f"the engine closed the connection: {exc!r}" if exc else "the engine closed the connection")
        super().connection_lost(exc)

    def _switch(self, rest: bytes) -> None:
        """Handle the bytes behind an upgrade of the protocol."""
        self._fail("the engine has upgraded the protocol")

    def _fail(self, why: str) -> None:
        self.close()
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.fail(MalformedMessage(why))

    # Callbacks of the parser. The parser may not be fed again before a callback returns, so callbacks wake no task.

    def on_message_begin(self) -> None:
        if self._reply is None:
            raise MalformedMessage("an answer to nothing")

    def on_header(self, name: bytes, value: bytes) -> None:
        reply, name = self._reply, name.lower()
        if reply is None or reply.status:
            return  # a trailer after the body
        if name in PASSED:
            reply.lines += PASSED[name] % value
            if name == b"content-type":
                reply.is_events = value.startswith(b"text/event-stream")
        elif name in FRAMING:
            reply.has_length = True

    def on_headers_complete(self) -> None:
        self._head_bytes = 0
        status, reply = self._parser.get_status_code(), self._reply
        assert reply is not None
        if status < 200:
            reply.lines, reply.is_events, reply.has_length = b"", False, False  # an interim response
            return
        reply.status = status
        reply.is_events = reply.is_events and status == 200
        if not self._parser.should_keep_alive():
            self.is_spent = True

    def on_body(self, part: bytes) -> None:
        self._head_bytes = 0
        if self._reply is not None:
            self._reply.feed(part)

    def on_message_complete(self) -> None:
        reply = self._reply
        if reply is not None and reply.status:
            reply.is_whole = True
            self._reply = None


class Home:
    """Pool of connections to an engine."""

    kind = Line
    idle_s = IDLE_S

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or 80
        self.name = parts.netloc.encode()
        self._idle: deque[tuple[Line, float]] = deque()  # most recently used last
        self._is_open = True
        self._loop = asyncio.get_running_loop()

    def idle(self) -> Line | None:
        """Return an open and unused connection, or None."""
        while self._idle:
            line, since = self._idle.pop()
            if line.is_free and self._loop.time() - since < self.idle_s:
                return line
            line.close()
        return None

    async def connect(self) -> Line:
        """Return a new connection. Raises OSError."""
        made = self._loop.create_task(self._loop.create_connection(self.kind, self.host, self.port))
        try:
            return (await made)[1]
        except asyncio.CancelledError:
            if made.done() and not made.cancelled() and made.exception() is None:
                made.result()[1].close()  # the connection was ready at the cancellation
            raise

    def release(self, line: Line) -> None:
        if not self._is_open:
            line.close()
            return
        now = self._loop.time()
        self._idle.append((line, now))
        while now - self._idle[0][1] >= self.idle_s:
            self._idle.popleft()[0].close()

    def close(self) -> None:
        """Close the idle connections now, and the busy connections after their answers."""
        self._is_open = False
        while self._idle:
            self._idle.pop()[0].close()
