"""The controller's side of its gateway: it is started where none lives, found where one does, told and heard.

In: what the gateway is to know (`tell`). Out: what it counts, as it said last. A gateway that was killed is started
again at once, on its port; one that does not answer for long is killed first. A controller that ends leaves it alone.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from dataclasses import replace

import msgspec

from infra.agent.process import send
from infra.checkout import ROOT
from infra.errors import SlipwayError, UsageError
from serve.gateway.http.certificate import Tls
from serve.gateway.http.limits import GatewayLimits
from serve.loops import timeout
from serve.policy.doubt import NO_FAILURES, Failures
from serve.processes import gateway_orders
from serve.processes.controller_process import tail
from serve.processes.gateway_orders import LONGEST_LINE, GatewayReport, Order, ReplicaEndpoint
from serve.processes.places import Places

HEAR_S = 0.1  # between two reports
CONNECT_S = 0.02  # between two calls of one that is being started
START_S = 150.0  # time for its first report: imports take long on a busy machine
REPLY_S = 30.0  # time for any other: one that is silent for longer is stuck
AGAIN_S = 1.0  # before one that has ended at once is started again
MOST_FAILURES = 3  # in a row, of one that never said a word

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class GatewayClient:
    """The gateway of a service, as its controller sees it. Use it within one event loop."""

    def __init__(self, places: Places, first: Order, say: Callable[[str], None]) -> None:
        self.places, self.order, self.say = places, first, say
        self.report: GatewayReport | None = None
        """Last report of the living gateway; None while none is known to live."""
        self.restarts = 0
        self.trouble: SlipwayError | None = None
        """Reason why it cannot do its work."""
        self.is_found = False
        """True if the gateway was started before this controller."""
        self._obeyed: Order | None = None
        self._changed, self._heard = asyncio.Event(), asyncio.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._task: asyncio.Task[None] | None = None

    # Orders to the gateway.

    async def begin(self) -> GatewayReport:
        """Return its first report, once it listens. Raises UsageError, SlipwayError when it cannot."""
        self._task = asyncio.create_task(self._keep())
        while self.report is None:
            self._heard.clear()
            waiting = asyncio.create_task(self._heard.wait())
            await asyncio.wait([waiting, self._task], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if self._task.done():
                self._task.result()
            if self.trouble:
                raise self.trouble
        return self.report

    def hear(self) -> None:
        """Connect to the living gateway, if there is one: a service that is being ended gets no other."""
        if not gateway_orders.is_free(self.places):
            self._task = asyncio.create_task(self._keep())

    def tell(self, endpoints: Sequence[ReplicaEndpoint], limits: GatewayLimits, tls: Tls | None) -> None:
        """Send these replicas, limits and certificate to the gateway, in force from its next report on."""
        order = replace(self.order, endpoints=tuple(endpoints), limits=limits, tls=tls)
        if order != self.order:
            self.order = order
            self._changed.set()

    async def leave(self) -> None:
        """Leave it alone: it goes on, and the next controller finds it."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def end(self, drain_s: float) -> None:
        """End it, wherever it came from; what has begun may go on for `drain_s`. Nothing of it runs then."""
        await self.leave()
        gateway = gateway_orders.living(self.places)
        if gateway is None:
            return
        last = replace(self.order, endpoints=(), is_last=True, drain_s=drain_s)
        with contextlib.suppress(OSError, _Gone):  # one that ends by itself meanwhile
            if near := gateway_orders.call(self.places):
                async with _open(near) as (reader, writer):
                    await self._ask(reader, writer, last, REPLY_S)
            else:
                send(gateway, signal.SIGTERM)
        until = time.monotonic() + drain_s + REPLY_S
        while gateway_orders.living(self.places) == gateway:
            if time.monotonic() > until:
                send(gateway, signal.SIGKILL)
            if self._process is not None:
                self._process.poll()
            await asyncio.sleep(CONNECT_S)

    # Reports of the gateway.

    def in_flight(self, replica_id: str) -> int:
        """Return the requests that a replica works on; 1 while that is not known of one that was just taken off."""
        if self._task is None or self.trouble is not None:  # no gateway lives, so there are no requests
            return 0
        if self.report is None or self._obeyed != self.order:
            return 1
        return self.report.in_flight.get(replica_id, 0)

    def failures(self, replica_id: str) -> Failures:
        """Return how many requests in a row a replica has failed, as far as is known."""
        if self.report is None or self._obeyed != self.order:
            return NO_FAILURES
        return self.report.failures.get(replica_id, NO_FAILURES)

    # The life of the gateway.

    async def _keep(self) -> None:
        """Keep a gateway alive, and listen to it, for as long as this runs."""
        failures = 0
        while self.trouble is None:
            try:
                async with self._connected() as (reader, writer):
                    await self._hear(reader, writer)
            except (_Gone, ConnectionError) as error:
                was_known, self.report, self._obeyed = self.report is not None, None, None
                if was_known:
                    self.say(f"the gateway has ended: {error or 'it hung up'}; it is started again")
                    self.restarts += 1
                failures = 0 if was_known else failures + 1
                if failures >= MOST_FAILURES:
                    self.trouble = SlipwayError(f"the gateway did not start: {error}")
                    self._heard.set()
                elif failures:
                    await asyncio.sleep(AGAIN_S)
            except OSError as error:  # this machine is short of something
                self.say(f"the gateway cannot be called: {error}")
                await asyncio.sleep(AGAIN_S)

    async def _hear(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Tell what is wanted whenever it changes, and hear what is counted, until it ends."""
        limit_s = START_S
        while True:
            self._changed.clear()
            order = self.order
            found = await self._ask(reader, writer, order, limit_s)
            if found.problem:
                self.trouble = UsageError(found.problem)
                self._heard.set()
                return
            # A port that was free to choose is chosen now, for as long as the service lives.
            if self.order.port != found.port:
                self.order = replace(self.order, port=found.port)
                order = replace(order, port=found.port)
            self.report, self._obeyed, limit_s = found, order, REPLY_S
            self._heard.set()
            with contextlib.suppress(asyncio.TimeoutError):
                async with timeout(HEAR_S):
                    await self._changed.wait()

    async def _ask(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, order: Order, limit_s: float
    ) -> GatewayReport:
        """Send an order; return the report. Raises _Gone."""
        writer.write(msgspec.json.encode(order) + b"\n")
        try:
            async with timeout(limit_s):
                line = await reader.readline()
        except asyncio.TimeoutError:
            gateway = gateway_orders.living(self.places)
            if gateway is not None:
                send(gateway, signal.SIGKILL)
            raise _Gone(f"it did not answer for {limit_s:g} s, and was killed") from None
        if not line.endswith(b"\n"):
            raise _Gone("")
        try:
            return msgspec.json.decode(line, type=GatewayReport)
        except msgspec.DecodeError as error:  # sent by other code than ours
            gateway = gateway_orders.living(self.places)
            if gateway is not None:
                send(gateway, signal.SIGTERM)
            raise _Gone(f"its reports cannot be read ({error}); it was told to end") from None

    @contextlib.asynccontextmanager
    async def _connected(self) -> "AsyncIterator[Streams]":
        """Yield a reader and a writer to the gateway that lives, or one that is started now. Raises OSError, _Gone."""
        until = time.monotonic() + START_S
        is_first = True
        while (near := gateway_orders.call(self.places)) is None:
            self._start_if_none(is_first)
            is_first = False
            if time.monotonic() > until:
                raise _Gone(f"it did not come up: {tail(self.places.gateway_log)}")
            await asyncio.sleep(CONNECT_S)
        self.is_found = self.is_found or is_first and self._process is None
        async with _open(near) as streams:
            yield streams

    def _start_if_none(self, is_first: bool) -> None:
        """Start a gateway, unless one is on its way up."""
        if self._process is not None and self._process.poll() is None:
            return
        if not is_first and self._process is not None:
            raise _Gone(f"it ended with {self._process.returncode}: {tail(self.places.gateway_log)}")
        if not gateway_orders.is_free(self.places):
            return  # one lives that another controller has started
        environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
        line = [sys.executable, "-m", "serve.gateway_process", str(self.places.folder)]
        with self.places.gateway_log.open("ab") as log:
            self._process = subprocess.Popen(
                line, cwd=ROOT, env=environ, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )


@contextlib.asynccontextmanager
async def _open(near: socket.socket) -> "AsyncIterator[Streams]":
    near.setblocking(False)
    reader, writer = await asyncio.open_unix_connection(sock=near, limit=LONGEST_LINE)
    try:
        yield reader, writer
    finally:
        writer.close()


class _Gone(Exception):
    """The gateway has ended."""
