"""Gateway process of a service: survives the end of the controller and obeys the next controller.

    python -m serve.gateway_process FOLDER        the service's folder, by `serve.processes.service_paths.ServicePaths`

Each order on the Unix socket (`serve.processes.gateway_orders`) contains the complete desired state; each reply is a
report with counters. The process holds its own connections to replicas on other machines, so request data never passes
through the controller. The process ends on request or when listening fails. Slow imports that few gateways need happen
on first use: a killed gateway means downtime until the restart completes.
"""

import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from infra import checkout
from infra.checkout import ROOT
from infra.errors import SlipwayError, UsageError
from infra.records import Pod
from serve.gateway import keys
from serve.gateway.access import AccessLog
from serve.gateway.http.certificate import Certificate, Tls
from serve.gateway.http.limits import GatewayLimits
from serve.gateway.http.open_files import raise_limit
from serve.gateway.routing import Target
from serve.gateway.server import Gateway
from serve.loops import run
from serve.policy.suspicion import Failures
from serve.processes import gateway_orders
from serve.processes.gateway_orders import LONGEST_LINE, GatewayReport, Order, ReplicaEndpoint
from serve.processes.service_paths import ServicePaths, log_lines

REACHED_S = 5.0  # startup wait for links to replicas: a silent replica must not delay the others
AGAIN_S = 2.0  # pause before the next attempt to reach a replica
POLL_S = 0.1
HERE = "local"  # provider of the pods on this machine
PAIR_S = 5.0  # startup wait for a certificate and key in renewal
LEAVE_S = 2.0  # drain time for requests in progress after a signal


@dataclass
class ReplicaLink:
    """Network path to a replica."""

    endpoint: ReplicaEndpoint
    target: Target | None = None
    """Target of requests; None until the engine is reachable."""
    closing: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    task: "asyncio.Task[None] | None" = None


