"""Forwarding between a client and the replicas of a program of the user, as a reverse proxy forwards.

Every method, path, header field and status passes (`http.fields`); an answer passes as it arrives, and a WebSocket
becomes a tunnel. A body of unknown length is received completely before the program gets the request, because many
programs cannot read chunks; a long body of known length streams through. The proxy has admitted the request and counts
the outcome.
"""

import asyncio
import contextlib
import errno
import time
from collections.abc import Callable
from http import HTTPStatus

from infra.agent.shortage import is_shortage
from serve.gateway import body_intake
from serve.gateway.charges import Charge
from serve.gateway.http import fields
from serve.gateway.http.connections import Line
from serve.gateway.http.deadline import Deadline
from serve.gateway.http.eager import EagerTask
from serve.gateway.http.heads import origin_form
from serve.gateway.http.limits import GatewayLimits
from serve.gateway.http.listener import ClientRequest
from serve.gateway.http.program_wire import ProgramReply
from serve.gateway.http.wire import MalformedMessage
from serve.gateway.keys import Keys
from serve.gateway.request_body import RequestRefused
from serve.gateway.request_log import RequestRecord
from serve.gateway.routing import FAILED, LOST, NEITHER, SERVED, Assignment, ReplicaSlot, RequestOutcome, RetryBudget
from serve.gateway.upstream import Engines, Failed, outcome_of
from serve.gateway.wait_queue import WaitQueue

STREAMED_BYTES = 256 << 10  # a longer body of known length streams to the program
REPEATABLE = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"))  # RFC 9110, 9.2.2
WITHOUT_BODY = (204, 304)


class ProgramForwarder:
    """Forwarder of the requests of a service. `release` ends an assignment with the outcome for the replica."""

    def __init__(
        self, keys: Keys, turns: WaitQueue, engines: Engines, release: Callable[[Assignment, RequestOutcome], None]
    ) -> None:
        self.keys, self.turns, self.engines, self._release = keys, turns, engines, release

    async def answer(
        self,
        request: ClientRequest,
        visit: RequestRecord,
        charge: Charge,
        deadline: Deadline,
        budget: RetryBudget,
        limits: GatewayLimits,
    ) -> None:
        """Answer an admitted request. Raises RequestRefused, ConnectionError when the client has left."""
        if request.method == b"CONNECT":
            raise RequestRefused(405, "MethodNotAllowedError", "the gateway is no forward proxy for CONNECT")
        size = int(request.headers.get(b"content-length", 0))
        body_intake.require_size(size, limits)
        streams = not request.is_whole and size > STREAMED_BYTES
        body = b"" if streams else await body_intake.receive(request, charge, deadline, limits)
        visit.bytes_in = len(body)
        has_body = b"content-length" in request.headers or b"transfer-encoding" in request.headers
        trial = Trial(self, request, visit, deadline, limits)
        head = trial.head(size if streams else len(body) if has_body else None)
        assignment = self.turns.assign(b"") or await self.turns.wait(b"")
        visit.queue_s = time.monotonic() - visit.began_at
        tried: list[ReplicaSlot] = []
        failing: list[ReplicaSlot] = []
        budget.earn()
        while True:
            visit.replica = assignment.replica.replica_id
            visit.tries += 1
            outcome = NEITHER
            try:
                outcome = await trial.forward(assignment, head + body, streams)
                return
            except Failed as error:
                failed, outcome = error, error.outcome
            except asyncio.CancelledError:
                if deadline.is_over:
                    outcome = LOST if deadline.what == "connect" else FAILED
                if deadline.what != "connect" or not deadline.clear_cancellation():
                    raise
                failed = Failed("connect: the time limit has passed", outcome)
            finally:
                self._release(assignment, outcome)
                if outcome is SERVED and failing:
                    self.turns.record_failures(failing)
            visit.failures.append(f"{visit.replica}: {failed.why}")
            tried.append(assignment.slot)
            if outcome is FAILED:
                failing.append(assignment.slot)
            # The program may have acted on a request that it received.
            may_repeat = outcome is LOST or (request.method in REPEATABLE and not streams)
            other = self.turns.assign_other(tried, b"") if may_repeat and len(tried) < limits.tries else None
            if other is not None and outcome is not LOST and not budget.spend():
                self._release(other, NEITHER)
                other = None
            if other is None:
                raise RequestRefused(502, "Bad Gateway", "no replica gave an answer; try again soon", 1)
            assignment = other


