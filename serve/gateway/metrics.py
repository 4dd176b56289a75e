"""What Prometheus is told. Counters are moved by requests; what can be looked up is read when somebody asks.

Series of a replica go with it, so that a service that replaces its replicas for weeks has as many as on its first day.
"""

from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from serve.gateway.routing import Seat
from serve.gateway.turns import Turns
from serve.gateway.visit import Visit
from serve.gateway.window import Window

PREFIX = "slipway_gateway"
BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600)
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"


class Metrics:
    """Of one gateway. `arrivals` are all requests that were let in, refused for want of a replica or not."""

    def __init__(self, turns: Turns) -> None:
        self.arrivals = Window()
        self._registry = CollectorRegistry()
        self._requests = Counter(
            f"{PREFIX}_requests", "Requests that have ended", ("route", "code", "replica"), registry=self._registry
        )
        self._latency = Histogram(
            f"{PREFIX}_request_seconds", "First to last byte", ("route",), registry=self._registry, buckets=BUCKETS_S
        )
        self._ttft = Histogram(
            f"{PREFIX}_time_to_first_token_seconds",
            "Until the first byte of a streamed answer",
            registry=self._registry,
            buckets=BUCKETS_S,
        )
        self._queue = Histogram(
            f"{PREFIX}_queue_seconds", "Wait for a replica", registry=self._registry, buckets=BUCKETS_S
        )
        self._failures = Counter(
            f"{PREFIX}_replica_failures", "Requests that a replica failed", ("replica",), registry=self._registry
        )
        self._retries = Counter(f"{PREFIX}_retries", "Tries after the first", registry=self._registry)
        self._nonsense = Counter(f"{PREFIX}_nonsense", "Bytes that were no HTTP request", registry=self._registry)
        self._unwritten = Counter(f"{PREFIX}_access_log_lost", "Lines of the log", registry=self._registry)
        self._codes: dict[str, dict[tuple[str, int], Counter]] = {}  # the series of each replica
        self._routes: dict[str, Histogram] = {}
        self._failed: set[str] = set()
        self._registry.register(_State(turns, self.arrivals))

    def count(self, visit: Visit) -> None:
        codes, key = self._codes.setdefault(visit.replica, {}), (visit.route, visit.status)
        if key not in codes:  # to look one up takes longer than to count
            codes[key] = self._requests.labels(visit.route, str(visit.status), visit.replica)
        codes[key].inc()
        if visit.route != "other":
            if visit.route not in self._routes:
                self._routes[visit.route] = self._latency.labels(visit.route)
            self._routes[visit.route].observe(visit.total_s)
        if visit.queue_s is not None:
            self._queue.observe(visit.queue_s)
        if visit.streams and visit.first_byte_s is not None:
            self._ttft.observe(visit.first_byte_s)
        if visit.tries > 1:
            self._retries.inc(visit.tries - 1)

    def failed(self, replica_id: str) -> None:
        self._failed.add(replica_id)
        self._failures.labels(replica_id).inc()

    def nonsense(self) -> None:
        self._nonsense.inc()

    def lines_lost(self, count: int) -> None:
        self._unwritten.inc(count)

    def keep_only(self, replica_ids: Iterable[str]) -> None:
        """Drops the series of all other replicas."""
        known = {"", *replica_ids}
        for gone in set(self._codes) - known:
            for route, status in self._codes.pop(gone):
                self._requests.remove(route, str(status), gone)
        for gone in self._failed - known:
            self._failed.remove(gone)
            self._failures.remove(gone)

    def text(self) -> bytes:
        return generate_latest(self._registry)


class _State(Collector):
    """What the fleet looks like at this moment."""

    def __init__(self, turns: Turns, arrivals: Window) -> None:
        self._turns, self._arrivals = turns, arrivals

    def collect(self) -> Iterator[Metric]:
        fleet, now = self._turns.fleet, self._turns.clock()
        seats = [*fleet.seats.values(), *fleet.leaving.values()]
        yield _one("replicas", "Replicas that requests may go to", len(fleet.seats))
        out = sum(seat.ejected_until is not None for seat in fleet.seats.values())
        yield _one("replicas_ejected", "Of these, taken out after failures", out)
        yield _one("queued", "Requests that wait for a replica", self._turns.waiting)
        yield _one("arrivals_per_second", "Over the last minute", self._arrivals.per_second(now))
        yield _each("in_flight", "Requests at a replica", seats, lambda seat: seat.in_flight)
        yield _each("replica_qps", "Requests begun over the last minute", seats, lambda s: s.started.per_second(now))


def _one(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}_{name}", about, value=value)


def _each(name, about, seats: Iterable[Seat], value) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}_{name}", about, labels=["replica"])
    for seat in seats:
        family.add_metric([seat.replica.replica_id], value(seat))
    return family
