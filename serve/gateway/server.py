"""Gateway object: client connections, own routes, and `replace`, the only way to set the replicas.

    gateway = Gateway(GatewayLimits(), keys.load(path), AccessLog(path))
    port = await gateway.start("0.0.0.0", 8000)
    gateway.replace([Target(replica_id="demo-1", url="http://127.0.0.1:8101")])

The gateway runs in its own process; the controller manages the replicas and sends the list.
"""

import asyncio
import contextlib
import ipaddress
import ssl
import time
from collections.abc import Collection, Coroutine, Iterable, Mapping
from typing import Any

import msgspec

from infra.errors import UsageError
from serve import cors
from serve.gateway.access import AccessLog
from serve.gateway.http.limits import GatewayLimits
from serve.gateway.http.listener import ClientRequest, Connection, Listener
from serve.gateway.http.open_files import fitted
from serve.gateway.http.program_wire import ProgramConnection
from serve.gateway.keys import Keys
from serve.gateway.metrics import CONTENT_TYPE, GatewayMetrics
from serve.gateway.proxy import JSON, Proxy, refuse
from serve.gateway.request_body import RequestRefused
from serve.gateway.routing import Target
from serve.gateway.upstream import Engines
from serve.gateway.wait_queue import WaitQueue


class Gateway:
    """Gateway of a service. Use within a single event loop; call `start` once and `stop` once."""

    def __init__(self, limits: GatewayLimits, keys: Keys, access: AccessLog | None = None) -> None:
        self.limits, self.keys, self.access = limits, keys, access
        self.turns = WaitQueue(limits, time.monotonic)
        self.metrics = GatewayMetrics(self.turns)
        self.models: dict[str, str] = {}
        self._engines: Engines | None = None
        self._proxy: Proxy | None = None
        self._listener: Listener | None = None
        self._tls: ssl.SSLContext | None = None

    async def start(self, host: str, port: int) -> int:
        """Start listening and return the port. Raises UsageError for an outside address without a key, OSError."""
        if not self.keys and not _is_loopback(host):
            raise UsageError(
                f"other machines can reach {host}, but no API key exists. Make a key: inv serve.key NAME --for WHO; "
                "or listen on 127.0.0.1"
            )
        self.set_limits(self.limits)
        self._engines = Engines(self.limits)
        own = f"[{host}]" if ":" in host else host
        self._proxy = Proxy(
            self.limits, self.keys, self.turns, self._engines, self.metrics, self.access, own.lower().encode()
        )
        self._proxy.models = self.models
        self._listener = Listener(self._handle, _mistaken, self.limits)
        self._listener.tls = self._tls
        self.set_limits(self.limits)
        try:
            return await self._listener.start(host, port)
        except OSError:
            await self.stop(0)
            raise

    @property
    def replicas(self) -> list[Target]:
        """Return the replicas that receive requests."""
        return list(self.turns.fleet.slots)

    def replace(self, replicas: Iterable[Target]) -> None:
        """Use these replicas from the next request on. Raises ValueError for a repeated id."""
        self.turns.replace(replicas)
        fleet = self.turns.fleet
        known = [*fleet.slots, *fleet.leaving]
        self.metrics.keep_only(one.replica_id for one in known)
        if self._engines is not None:
            self._engines.keep_only({one.url for one in known})

    def set_variants(self, model: str, variants: Mapping[str, Collection[str]]) -> None:
        """Accept only these names of models from the next request on; {} = the engine checks the name.

        model: name of the whole model; variants: ids of the replicas with each variant, by name.
        """
        self.turns.set_variants(variants)
        self.models = {model: "", **{name: name for name in variants}} if variants else {}
        if self._proxy is not None:
            self._proxy.models = self.models

    def set_limits(self, limits: GatewayLimits) -> None:
        """Set the limits from the next request on, fitted to the open-file limit; retry budgets stay unchanged."""
        self.limits = self.turns.limits = self.turns.fleet.limits = limits = fitted(limits)
        if self._proxy is not None and self._engines is not None:
            self._proxy.limits = self._engines.limits = limits
        if self._listener is not None:
            self._listener.set_limits(limits)
            self._listener.kind = ProgramConnection if limits.any_route else Connection

    def set_tls(self, context: ssl.SSLContext) -> None:
        """Use TLS for new connections; open connections stay unchanged."""
        self._tls = context
        if self._listener is not None:
            self._listener.tls = context

    def in_flight(self, replica: Target) -> int:
        """Return the requests in flight at a replica; a removed replica may be ended at 0."""
        return self.turns.fleet.in_flight(replica)

    async def stop(self, drain_s: float) -> None:
        """Stop accepting connections and drain requests for up to `drain_s` seconds. A second call has no effect."""
        listener, self._listener = self._listener, None
        if listener is not None:
            await listener.close()
            until = time.monotonic() + drain_s
            while self._proxy and self._proxy.in_flight and time.monotonic() < until:
                await asyncio.sleep(0.05)
            await listener.close_connections()
        if self._proxy is not None:
            self._proxy.close()
        if self._engines is not None:
            self._engines.close()
        if self.access is not None:
            with contextlib.suppress(OSError):  # a full disk must not prevent the end
                self.access.close()

    def _handle(self, request: ClientRequest) -> Coroutine[Any, Any, None]:
        assert self._proxy is not None
        if self.limits.allow_origins:
            request.cors_lines = cors.answer_lines(request.headers, self.limits.allow_origins)
        is_preflight = request.method == b"OPTIONS" and request.cors_lines
        is_ours = request.path in (b"/health", b"/metrics") and not self.limits.any_route
        if request.fault is not None or is_ours or is_preflight:
            return self._answer_own(request, self._proxy)
        return self._proxy.answer(request)

    async def _answer_own(self, request: ClientRequest, proxy: Proxy) -> None:
        """Answer invalid requests and the gateway's own routes, without an engine."""
        try:
            if request.fault is not None:
                self.metrics.count_malformed()
                status, why = request.fault
                raise RequestRefused(status, "BadRequestError", why)
            if request.method == b"OPTIONS" and request.cors_lines:
                request.answer(204, cors.preflight_lines(request.headers, self.limits.any_route), b"")
            elif request.path == b"/health" and request.method in (b"GET", b"HEAD"):
                if not self.keys:
                    proxy.key_of(request)
                status, body = self._health()
                request.answer(status, JSON, body)
            elif request.path == b"/metrics" and request.method == b"GET":
                if self.keys.models_of(proxy.key_of(request)) is not None:
                    why = "this key is for some models only, and the metrics count the requests of all"
                    raise RequestRefused(403, "PermissionDeniedError", why)
                proxy.flush_records()
                request.answer(200, CONTENT_TYPE, self.metrics.text())
            else:
                await proxy.answer(request)
        except RequestRefused as refused:
            await proxy.delay_wrong_key(request, refused)
            refuse(request, refused)

    def _health(self) -> tuple[int, bytes]:
        """Return status and body of /health: 200 if a request would be served or held for a replica, else 503."""
        ready, hold_s = len(self.replicas), self.limits.hold_s
        is_stopping = self._listener is None
        word = "stopping" if is_stopping else "ok" if ready else "asleep" if hold_s else "no replica is ready"
        return 200 if word in ("ok", "asleep") else 503, msgspec.json.encode({"status": word, "replicas": ready})


def _mistaken(request: ClientRequest) -> None:
    """Answer 500; the log has the error with a traceback."""
    refuse(request, RequestRefused(500, "InternalServerError", "the gateway failed; see the log of the gateway"))


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
