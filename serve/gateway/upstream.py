"""One try at one replica, up to the first byte of its answer.

In: an EngineRequest and a Target. Out: an Answer of which something is there: all of it when it is short, else its
first chunk and the rest to be read. Raises Failed while another replica may still be asked, RequestRefused when this
machine lacks what it takes to ask any.
"""

import errno
from collections.abc import Collection
from dataclasses import dataclass

from infra.agent.shortage import is_shortage
from serve.gateway.http.connections import EngineReply, Home
from serve.gateway.http.deadline import Deadline
from serve.gateway.http.limits import GatewayLimits
from serve.gateway.request_body import EngineRequest, RequestRefused
from serve.gateway.routing import FAILED, LOST, NEITHER, RequestOutcome, Target
from serve.gateway.sse import StreamWatch

WHOLE_BYTES = 1 << 20  # an answer up to this size is read before any of it is passed on
RETRIED = (500, 502, 503)
BUSY = b"currently busy"  # vLLM's --max-num-queued-reqs: it is full, and has not failed


class Failed(Exception):
    """A try failed before a byte has reached the client.

    `answer` is what the engine said, if it was something whole; `outcome` is what the try says of the replica.
    """

    def __init__(self, why: str, outcome: RequestOutcome = FAILED, answer: "Answer | None" = None) -> None:
        super().__init__(why)
        self.why, self.outcome, self.answer = why, outcome, answer


@dataclass
class Answer:
    """The answer of a replica. `rest` is None when `body` is all of it."""

    status: int
    lines: bytes  # headers that the client gets
    body: bytes
    rest: EngineReply | None = None
    watch: StreamWatch | None = None  # watch of a stream of events


class Engines:
    """Connections to the replicas. Used and closed within one event loop."""

    def __init__(self, limits: GatewayLimits) -> None:
        self.limits = limits
        self._homes: dict[str, Home] = {}

    def close(self) -> None:
        self.keep_only(())

    def keep_only(self, urls: Collection[str]) -> None:
        """Close the connections to other engines, once they are idle."""
        for url in [one for one in self._homes if one not in urls]:
            self._homes.pop(url).close()

    async def ask(self, method: bytes, ask: EngineRequest, replica: Target, lines: bytes, deadline: Deadline) -> Answer:
        """Return the answer of a replica, asked with these lines among the headers.

        Raises Failed, RequestRefused. Who has an answer that is not whole must close it.
        """
        home = self._homes.get(replica.url)
        if home is None:
            home = self._homes[replica.url] = Home(replica.url)
        limits, line = self.limits, None
        try:
            line = home.idle()
            if line is None:
                deadline.set("connect", limits.connect_s)
                line = await home.connect()
            deadline.set("first byte", limits.first_byte_s if ask.streams else limits.total_s)
            reply = line.ask(_request(method, ask, replica, home.name, lines), home)
            answer = None
            try:
                while not reply.status:
                    await reply.more()
                if reply.is_whole and not reply.is_events:  # mostly true of short answers
                    answer = _judged(Answer(reply.status, reply.lines, reply.rest()))
                else:
                    answer = _judged(await _begin(reply))
                return answer
            finally:
                if answer is None or answer.rest is None:
                    reply.close()
        except OSError as error:
            if is_shortage(error) or error.errno == errno.EADDRNOTAVAIL:
                # this machine has no file descriptor or port left
                raise RequestRefused(503, "Service Unavailable", "the gateway has no room; try again soon", 1) from None
            raise Failed(f"{type(error).__name__}: {error}", LOST if line is None else FAILED) from None


def _request(method: bytes, ask: EngineRequest, replica: Target, host: bytes, lines: bytes) -> bytes:
    """Return the bytes of the request."""
    if replica.key:
        lines = b"%bAuthorization: Bearer %b\r\n" % (lines, replica.key.encode())
    first = b"%b %b HTTP/1.1\r\nHost: %b\r\nContent-Length: %d\r\n" % (method, ask.path, host, len(ask.body))
    return b"%b%b\r\n%b" % (first, lines, ask.body)


async def _begin(reply: EngineReply) -> Answer:
    """Return all of a short answer, or the first chunk of a stream of events."""
    body = await reply.readany()
    if reply.is_events:
        if not body:
            raise Failed("the stream ended before its first byte")
        watch = StreamWatch()
        watch.feed(body)
        return Answer(reply.status, reply.lines, body, reply, watch)
    parts, size = [body], len(body)
    while body and size <= WHOLE_BYTES:
        body = await reply.readany()
        parts.append(body)
        size += len(body)
    return Answer(reply.status, reply.lines, b"".join(parts), reply if body else None)


def _judged(answer: Answer) -> Answer:
    """Return the answer when it is one for the client. Raises Failed."""
    status = answer.status
    if status == 200 and answer.watch is None:
        return answer
    if answer.watch is not None and (answer.watch.error_code or 0) >= 500:
        raise Failed("an error in place of the first token")
    if status in RETRIED and answer.rest is None:
        is_full = status == 503 and BUSY in answer.body
        raise Failed(f"answered {status}", NEITHER if is_full else FAILED, answer)
    if status in (401, 403) or 300 <= status < 400:
        # an error between the gateway and its engine, not the client's fault
        raise Failed(f"answered {status}")
    return answer
