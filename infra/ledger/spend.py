"""The spend of rented pods, so far and at most, and the costs shown to people: never below the amount owed. Pure.

The functions turn journal rows into micro-USD; `ledger` adds the vendors' bills, and all displays of costs use the
ledger. Times are by the vendor's clock, which runs `scale` times faster in a rehearsal. A pod costs from just before
the request, or from a later start of billing if reported by the vendor, until the proof of absence. Of the wall clock
and the boot clock, the clock that counted more applies: setting a clock back saves no money.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime, timezone

from infra.agent.job import Limits
from infra.agent.limits import Clocks, hard_limit_s
from infra.errors import OutOfMoney, UsageError
from infra.ledger.op import FAILED, PLANNED, Op
from infra.providers import TIMER_GRAIN_S
from infra.units import duration, in_usd

VENDOR_LATE_S = 300.0  # seconds; vendors check timers at intervals
# Billing unit in seconds, charged when started; 1 s for providers of extensions.
GRAIN_S = {"runpod": 1, "lium": 1, "shadeform": 60}
FINAL_S = {"runpod": 2 * 3600}  # seconds from the end of a pod to a complete bill: RunPod books by the hour
Now = float | Clocks  # a float: wall clock only


def since_request_s(op: Op, now: Now, scale: float = 1.0) -> float:
    """Return the seconds from the request, as time limits count, to now or a known end, by the vendor's clock."""
    if op.state == FAILED:  # no pod was rented
        return 0.0
    sent_at = _sent_at(op)
    if op.is_live:
        since_s = op.since_sent_s(now) if isinstance(now, Clocks) else now - sent_at
    elif op.lived_s is not None:
        since_s = op.lived_s
    else:
        since_s = (op.ended_at or op.del_requested_at or sent_at) - sent_at
    return max(0.0, since_s) * scale


def run_s(rows: Iterable[Op], now: Now, scale: float = 1.0, ended_at: float | None = None) -> float:
    """Return the seconds of a run over all pods, oldest first, by the vendor's clock.

    `ended_at`: time of the verdict of the last pod, possibly long before the proof of absence.
    """
    *before, last = rows
    spans = [(_until_detached_s if row.detached else since_request_s)(row, now, scale) for row in before]
    if ended_at is None or last.detached:
        return sum(spans) + since_request_s(last, now, scale)
    return sum(spans) + max(0.0, ended_at - _sent_at(last)) * scale


def _until_detached_s(op: Op, now: Now, scale: float) -> float:
    """Return the seconds for which a detached pod was part of the run, by the vendor's clock."""
    until = op.del_requested_at
    return since_request_s(op, now, scale) if until is None else max(0.0, until - _sent_at(op)) * scale


def age_s(op: Op, now: Now, scale: float = 1.0) -> float:
    """Return the maximum billed seconds of a pod so far, by the vendor's clock."""
    billed_s = max(0.0, since_request_s(op, now, scale) - (billed_from(op) - _sent_at(op)) * scale)
    most_s = None if op.is_live else _most_s(op)
    return billed_s if most_s is None else min(billed_s, most_s)


def _most_s(op: Op) -> float | None:
    """Return the maximum billed seconds, by the vendor's clock, of a pod ended by the vendor's own timer.

    Slipway may notice the end much later, but the vendor bills no time beyond the timer. None: the pod is not gone,
    Slipway requested the end, the vendor has no timer, or no limit was set.
    """
    hard_s = limit_s(op)
    grain_s = TIMER_GRAIN_S.get(op.vendor)
    if op.ended_at is None or op.del_requested_at is not None or hard_s is None or grain_s is None:
        return None
    return math.ceil(hard_s / grain_s) * grain_s + VENDOR_LATE_S


def ended_at(op: Op, scale: float = 1.0) -> int | None:
    """Return the latest possible end of the pod in UTC epoch seconds; None without a proof of absence."""
    most_s = _most_s(op)
    if op.ended_at is None or most_s is None:
        return op.ended_at
    return min(op.ended_at, math.ceil(billed_from(op) + most_s / scale))


def billed_from(op: Op) -> float:
    """Return the start of billing, by the wall clock as of the request."""
    return _sent_at(op) if op.billed_at is None else op.billed_at


def _sent_at(op: Op) -> float:
    return op.intent_at if op.sent_at is None else op.sent_at


def spent(op: Op, now: Now, scale: float = 1.0) -> int:
    grain_s = GRAIN_S.get(op.vendor, 1)
    return math.ceil(math.ceil(age_s(op, now, scale) / grain_s) * grain_s * op.rate / 3600)


