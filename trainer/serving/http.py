"""The part of an HTTP/1.1 server that an engine behind the gateway needs. Standard library only.

In: a handler of requests. Out: a listening server on loopback, JSON replies, streams of events. Bodies come with their
length; what the gateway sends is small and whole.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any

MOST_HEAD, MOST_BODY = 1 << 16, 64 << 20  # bytes
REASONS = {200: "OK", 400: "Bad Request", 401: "Unauthorized", 404: "Not Found", 411: "Length Required",
           413: "Content Too Large", 500: "Internal Server Error", 503: "Service Unavailable"}  # fmt: skip


@dataclass(frozen=True)
class HttpRequest:
    method: str
    path: str
    headers: dict[str, str]
    """Headers by lower-case name."""
    body: bytes
    gone: "asyncio.Future[Any]"
    """Done once the client has closed its connection."""


@dataclass(frozen=True)
class HttpReply:
    """A whole body, or the events of a stream."""

    status: int = 200
    body: bytes = b""
    kind: str = "application/json"
    events: AsyncIterator[bytes] | None = None


class BadRequest(Exception):
    """A request that is none: its status and why."""


Handler = Callable[[HttpRequest], Awaitable[HttpReply]]


def as_json(value: Any, status: int = 200) -> HttpReply:
    return HttpReply(status, json.dumps(value).encode())


async def listen(handler: Handler, port: int) -> asyncio.Server:
    """Serve on loopback; port 0 = any that is free."""

    async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await _one(handler, reader, writer):
                pass
        except (ConnectionError, asyncio.IncompleteReadError):
            pass  # the client has gone
        finally:
            writer.close()

    return await asyncio.start_server(connected, "127.0.0.1", port, limit=MOST_HEAD, backlog=1024)


async def _one(handler: Handler, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    """Answer one request; whether the connection stays for another one."""
    try:
        method, path, headers, body = await _read(reader)
    except BadRequest as refusal:
        status, why = refusal.args
        await _write(writer, as_json({"error": why}, status))
        return False
    gone = asyncio.ensure_future(reader.read(1))  # nothing comes before the reply but the end of the connection
    try:
        await _write(writer, await handler(HttpRequest(method, path, headers, body, gone)))
    finally:
        gone.cancel()
        await asyncio.wait({gone})
    return headers.get("connection", "").lower() != "close" and not reader.at_eof()


async def _read(reader: asyncio.StreamReader) -> tuple[str, str, dict[str, str], bytes]:
    try:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
    except asyncio.LimitOverrunError:
        raise BadRequest(413, "the head of the request is too long") from None
    first, *lines = head.split("\r\n")[:-2]
    words = first.split(" ")
    if len(words) != 3:
        raise BadRequest(400, "no HTTP request")
    pairs = (line.partition(":") for line in lines)
    headers = {name.strip().lower(): value.strip() for name, _, value in pairs}
    if "transfer-encoding" in headers:
        raise BadRequest(411, "a body comes with its Content-Length")
    length = headers.get("content-length", "0")
    if not length.isascii() or not length.isdigit() or int(length) > MOST_BODY:
        raise BadRequest(413, f"a body has at most {MOST_BODY} bytes")
    return words[0], words[1].partition("?")[0], headers, await reader.readexactly(int(length))


async def _write(writer: asyncio.StreamWriter, reply: HttpReply) -> None:
    how = f"Content-Length: {len(reply.body)}" if reply.events is None else "Transfer-Encoding: chunked"
    head = f"HTTP/1.1 {reply.status} {REASONS[reply.status]}\r\nContent-Type: {reply.kind}\r\n{how}\r\n\r\n"
    writer.write(head.encode() + reply.body)
    if reply.events is not None:
        async for event in reply.events:
            writer.write(b"%x\r\n%b\r\n" % (len(event), event))
            await writer.drain()
        writer.write(b"0\r\n\r\n")
    await writer.drain()
