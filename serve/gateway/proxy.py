"""One request from the headers to the last byte of the answer: authorized, read, tried, forwarded, logged.

A ClientRequest of the listener gets an answer; on every path the assignment is released and the visit is counted. The
proxy retries on a different replica only as long as the client has received no byte. When a client disconnects, the
proxy closes the connection to the engine, which stops the engine's work.
"""

import asyncio
import contextlib
import random
import re
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor

from serve.gateway import body_intake, local_access, request_body
from serve.gateway.access import AccessLog
from serve.gateway.charges import Charge, Charges
from serve.gateway.http.deadline import Deadline, Deadlines
from serve.gateway.http.fields import KEY
from serve.gateway.http.limits import GatewayLimits
from serve.gateway.http.listener import ClientRequest
from serve.gateway.http.wire import MalformedMessage
from serve.gateway.keys import AuthThrottle, Keys
from serve.gateway.metrics import GatewayMetrics
from serve.gateway.program import ProgramForwarder
from serve.gateway.request_body import EngineRequest, RequestRefused
from serve.gateway.request_log import RequestRecord
from serve.gateway.routing import FAILED, LOST, NEITHER, SERVED, Assignment, ReplicaSlot, RequestOutcome, RetryBudget
from serve.gateway.upstream import Answer, Engines, Failed, outcome_of
from serve.gateway.wait_queue import WaitQueue

CLIENT_LEFT = 499
NOTE_S = 0.02  # maximum delay of log and metrics; a killed gateway loses as much
ASIDE_BYTES = 256 << 10  # longer bodies are parsed in a thread, so no parse blocks the loop for long
SHOWN = 20  # models named in a refusal
JSON = b"Content-Type: application/json\r\n"
_REQUEST_ID = re.compile(rb"[A-Za-z0-9._-]{1,128}")