def max_cost(op: Op, now: Now, scale: float = 1.0) -> int | None:
    """Return the cost in micro-USD when the earliest limit ends the pod; None for a live pod without a limit.

    For an ended or free pod, return the cost so far.
    """
    cost = spent(op, now, scale)
    if not op.is_live or not op.rate:
        return cost
    ends = [] if op.ttl_s is None else [math.ceil(op.ttl_s * op.rate / 3600)]
    ends += [] if op.cap is None else [op.cap]
    return max(cost, min(ends)) if ends else None


def reserved(op: Op, now: Now, scale: float = 1.0) -> int:
    """Return the cost so far plus the possible further cost of a live pod, in micro-USD.

    Without a limit or a known id, return the cost so far.
    """
    most = max_cost(op, now, scale) if op.remote_id else None
    return spent(op, now, scale) if most is None else most


def due(op: Op, now: Now, scale: float = 1.0) -> str:
    """Return why a live pod must end by now, in words; "" before any limit. The pod's guard has the same limits."""
    if op.ttl_s is not None and since_request_s(op, now, scale) >= op.ttl_s:
        return f"the time limit of {duration(op.ttl_s)} is reached"
    if op.cap is not None and op.rate and spent(op, now, scale) >= op.cap:
        return f"the spend limit of {in_usd(op.cap)} is reached"
    return ""


@dataclass(frozen=True)
class LimitOverrun:
    """The possible use of a live pod beyond the limits: micro-USD, and seconds by the vendor's clock."""

    micro_usd: int = 0
    time_s: float = 0.0

    @property
    def description(self) -> str:
        """Return the excess as `2.97 USD`, "" for no excess."""
        parts = [in_usd(self.micro_usd)] if self.micro_usd else []
        return " and ".join([*parts, *([duration(self.time_s)] if self.time_s else [])])


def excess(op: Op, now: Now, scale: float = 1.0) -> LimitOverrun:
    """Return the possible excess of a pod over the limits; zero within the limits and for an ended pod."""
    if not op.is_live:
        return LimitOverrun()
    over_s = 0.0 if op.ttl_s is None else since_request_s(op, now, scale) - op.ttl_s
    over = 0 if op.cap is None or not op.rate else spent(op, now, scale) - op.cap
    return LimitOverrun(max(0, over), max(0.0, over_s))


def left_s(op: Op, now: Now, scale: float = 1.0) -> float | None:
    """Return the seconds until the time or the money is used up, by the vendor's clock; None without a limit."""
    left = _left_s(op, now, scale)
    return None if left is None else max(0.0, left)


def past_limit_s(op: Op, now: Now, scale: float = 1.0) -> float:
    """Return the seconds since the time or the money was used up, by the vendor's clock; 0 before the limit."""
    return max(0.0, -(_left_s(op, now, scale) or 0.0))


def _left_s(op: Op, now: Now, scale: float) -> float | None:
    money_s = hard_limit_s(Limits(spend_micro_usd=op.cap, micro_usd_per_hour=op.rate))
    left = [] if op.ttl_s is None else [op.ttl_s - since_request_s(op, now, scale)]
    left += [] if money_s is None else [money_s - age_s(op, now, scale)]
    return min(left) if left else None


def remaining_limits(limits: Limits, used_s: float, used_micro_usd: int) -> Limits:
    """Return the limits for a run's next pod: the limits of the run minus the use so far."""
    time_s, money = limits.time_s, limits.spend_micro_usd
    return replace(
        limits,
        billed_s=0.0,
        time_s=None if time_s is None else time_s - used_s,
        spend_micro_usd=None if money is None else money - used_micro_usd,
    )


def is_used_up(limits: Limits) -> bool:
    return any(left is not None and left <= 0 for left in (limits.time_s, limits.spend_micro_usd))


def limit_s(op: Op) -> float | None:
    """Return the seconds from the start to the earlier of the time limit and the spend limit, by the vendor's clock.

    Return None without a limit.
    """
    return hard_limit_s(Limits(time_s=op.ttl_s, spend_micro_usd=op.cap, micro_usd_per_hour=op.rate))


def admit(rows: Iterable[Op], new: Op, *, of_all: int | None, now: Now, scale: float = 1.0) -> None:
    """Check that all live pods and the new pod together cost at most `of_all` micro-USD in the worst case.

    Raise OutOfMoney when they may cost more, or when a pod has no limit; no pod is rented then.
    """
    if of_all is None:
        return
    costs = [max_cost(op, now, scale) for op in (*(row for row in rows if row.is_live), new)]
    if None in costs:
        raise OutOfMoney("a pod without a limit cannot be held to a spend cap; give --ttl or --spend-limit")
    total = sum(cost for cost in costs if cost is not None)
    if total > of_all:
        raise OutOfMoney(
            f"with this pod, all live pods could cost {in_usd(total)}; the cap is {in_usd(of_all)} "
            "(SLIPWAY_SPEND_CAP_USD); nothing was rented. End a run or pod (inv status, inv down), or lower "
            "--spend-limit"
        )


