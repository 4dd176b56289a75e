"""The bill of a run: seconds and money by part, over all pods of the run. Pure.

    spans and cost of each pod -> bill_of -> Bill -> table, JSON, page

Seconds count on the clock of the vendor, which runs faster than ours in a rehearsal. The time of a request without a
machine, and between a lost pod and the request for the next pod, is a wait without cost. The time between the end of a
run and a later resume, and between a launch that failed and a later launch, is no part of the bill.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from packs.bill.control.pod_time import PARTS, STEPS, UNEXPLAINED, WAIT, Span

NEXT_OFFER_S = 900.0  # real seconds; a longer time between the requests of a launch is the time until a later launch


@dataclass(frozen=True, kw_only=True)
class PodBill:
    """The spans of a pod, with the cost of the pod."""

    pod_id: str = ""
    vendor: str
    host: str
    spans: Sequence[Span]
    micro_usd: int = 0
    micro_usd_per_hour: int = 0
    """Rate on the clock of the vendor."""
    billed_from: float = 0.0
    has_machine: bool = True
    """False for a request that was refused or not answered: a wait for the vendor, and no pod of the run."""
    is_last: bool = False
    """True if the run ended with the pod; a later pod belongs to a resume."""
    recoveries: int = 0
    """Recoveries of the run by keepers until the request for the pod."""


@dataclass(frozen=True, kw_only=True)
class Bill:
    """Seconds and micro-USD by part; both sum up to the time and the cost of the run."""

    run: str
    vendors: tuple[str, ...]
    hosts: tuple[str, ...]
    pods: int
    seconds: Mapping[str, float]
    micro_usd: Mapping[str, int]
    wall_s: float
    """Seconds from the first request to the last end, without the time in which the run had ended. Pods at the same
    time make the sum of the seconds longer."""
    is_over: bool = True

    @property
    def total_s(self) -> float:
        return sum(self.seconds.values())

    @property
    def cost(self) -> int:
        return sum(self.micro_usd.values())

    @property
    def overhead(self) -> float | None:
        """Return the whole time divided by the time of the steps; None without steps."""
        steps_s = self.seconds.get(STEPS, 0.0)
        return self.total_s / steps_s if steps_s else None

    @property
    def unexplained(self) -> float:
        """Return the share of the time without an explanation."""
        return self.seconds.get(UNEXPLAINED, 0.0) / self.total_s if self.total_s else 0.0


def bill_of(run: str, pods: Sequence[PodBill], scale: float = 1.0, is_over: bool = True) -> Bill:
    """Return the bill of the pods of a run. `scale`: speed of the vendor's clock."""
    seconds = dict.fromkeys(PARTS, 0.0)
    costs = dict.fromkeys(PARTS, 0.0)
    for pod in pods:
        for part, amount in cost_of(pod, scale).items():
            costs[part] += amount
    real = [pod for pod in pods if pod.has_machine]
    for pod in real:
        for span in pod.spans:
            seconds[span.part] += span.seconds
    lives = [pod for pod in pods if pod.spans]
    first, end = min((pod.spans[0].begin for pod in lives), default=0.0), max((_end(pod) for pod in lives), default=0.0)
    wall_s = end - first - _away_s(lives)
    # The rest of the time: requests without a machine, and the time between a lost pod and the next request.
    seconds[WAIT] += max(0.0, wall_s - _union_s(pod.spans for pod in real))
    return Bill(
        run=run,
        vendors=tuple(sorted({pod.vendor for pod in real or pods})),
        hosts=tuple(sorted({pod.host for pod in real or pods})),
        pods=len(real),
        seconds={part: one * scale for part, one in seconds.items() if one},
        micro_usd=round_to_sum(costs, sum(pod.micro_usd for pod in pods if pod.spans)),
        wall_s=wall_s * scale,
        is_over=is_over,
    )


def _end(pod: PodBill) -> float:
    return pod.spans[-1].end


def _away_s(lives: Iterable[PodBill]) -> float:
    """Return the seconds in which no process has waited for a machine: until a resume, or a later launch."""
    ordered = sorted(lives, key=lambda one: one.spans[0].begin)
    found, end, has_ended, recoveries = 0.0, ordered[0].spans[0].begin if ordered else 0.0, False, 0
    for pod in ordered:
        gap_s = max(0.0, pod.spans[0].begin - end)
        is_wait = pod.recoveries > recoveries or gap_s <= NEXT_OFFER_S and not has_ended
        found += 0.0 if is_wait else gap_s
        # Only one of the nodes may have the outcome of the run.
        has_ended = pod.is_last or has_ended and not gap_s
        end, recoveries = max(end, _end(pod)), pod.recoveries
    return found


def _union_s(lives: Iterable[Sequence[Span]]) -> float:
    """Return the seconds with at least one pod; `lives`: the spans of each pod in order."""
    found, end = 0.0, -math.inf
    for begin, until in sorted((spans[0].begin, spans[-1].end) for spans in lives if spans):
        found += max(0.0, until - max(begin, end))
        end = max(end, until)
    return found


def cost_of(pod: PodBill, scale: float) -> dict[str, float]:
    """Return the cost of a pod by part, in micro-USD.

    Each second from `billed_from` on costs the rate of the pod, until the bill is used up. If the bill is larger than
    rate times time, because of whole billing units, the bill spreads evenly over the time.
    """
    found: dict[str, float] = {}
    if not pod.spans or not pod.micro_usd:
        return found
    first, last = pod.spans[0].begin, pod.spans[-1].end
    begin = min(max(pod.billed_from, first), last)
    rate = pod.micro_usd_per_hour * scale / 3600
    end = min(last, begin + pod.micro_usd / rate) if rate else last
    for span in pod.spans:
        billed_s = min(span.end, end) - max(span.begin, begin)
        share = billed_s / (end - begin) if end > begin else float(span is pod.spans[-1])
        if share > 0:
            found[span.part] = found.get(span.part, 0.0) + pod.micro_usd * share
    return found


def round_to_sum(costs: Mapping[str, float], total: int) -> dict[str, int]:
    """Return the costs as whole micro-USD with exactly this sum: the largest fractions are rounded up."""
    found = {part: int(one) for part, one in costs.items() if one}
    by_fraction = sorted(found, key=lambda part: found[part] - costs[part])
    for part in by_fraction[: max(0, total - sum(found.values()))]:
        found[part] += 1
    return found


def add_bills(name: str, bills: Sequence[Bill]) -> Bill:
    """Return several bills as one."""
    return Bill(
        run=name,
        vendors=tuple(sorted({one for bill in bills for one in bill.vendors})),
        hosts=tuple(sorted({one for bill in bills for one in bill.hosts})),
        pods=sum(one.pods for one in bills),
        seconds={part: sum(one.seconds.get(part, 0.0) for one in bills) for part in PARTS},
        micro_usd={part: sum(one.micro_usd.get(part, 0) for one in bills) for part in PARTS},
        wall_s=sum(one.wall_s for one in bills),
        is_over=all(one.is_over for one in bills),
    )
