"""The listener: connections, the gateway's own routes, and the one function by which it learns of its replicas.

    gateway = Gateway(Limits(), keys.load(path), AccessLog(path))
    port = await gateway.start("0.0.0.0", 8000)
    gateway.replace([Replica(replica_id="demo-1", url="http://127.0.0.1:8101")])

In one process and event loop with whoever keeps the replicas. Called by: the service's controller, `__main__`.
"""

import asyncio
import ipaddress
import logging
import time
from collections.abc import Iterable
from typing import Any

import msgspec
from aiohttp import web

from infra.errors import UsageError
from serve.gateway.access import AccessLog
from serve.gateway.asks import Refused
from serve.gateway.keys import Keys
from serve.gateway.limits import Limits
from serve.gateway.metrics import CONTENT_TYPE, Metrics
from serve.gateway.proxy import SERVER, Proxy
from serve.gateway.routing import Replica
from serve.gateway.turns import Turns
from serve.gateway.upstream import Engines

LINGER_S = 2.0  # for the rest of a body that was refused
MOST_LINE_BYTES = 8190
MOST_HEADERS = 64

log = logging.getLogger(__name__)


class Gateway:
    """Use it within one event loop; `start` once, `stop` once."""

    def __init__(self, limits: Limits, keys: Keys, access: AccessLog | None = None) -> None:
        self.limits, self.keys, self.access = limits, keys, access
        self.turns = Turns(limits, time.monotonic)
        self.metrics = Metrics(self.turns)
        self.is_stopping = False
        self._engines: Engines | None = None
        self._proxy: Proxy | None = None
        self._runner: web.ServerRunner | None = None

    async def start(self, host: str, port: int) -> int:
        """Listens; returns the port. Raises UsageError where others could reach it without a key, OSError."""
        if not self.keys and not _is_loopback(host):
            raise UsageError(
                f"{host} can be reached by others and there is no API key; make one or listen on 127.0.0.1"
            )
        self.is_stopping = False  # it may have tried before, where somebody else listened
        self._engines = Engines(self.limits)
        self._proxy = Proxy(self.limits, self.keys, self.turns, self._engines, self.metrics, self.access)
        self._runner = web.ServerRunner(_Front(self), shutdown_timeout=0.1)
        await self._runner.setup()
        try:
            await web.TCPSite(self._runner, host, port, backlog=1024).start()
        except OSError:
            await self.stop(0)
            raise
        return self._runner.addresses[0][1]

    def replace(self, replicas: Iterable[Replica]) -> None:
        """From the next request on these are asked. Raises ValueError when two have one id."""
        self.turns.replace(replicas)
        fleet = self.turns.fleet
        known = [*fleet.seats, *fleet.leaving]
        self.metrics.keep_only(one.replica_id for one in known)
        if self._engines is not None:
            self._engines.keep_only({one.url for one in known})

    def limit(self, limits: Limits) -> None:
        """From the next request on; connections that stand keep `keepalive_s`, retries their budget."""
        self.limits = self.turns.limits = self.turns.fleet.limits = limits
        if self._proxy is not None and self._engines is not None:
            self._proxy.limits = self._engines.limits = limits

    def in_flight(self, replica: Replica) -> int:
        """Requests that it still works on; one that was taken off the list may be ended when it is 0."""
        return self.turns.fleet.in_flight(replica)

    async def stop(self, drain_s: float) -> None:
        """Takes no more connections; what has begun may go on for `drain_s`. Called twice, it does nothing more."""
        self.is_stopping = True
        runner, self._runner = self._runner, None
        if runner is not None:
            for site in list(runner.sites):
                await site.stop()
            until = time.monotonic() + drain_s
            while self._proxy and self._proxy.in_flight and time.monotonic() < until:
                await asyncio.sleep(0.05)
            await runner.cleanup()
        if self._engines is not None:
            self._engines.close()
        if self.access is not None:
            self.access.close()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        assert self._proxy is not None
        path = request.path
        if path == "/health" and request.method in ("GET", "HEAD"):
            response: web.StreamResponse = self._health()
        elif path == "/metrics" and request.method == "GET":
            response = self._told(request)
        else:
            response = await self._proxy.answer(request)
        if self.is_stopping and not response.prepared:
            response.force_close()
        return response

    def _health(self) -> web.Response:
        """200 when a request would be served, or held until it can be."""
        ready, hold_s = len(self.turns.fleet.seats), self.limits.hold_s
        word = "stopping" if self.is_stopping else "ok" if ready else "asleep" if hold_s else "no replica is ready"
        body = msgspec.json.encode({"status": word, "replicas": ready})
        headers = {"Content-Type": "application/json", "Server": SERVER}
        return web.Response(status=200 if word in ("ok", "asleep") else 503, body=body, headers=headers)

    def _told(self, request: web.BaseRequest) -> web.Response:
        assert self._proxy is not None
        try:
            self._proxy.key_of(request)
        except Refused as refused:
            return web.Response(status=refused.status, body=refused.body(), content_type="application/json")
        return web.Response(body=self.metrics.text(), headers={"Content-Type": CONTENT_TYPE, "Server": SERVER})


class _Front(web.Server):
    """aiohttp's server with connections of ours, and a limit on how many."""

    def __init__(self, gateway: Gateway) -> None:
        limits = gateway.limits
        super().__init__(gateway.handle, handler_cancellation=True)
        self.gateway = gateway
        self.options: dict[str, Any] = {
            "access_log": None,
            "keepalive_timeout": limits.keepalive_s,
            "lingering_time": LINGER_S,
            "max_line_size": MOST_LINE_BYTES,
            "max_field_size": MOST_LINE_BYTES,
            "max_headers": MOST_HEADERS,
            "auto_decompress": False,
        }

    def __call__(self) -> web.RequestHandler:
        return _Connection(self, loop=asyncio.get_running_loop(), **self.options)


class _Connection(web.RequestHandler):
    __slots__ = ("front",)

    def __init__(self, front: _Front, **options: Any) -> None:
        self.front = front
        super().__init__(front, **options)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        if len(self.front._connections) > self.front.gateway.limits.max_connections:
            self.force_close()

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """Of what was no request, and of our own mistakes: these are logged with their trace, those only counted."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has begun; it can only be broken off")
        if status == 500:
            log.error("gateway: %s %s: %r", request.method, request.path, exc, exc_info=exc)
            refused = Refused(500, "InternalServerError", "the gateway made a mistake; its log has it")
        else:
            self.front.gateway.metrics.nonsense()
            refused = Refused(status, "BadRequestError", "this is no HTTP request that can be read")
        headers = {"Content-Type": "application/json", "Server": SERVER}
        response = web.Response(status=status, body=refused.body(), headers=headers)
        response.force_close()
        return response


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
