"""The limit of a sweep that names none: it follows what all of its runs are expected to cost together.

    forecasts of runs, or of the pods that they share; the budget of an earlier time -> the amount for all of them

A sweep that goes on keeps the limit that it had: no limit is raised without being asked to.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from infra.ledger import budgets
from infra.ledger.journal import Journal
from infra.money import in_usd
from infra.runs.timing import Say
from infra.selection.default_limit import default_limit


@dataclass(frozen=True)
class HighCost:
    """The highest cost that is forecast of a run or a pod, in micro-dollars."""

    micro_usd: int
    is_measured: bool


def limit_before(sweep: str, journal: Journal) -> int | None:
    """Return the limit that the sweep had at an earlier time; None where there was none."""
    before = budgets.find(journal, f"sweep:{sweep}")
    return None if before is None else before.amount


def default_of(sweep: str, forecasts: Sequence[HighCost | None], journal: Journal, tell: Say) -> int:
    """Return the amount for all runs of a sweep together, and tell the reason. None among them: a cost is not known."""
    if before := limit_before(sweep, journal):
        tell(f"{sweep} goes on with its limit of {in_usd(before)}; another one: --spend-limit")
        return before
    known = [one for one in forecasts if one is not None]
    high = sum(one.micro_usd for one in known) if known and len(known) == len(forecasts) else None
    found = default_limit(high, all(one.is_measured for one in known))
    tell(f"all runs together: {found.words}")
    return found.micro_usd
