"""One try at one replica, up to the first byte of its answer.

In: an Ask and a Replica. Out: an Answer of which something is there: all of it when it is short, else its first chunk
and the rest to be read. Raises Failed while another replica may still be asked. Called by: `proxy`.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import aiohttp
from aiohttp.http import HttpProcessingError

from serve.gateway.asks import Ask
from serve.gateway.connections import Home, Reply
from serve.gateway.deadline import Deadline
from serve.gateway.limits import Limits
from serve.gateway.routing import Replica
from serve.gateway.sse import Watch

WHOLE_BYTES = 1 << 20  # an answer up to this size is read before any of it is passed on
PASSED = ("Content-Type", "Content-Encoding", "Retry-After", "Cache-Control")
RETRIED = (500, 502, 503)
BUSY = b"currently busy"  # vLLM's --max-num-queued-reqs: it is full, not ill
BROKEN = (aiohttp.ClientError, HttpProcessingError, OSError)  # a connection that can be read no further


class Failed(Exception):
    """No byte has reached the client. `answer` is what the engine said, if it said something whole."""

    def __init__(self, why: str, answer: "Answer | None" = None, is_ill: bool = True) -> None:
        super().__init__(why)
        self.why, self.answer, self.is_ill = why, answer, is_ill


@dataclass
class Answer:
    """What a replica says. `rest` is None when `body` is all of it."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    rest: Reply | None = None
    watch: Watch | None = None  # of a stream of events


class Engines:
    """Connections to the replicas. Used and closed within one event loop."""

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self._homes: dict[str, Home] = {}

    def close(self) -> None:
        self.keep_only(())

    def keep_only(self, urls: Collection[str]) -> None:
        """Connections to others are closed, once they are idle."""
        for url in [one for one in self._homes if one not in urls]:
            self._homes.pop(url).close()

    async def ask(
        self, method: str, ask: Ask, replica: Replica, headers: Mapping[str, str], deadline: Deadline
    ) -> Answer:
        """Raises Failed. An answer that is not whole must be closed by whoever gets it."""
        home = self._homes.get(replica.url)
        if home is None:
            home = self._homes[replica.url] = Home(replica.url)
        limits = self.limits
        try:
            line = home.idle()
            if line is None:
                deadline.set("connect", limits.connect_s)
                line = await home.connect()
            deadline.set("first byte", limits.first_byte_s if ask.streams else limits.total_s)
            reply = await home.ask(line, _request(method, ask, replica, home.name, headers))
            answer = None
            try:
                answer = _judged(await _begin(reply))
                return answer
            finally:
                if answer is None or answer.rest is None:
                    reply.close()
        except BROKEN as error:
            raise Failed(f"{type(error).__name__}: {error}") from None


def _request(method: str, ask: Ask, replica: Replica, host: str, headers: Mapping[str, str]) -> bytes:
    """As it goes over the line. Header values come from a parser that lets no line end through."""
    lines = [f"{method} {ask.path} HTTP/1.1\r\nHost: {host}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    if replica.key:
        lines.append(f"Authorization: Bearer {replica.key}")
    lines.append(f"Content-Length: {len(ask.body)}\r\n\r\n")
    return "\r\n".join(lines).encode("utf-8", "surrogateescape") + ask.body


async def _begin(reply: Reply) -> Answer:
    """All of a short answer, the first chunk of a stream of events."""
    headers = {name: reply.headers[name] for name in PASSED if name in reply.headers}
    streams = reply.status == 200 and headers.get("Content-Type", "").startswith("text/event-stream")
    if not streams and reply.is_whole:  # as a short one mostly is
        return Answer(reply.status, headers, reply.rest())
    body = await reply.readany()
    if streams:
        if not body:
            raise Failed("the stream ended before its first byte")
        watch = Watch()
        watch.feed(body)
        return Answer(reply.status, headers, body, reply, watch)
    parts, size = [body], len(body)
    while body and size <= WHOLE_BYTES:
        body = await reply.readany()
        parts.append(body)
        size += len(body)
    return Answer(reply.status, headers, b"".join(parts), reply if body else None)


def _judged(answer: Answer) -> Answer:
    """The same, when it is one for the client. Raises Failed."""
    status = answer.status
    if answer.watch is not None and (answer.watch.error_code or 0) >= 500:
        raise Failed("an error in place of the first token")
    if status in RETRIED and answer.rest is None:
        is_full = status == 503 and BUSY in answer.body
        raise Failed(f"answered {status}", answer, is_ill=not is_full)
    if status in (401, 403) or 300 <= status < 400:  # between the gateway and its engine; not the client's doing
        raise Failed(f"answered {status}")
    return answer
