"""Controller-side client of the gateway process: starts or finds the gateway, sends orders, receives reports.

`tell` sets the desired state of the gateway; `report` is the last report. The client restarts a dead gateway at once on
the same port, and kills a gateway that stays silent for too long. A controller that ends leaves the gateway running.
"""

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import replace

import msgspec

from infra.agent.process import send
from infra.checkout import ROOT
from infra.errors import SlipwayError, UsageError
from serve.gateway.http.certificate import Tls
from serve.gateway.http.limits import GatewayLimits
from serve.loops import timeout
from serve.policy.suspicion import NO_FAILURES, Failures
from serve.processes import gateway_orders
from serve.processes.controller_process import tail
from serve.processes.gateway_orders import LONGEST_LINE, GatewayReport, Order, ReplicaEndpoint
from serve.processes.service_paths import ServicePaths

HEAR_S = 0.1  # interval between reports
CONNECT_S = 0.02  # interval between connection attempts to a starting gateway
START_S = 150.0  # timeout of the first report: imports are slow on a busy machine
REPLY_S = 30.0  # timeout of later reports: a gateway silent for longer is stuck
AGAIN_S = 1.0  # pause before restarting a gateway after an immediate end
MOST_FAILURES = 3  # consecutive failures of a gateway without any report

NO_VARIANTS: Mapping[str, tuple[str, ...]] = {}
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class GatewayClient:
    """Gateway of a service as seen by the controller. Use within a single event loop."""

    def __init__(self, places: ServicePaths, first: Order, say: Callable[[str], None]) -> None:
        self.places, self.order, self.say = places, first, say
        self.report: GatewayReport | None = None
        """Last report of the living gateway; None without a known gateway."""
        self.restarts = 0
        self.trouble: SlipwayError | None = None
        """Error that keeps the gateway from working."""
        self.is_found = False
        """True if the gateway was started before this controller."""
        self._applied_order: Order | None = None
        self._changed, self._has_news = asyncio.Event(), asyncio.Event()
        self._process: subprocess.Popen[bytes] | None = None
        self._task: asyncio.Task[None] | None = None

    # Orders to the gateway.

    async def start(self) -> GatewayReport:
        """Start or find the gateway, and return the first report once it listens. Raises UsageError, SlipwayError."""
        self._task = asyncio.create_task(self._keep_connected())
        while self.report is None:
            self._has_news.clear()
            waiting = asyncio.create_task(self._has_news.wait())
            await asyncio.wait([waiting, self._task], return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            if self._task.done():
                self._task.result()
            if self.trouble:
                raise self.trouble
        return self.report

    def connect(self) -> None:
        """Connect to a living gateway but start none, for an ending service."""
        if not gateway_orders.is_free(self.places):
            self._task = asyncio.create_task(self._keep_connected())

    def send_order(
        self,
        endpoints: Sequence[ReplicaEndpoint],
        limits: GatewayLimits,
        tls: Tls | None,
        model: str = "",
        variants: Mapping[str, tuple[str, ...]] = NO_VARIANTS,
    ) -> None:
        """Send these replicas, limits, certificate and variants to the gateway, in force from its next report on."""
        order = replace(
            self.order, endpoints=tuple(endpoints), limits=limits, tls=tls, model=model, variants=dict(variants)
        )
        if order != self.order:
            self.order = order
            self._changed.set()

    async def disconnect(self) -> None:
        """Disconnect from the gateway, which runs on for the next controller."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def shut_down(self, drain_s: float) -> None:
        """End the gateway after draining requests for up to `drain_s` seconds. Return when the process is gone."""
        await self.disconnect()
        gateway = gateway_orders.living(self.places)
        if gateway is None:
            return
        last = replace(self.order, endpoints=(), is_last=True, drain_s=drain_s)
        with contextlib.suppress(OSError, _Gone):  # the gateway may end by itself meanwhile
            if near := gateway_orders.call(self.places):
                async with _open(near) as (reader, writer):
                    await self._send_order(reader, writer, last, REPLY_S)
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

    @property
    def is_applied(self) -> bool:
        """Return whether the gateway works by the last order, or no gateway lives."""
        return self._task is None or self.trouble is not None or self._applied_order == self.order

    def in_flight(self, replica_id: str) -> int:
        """Return the number of requests in flight at a replica.

        Return 0 without a gateway, and 1 while the gateway has not confirmed the last order.
        """
        if self._task is None or self.trouble is not None:  # no gateway lives, so there are no requests
            return 0
        if self.report is None or self._applied_order != self.order:
            return 1
        return self.report.in_flight.get(replica_id, 0)

    def failures(self, replica_id: str) -> Failures:
        """Return the consecutive request failures of a replica; NO_FAILURES while unknown."""
        if self.report is None or self._applied_order != self.order:
            return NO_FAILURES
        return self.report.failures.get(replica_id, NO_FAILURES)

    # Supervision of the gateway process.

    async def _keep_connected(self) -> None:
        """Keep a gateway alive and receive reports for as long as this task runs."""
        failures = 0
        while self.trouble is None:
            try:
                async with self._connected() as (reader, writer):
                    await self._exchange_orders(reader, writer)
            except (_Gone, ConnectionError) as error:
                was_known, self.report, self._applied_order = self.report is not None, None, None
                if was_known:
                    self.say(f"the gateway has ended: {error or 'it hung up'}; starting a new gateway")
                    self.restarts += 1
                failures = 0 if was_known else failures + 1
                if failures >= MOST_FAILURES:
                    self.trouble = SlipwayError(f"the gateway did not start: {error}")
                    self._has_news.set()
                elif failures:
                    await asyncio.sleep(AGAIN_S)
            except OSError as error:  # this machine lacks a resource
                self.say(f"the gateway cannot be called: {error}")
                await asyncio.sleep(AGAIN_S)

    async def _exchange_orders(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Send the order on every change, and store the reports, until the connection ends."""
        limit_s = START_S
        while True:
            self._changed.clear()
            order = self.order
            found = await self._send_order(reader, writer, order, limit_s)
            if found.problem:
                self.trouble = UsageError(found.problem)
                self._has_news.set()
                return
            # Keep the port chosen for port 0 for the life of the service.
            if self.order.port != found.port:
                self.order = replace(self.order, port=found.port)
                order = replace(order, port=found.port)
            self.report, self._applied_order, limit_s = found, order, REPLY_S
            self._has_news.set()
            with contextlib.suppress(asyncio.TimeoutError):
                async with timeout(HEAR_S):
                    await self._changed.wait()

    async def _send_order(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, order: Order, limit_s: float
    ) -> GatewayReport:
        """Send an order and return the report; kill the gateway after `limit_s` seconds of silence. Raises _Gone."""
        writer.write(msgspec.json.encode(order) + b"\n")
        try:
            async with timeout(limit_s):
                line = await reader.readline()
        except asyncio.TimeoutError:
            gateway = gateway_orders.living(self.places)
            if gateway is not None:
                send(gateway, signal.SIGKILL)
            raise _Gone(f"the gateway did not answer for {limit_s:g} s, and was killed") from None
        if not line.endswith(b"\n"):
            raise _Gone("")
        try:
            return msgspec.json.decode(line, type=GatewayReport)
        except msgspec.DecodeError as error:  # a gateway with different code sent the report
            gateway = gateway_orders.living(self.places)
            if gateway is not None:
                send(gateway, signal.SIGTERM)
            raise _Gone(f"the reports of the gateway cannot be read ({error}); the gateway was asked to end") from None

    @contextlib.asynccontextmanager
    async def _connected(self) -> "AsyncIterator[Streams]":
        """Yield a reader and a writer to the living gateway, or to a newly started gateway. Raises OSError, _Gone."""
        until = time.monotonic() + START_S
        is_first = True
        while (near := gateway_orders.call(self.places)) is None:
            self._start_if_none(is_first)
            is_first = False
            if time.monotonic() > until:
                raise _Gone(f"the gateway did not start: {tail(self.places.gateway_log)}")
            await asyncio.sleep(CONNECT_S)
        self.is_found = self.is_found or is_first and self._process is None
        async with _open(near) as streams:
            yield streams

    def _start_if_none(self, is_first: bool) -> None:
        """Start a gateway unless a gateway lives or is starting. Raises _Gone if the started process has ended."""
        if self._process is not None and self._process.poll() is None:
            return
        if not is_first and self._process is not None:
            raise _Gone(f"it ended with {self._process.returncode}: {tail(self.places.gateway_log)}")
        if not gateway_orders.is_free(self.places):
            return  # a gateway from an earlier controller lives
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