class Proxy:
    """State shared by all requests of a gateway."""

    def __init__(
        self,
        limits: GatewayLimits,
        keys: Keys,
        turns: WaitQueue,
        engines: Engines,
        metrics: GatewayMetrics,
        log: AccessLog | None,
        own: bytes,
    ) -> None:
        self.limits, self.keys, self.turns, self.engines = limits, keys, turns, engines
        self.metrics, self.log = metrics, log
        self.own = own  # listen address
        self.models: Mapping[str, str] = {}  # accepted name of a model -> variant, "" = the whole model; {} = any name
        self.in_flight = 0
        self._by_key: Counter[str] = Counter()
        self._charges = Charges()
        self._aside = ThreadPoolExecutor(1, "bodies")
        # A budget per key: failing requests of a client leave the retries of other clients alone.
        self._budgets = defaultdict[str, RetryBudget](lambda: RetryBudget(limits))
        self._deadlines = Deadlines()
        self._guesses = AuthThrottle()
        self._ended: list[RequestRecord] = []  # visits not yet counted and logged
        self._programs = ProgramForwarder(keys, turns, engines, self._release)

    async def answer(self, request: ClientRequest) -> None:
        """Answer a request, valid or not. Raises ConnectionError when the client has left, CancelledError."""
        visit = RequestRecord(time.monotonic(), _request_id(request))
        try:
            await self._answer(request, visit)
        except RequestRefused as refused:
            visit.status, visit.note = CLIENT_LEFT, refused.message
            await self.delay_wrong_key(request, refused)
            visit.status = refused.status
            refuse(request, refused, visit.request_id)
        except asyncio.CancelledError:
            visit.status = CLIENT_LEFT
            raise
        except ConnectionError:  # a disconnect shows at the next write
            visit.status = CLIENT_LEFT
            raise
        finally:
            self._queue_record(visit)

    def key_of(self, request: ClientRequest) -> str:
        """Return the name of the authorizing key, "" without keys. Raises RequestRefused."""
        if self.keys:
            name = self.keys.name_of(request.headers.get(b"authorization", b""))
            if name is None and self.limits.any_route:
                name = self.keys.name_of(b"Bearer " + request.headers.get(KEY, b""))
            if name is None:
                raise RequestRefused(401, "AuthenticationError", "no valid API key; send: Authorization: Bearer KEY")
        else:
            name = ""
            require = local_access.require_own_page if self.limits.any_route else local_access.require_local
            require(request, self.own, self.limits.allow_origins)
        request.admit(name)
        return name

    async def delay_wrong_key(self, request: ClientRequest, refused: RequestRefused) -> None:
        """Delay the answer to a wrong key: an address with many wrong keys waits, other addresses do not."""
        if refused.status == 401:
            wait_s = self._guesses.wait_s(request.address, time.monotonic(), self.limits)
            if wait_s:
                await asyncio.sleep(wait_s)

    async def _answer(self, request: ClientRequest, visit: RequestRecord) -> None:
        is_own = self.limits.any_route
        visit.route = request_body.OWN if is_own else request_body.route(request.method, request.path)
        visit.key = self.key_of(request)
        self.metrics.arrivals.add(visit.began_at)
        if self.in_flight >= self.limits.max_in_flight or self._by_key[visit.key] >= self.limits.max_in_flight_per_key:
            raise RequestRefused(429, "Too Many Requests", "too many requests at once; try again soon", 1)
        self.in_flight += 1
        self._by_key[visit.key] += 1
        deadline = self._deadlines.start(request.task, self.limits.total_s)
        charge = Charge(self._charges, visit.key, request.address)
        try:
            if is_own:
                self._require_model(visit.key, None)
                await self._programs.answer(request, visit, charge, deadline, self._budgets[visit.key], self.limits)
                return
            ask = EngineRequest(request.path, b"")
            if visit.route != "models":
                if request.headers.get(b"content-encoding", b"identity") != b"identity":
                    raise RequestRefused(415, "BadRequestError", "compressed bodies are not accepted")
                if request.is_whole:
                    body = request.take_unread()
                else:
                    body = await body_intake.receive(request, charge, deadline, self.limits)
                body_intake.require_size(len(body), self.limits)
                charge.grow_to(len(body), self.limits)
                visit.bytes_in = len(body)
                ask = await self._read(request.path, body)
                visit.streams = ask.streams
            if visit.route != "models":
                self._require_model(visit.key, ask.model)
            if self.models:
                visit.variant = self._variant_of(visit.key, ask.model)
            variant = visit.variant
            assignment = self.turns.assign(ask.affinity, variant) or await self.turns.wait(ask.affinity, variant)
            visit.queue_s = time.monotonic() - visit.began_at
            answer = await self._try_replica(request, ask, assignment, visit, deadline)
            if answer is not None:
                visit.status, visit.bytes_out = answer.status, len(answer.body)
                request.answer(answer.status, _lines(answer, visit), answer.body)
                if request.is_slow:
                    await self._wait_received(request, deadline)
        except asyncio.CancelledError:
            if not deadline.clear_cancellation():
                raise
            if deadline.what == "body":
                raise RequestRefused(408, "Request Timeout", "the body did not arrive in time") from None
            raise RequestRefused(504, "Gateway Timeout", f"not done within {self.limits.total_s:g} s") from None
        finally:
            deadline.clear()
            charge.release()
            self.in_flight -= 1
            self._by_key[visit.key] -= 1

    def _require_model(self, key: str, model: object) -> None:
        """Raise RequestRefused unless the holder of a key may use a model; None = no model is named."""
        allowed = self.keys.models_of(key)
        if allowed is not None and not (isinstance(model, str) and model in allowed):
            asked = "no model" if model is None else f"the model {str(model)[:80]!r}"
            said = f"the request names {asked}; this key is for: {', '.join(sorted(allowed))}"
            raise RequestRefused(403, "PermissionDeniedError", said)

    def _variant_of(self, key: str, model: object) -> str:
        """Return the variant of a requested model, "" for the whole model. Raises RequestRefused for other names.

        key: name of the key; the error lists only models of the key.
        """
        found = self.models.get(model) if isinstance(model, str) else "" if model is None else None
        if found is None:
            allowed = self.keys.models_of(key)
            names = [one for one in self.models if allowed is None or one in allowed]
            known = ", ".join(names[:SHOWN] or ["none"]) + (", ..." if len(names) > SHOWN else "")
            said = f"the model {str(model)[:80]!r} does not exist; available: {known}"
            raise RequestRefused(404, "NotFoundError", said)
        return found

    async def _read(self, path: bytes, body: bytes) -> EngineRequest:
        """Return the request in a body, parsed in a thread if large. Raises RequestRefused."""
        if len(body) <= ASIDE_BYTES:
            return request_body.read(path, body, self.limits)
        return await asyncio.get_running_loop().run_in_executor(self._aside, request_body.read, path, body, self.limits)

    async def _wait_received(self, request: ClientRequest, deadline: Deadline) -> None:
        """Wait until the client has received a short answer; cut the connection after `client_idle_s` seconds."""
        deadline.set("client", self.limits.client_idle_s)
        try:
            await request.drain()
        except asyncio.CancelledError:
            if not deadline.clear_cancellation():
                raise
            request.close_connection(at_once=True)

    async def _try_replica(
        self,
        request: ClientRequest,
        ask: EngineRequest,
        assignment: Assignment,
        visit: RequestRecord,
        deadline: Deadline,
    ) -> Answer | None:
        """Return the first complete answer; None = the answer was forwarded in parts. Raises RequestRefused."""
        lines = b"%bX-Request-Id: %b\r\n" % (request.lines, visit.request_id)
        tried: list[ReplicaSlot] = []
        failing: list[ReplicaSlot] = []
        budget = self._budgets[visit.key]
        budget.earn()
        while True:
            visit.replica = assignment.replica.replica_id
            visit.tries += 1
            outcome = NEITHER
            try:
                method = b"GET" if request.method == b"HEAD" else request.method
                answer = await self.engines.send_request(method, ask, assignment.replica, lines, deadline)
                visit.first_byte_s = assignment.slot.heard_at = time.monotonic()
                visit.first_byte_s -= visit.began_at
                if answer.rest is None:
                    outcome = outcome_of(answer.status)
                    refused = request_body.refusal_of(request.path, answer.status, answer.body)
                    if refused:
                        raise refused
                    return self._without_paths(answer, visit)
                outcome = await self._forward(request, answer, assignment, visit, deadline)
                return None
            except Failed as error:
                failed, outcome = error, error.outcome
            except asyncio.CancelledError:
                if deadline.is_over:
                    outcome = LOST if deadline.what == "connect" else FAILED
                if deadline.what not in ("connect", "first byte") or not deadline.clear_cancellation():
                    raise
                failed = Failed(f"{deadline.what}: the time limit has passed", outcome)
            finally:
                self._release(assignment, outcome)
                if outcome is SERVED and failing:
                    self.turns.record_failures(failing)
            visit.failures.append(f"{visit.replica}: {failed.why}")
            tried.append(assignment.slot)
            if outcome is FAILED:
                failing.append(assignment.slot)
            other = (
                self.turns.assign_other(tried, ask.affinity, visit.variant) if len(tried) < self.limits.tries else None
            )
            # A retry is free if the request has reached no engine.
            if other is not None and outcome is not LOST and not budget.spend():
                self._release(other, NEITHER)
                other = None
            if other is None:
                return self._final_failure(failed, visit)
            assignment = other

    async def _forward(
        self, request: ClientRequest, answer: Answer, assignment: Assignment, visit: RequestRecord, deadline: Deadline
    ) -> RequestOutcome:
        """Forward an answer chunk by chunk, at the pace of the client.

        Bytes not taken by the client stay with the engine.
        """
        rest, watch, limits = answer.rest, answer.watch, self.limits
        assert rest is not None
        visit.status, why = answer.status, ""
        try:
            visit.bytes_out = len(answer.body)
            request.start_answer(answer.status, _lines(answer, visit), answer.body)
            while True:
                deadline.set("idle", limits.idle_s)
                try:
                    chunk = await rest.readany()
                except MalformedMessage as error:
                    why = f"died mid-stream: {error}"
                    break
                if not chunk:
                    break
                assignment.slot.heard_at = time.monotonic()
                if watch is not None:
                    watch.feed(chunk)
                visit.bytes_out += len(chunk)
                request.write(chunk)
                if request.is_slow:
                    deadline.set("client", limits.client_idle_s)
                    await request.drain()
        except asyncio.CancelledError:
            if not deadline.clear_cancellation():
                raise
            visit.note = f"cut off: {deadline.what} limit"
            why = f"silent for {limits.idle_s:g} s" if deadline.what == "idle" else ""
            if not why:
                request.close_connection(at_once=deadline.what == "client")
                return NEITHER
        finally:
            rest.close()
        is_told = False
        if not why and watch is not None:
            is_told = (watch.error_code or 0) >= 500  # the engine itself reported the error
            if is_told:
                why = "an error mid-stream"
            elif watch.error_code is None and not watch.is_complete:
                why = "ended without [DONE]"
        if not why:
            return outcome_of(answer.status)
        visit.failures.append(f"{visit.replica}: {why}")
        if not is_told:
            _break_off(request, watch is not None)
        return FAILED

    def _without_paths(self, answer: Answer, visit: RequestRecord) -> Answer:
        if visit.route == "models" and answer.status == 200:
            try:
                answer.body = request_body.without_paths(answer.body, self.keys.models_of(visit.key))
            except ValueError:
                raise RequestRefused(502, "Bad Gateway", "the replica's list of models cannot be read") from None
        return answer

    def _final_failure(self, failed: Failed, visit: RequestRecord) -> Answer:
        """Return the last replica's own answer with a Retry-After header. Raises RequestRefused without an answer."""
        if failed.answer is None:
            raise RequestRefused(502, "Bad Gateway", "no replica gave an answer; try again soon", 1)
        answer = self._without_paths(failed.answer, visit)
        if b"Retry-After: " not in answer.lines:
            answer.lines += b"Retry-After: 1\r\n"
        return answer

    def _release(self, assignment: Assignment, outcome: RequestOutcome) -> None:
        self.turns.release(assignment, outcome)
        if outcome is FAILED or outcome is LOST:
            self.metrics.count_failure(assignment.replica.replica_id)

    def _queue_record(self, visit: RequestRecord) -> None:
        visit.total_s = time.monotonic() - visit.began_at
        if not self._ended:
            asyncio.get_running_loop().call_later(NOTE_S, self.flush_records)
        self._ended.append(visit)

    def close(self) -> None:
        """Flush log and metrics and stop the thread, when no request is in progress."""
        self.flush_records()
        self._aside.shutdown(wait=False, cancel_futures=True)

    def flush_records(self) -> None:
        """Count and log all requests ended since the last call, in one batch: a single write, and warm code."""
        ended, self._ended = self._ended, []
        if not ended:
            return
        for visit in ended:
            self.metrics.count(visit)
        if self.log is not None:
            try:
                self.log.write(ended)
            except OSError:  # a full disk must not end the service
                self.metrics.count_lost_lines(len(ended))


