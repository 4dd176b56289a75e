"""Money and machines of an allowance, from the journal: runs by the allowance's budget, services by their limits.

Journal, started runs -> `AllowanceState` -> free money and machines

A vendor needs time to end a machine, so a machine bills beyond its limit. The limit of a run is therefore lower than
the money of the plan: `held_back` is the price of END_S, and stays reserved until the machines are proven gone.
"""

import math
from dataclasses import dataclass

from infra.agent.limits import read_clocks
from infra.ledger import budgets, spend
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.runs import run_rows
from packs.agents.control.files import StartedRuns
from packs.agents.records.allowance import Allowance

END_S = 300.0  # on the vendor's clock, from a limit to the proof that the machine is gone


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


def held_back(micro_usd_per_hour: int, machines: int) -> int:
    """Return the money for the end of machines, in micro-USD."""
    return math.ceil(micro_usd_per_hour * machines * END_S / 3600)


def state(one: Allowance, started: StartedRuns, journal: Journal, scale: float) -> AllowanceState:
    """Return the state of an allowance. scale: of the vendors' clock."""
    now = read_clocks()
    of_runs = budgets.state(journal, one.budget, scale, now)
    spent, committed = of_runs.spent, of_runs.committed
    rows = journal.ops()
    live = [op for op in rows if op.is_live and op.budget_name == one.budget]
    at_work = {run_rows.run_of(op) for op in live} | {
        name for name, run in of_runs.runs.items() if run.committed > run.spent
    }
    committed += sum(amount for name, amount in started.held_back.items() if name in at_work)
    known = {op.service for op in rows if op.service}
    for name, limit in started.services.items():
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
