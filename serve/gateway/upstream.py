"""Single try at a replica, up to the first byte of the answer.

An EngineRequest and a Target become an Answer: complete if short, else the first chunk and the open rest. Raises Failed
while a retry on a different replica is possible, RequestRefused when this machine lacks the resources to ask any
replica.
"""

import errno
from collections.abc import Collection
from dataclasses import dataclass

from infra.agent.shortage import is_shortage
from serve.gateway.http.connections import EngineReply, Home
from serve.gateway.http.deadline import Deadline
from serve.gateway.http.limits import GatewayLimits
from serve.gateway.http.program_wire import ProgramHome
from serve.gateway.request_body import EngineRequest, RequestRefused
from serve.gateway.routing import FAILED, LOST, NEITHER, SERVED, RequestOutcome, Target
from serve.gateway.sse import StreamWatch

WHOLE_BYTES = 1 << 20  # answers up to this size are read completely before forwarding
RETRIED = (500, 502, 503)
BUSY = b"currently busy"  # text of vLLM's --max-num-queued-reqs: the engine is full, and has not failed


class Failed(Exception):
    """A try failed before a byte has reached the client.

    `answer` is the complete answer of the engine, if any; `outcome` is the result for the replica.
    """

    def __init__(self, why: str, outcome: RequestOutcome = FAILED, answer: "Answer | None" = None) -> None:
        super().__init__(why)
        self.why, self.outcome, self.answer = why, outcome, answer


@dataclass
class Answer:
    """Answer of a replica. `rest` is None if `body` is complete."""

    status: int
    lines: bytes  # headers for the client
    body: bytes
    rest: EngineReply | None = None
    watch: StreamWatch | None = None  # for an event stream


class Engines:
    """Connections to the replicas. Use and close within a single event loop."""

    def __init__(self, limits: GatewayLimits) -> None:
        self.limits = limits
        self._homes: dict[str, Home] = {}
        self._programs: dict[str, ProgramHome] = {}

    def close(self) -> None:
        self.keep_only(())

    def keep_only(self, urls: Collection[str]) -> None:
        """Close the connections to engines outside `urls`, once idle."""
        for homes in (self._homes, self._programs):
            for url in [one for one in homes if one not in urls]:
                homes.pop(url).close()

    def program_home(self, url: str) -> ProgramHome:
        """Return the connections to a program of the user."""
        home = self._programs.get(url)
        if home is None:
            home = self._programs[url] = ProgramHome(url)
        return home

    async def send_request(
        self, method: bytes, ask: EngineRequest, replica: Target, lines: bytes, deadline: Deadline
    ) -> Answer:
        """Send a request to a replica with extra header lines, and return the answer.

        Raises Failed, RequestRefused. The caller must close an answer with a `rest`.
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
            reply = line.send_request(_request(method, ask, replica, home.name, lines), home)
            answer = None
            try:
                while not reply.status:
                    await reply.wait_data()
                if reply.is_whole and not reply.is_events:  # true of most short answers
                    found = Answer(reply.status, reply.lines, reply.take_unread())
                else:
                    found = await _begin(reply)
                answer = _judged(found)
                return answer
            finally:
                if answer is None or answer.rest is None:
                    reply.close()
        except OSError as error:
            if is_shortage(error) or error.errno == errno.EADDRNOTAVAIL:
                # This machine has no file descriptor or port left.
                raise RequestRefused(503, "Service Unavailable", "the gateway has no room; try again soon", 1) from None
            raise Failed(f"{type(error).__name__}: {error}", LOST if line is None else FAILED) from None


def outcome_of(status: int) -> RequestOutcome:
    """Return the outcome of a complete answer for the replica; 4xx is the client's mistake."""
    return SERVED if status < 400 else NEITHER if status < 500 else FAILED


def _request(method: bytes, ask: EngineRequest, replica: Target, host: bytes, lines: bytes) -> bytes:
    """Return the bytes of the HTTP request."""
    if replica.key:
        lines = b"%bAuthorization: Bearer %b\r\n" % (lines, replica.key.encode())
    first = b"%b %b HTTP/1.1\r\nHost: %b\r\nContent-Length: %d\r\n" % (method, ask.path, host, len(ask.body))
    return b"%b%b\r\n%b" % (first, lines, ask.body)


async def _begin(reply: EngineReply) -> Answer:
    """Return a short answer completely, a long answer with the rest open, or the first chunk of an event stream."""
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
    """Return the answer if fit for the client. Raises Failed for an error of the engine."""
    status = answer.status
    if status == 200 and answer.watch is None:
        return answer
    if answer.watch is not None and (answer.watch.error_code or 0) >= 500:
        raise Failed("an error in place of the first token")
    if status in RETRIED and answer.rest is None:
        is_full = status == 503 and BUSY in answer.body
        raise Failed(f"answered {status}", NEITHER if is_full else FAILED, answer)
    if status in (401, 403) or 300 <= status < 400:
        # An error between the gateway and the engine, not the client's fault.
        raise Failed(f"answered {status}")
    return answer