def refuse(request: ClientRequest, refused: RequestRefused, request_id: bytes = b"") -> None:
    """Send the refusal to the client. Raises ConnectionError."""
    lines = JSON
    if request_id:
        lines += b"X-Request-Id: %b\r\n" % request_id
    if refused.retry_after_s:
        lines += b"Retry-After: %d\r\n" % refused.retry_after_s
    if refused.status == 401:
        lines += b"WWW-Authenticate: Bearer\r\n"
    if refused.allow:
        lines += b"Allow: %b\r\n" % refused.allow
    if refused.status in (408, 413):  # more of the body may be on the way
        request.keeps = False
    request.answer(refused.status, lines, refused.body())


def _request_id(request: ClientRequest) -> bytes:
    """Return the client's own request id if valid, else a random id."""
    said = request.headers.get(b"x-request-id")
    return said if said and _REQUEST_ID.fullmatch(said) else random.randbytes(16).hex().encode()


def _lines(answer: Answer, visit: RequestRecord) -> bytes:
    ours = (answer.lines, visit.request_id, visit.replica.encode())
    return b"%bX-Request-Id: %b\r\nX-Slipway-Replica: %b\r\n" % ours


def _break_off(request: ClientRequest, tell: bool) -> None:
    """Break an answer off so that no client takes the answer for complete.

    Clients of an event stream get an error event, and no client gets a final chunk.
    """
    error = RequestRefused(502, "Bad Gateway", "the replica failed during this answer; send the request again")
    # Do not wait for a client that has left or currently takes no bytes.
    with contextlib.suppress(ConnectionError):
        if tell and not request.has_unsent_bytes:
            request.write(b"\n\ndata: " + error.body() + b"\n\n")
    request.close_connection()