@dataclass(frozen=True, kw_only=True)
class PodCost:
    """The cost of a pod."""

    token: str
    run: str
    provider: str
    pod_id: str
    micro_usd_per_hour: int
    began_at: int
    ended_at: int | None  # None = not proven gone
    elapsed_s: float  # seconds by the vendor's clock
    quoted_micro_usd: int  # rate x time; a started billing unit of the vendor counts in full
    billed_micro_usd: int | None  # bill of the vendor; None = not reported
    billed_at: int | None  # time of the vendor's report

    @property
    def micro_usd(self) -> int:
        """Return the final bill, else the larger of quote and bill: a bill of a running pod lags."""
        billed = self.billed_micro_usd or 0
        return billed if self.is_final else max(self.quoted_micro_usd, billed)

    @property
    def is_final(self) -> bool:
        """Return whether the vendor has reported the bill late enough after the end of the pod to be complete."""
        final_at = (self.ended_at or 0) + FINAL_S.get(self.provider, 0)
        return None not in (self.billed_micro_usd, self.ended_at) and (self.billed_at or 0) >= final_at


def ledger(
    rows: Iterable[Op], told: Mapping[str, tuple[int, int]], now: Now, *, clock_scale: float = 1.0, month: str = ""
) -> list[PodCost]:
    """Return a line for each row, except PLANNED and FAILED rows, in the order of `rows`.

    `month`: a UTC month, such as `2026-11`; count the part of the time in that month. `told`: bills by token, as from
    `Journal.reported_costs`. The vendors' clocks run `clock_scale` times as fast as ours.
    """
    lines = []
    wall_s = int(now.wall_s) if isinstance(now, Clocks) else int(now)
    since, until = span(month) if month else (0, math.inf)
    for row in rows:
        if row.state in (PLANNED, FAILED):
            continue  # not sent, refused, or proven never created
        began_at = int(billed_from(row))
        gone_at = ended_at(row, clock_scale)
        last = 1 + (wall_s if gone_at is None else gone_at)
        inside_s = min(last, until) - max(began_at, since)
        if month and (inside_s < 0 or began_at >= until):
            continue
        is_whole = began_at >= since and last <= until
        elapsed_s = age_s(row, now, clock_scale) if is_whole else max(0.0, inside_s) * clock_scale
        quoted, (at, billed) = spent(row, now, clock_scale), told.get(row.token, (None, None))
        if not is_whole:  # Parts up to the borders of the month are rounded, so that the months add up.
            before_s, by_s = (int(min(max(border, began_at), last)) - began_at for border in (since, until))
            whole_s = last - began_at
            quoted = quoted * by_s // whole_s - quoted * before_s // whole_s
            billed = billed and billed * by_s // whole_s - billed * before_s // whole_s
        lines.append(
            PodCost(
                token=row.token,
                run=row.run,
                provider=row.vendor,
                pod_id=row.remote_id or "",
                micro_usd_per_hour=row.rate,
                began_at=began_at,
                ended_at=gone_at,
                elapsed_s=elapsed_s,
                quoted_micro_usd=quoted,
                billed_micro_usd=billed,
                billed_at=at,
            )
        )
    return lines


def total(rows: Iterable[Op], told: Mapping[str, tuple[int, int]], now: Now, *, clock_scale: float = 1.0) -> int:
    """Return the total cost of `rows` in micro-USD; for a run, pass the rows of all pods."""
    return sum(line.micro_usd for line in ledger(rows, told, now, clock_scale=clock_scale))


def span(month: str) -> tuple[int, int]:
    """Return the start of `month` and of the next month. Raise UsageError for an invalid month."""
    try:
        first = datetime.strptime(month, "%Y-%m").replace(tzinfo=timezone.utc)
    except ValueError:
        raise UsageError(f"--month {month}: expected a month such as 2026-11") from None
    following = first.replace(year=first.year + first.month // 12, month=first.month % 12 + 1)
    return int(first.timestamp()), int(following.timestamp())


def month_of(at: float) -> str:
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m")


def months(first_at: int, last_at: int) -> list[str]:
    """Return all months from `first_at` to `last_at`, both included."""
    found = [month_of(first_at)]
    while (following := span(found[-1])[1]) <= last_at:
        found.append(month_of(following))
    return found
