"""Connections to engines, kept between requests: HTTP/1.1 with aiohttp's parser and without the rest of its client.

A request is one write, an answer the parser's own stream. In: the bytes of a request. Out: a Reply that is read to its
end, or closed. Called by: `upstream`. Raises aiohttp.ClientError, HttpProcessingError and OSError as they come.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from aiohttp import ClientPayloadError, ServerDisconnectedError
from aiohttp.base_protocol import BaseProtocol
from aiohttp.http import HttpProcessingError, HttpResponseParser
from aiohttp.streams import EMPTY_PAYLOAD

IDLE_S = 4.0  # engines close an idle connection after 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE)
READ_BYTES = 64 << 10  # so much of an answer that nobody takes is kept, twice at most


class Line(BaseProtocol):
    """One connection to an engine: a request, then its answer, then another request. One parser reads them all."""

    __slots__ = ("is_spent", "_waiting", "_body")

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        parser = HttpResponseParser(
            self, loop, READ_BYTES, payload_exception=ClientPayloadError, auto_decompress=False
        )  # fmt: skip
        super().__init__(loop, parser)
        self.is_spent = False  # for no other request
        self._waiting: asyncio.Future[tuple[Any, Any]] | None = None
        self._body: Any = EMPTY_PAYLOAD

    @property
    def is_free(self) -> bool:
        return not self.is_spent and self.transport is not None and not self.transport.is_closing()

    async def ask(self, request: bytes) -> tuple[Any, Any]:
        """The head of the answer, once it is here, and its body, which is still to come."""
        if self.transport is None:
            raise ConnectionResetError("the engine has closed the connection")
        self._waiting = self._loop.create_future()
        self.transport.write(request)
        return await self._waiting

    def close(self) -> None:
        self.is_spent = True
        if self.transport is not None:
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        assert self._parser is not None
        try:
            messages, is_upgraded, _ = self._parser.feed_data(data)
        except HttpProcessingError as error:
            self._fail(error)
            return
        for message, body in messages:
            if 100 <= message.code < 200 and not is_upgraded:
                continue  # not yet the answer
            if message.should_close or is_upgraded:
                self.is_spent = True
            if self._waiting is None or self._waiting.done():
                self.close()  # an answer to nothing
                return
            self._body = body
            self._waiting.set_result((message, body))
            self._waiting = None

    def connection_lost(self, exc: BaseException | None) -> None:
        super().connection_lost(exc)
        self._fail(exc or ServerDisconnectedError())

    def _fail(self, error: BaseException) -> None:
        """Whoever waits for an answer, or for the rest of one, is told."""
        self.close()
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_exception(error)
        self._waiting = None
        if not self._body.is_eof():
            self._body.set_exception(ClientPayloadError(f"{type(error).__name__}: {error}"))
            self._body = EMPTY_PAYLOAD


class Reply:
    """What an engine answers, as it comes."""

    __slots__ = ("status", "headers", "_body", "_line", "_home")

    def __init__(self, status: int, headers: Mapping[str, str], body: Any, line: Line, home: "Home") -> None:
        self.status, self.headers = status, headers
        self._body, self._line, self._home = body, line, home

    @property
    def is_whole(self) -> bool:
        """All of it is here."""
        return bool(self._body.is_eof())

    def rest(self) -> bytes:
        """All that is here and was not read."""
        return bytes(self._body.read_nowait())

    async def readany(self) -> bytes:
        """What is there, or the next that comes; b"" at the end."""
        return bytes(await self._body.readany())

    def close(self) -> None:
        """To be called once. The connection is kept when the answer was read to its end; else it is cut: work ends."""
        if self._line.is_free and self._body.is_eof():
            self._home.keep(self._line)
        else:
            self._line.close()


class Home:
    """The connections to one engine."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or 80
        self.name = parts.netloc
        self._idle: deque[tuple[Line, float]] = deque()  # the warmest last
        self._is_open = True
        self._loop = asyncio.get_running_loop()

    def idle(self) -> Line | None:
        """One that stands and is not in use."""
        while self._idle:
            line, since = self._idle.pop()
            if line.is_free and self._loop.time() - since < IDLE_S:
                return line
            line.close()
        return None

    async def connect(self) -> Line:
        """A new one. Raises OSError."""
        loop = self._loop
        return (await loop.create_connection(lambda: Line(loop), self.host, self.port))[1]

    async def ask(self, line: Line, request: bytes) -> Reply:
        """Once the headers are here."""
        try:
            message, body = await line.ask(request)
        except BaseException:
            line.close()
            raise
        return Reply(message.code, message.headers, body, line, self)

    def keep(self, line: Line) -> None:
        if not self._is_open:
            line.close()
            return
        now = self._loop.time()
        self._idle.append((line, now))
        while now - self._idle[0][1] >= IDLE_S:
            self._idle.popleft()[0].close()

    def close(self) -> None:
        """Those that are idle now, others when they are done."""
        self._is_open = False
        while self._idle:
            self._idle.pop()[0].close()
