"""The cost of pods, by the journal and by the vendors' bills.

`ledger` turns journal rows into cost records and sends no requests. Like `infra.ledger.spend`, the ledger counts until
the pod is proven gone, so that the cost is never below the amount owed. All displays of costs use the ledger. Money is
micro-USD, times are UTC epoch seconds.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timezone

from infra.agent.limits import Clocks
from infra.errors import UsageError
from infra.ledger import spend
from infra.ledger.life_cycle import FAILED, PLANNED
from infra.ledger.op import Op


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
    billed_micro_usd: int | None  # bill of the vendor; None = not reported, or not known for the month alone
    billed_at: int | None  # time of the vendor's report

    @property
    def micro_usd(self) -> int:
        """Return the vendor's bill for an ended pod, else the larger of quote and bill.

        The bill of a running pod lags, and only ever raises the quote. Without a bill, return the quote.
        """
        if self.billed_micro_usd is None:
            return self.quoted_micro_usd
        return self.billed_micro_usd if self.ended_at else max(self.quoted_micro_usd, self.billed_micro_usd)


def ledger(
    rows: Iterable[Op],
    told: Mapping[str, tuple[int, int]],
    now: spend.Now,
    *,
    clock_scale: float = 1.0,
    month: str = "",
) -> list[PodCost]:
    """Return a line for each row, except PLANNED and FAILED rows, in the order of `rows`.

    `month`: a UTC month, such as `2026-11`; count only costs in that month. `told`: bills by token, as from
    `Journal.told`. The vendors' clocks run `clock_scale` times as fast as ours.
    """
    lines = []
    wall_s = int(now.wall_s) if isinstance(now, Clocks) else int(now)
    since, until = span(month) if month else (0, math.inf)
    for row in rows:
        if row.state in (PLANNED, FAILED):
            continue  # not sent, refused, or proven never created
        began_at = int(spend.billed_from(row))
        ended_at = spend.ended_at(row, clock_scale)
        last = 1 + (wall_s if ended_at is None else ended_at)
        inside_s = min(last, until) - max(began_at, since)
        if month and (inside_s < 0 or began_at >= until):
            continue
        is_whole = began_at >= since and last <= until
        elapsed_s = spend.age_s(row, now, clock_scale) if is_whole else max(0.0, inside_s) * clock_scale
        quoted = spend.spent(row, now, clock_scale) if is_whole else math.ceil(elapsed_s * row.rate / 3600)
        at, billed = told.get(row.token, (None, None))
        lines.append(
            PodCost(
                token=row.token,
                run=row.run,
                provider=row.vendor,
                pod_id=row.remote_id or "",
                micro_usd_per_hour=row.rate,
                began_at=began_at,
                ended_at=ended_at,
                elapsed_s=elapsed_s,
                quoted_micro_usd=quoted,
                billed_micro_usd=billed if is_whole else None,
                billed_at=at if is_whole else None,
            )
        )
    return lines


def total(rows: Iterable[Op], told: Mapping[str, tuple[int, int]], now: spend.Now, *, clock_scale: float = 1.0) -> int:
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
