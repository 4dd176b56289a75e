"""One request from its headers to the last byte of its answer: let in, read, tried, passed on, noted.

In: a Request of the listener. Out: its answer; a lease that was released, a visit that was counted. Another
replica is tried only as long as the client has not got a byte. Whoever leaves takes the engine's work along: the
connection to it is closed, which makes it stop. Called by: `server`.
"""

import asyncio
import contextlib
import random
import re
import time
from collections import Counter

from aiohttp import ClientPayloadError

from serve.gateway import asks
from serve.gateway.access import AccessLog
from serve.gateway.asks import Ask, Refused
from serve.gateway.deadline import Deadline, Deadlines
from serve.gateway.keys import Keys
from serve.gateway.limits import Limits
from serve.gateway.listener import Request
from serve.gateway.metrics import Metrics
from serve.gateway.routing import Lease, Outcome, RetryBudget, Seat
from serve.gateway.turns import Turns
from serve.gateway.upstream import BROKEN, Answer, Engines, Failed
from serve.gateway.visit import Visit

CLIENT_LEFT = 499
FORWARDED = ("Content-Type", "Accept", "traceparent", "tracestate")
_REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,128}")


class Proxy:
    """All that the requests of one gateway share."""

    def __init__(
        self, limits: Limits, keys: Keys, turns: Turns, engines: Engines, metrics: Metrics, log: AccessLog | None
    ) -> None:
        self.limits, self.keys, self.turns, self.engines = limits, keys, turns, engines
        self.metrics, self.log = metrics, log
        self.in_flight = 0
        self._by_key: Counter[str] = Counter()
        self._budget = RetryBudget(limits)
        self._deadlines = Deadlines()

    async def answer(self, request: Request) -> None:
        """Whatever is wrong is an answer. Raises ConnectionError when the client has left, CancelledError."""
        visit = Visit(time.monotonic(), request_id=_request_id(request))
        try:
            await self._answer(request, visit)
        except Refused as refused:
            visit.status, visit.note = refused.status, refused.message
            refuse(request, refused, visit.request_id)
        except asyncio.CancelledError:
            visit.status = CLIENT_LEFT
            raise
        except ConnectionError:  # it is noticed at the next write
            visit.status = CLIENT_LEFT
            raise
        finally:
            self._note(visit)

    def key_of(self, request: Request) -> str:
        """The name of the key that lets it in. Raises Refused."""
        if not self.keys:
            return ""
        name = self.keys.name_of(request.headers.get("Authorization"))
        if name is None:
            raise Refused(401, "AuthenticationError", "no valid API key; send: Authorization: Bearer KEY")
        return name

    async def _answer(self, request: Request, visit: Visit) -> None:
        visit.route = asks.route(request.method, request.path)
        visit.key = self.key_of(request)
        self.metrics.arrivals.add(visit.began_at)
        if self.in_flight >= self.limits.max_in_flight or self._by_key[visit.key] >= self.limits.max_in_flight_per_key:
            raise Refused(429, "Too Many Requests", "too many requests at once; try again soon", 1)
        self.in_flight += 1
        self._by_key[visit.key] += 1
        deadline = self._deadlines.begin(self.limits.total_s)
        try:
            ask = await self._read(request, visit, deadline)
            deadline.set("total", self.limits.total_s)
            lease = await self.turns.take(ask.affinity)
            visit.queue_s = time.monotonic() - visit.began_at
            answer = await self._try(request, ask, lease, visit, deadline)
            if answer is not None:
                await self._hand_out(request, answer, visit, deadline)
        except asyncio.CancelledError:
            if not deadline.forgive():
                raise
            if deadline.what == "body":
                raise Refused(408, "Request Timeout", "the body did not come in time") from None
            raise Refused(504, "Gateway Timeout", f"not done within {self.limits.total_s:g} s") from None
        finally:
            deadline.clear()
            self.in_flight -= 1
            self._by_key[visit.key] -= 1

    async def _hand_out(self, request: Request, answer: Answer, visit: Visit, deadline: Deadline) -> None:
        """A short answer, to a client that may not take it."""
        visit.status, visit.bytes_out = answer.status, len(answer.body)
        request.answer(answer.status, _headers(answer, visit), answer.body)
        if not request.is_slow:
            return
        deadline.set("client", self.limits.client_idle_s)
        try:
            await request.taken()
        except asyncio.CancelledError:
            if not deadline.forgive():
                raise
            request.cut(at_once=True)

    async def _read(self, request: Request, visit: Visit, deadline: Deadline) -> Ask:
        """What is asked, once all of it is here. Raises Refused."""
        if visit.route == "models":
            return Ask(request.path, b"")
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise Refused(415, "BadRequestError", "compressed bodies are not taken")
        most = self.limits.max_body_bytes
        if int(request.headers.get("Content-Length", 0)) > most:
            raise _too_large(most)
        if request.headers.get("Expect", "").lower() == "100-continue":
            request.proceed()
        parts, size = [], 0
        while True:
            if not request.body.is_eof():  # as it mostly is: then there is nothing to wait for
                deadline.set("body", self.limits.client_idle_s)
            try:
                part = await request.body.readany()
            except ClientPayloadError as error:
                raise Refused(400, "BadRequestError", f"the body is broken: {type(error).__name__}") from None
            if not part:
                break
            parts.append(part)
            size += len(part)
            if size > most:
                raise _too_large(most)
        visit.bytes_in = size
        ask = asks.read(request.path, b"".join(parts), self.limits)
        visit.streams = ask.streams
        return ask

    async def _try(self, request: Request, ask: Ask, lease: Lease, visit: Visit, deadline: Deadline) -> Answer | None:
        """The whole answer of the first replica that has one; None = it was passed on. Raises Refused."""
        headers = {name: request.headers[name] for name in FORWARDED if name in request.headers}
        headers["X-Request-Id"] = visit.request_id
        tried: list[Seat] = []
        self._budget.earn()
        while True:
            visit.replica = lease.replica.replica_id
            visit.tries += 1
            outcome = Outcome.NEITHER
            try:
                answer = await self.engines.ask(request.method, ask, lease.replica, headers, deadline)
                visit.first_byte_s = lease.seat.heard_at = time.monotonic()
                visit.first_byte_s -= visit.began_at
                if answer.rest is None:
                    outcome = Outcome.SERVED if answer.status < 500 else Outcome.FAILED
                    return self._whole(answer, visit)
                outcome = await self._pass_on(request, answer, lease, visit, deadline)
                return None
            except Failed as error:
                failed = error
                outcome = Outcome.FAILED if error.is_ill else Outcome.NEITHER
            except asyncio.CancelledError:
                if deadline.is_over:
                    outcome = Outcome.FAILED
                if deadline.what not in ("connect", "first byte") or not deadline.forgive():
                    raise
                failed = Failed(f"{deadline.what}: its limit is over")
            finally:
                self._release(lease, outcome)
            visit.failures.append(f"{visit.replica}: {failed.why}")
            tried.append(lease.seat)
            other = self.turns.take_other(tried, ask.affinity) if len(tried) < self.limits.tries else None
            if other is not None and not self._budget.spend():
                self._release(other, Outcome.NEITHER)
                other = None
            if other is None:
                return self._given_up(failed, visit)
            lease = other

    async def _pass_on(
        self, request: Request, answer: Answer, lease: Lease, visit: Visit, deadline: Deadline
    ) -> Outcome:
        """Chunk by chunk, as fast as the client takes them: what it does not take stays with the engine."""
        rest, watch, limits = answer.rest, answer.watch, self.limits
        assert rest is not None
        visit.status, why = answer.status, ""
        try:
            visit.bytes_out = len(answer.body)
            request.begin(answer.status, _headers(answer, visit), answer.body)
            while True:
                deadline.set("idle", limits.idle_s)
                try:
                    chunk = await rest.readany()
                except BROKEN as error:
                    why = f"died mid-stream: {type(error).__name__}"
                    break
                if not chunk:
                    break
                lease.seat.heard_at = time.monotonic()
                if watch is not None:
                    watch.feed(chunk)
                visit.bytes_out += len(chunk)
                request.write(chunk)
                if request.is_slow:
                    deadline.set("client", limits.client_idle_s)
                    await request.taken()
        except asyncio.CancelledError:
            if not deadline.forgive():
                raise
            visit.note = f"cut off: {deadline.what} limit"
            why = f"silent for {limits.idle_s:g} s" if deadline.what == "idle" else ""
            if not why:
                request.cut(at_once=deadline.what == "client")
                return Outcome.NEITHER
        finally:
            rest.close()
        is_told = False
        if not why and watch is not None:
            is_told = (watch.error_code or 0) >= 500  # by the engine itself
            if is_told:
                why = "an error mid-stream"
            elif watch.error_code is None and not watch.is_whole:
                why = "ended without [DONE]"
        if not why:
            return Outcome.SERVED
        visit.failures.append(f"{visit.replica}: {why}")
        if not is_told:
            _break_off(request, watch is not None)
        return Outcome.FAILED

    def _whole(self, answer: Answer, visit: Visit) -> Answer:
        if visit.route == "models" and answer.status == 200:
            try:
                answer.body = asks.without_paths(answer.body)
            except ValueError:
                raise Refused(502, "Bad Gateway", "the replica's list of models cannot be read") from None
        return answer

    def _given_up(self, failed: Failed, visit: Visit) -> Answer:
        """The last replica's own words, when it had some."""
        if failed.answer is None:
            raise Refused(502, "Bad Gateway", "no replica gave an answer; try again soon", 1)
        answer = self._whole(failed.answer, visit)
        answer.headers = {"Retry-After": "1", **answer.headers}
        return answer

    def _release(self, lease: Lease, outcome: Outcome) -> None:
        self.turns.release(lease, outcome)
        if outcome is Outcome.FAILED:
            self.metrics.failed(lease.replica.replica_id)

    def _note(self, visit: Visit) -> None:
        visit.total_s = time.monotonic() - visit.began_at
        self.metrics.count(visit)
        if self.log is not None:
            if not self.log.waiting:  # one write for all that end in this turn of the loop
                asyncio.get_running_loop().call_soon(self._write_log, self.log)
            self.log.add(visit)

    def _write_log(self, log: AccessLog) -> None:
        lines = log.waiting
        try:
            log.flush()
        except OSError:  # a full disk must not end the service
            self.metrics.lines_lost(lines)


