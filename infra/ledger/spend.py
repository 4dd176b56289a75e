"""The spend of rented pods, so far and at most: an upper bound, never less than what is owed. Pure.

In: rows of the journal. Out: micro-dollars. An hour is one of the vendor's, which in a rehearsal passes faster: `scale`
times. A pod costs from the moment its request was about to be sent, or from when its vendor says that billing began
if that is later, until it was proven gone. Of two clocks, the wall's and the boot's, the one that says more counts:
whoever sets a clock back gets no time for nothing.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace

from infra.agent.job import Limits
from infra.agent.limits import Clocks, hard_limit_s
from infra.errors import OutOfMoney
from infra.ledger.life_cycle import FAILED
from infra.ledger.op import Op
from infra.money import in_usd
from infra.providers import TIMER_GRAIN_S
from infra.units import duration

VENDOR_LATE_S = 300.0  # vendors look at their timers now and then
GRAIN_S = {"shadeform": 60}  # billing unit, charged when it starts; elsewhere a second
Now = float | Clocks  # a float: by the wall's clock alone


def since_request_s(op: Op, now: Now, scale: float = 1.0) -> float:
    """Return the time since its request was sent, until its end if that is known, by the vendor's clock.

    Time limits count from there.
    """
    if op.state == FAILED:  # nothing was rented
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
    """Return the time of a run over all of its pods, oldest first, by the vendor's clock.

    `ended_at`: when its last pod had its verdict, which may be long before that pod was found gone.
    """
    *before, last = rows
    spans = [(_until_detached_s if row.detached else since_request_s)(row, now, scale) for row in before]
    if ended_at is None or last.detached:
        return sum(spans) + since_request_s(last, now, scale)
    return sum(spans) + max(0.0, ended_at - _sent_at(last)) * scale


def _until_detached_s(op: Op, now: Now, scale: float) -> float:
    """Return the time for which a detached pod was part of its run."""
    if op.del_requested_at is None:
        return since_request_s(op, now, scale)
    return max(0.0, op.del_requested_at - _sent_at(op)) * scale


def age_s(op: Op, now: Now, scale: float = 1.0) -> float:
    """Return the longest time for which it can have been billed, by the vendor's clock."""
    billed_s = max(0.0, since_request_s(op, now, scale) - (billed_from(op) - _sent_at(op)) * scale)
    most_s = None if op.is_live else _most_s(op)
    return billed_s if most_s is None else min(billed_s, most_s)


def _most_s(op: Op) -> float | None:
    """Return how long a pod was billed at most, by its vendor's clock, which has ended it without being asked.

    It may be missed long after, and was not billed beyond its own timer. None: it was asked to end, or has no timer.
    """
    hard_s = limit_s(op)
    grain_s = TIMER_GRAIN_S.get(op.vendor)
    if op.ended_at is None or op.del_requested_at is not None or hard_s is None or grain_s is None:
        return None
    return math.ceil(hard_s / grain_s) * grain_s + VENDOR_LATE_S


def ended_at(op: Op, scale: float = 1.0) -> int | None:
    """Return the latest time at which it was gone; None when that is not proven."""
    most_s = _most_s(op)
    if op.ended_at is None or most_s is None:
        return op.ended_at
    return min(op.ended_at, math.ceil(billed_from(op) + most_s / scale))


def billed_from(op: Op) -> float:
    """Return the start of billing, by the wall's clock as it was when the request was sent."""
    if op.billed_at is not None:
        return op.billed_at
    return _sent_at(op)


def _sent_at(op: Op) -> float:
    return op.intent_at if op.sent_at is None else op.sent_at


def spent(op: Op, now: Now, scale: float = 1.0) -> int:
    grain_s = GRAIN_S.get(op.vendor, 1)
    return math.ceil(math.ceil(age_s(op, now, scale) / grain_s) * grain_s * op.rate / 3600)


def worst(op: Op, now: Now, scale: float = 1.0) -> int | None:
    """Return its cost when its hardest limit ends it; None when it has none."""
    cost = spent(op, now, scale)
    if not op.is_live or not op.rate:
        return cost
    ends = [] if op.ttl_s is None else [math.ceil(op.ttl_s * op.rate / 3600)]
    ends += [] if op.cap is None else [op.cap]
    return max(cost, min(ends)) if ends else None


