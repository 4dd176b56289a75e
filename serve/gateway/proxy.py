"""One request from its headers to the last byte of its answer: let in, read, tried, passed on, noted.

In: an HTTP request of aiohttp's server. Out: its response; a lease that was released, a visit that was counted. Another
replica is tried only as long as the client has not got a byte. Whoever leaves takes the engine's work along: the
connection to it is closed, which makes it stop. Called by: `server`.
"""

import asyncio
import contextlib
import re
import secrets
import time
from collections import Counter

import aiohttp
from aiohttp import web

from serve.gateway import asks
from serve.gateway.access import AccessLog
from serve.gateway.asks import Ask, Refused
from serve.gateway.deadline import Deadline
from serve.gateway.keys import Keys
from serve.gateway.limits import Limits
from serve.gateway.metrics import Metrics
from serve.gateway.routing import Lease, Outcome, RetryBudget, Seat
from serve.gateway.turns import Turns
from serve.gateway.upstream import BROKEN, Answer, Engines, Failed
from serve.gateway.visit import Visit

CLIENT_LEFT = 499
SERVER = "slipway"
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

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        """Never raises but for a cancellation: whatever is wrong is an answer."""
        visit = Visit(time.monotonic(), request_id=_request_id(request))
        try:
            response = await self._answer(request, visit)
            visit.status = visit.status or response.status
            return response
        except Refused as refused:
            visit.status, visit.note = refused.status, refused.message
            return _refusal(refused, visit)
        except asyncio.CancelledError:
            visit.status = CLIENT_LEFT
            raise
        finally:
            self._note(visit)

    def key_of(self, request: web.BaseRequest) -> str:
        """The name of the key that lets it in. Raises Refused."""
        if not self.keys:
            return ""
        name = self.keys.name_of(request.headers.get("Authorization"))
        if name is None:
            raise Refused(401, "AuthenticationError", "no valid API key; send: Authorization: Bearer KEY")
        return name

    async def _answer(self, request: web.BaseRequest, visit: Visit) -> web.StreamResponse:
        visit.route = asks.route(request.method, request.path)
        visit.key = self.key_of(request)
        self.metrics.arrivals.add(visit.began_at)
        if self.in_flight >= self.limits.max_in_flight or self._by_key[visit.key] >= self.limits.max_in_flight_per_key:
            raise Refused(429, "Too Many Requests", "too many requests at once; try again soon", 1)
        self.in_flight += 1
        self._by_key[visit.key] += 1
        deadline = Deadline(self.limits.total_s)
        try:
            ask = await self._read(request, visit, deadline)
            deadline.set("total", self.limits.total_s)
            lease = await self.turns.take(ask.affinity)
            visit.queue_s = time.monotonic() - visit.began_at
            response = await self._try(request, ask, lease, visit, deadline)
            return response if response.prepared else await self._hand_out(request, response, visit, deadline)
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

    async def _hand_out(
        self, request: web.BaseRequest, response: web.StreamResponse, visit: Visit, deadline: Deadline
    ) -> web.StreamResponse:
        """A short answer, to a client that may not take it."""
        deadline.set("client", self.limits.client_idle_s)
        try:
            await response.prepare(request)
            await response.write_eof()
        except asyncio.CancelledError:
            if not deadline.forgive():
                raise
            _cut(request, at_once=True)
        except ConnectionError:
            visit.status = CLIENT_LEFT
        return response

    async def _read(self, request: web.BaseRequest, visit: Visit, deadline: Deadline) -> Ask:
        """What is asked, once all of it is here. Raises Refused."""
        if visit.route == "models":
            return Ask(request.path, b"")
        if request.headers.get("Content-Encoding", "identity") != "identity":
            raise Refused(415, "BadRequestError", "compressed bodies are not taken")
        most = self.limits.max_body_bytes
        too_large = Refused(413, "BadRequestError", f"the body is larger than {most} bytes")
        if (request.content_length or 0) > most:
            raise too_large
        if request.headers.get("Expect", "").lower() == "100-continue" and request.transport is not None:
            request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        parts, size = [], 0
        while True:
            if not request.content.is_eof():  # as it mostly is: then there is nothing to wait for
                deadline.set("body", self.limits.client_idle_s)
            try:
                part = await request.content.readany()
            except (web.RequestPayloadError, aiohttp.ClientPayloadError, ConnectionError) as error:
                raise Refused(400, "BadRequestError", f"the body is broken: {type(error).__name__}") from None
            if not part:
                break
            parts.append(part)
            size += len(part)
            if size > most:
                raise too_large
        visit.bytes_in = size
        ask = asks.read(request.path, b"".join(parts), self.limits)
        visit.streams = ask.streams
        return ask

    async def _try(
        self, request: web.BaseRequest, ask: Ask, lease: Lease, visit: Visit, deadline: Deadline
    ) -> web.StreamResponse:
        """The answer of the first replica that has one. Raises Refused."""
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
                outcome, response = await self._pass_on(request, answer, lease, visit, deadline)
                return response
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
        self, request: web.BaseRequest, answer: Answer, lease: Lease, visit: Visit, deadline: Deadline
    ) -> tuple[Outcome, web.StreamResponse]:
        """Chunk by chunk, as fast as the client takes them: what it does not take stays with the engine."""
        rest, watch, limits = answer.rest, answer.watch, self.limits
        assert rest is not None
        response = web.StreamResponse(status=answer.status, headers=_headers(answer, visit))
        chunk, why = answer.body, ""
        try:
            deadline.set("client", limits.client_idle_s)
            await response.prepare(request)
            while chunk:
                visit.bytes_out += len(chunk)
                deadline.set("client", limits.client_idle_s)
                await response.write(chunk)
                deadline.set("idle", limits.idle_s)
                try:
                    chunk = await rest.readany()
                except BROKEN as error:
                    why = f"died mid-stream: {type(error).__name__}"
                    break
                lease.seat.heard_at = time.monotonic()
                if watch is not None:
                    watch.feed(chunk)
        except asyncio.CancelledError:
            if not deadline.forgive():
                raise
            visit.note = f"cut off: {deadline.what} limit"
            why = f"silent for {limits.idle_s:g} s" if deadline.what == "idle" else ""
            if not why:
                _cut(request, at_once=deadline.what == "client")
                return Outcome.NEITHER, response
        except ConnectionError:  # of the client: it is noticed at the next write
            visit.status = CLIENT_LEFT
            return Outcome.NEITHER, response
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
            return Outcome.SERVED, response
        visit.failures.append(f"{visit.replica}: {why}")
        if not is_told:
            await _break_off(request, response, watch is not None)
        return Outcome.FAILED, response

    def _whole(self, answer: Answer, visit: Visit) -> web.Response:
        body = answer.body
        if visit.route == "models" and answer.status == 200:
            try:
                body = asks.without_paths(body)
            except ValueError:
                raise Refused(502, "Bad Gateway", "the replica's list of models cannot be read") from None
        visit.bytes_out = len(body)
        return web.Response(status=answer.status, body=body, headers=_headers(answer, visit))

    def _given_up(self, failed: Failed, visit: Visit) -> web.Response:
        """The last replica's own words, when it had some."""
        if failed.answer is None:
            raise Refused(502, "Bad Gateway", "no replica gave an answer; try again soon", 1)
        response = self._whole(failed.answer, visit)
        response.headers.setdefault("Retry-After", "1")
        return response

    def _release(self, lease: Lease, outcome: Outcome) -> None:
        self.turns.release(lease, outcome)
        if outcome is Outcome.FAILED:
            self.metrics.failed(lease.replica.replica_id)

    def _note(self, visit: Visit) -> None:
        visit.total_s = time.monotonic() - visit.began_at
        self.metrics.count(visit)
        if self.log is not None:
            try:
                self.log.write(visit)
            except OSError:  # a full disk must not end the service
                self.metrics.line_lost()