def _too_large(most: int) -> Refused:
    return Refused(413, "BadRequestError", f"the body is larger than {most} bytes")


def refuse(request: Request, refused: Refused, request_id: str = "") -> None:
    """The client is told why. Raises ConnectionError."""
    headers = {"Content-Type": "application/json"}
    if request_id:
        headers["X-Request-Id"] = request_id
    if refused.retry_after_s:
        headers["Retry-After"] = str(refused.retry_after_s)
    if refused.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if refused.status in (408, 413):  # more of the body may be on its way
        request.keeps = False
    request.answer(refused.status, headers, refused.body())


def _request_id(request: Request) -> str:
    """The client's own, where it is one."""
    said = request.headers.get("X-Request-Id", "")
    return said if said and _REQUEST_ID.fullmatch(said) else f"{random.getrandbits(128):032x}"


def _headers(answer: Answer, visit: Visit) -> dict[str, str]:
    return {**answer.headers, "X-Request-Id": visit.request_id, "X-Slipway-Replica": visit.replica}


def _break_off(request: Request, tell: bool) -> None:
    """So that nobody takes it for a whole answer: an event for clients that read events, no last chunk for all."""
    error = Refused(502, "Bad Gateway", "the replica failed in the middle of this answer; ask again")
    # A client that has left, or takes nothing at the moment, is not waited for.
    with contextlib.suppress(ConnectionError):
        if tell and not request.is_behind:
            request.write(b"\n\ndata: " + error.body() + b"\n\n")
    request.cut()