def reserved(op: Op, now: Now, scale: float = 1.0) -> int:
    """Return what it has cost and, while it lives, may yet cost; until now, where whether it exists is not known."""
    most = worst(op, now, scale) if op.remote_id else None
    return spent(op, now, scale) if most is None else most


def due(op: Op, now: Now, scale: float = 1.0) -> str:
    """Return why a live pod must end by now, in words; "" while it need not. Its own guard has the same limits."""
    if op.ttl_s is not None and since_request_s(op, now, scale) >= op.ttl_s:
        return f"its time limit of {duration(op.ttl_s)} is reached"
    if op.cap is not None and op.rate and spent(op, now, scale) >= op.cap:
        return f"its spend limit of {in_usd(op.cap)} is reached"
    return ""


@dataclass(frozen=True)
class Excess:
    """The part of what a live pod may have used that is beyond its limits: money, and time by its vendor's clock."""

    micro_usd: int = 0
    time_s: float = 0.0

    @property
    def words(self) -> str:
        """Return it as `2.97 USD`, "" where it is nothing."""
        parts = [in_usd(self.micro_usd)] if self.micro_usd else []
        return " and ".join([*parts, *([duration(self.time_s)] if self.time_s else [])])


def excess(op: Op, now: Now, scale: float = 1.0) -> Excess:
    """Return by how much the most that a pod may have used is beyond its limits; nothing while it is due by neither."""
    if not op.is_live:
        return Excess()
    over_s = 0.0 if op.ttl_s is None else since_request_s(op, now, scale) - op.ttl_s
    over = 0 if op.cap is None or not op.rate else spent(op, now, scale) - op.cap
    return Excess(max(0, over), max(0.0, over_s))


def left_s(op: Op, now: Now, scale: float = 1.0) -> float | None:
    """Return the time until its time or its money is used up, by the vendor's clock; None when neither is limited."""
    left = _left_s(op, now, scale)
    return None if left is None else max(0.0, left)


def past_limit_s(op: Op, now: Now, scale: float = 1.0) -> float:
    """Return the time since its time or its money was used up, by the vendor's clock; 0 where that is to come."""
    return max(0.0, -(_left_s(op, now, scale) or 0.0))


def _left_s(op: Op, now: Now, scale: float) -> float | None:
    money_s = hard_limit_s(Limits(spend_micro_usd=op.cap, micro_usd_per_hour=op.rate))
    left = [] if op.ttl_s is None else [op.ttl_s - since_request_s(op, now, scale)]
    left += [] if money_s is None else [money_s - age_s(op, now, scale)]
    return min(left) if left else None


def less(limits: Limits, used_s: float, used_micro_usd: int) -> Limits:
    """Return the rest of a run's limits for its next pod."""
    time_s, money = limits.time_s, limits.spend_micro_usd
    return replace(limits, billed_s=0.0, time_s=None if time_s is None else time_s - used_s,
                   spend_micro_usd=None if money is None else money - used_micro_usd)  # fmt: skip


def is_used_up(limits: Limits) -> bool:
    return any(left is not None and left <= 0 for left in (limits.time_s, limits.spend_micro_usd))


def limit_s(op: Op) -> float | None:
    """Return after how long its time or its money is used up, by the vendor's clock; None when neither is limited."""
    return hard_limit_s(Limits(time_s=op.ttl_s, spend_micro_usd=op.cap, micro_usd_per_hour=op.rate))


def admit(rows: Iterable[Op], new: Op, *, of_all: int | None, now: Now, scale: float = 1.0) -> None:
    """Check that all pods that live or may live, and this one, stay below `of_all` in the worst case.

    Raises OutOfMoney; nothing was rented then.
    """
    if of_all is None:
        return
    costs = [worst(op, now, scale) for op in (*(row for row in rows if row.is_live), new)]
    if None in costs:
        raise OutOfMoney("a pod without a limit cannot be held to a spend cap; give --ttl or --spend-limit")
    total = sum(cost for cost in costs if cost is not None)
    if total > of_all:
        raise OutOfMoney(
            f"this pod could bring what lives to {in_usd(total)}; the cap is {in_usd(of_all)} "
            "(SLIPWAY_SPEND_CAP_USD); nothing was rented. End something (inv status, inv down), or lower --spend-limit"
        )
