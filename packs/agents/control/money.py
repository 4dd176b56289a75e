"""Money and machines of an allowance, from the journal: runs by the allowance's budget, services by their limits.

Journal, started runs -> `AllowanceState` -> free money and machines

A vendor needs time to end a machine, so a machine bills beyond its limit. The limit of a run is therefore lower than
the money of the plan: `held_back` is the price of END_S, and stays reserved until the machines are proven gone.

The journal admits each machine of a run against the budget, also a second machine after the start. So the budget of the
journal holds `for_runs` only: the allowance less the money of services, and less the money for the end of machines.
"""

import math
from collections import Counter
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
    machines: int = 0
    """Machines of all runs and services at work: live, or planned and not rented yet, or not rented again yet."""
    for_runs: int = 0
    """Amount of the journal's budget, which pays for runs only."""

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
    of_budget = [op for op in rows if op.budget_name == one.budget]
    live = [op for op in of_budget if op.is_live]
    begun = {run_of(op) for op in of_budget} | of_runs.runs.keys()
    at_work = {run_of(op) for op in live} | {name for name, run in of_runs.runs.items() if run.committed > run.spent}
    # A start under way has no row yet; a start that failed without a row is forgotten.
    at_work |= {name for name in started.runs if name not in begun and name not in started.services}
    others = sum(amount for name, amount in started.held_back.items() if name in at_work)
    known, told = {op.service for op in rows if op.service}, journal.reported_costs("vendor")
    for name, limit in started.services.items():
        of_service = [op for op in rows if op.service == name]
        cost = sum(max(spend.spent(op, now, scale), told.get(op.token, (0, 0))[1]) for op in of_service)
        spent += cost
        is_over = name in known and not any(op.is_live for op in of_service) and not is_wanted(name, journal)
        others += cost if is_over else max(limit, cost)
        if not is_over:
            at_work.add(name)
        live += [op for op in of_service if op.is_live]
    machines = Counter(op.service or run_of(op) for op in live)
    return AllowanceState(
        total=one.micro_usd,
        spent=spent,
        committed=committed + others,
        rows=tuple(live),
        machines=sum(max(machines[name], started.machines.get(name, 0)) for name in at_work | machines.keys()),
        for_runs=max(1, one.micro_usd - others, committed),
    )


def run_of(op: Op) -> str:
    """Return the run of a row; a node that has not met the other nodes yet has the run in its budget only."""
    return op.budget_run or run_rows.run_of(op)


def is_wanted(service: str, journal: Journal) -> bool:
    """Return whether the journal has a service of this name that has not ended."""
    from infra.ledger import service_rows

    return service_rows.find(journal, service) is not None
