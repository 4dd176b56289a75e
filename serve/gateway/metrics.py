"""Prometheus metrics of the gateway. Requests update plain numbers; the scrape reads all other values.

prometheus_client only formats the output: its own counters, each with a lock, took as long as all other bookkeeping of
a request. The series of a replica are dropped with the replica, so a service that replaces replicas for weeks has as
many series as on the first day.
"""

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from serve.gateway.request_log import RequestRecord
from serve.gateway.routing import ReplicaSlot
from serve.gateway.wait_queue import WaitQueue
from serve.gateway.window import Window

PREFIX = "slipway_gateway"
BUCKETS_S = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600)
CONTENT_TYPE = b"Content-Type: text/plain; version=0.0.4; charset=utf-8\r\n"


class Durations:
    """Histogram of durations."""

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum_s = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BUCKETS_S, seconds)] += 1
        self.sum_s += seconds

    def buckets(self) -> list[tuple[str, float]]:
        """Return the cumulative buckets for Prometheus: upper bound in seconds, and the count up to the bound."""
        sums = [sum(self.counts[: number + 1]) for number in range(len(self.counts))]
        return list(zip([*(str(float(one)) for one in BUCKETS_S), "+Inf"], sums, strict=True))


class GatewayMetrics(Collector):
    """Metrics of a gateway.

    `arrivals` counts all authorized requests, including requests refused for lack of a replica.
    """

    def __init__(self, turns: WaitQueue) -> None:
        self.arrivals = Window()
        self._turns = turns
        self._ended: Counter[tuple[str, int, str]] = Counter()  # by route, status, replica
        self._latency: defaultdict[str, Durations] = defaultdict(Durations)  # by route
        self._ttft, self._queue = Durations(), Durations()
        self._failures: Counter[str] = Counter()  # by replica
        self._variants: Counter[tuple[str, int]] = Counter()  # by variant, status
        self._retries = self._nonsense = self._unwritten = 0
        self._registry = CollectorRegistry()
        self._registry.register(self)

    def count(self, visit: RequestRecord) -> None:
        self._ended[visit.route, visit.status, visit.replica] += 1
        if visit.variant:
            self._variants[visit.variant, visit.status] += 1
        if visit.route != "other":
            self._latency[visit.route].add(visit.total_s)
        if visit.queue_s is not None:
            self._queue.add(visit.queue_s)
        if visit.streams and visit.first_byte_s is not None:
            self._ttft.add(visit.first_byte_s)
        if visit.tries > 1:
            self._retries += visit.tries - 1

    def count_failure(self, replica_id: str) -> None:
        self._failures[replica_id] += 1

    def count_malformed(self) -> None:
        self._nonsense += 1

    def count_lost_lines(self, count: int) -> None:
        self._unwritten += count

    def keep_only(self, replica_ids: Iterable[str]) -> None:
        """Drop the series of replicas outside `replica_ids`."""
        known = {"", *replica_ids}
        self._ended = Counter({key: count for key, count in self._ended.items() if key[2] in known})
        self._failures = Counter({key: count for key, count in self._failures.items() if key in known})

    def text(self) -> bytes:
        return generate_latest(self._registry)

    def collect(self) -> Iterator[Metric]:
        ended = [((route, str(status), replica), count) for (route, status, replica), count in self._ended.items()]
        yield _counts("requests", "Requests that have ended", ("route", "code", "replica"), ended)
        latency = [((route,), durations) for route, durations in self._latency.items()]
        yield _durations("request_seconds", "First to last byte", ("route",), latency)
        about = "Until the first byte of a streamed answer"
        yield _durations("time_to_first_token_seconds", about, (), [((), self._ttft)])
        yield _durations("queue_seconds", "Wait for a replica", (), [((), self._queue)])
        failures = [((replica,), count) for replica, count in self._failures.items()]
        yield _counts("replica_failures", "Requests that a replica failed", ("replica",), failures)
        rows = [((name, str(status)), count) for (name, status), count in self._variants.items()]
        yield _counts("variant_requests", "Requests to a variant of the model", ("variant", "code"), rows)
        yield _counts("retries", "Tries after the first", (), [((), self._retries)])
        yield _counts("nonsense", "Bytes that were no HTTP request", (), [((), self._nonsense)])
        yield _counts("access_log_lost", "Lines of the log", (), [((), self._unwritten)])
        fleet, now = self._turns.fleet, self._turns.clock()
        slots = [*fleet.slots.values(), *fleet.leaving.values()]
        yield _one("replicas", "Replicas that accept requests", len(fleet.slots))
        out = sum(slot.ejected_until is not None for slot in fleet.slots.values())
        yield _one("replicas_ejected", "Replicas taken out after failures", out)
        yield _one("queued", "Requests that wait for a replica", self._turns.waiting)
        yield _one("arrivals_per_second", "Over the last minute", self.arrivals.per_second(now))
        yield _each("in_flight", "Requests at a replica", slots, lambda slot: slot.in_flight)
        yield _each("replica_qps", "Requests begun over the last minute", slots, lambda s: s.started.per_second(now))


def _counts(name: str, about: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], float]]) -> Metric:
    family = CounterMetricFamily(f"{PREFIX}_{name}", about, labels=labels)
    for values, count in rows:
        family.add_metric(values, count)
    return family


def _durations(name: str, about: str, labels: Sequence[str], rows: Iterable[tuple[Sequence[str], Durations]]) -> Metric:
    family = HistogramMetricFamily(f"{PREFIX}_{name}", about, labels=labels)
    for values, one in rows:
        family.add_metric(values, one.buckets(), one.sum_s)
    return family


def _one(name: str, about: str, value: float) -> Metric:
    return GaugeMetricFamily(f"{PREFIX}_{name}", about, value=value)


def _each(name, about, slots: Iterable[ReplicaSlot], value) -> Metric:
    family = GaugeMetricFamily(f"{PREFIX}_{name}", about, labels=["replica"])
    for slot in slots:
        family.add_metric([slot.replica.replica_id], value(slot))
    return family
