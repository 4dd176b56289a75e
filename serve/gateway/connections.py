"""Connections to engines, kept between requests: HTTP/1.1 with aiohttp's parser and without the rest of its client.

A request is one write, an answer the parser's own stream: a third of what aiohttp's session costs for a short answer
(bench/RESULTS.md). In: the bytes of a request. Out: a Reply that is read to its end, or closed. Called by: `upstream`.
Raises aiohttp.ClientError, HttpProcessingError and OSError as they come.
"""

import asyncio
from collections import deque
from collections.abc import Mapping
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from aiohttp.client_proto import ResponseHandler

if TYPE_CHECKING:
    from aiohttp import StreamReader

IDLE_S = 4.0  # engines close an idle connection after 5 s (VLLM_HTTP_TIMEOUT_KEEP_ALIVE)
READ_BYTES = 64 << 10  # so much of an answer that nobody takes is kept, twice at most


class Reply:
    """What an engine answers, as it comes."""

    __slots__ = ("status", "headers", "_stream", "_line", "_home")

    def __init__(
        self, status: int, headers: Mapping[str, str], stream: "StreamReader", line: ResponseHandler, home: "Home"
    ) -> None:
        self.status, self.headers = status, headers
        self._stream, self._line, self._home = stream, line, home

    async def readany(self) -> bytes:
        """What is there, or the next that comes; b"" at the end."""
        return await self._stream.readany()

    def close(self) -> None:
        """To be called once. The connection is kept when the answer was read to its end; else it is cut: work ends."""
        if self._stream.is_eof() and not self._line.should_close and self._line.is_connected():
            self._home.keep(self._line)
        else:
            self._line.close()


class Home:
    """The connections to one engine."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.host, self.port = parts.hostname or "", parts.port or 80
        self.name = parts.netloc
        self._idle: deque[tuple[ResponseHandler, float]] = deque()  # the warmest last
        self._is_open = True
        self._loop = asyncio.get_running_loop()

    def idle(self) -> ResponseHandler | None:
        """One that stands and is not in use."""
        while self._idle:
            line, since = self._idle.pop()
            if line.is_connected() and not line.should_close and self._loop.time() - since < IDLE_S:
                return line
            line.close()
        return None

    async def connect(self) -> ResponseHandler:
        """A new one. Raises OSError."""
        loop = self._loop
        return (await loop.create_connection(lambda: ResponseHandler(loop), self.host, self.port))[1]

    async def ask(self, line: ResponseHandler, request: bytes) -> Reply:
        """Once the headers are here."""
        try:
            line.set_response_params(auto_decompress=False, read_bufsize=READ_BYTES)
            if line.transport is None:
                raise ConnectionResetError("the engine has closed the connection")
            line.transport.write(request)
            message, stream = await line.read()
            while 100 <= message.code < 200:  # not yet the answer
                message, stream = await line.read()
        except BaseException:
            line.close()
            raise
        return Reply(message.code, message.headers, stream, line, self)

    def keep(self, line: ResponseHandler) -> None:
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
