"""Money and machines of an allowance, from the journal: runs by the allowance's budget, services by their limits.

Journal, records of services -> `AllowanceState` -> free money and machines
"""

from collections.abc import Mapping
from dataclasses import dataclass

from infra.agent.limits import read_clocks
from infra.ledger import budgets, spend
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from packs.agents.records.allowance import Allowance


@dataclass(frozen=True, kw_only=True)
class AllowanceState:
    """Money and live machines of an allowance. Amounts in micro-USD."""

    total: int
    spent: int
    committed: int
    """Spent, and what live machines and reservations may still cost."""
    rows: tuple[Op, ...]
    """Live machines."""

    @property
    def free(self) -> int:
        return max(0, self.total - self.committed)


def state(one: Allowance, services: Mapping[str, int], journal: Journal, scale: float) -> AllowanceState:
    """Return the state of an allowance. services: limit in micro-USD of each service, by name; scale: of the clock."""
    now = read_clocks()
    of_runs = budgets.state(journal, one.budget, scale, now)
    spent, committed = of_runs.spent, of_runs.committed
    rows = journal.ops()
    live = [op for op in rows if op.is_live and op.budget_name == one.budget]
    known = {op.service for op in rows if op.service}
    for name, limit in services.items():
        of_service = [op for op in rows if op.service == name]
        cost = sum(spend.spent(op, now, scale) for op in of_service)
        spent += cost
        is_over = name in known and not any(op.is_live for op in of_service) and not is_wanted(name, journal)
        committed += cost if is_over else max(limit, cost)
        live += [op for op in of_service if op.is_live]
    return AllowanceState(total=one.micro_usd, spent=spent, committed=committed, rows=tuple(live))


def is_wanted(service: str, journal: Journal) -> bool:
    """Return whether the journal has a service of this name that has not ended."""
    from infra.ledger import service_rows

    return service_rows.find(journal, service) is not None