def _request_id(request: web.BaseRequest) -> str:
    """The client's own, where it is one."""
    said = request.headers.get("X-Request-Id", "")
    return said if _REQUEST_ID.fullmatch(said) else secrets.token_hex(16)


def _headers(answer: Answer, visit: Visit) -> dict[str, str]:
    own = {"X-Request-Id": visit.request_id, "X-Slipway-Replica": visit.replica, "Server": SERVER}
    return {**answer.headers, **own}


def _refusal(refused: Refused, visit: Visit) -> web.Response:
    headers = {"Content-Type": "application/json", "X-Request-Id": visit.request_id, "Server": SERVER}
    if refused.retry_after_s:
        headers["Retry-After"] = str(refused.retry_after_s)
    if refused.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    response = web.Response(status=refused.status, body=refused.body(), headers=headers)
    if refused.status in (408, 413):  # more of the body may be on its way
        response.force_close()
    return response


def _cut(request: web.BaseRequest, at_once: bool = False) -> None:
    """Closes the connection to the client, after what it was sent or at once."""
    if request.transport is not None:
        request.transport.abort() if at_once else request.transport.close()


async def _break_off(request: web.BaseRequest, response: web.StreamResponse, tell: bool) -> None:
    """So that nobody takes it for a whole answer: an event for clients that read events, no last chunk for all."""
    error = Refused(502, "Bad Gateway", "the replica failed in the middle of this answer; ask again")
    # A client that has left, or takes nothing at the moment, is not waited for.
    with contextlib.suppress(ConnectionError):
        if tell and request.transport is not None and not request.transport.get_write_buffer_size():
            await response.write(b"\n\ndata: " + error.body() + b"\n\n")
    _cut(request)
