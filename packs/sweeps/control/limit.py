"""Default spend limit of a sweep, derived from the expected cost of all runs together.

    cost forecasts of runs or shared pods, budget of an earlier attempt -> limit in micro-dollars for all runs

A resumed sweep keeps the earlier limit: only the user raises a limit.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from infra.ledger import budgets
from infra.ledger.journal import Journal
from infra.runs.timing import Say
from infra.selection.preflight import default_limit
from infra.units import in_usd


@dataclass(frozen=True)
class HighCost:
    """Highest forecast cost of a run or a pod, in micro-dollars."""

    micro_usd: int
    is_measured: bool


def limit_before(sweep: str, journal: Journal) -> int | None:
    """Return the limit of an earlier attempt of the sweep in micro-dollars; None without an earlier attempt."""
    before = budgets.find(journal, f"sweep:{sweep}")
    return None if before is None else before.amount


def default_of(sweep: str, forecasts: Sequence[HighCost | None], journal: Journal, tell: Say) -> int:
    """Return the default limit for all runs together in micro-dollars, and report the reason to `tell`.

    forecasts: None stands for an unknown cost.
    """
    if before := limit_before(sweep, journal):
        tell(f"{sweep} continues with the limit of {in_usd(before)}; to change the limit: --spend-limit")
        return before
    known = [one for one in forecasts if one is not None]
    high = sum(one.micro_usd for one in known) if known and len(known) == len(forecasts) else None
    found = default_limit(high, all(one.is_measured for one in known))
    tell(f"all runs together: {found.description}")
    return found.micro_usd