class Trial:
    """Forwarding of a request to one replica after the other, until a replica answers."""

    def __init__(
        self,
        owner: ProgramForwarder,
        request: ClientRequest,
        visit: RequestRecord,
        deadline: Deadline,
        limits: GatewayLimits,
    ) -> None:
        self.owner, self.request, self.visit, self.deadline, self.limits = owner, request, visit, deadline, limits
        self._bad_body = ""  # fault of a body that streams

    def head(self, length: int | None) -> bytes:
        """Return the head for the program. length: bytes of the body; None = a request without a body."""
        request = self.request
        target, host = origin_form(request.url, request.headers.get(b"host", b""))
        lines = fields.request_lines(
            list(request.headers.items()) if request.fields is None else request.fields,
            host,
            request.peer,
            request.is_tls,
            self.visit.request_id,
            lambda said: self.owner.keys.name_of(said) is not None,
        )
        if length is not None:
            lines += b"Content-Length: %d\r\n" % length
        if request.tunnel is not None:
            lines += fields.UPGRADE
        return b"%b %b HTTP/1.1\r\n%b\r\n" % (request.method, target, lines)

    async def forward(self, assignment: Assignment, message: bytes, streams: bool) -> RequestOutcome:
        """Send the message, then the rest of the body if it streams; pass the answer on, and return the outcome.

        Raises Failed while the client has no byte, RequestRefused, ConnectionError when the client has left.
        """
        request, deadline, limits = self.request, self.deadline, self.limits
        line = upload = None
        try:
            home = self.owner.engines.program_home(assignment.replica.url)
            line = home.idle()
            if line is None:
                deadline.set("connect", limits.connect_s)
                line = await home.connect()
            deadline.set("first byte", limits.total_s)
            reply = line.send_request(message, home)
            assert isinstance(reply, ProgramReply)
            reply.is_head, reply.wants_tunnel = request.method == b"HEAD", request.tunnel is not None
        except OSError as error:
            if is_shortage(error) or error.errno == errno.EADDRNOTAVAIL:
                raise RequestRefused(503, "Service Unavailable", "the gateway has no room; try again soon", 1) from None
            raise Failed(f"{type(error).__name__}: {error}", LOST if line is None else FAILED) from None
        try:
            if streams:
                upload = EagerTask(self._upload(line, reply))
            try:
                while not reply.status:
                    await reply.wait_data()
            except MalformedMessage as error:
                if self._bad_body:
                    raise RequestRefused(400, "BadRequestError", self._bad_body) from None
                raise Failed(str(error)) from None
            self.visit.first_byte_s = assignment.slot.heard_at = time.monotonic()
            self.visit.first_byte_s -= self.visit.began_at
            self.visit.status = reply.status
            if not reply.is_tunnel:
                return await self._download(reply, assignment)
            upload = EagerTask(self._feed_tunnel(reply))
            return await self._download_tunnel(reply, assignment)
        finally:
            if upload is not None and not upload.is_done:
                upload.cancel()
                line.close()  # the program waits for the rest of the body
            reply.close()

    async def _upload(self, line: Line, reply: ProgramReply) -> None:
        """Send the body to the program at the pace of both sides; close the connection of a broken body."""
        request = self.request
        if request.headers.get(b"expect", b"").lower() == b"100-continue":
            request.send_continue()
        try:
            while True:
                if not reply.status:
                    self.deadline.set("body", self.limits.client_idle_s)
                try:
                    part = await request.readany()
                except MalformedMessage:
                    self._bad_body = "the body is malformed"
                    line.close()
                    return
                if not reply.status:
                    self.deadline.set("first byte", self.limits.total_s)
                if not part:
                    return
                self.visit.bytes_in += len(part)
                line.send(part)
                await line.drain()
        except ConnectionError:
            pass  # the program has closed the connection; the answer, if any, has arrived before

    async def _download(self, reply: ProgramReply, assignment: Assignment) -> RequestOutcome:
        """Pass an answer on at the pace of the client."""
        request, visit, deadline, limits = self.request, self.visit, self.deadline, self.limits
        has_body = request.method != b"HEAD" and reply.status not in WITHOUT_BODY
        chunk, length = reply.take_unread(), None if reply.status == HTTPStatus.NO_CONTENT else reply.length
        if reply.is_whole and has_body:
            length = b"%d" % len(chunk)
        if reply.is_events:
            deadline.lift_total()
        why = ""
        try:
            request.start_program_answer(self._answer_head(reply), length, has_body, chunk)
            while True:
                visit.bytes_out += len(chunk)
                if request.is_slow:
                    deadline.set("client", limits.client_idle_s)
                    await request.drain()
                deadline.set("idle", limits.idle_s)
                try:
                    chunk = await reply.readany()
                except MalformedMessage as error:
                    why = f"died mid-answer: {error}"
                    break
                if not chunk:
                    break
                assignment.slot.heard_at = time.monotonic()
                request.write(chunk)
        except asyncio.CancelledError:
            if not deadline.clear_cancellation():
                raise
            visit.note = f"cut off: {deadline.what} limit"
            if deadline.what != "idle":
                request.close_connection(at_once=deadline.what == "client")
                return NEITHER
            why = f"silent for {limits.idle_s:g} s"
        if not why:
            return outcome_of(reply.status)
        visit.failures.append(f"{visit.replica}: {why}")
        request.close_connection()
        return FAILED

    async def _download_tunnel(self, reply: ProgramReply, assignment: Assignment) -> RequestOutcome:
        """Pass the bytes of a tunnel on until a side closes, or both are silent for `idle_s` seconds."""
        request, deadline = self.request, self.deadline
        deadline.lift_total()
        try:
            request.start_tunnel(self._answer_head(reply))
            while True:
                deadline.set("idle", self.limits.idle_s)
                chunk = await reply.readany()
                assignment.slot.heard_at = time.monotonic()
                self.visit.bytes_out += len(chunk)
                request.write(chunk)
                if request.is_slow:
                    deadline.set("client", self.limits.client_idle_s)
                    await request.drain()
        except MalformedMessage:
            pass  # the program has closed the tunnel
        except asyncio.CancelledError:
            if not deadline.clear_cancellation():
                raise
            self.visit.note = f"cut off: {deadline.what} limit"
        request.close_connection()
        return SERVED

    async def _feed_tunnel(self, reply: ProgramReply) -> None:
        """Send the bytes of the client to the program."""
        assert self.request.tunnel is not None
        with contextlib.suppress(ConnectionError):
            while True:
                part = await self.request.tunnel.readany()
                self.deadline.set("idle", self.limits.idle_s)
                self.visit.bytes_in += len(part)
                reply.wire.send(part)
                await reply.wire.drain()

    def _answer_head(self, reply: ProgramReply) -> bytes:
        request, visit = self.request, self.visit
        return fields.answer_head(
            reply.status, reply.reason, reply.fields, request.cors_lines, visit.request_id, visit.replica.encode()
        )