class Process:
    """Gateway with links to the replicas and a control socket. Use within a single event loop."""

    def __init__(self, places: ServicePaths) -> None:
        self.places = places
        self.gateway: Gateway | None = None
        self.order: Order | None = None
        self.limits: GatewayLimits | None = None
        self.certificate: Certificate | None = None
        self.refused = ""  # reason for rejecting a renewed certificate
        self.links: dict[str, ReplicaLink] = {}
        self.port, self.began, self.problem = 0, 0.0, ""
        self.epoch = -1
        self.drain_s = LEAVE_S
        self.ended = asyncio.Event()
        self.obeying = asyncio.Lock()

    async def run(self) -> None:
        """Obey orders until the process must end, then drain requests and close the links."""
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.ended.set)
        server = await asyncio.start_unix_server(
            self._serve_controller, sock=gateway_orders.listen(self.places), limit=LONGEST_LINE
        )
        upkeep = asyncio.create_task(self._maintain())
        try:
            await self.ended.wait()
        finally:
            upkeep.cancel()
            server.close()
            if self.gateway is not None:
                await self.gateway.stop(self.drain_s)
            for link in self.links.values():
                await self._close(link)
            self.places.gateway_socket.unlink(missing_ok=True)

    async def _serve_controller(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Obey the orders of a controller until the connection ends."""
        try:
            while line := await reader.readline():
                order = msgspec.json.decode(line, type=Order)
                async with self.obeying:
                    if order.epoch < self.epoch:
                        break  # a newer controller has taken over
                    self.epoch = order.epoch
                    if self.gateway is not None or not order.is_last:
                        await self._apply_order(order)
                    writer.write(msgspec.json.encode(self._report()) + b"\n")
                    await writer.drain()
                if self.problem or order.is_last:
                    self.drain_s = order.drain_s
                    self.ended.set()
        except ConnectionError as error:  # the controller was killed
            log_lines(f"the controller no longer answers: {error}")
        except msgspec.DecodeError as error:  # a controller with different code sent the order
            log_lines(f"the orders of the controller cannot be read, so a new gateway has to take over: {error}")
            self.ended.set()
        finally:
            writer.close()

    # Orders from the controller.

    async def _apply_order(self, order: Order) -> None:
        """Apply an order; store the reason in `problem` when the order cannot be applied."""
        wanted = {one.replica_id: one for one in order.endpoints}
        self.order = order
        for name, endpoint in wanted.items():
            if name in self.links and self.links[name].endpoint != endpoint:
                await self._close(self.links.pop(name))
            if name not in self.links:
                self.links[name] = self._open(endpoint)
        try:
            if self.gateway is None:
                self.gateway = self._make_gateway(order)
                if order.tls is not None:
                    self.certificate = await _certificate(order.tls)
                    self.gateway.set_tls(self.certificate.context)
                await self._wait_reachable()
                self._update_replicas()
                self.gateway.set_variants(order.model, order.variants)
                await self._listen(self.gateway, order)
            if order.limits != self.limits:
                self.limits = order.limits
                self.gateway.set_limits(order.limits)
            self._update_replicas()
            self.gateway.set_variants(order.model, order.variants)
            self._renew()
        except (SlipwayError, OSError) as error:
            self.problem = str(error)
            log_lines(self.problem)

    def _make_gateway(self, order: Order) -> Gateway:
        known = keys.load(self.places.keys) if self.places.keys.exists() else keys.Keys({})
        access = AccessLog(self.places.access)
        return Gateway(order.limits, known, access)

    async def _listen(self, gateway: Gateway, order: Order) -> None:
        until = time.monotonic() + order.patience_s
        while True:
            try:
                self.port = await gateway.start(order.host, order.port)
                break
            except OSError as error:
                if time.monotonic() < until:
                    await asyncio.sleep(POLL_S)
                    continue
                name = self.places.folder.name
                raise UsageError(
                    f"cannot listen on port {order.port} of {order.host}: {os.strerror(error.errno or 0)}; free the "
                    f"port, or use a different port: inv serve.up --name {name} --port 0"
                ) from None
        self.began = time.monotonic()
        log_lines(f"listening on {self.port}")

    def _update_replicas(self) -> None:
        """Set the gateway's replicas to the wanted and reachable replicas at once."""
        assert self.gateway is not None and self.order is not None
        links = [self.links[one.replica_id] for one in self.order.endpoints if one.replica_id in self.links]
        ready = [link.target for link in links if link.target is not None]
        if ready != self.gateway.replicas:
            self.gateway.replace(ready)

    def _renew(self) -> None:
        """Switch to a renewed certificate; keep the old certificate while the new files are unusable."""
        assert self.gateway is not None and self.order is not None
        known, tls = self.certificate, self.order.tls
        if known is None or tls is None:
            return
        try:
            is_new = known.renew() if tls == known.tls else True
            if tls != known.tls:
                known = Certificate(tls)
        except UsageError as error:
            if str(error) != self.refused:  # report each reason once
                self.refused = str(error)
                log_lines(f"the previous certificate stays in use: {error}")
            return
        self.refused = ""
        if is_new:
            self.certificate = known
            self.gateway.set_tls(known.context)
            log_lines(f"the certificate was renewed: {tls.certfile}")

    def _report(self) -> GatewayReport:
        gateway, order = self.gateway, self.order
        if gateway is None or order is None or self.problem:
            return GatewayReport(pid=os.getpid(), code=checkout.stamp(), age_s=0.0, problem=self.problem)
        now = time.monotonic()
        replicas = [link.target for link in self.links.values() if link.target is not None]
        slots = gateway.turns.fleet.slots
        return GatewayReport(
            pid=os.getpid(),
            code=checkout.stamp(),
            age_s=now - self.began,
            host=order.host,
            port=self.port,
            qps=gateway.metrics.arrivals.per_second(now),
            waiting=gateway.turns.waiting,
            in_flight={one.replica_id: count for one in replicas if (count := gateway.in_flight(one))},
            failures={
                one.replica_id: Failures(errors=slot.errors, lost=slot.lost)
                for one, slot in slots.items()
                if slot.errors or slot.lost
            },
            reached=tuple(one.replica_id for one in gateway.replicas),
        )

    # Links to the replicas.

    def _open(self, endpoint: ReplicaEndpoint) -> ReplicaLink:
        """Return the link to a replica, usable at once on this machine, else connected in the background."""
        link = ReplicaLink(endpoint)
        if endpoint.vendor == HERE:
            link.target = _target(endpoint, endpoint.port)
        else:
            link.task = asyncio.create_task(self._connect(link))
        return link

    async def _connect(self, link: ReplicaLink) -> None:
        from infra.selection import registry
        from infra.settings import Settings

        endpoint, told = link.endpoint, ""
        pod = Pod(
            provider=endpoint.vendor,
            pod_id=endpoint.pod_id,
            token=endpoint.token,
            run=endpoint.replica_id,
            address=endpoint.address,
        )
        while True:
            try:
                way = registry.provider(Settings.load(ROOT), endpoint.vendor).reach(pod).forward(0, endpoint.port)
                link.target = _target(endpoint, await asyncio.to_thread(link.closing.enter_context, way))
                break
            except (SlipwayError, OSError) as error:
                if str(error) != told:
                    told = str(error)
                    log_lines(f"{endpoint.replica_id}: the replica cannot be reached: {error}")
                await asyncio.sleep(AGAIN_S)
        if self.gateway is not None:
            self._update_replicas()

    async def _wait_reachable(self) -> None:
        """Wait until every replica is reachable, for at most REACHED_S seconds."""
        tasks = [link.task for link in self.links.values() if link.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=REACHED_S)

    async def _close(self, link: ReplicaLink) -> None:
        if link.task is not None:
            link.task.cancel()
            await asyncio.gather(link.task, return_exceptions=True)
        await asyncio.to_thread(link.closing.close)

    async def _maintain(self) -> None:
        """Close idle links to removed replicas, and reload keys and certificate about once a second."""
        read_at = time.monotonic()
        while True:
            await asyncio.sleep(POLL_S)
            async with self.obeying:
                wanted = {one.replica_id for one in self.order.endpoints} if self.order else set[str]()
                for name, link in list(self.links.items()):
                    is_idle = link.target is None or self.gateway is None or not self.gateway.in_flight(link.target)
                    if name not in wanted and is_idle:
                        await self._close(self.links.pop(name))
            if time.monotonic() - read_at > keys.READ_EVERY_S:
                read_at = time.monotonic()
                if not self.places.gateway_lock.exists():  # without the folder no process can find or end this gateway
                    log_lines("the folder of the gateway is gone; exiting")
                    self.ended.set()
                if self.gateway is not None:
                    self._read_keys(self.gateway)
                    self._renew()

    def _read_keys(self, gateway: Gateway) -> None:
        try:
            found = keys.load(self.places.keys) if self.places.keys.exists() else keys.Keys({})
        except (UsageError, OSError) as error:  # keep the current keys
            log_lines(str(error))
        else:
            if found or not gateway.keys:  # a gateway with an outside address never runs without a key
                gateway.keys.replace(found)


async def _certificate(tls: Tls) -> Certificate:
    """Return the certificate, retrying for PAIR_S seconds during a renewal. Raises UsageError."""
    until = time.monotonic() + PAIR_S
    while True:
        try:
            return Certificate(tls)
        except UsageError:
            if time.monotonic() > until:
                raise
            await asyncio.sleep(POLL_S)


def _target(endpoint: ReplicaEndpoint, near: int) -> Target:
    return Target(
        replica_id=endpoint.replica_id, url=f"http://127.0.0.1:{near}", version=endpoint.version, key=endpoint.key
    )


def main() -> None:
    if len(sys.argv) != 2:
        sys.exit("usage: python -m serve.gateway_process FOLDER")
    # Probes report a port without an answer.
    logging.getLogger("infra.transport.streams").setLevel(logging.ERROR)
    raise_limit()
    places = ServicePaths(Path(sys.argv[1]))
    held = gateway_orders.lock(places)
    if held is None:
        log_lines("a gateway of this service is already running")
        return

    async def serve() -> None:
        await Process(places).run()

    run(serve())


if __name__ == "__main__":
    main()
