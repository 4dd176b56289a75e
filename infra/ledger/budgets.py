"""Shared budgets: one spend limit for many pods, with the cost of each pod reserved before renting.

The module computes the spent, reserved and free amounts of a budget in micro-USD from the journal. A budget belongs to
a sweep, a set of pods or a service, or is named by the user; the rows of the journal name the budget. A row counts with
the maximum cost of the pod until the pod is proven gone, and with the actual cost afterwards. A run counts with the
reservation if the reservation is larger: a preempted pod must leave money for the next pod. The sum therefore never
exceeds the amount, whichever process dies: a reservation outlives the reserving process while a pod or a keeper of the
run lives, and expires when no process can continue the run.

    open_budget -> reserve | admit, in the transaction that writes a row's intent | release_reservation
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from infra.agent.limits import Clocks, read_clocks
from infra.agent.process import Identity, current_identity, is_alive
from infra.agent.state import NODE_LOST
from infra.errors import OutOfMoney, UsageError
from infra.journal_file import Fenced
from infra.ledger import spend
from infra.ledger.journal import Journal
from infra.ledger.leases import keeper_lease
from infra.ledger.op import Op
from infra.units import in_usd

# Seconds since the last journal event of a run during which a new keeper may take over from a dead keeper.
RECENT_S = 900.0


@dataclass(frozen=True)
class SharedBudget:
    """A spend limit in micro-USD for all pods that name the budget; `since`: UTC epoch seconds."""

    name: str
    epoch: int
    amount: int
    since: int


@dataclass(frozen=True)
class BudgetRun:
    """The part of a budget used by a run, in micro-USD."""

    run: str
    spent: int = 0
    most: int = 0
    """Maximum cost of all pods of the run; ended pods count with the actual cost."""
    reserved: int = 0
    """Reservation for all pods of the run together; 0 = no reservation."""

    @property
    def committed(self) -> int:
        """Return the amount charged to the budget: the larger of `most` and `reserved`."""
        return max(self.most, self.reserved)


@dataclass(frozen=True)
class BudgetState:
    """The current state of a budget, by run."""

    budget: SharedBudget
    runs: Mapping[str, BudgetRun] = field(default_factory=dict)

    @property
    def spent(self) -> int:
        """Return the cost of all pods so far, in micro-USD."""
        return sum(one.spent for one in self.runs.values())

    @property
    def committed(self) -> int:
        """Return the maximum final cost of all pods, with reservations, in micro-USD."""
        return sum(one.committed for one in self.runs.values())

    @property
    def free(self) -> int:
        """Return the amount still free to reserve, in micro-USD."""
        return max(0, self.budget.amount - self.committed)

    def refusal(self, run: str, most: int) -> str:
        """Return why `run` cannot commit `most` micro-USD in total; "" if the budget has enough."""
        others = self.committed - (self.runs[run].committed if run in self.runs else 0)
        if others + most <= self.budget.amount:
            return ""
        holders = [one.run for one in self.runs.values() if one.run != run and one.committed > one.spent]
        by = f"; reserved by: {', '.join(holders[:3])}{' and others' if len(holders) > 3 else ''}" if holders else ""
        left = max(0, self.budget.amount - others)
        return (
            f"{run} may cost {in_usd(most)}, but of the {in_usd(self.budget.amount)} of budget {self.budget.name}, "
            f"{in_usd(self.spent)} are spent and only {in_usd(left)} are free{by}"
        )


def budgets(journal: Journal) -> list[SharedBudget]:
    """Return all budgets, sorted by name."""
    return [SharedBudget(*row) for row in journal.read("SELECT name, epoch, amount, since FROM budgets ORDER BY name")]


def find(journal: Journal, name: str) -> SharedBudget | None:
    """Return the budget `name`, or None."""
    return next((one for one in budgets(journal) if one.name == name), None)


def open_budget(
    journal: Journal, name: str, amount: int, before: SharedBudget | None, scale: float = 1.0
) -> SharedBudget:
    """Set the spend limit of all pods of `name` to `amount` micro-USD, unless the budget changed since `before`.

    Raise Fenced when a concurrent command has set a different amount. Raise UsageError for an amount of zero or less,
    and for a decrease below the spent and reserved amounts.
    """
    # A colon marks the budget of a sweep, a set of pods or a service; the user names all other budgets.
    flag = "--spend-limit" if ":" in name else f"--budget {name}=USD"
    if amount <= 0:
        raise UsageError(f"{name}: a limit of {in_usd(amount)} is too small; give a larger limit: {flag}")
    with journal.writing():
        now = find(journal, name)
        is_wanted = now is not None and now.amount == amount  # a concurrent process set the same amount first
        if not is_wanted and (now and now.epoch) != (before and before.epoch):
            raise Fenced(f"{name}: a concurrent command changed the limit; run the command again")
        if now is None:
            journal.execute("INSERT INTO budgets VALUES (?, 1, ?, ?)", name, amount, int(time.time()))
        elif now.amount != amount:
            found = _state(journal, now, journal.ops(), read_clocks(), scale)
            if amount < found.committed and amount < now.amount:
                kept = found.committed - found.spent
                raise UsageError(
                    f"{name} has cost {in_usd(found.spent)}, and {in_usd(kept)} are reserved for live runs and pods; a "
                    f"limit of {in_usd(amount)} is too small. Give at least {in_usd(found.committed)}: {flag}, or end "
                    "runs or pods: inv status"
                )
            journal.execute("UPDATE budgets SET epoch = epoch + 1, amount = ? WHERE name = ?", amount, name)
    opened = find(journal, name)
    assert opened is not None
    return opened


def state(journal: Journal, name: str, scale: float = 1.0, now: Clocks | None = None) -> BudgetState:
    """Return the current state of a budget. Raise UsageError for an unknown name."""
    return _state(journal, _found(journal, name), journal.ops(), now or read_clocks(), scale)


def states(journal: Journal, scale: float = 1.0) -> list[BudgetState]:
    """Return the current state of every budget."""
    return [state(journal, one.name, scale) for one in budgets(journal)]


def reserve(journal: Journal, name: str, run: str, amount: int, scale: float = 1.0) -> None:
    """Reserve `amount` micro-USD for all pods of a run together, on behalf of this process.

    A second call replaces the reservation. Raise OutOfMoney, without changes, when the amount is not free.
    """
    me = current_identity()
    with journal.writing():
        budget = _found(journal, name)
        found = _state(journal, budget, journal.ops(), read_clocks(), scale)
        _sweep(journal, found)
        most = max(amount, found.runs[run].most if run in found.runs else 0)
        if why := found.refusal(run, most):
            raise OutOfMoney(f"{why}; nothing was rented")
        values = (name, run, amount, me.boot_id, me.pid, me.started)
        journal.execute("INSERT OR REPLACE INTO reservations VALUES (?, ?, ?, ?, ?, ?)", *values)


def release_reservation(journal: Journal, name: str, run: str) -> None:
    """Delete the reservation of a finished run; possible costs of the pods count until the pods are proven gone."""
    with journal.writing():
        journal.execute("DELETE FROM reservations WHERE budget = ? AND run = ?", name, run)


def admit(journal: Journal, rows: Iterable[Op], new: Op, scale: float = 1.0) -> None:
    """Check that the budget of a new row covers the maximum cost of the pod.

    Call within the transaction that writes the row. Raise OutOfMoney for too small a budget, and for a pod without a
    limit; no pod is rented then.
    """
    if not new.budget_name or not new.rate:
        return
    budget, now = _found(journal, new.budget_name), read_clocks()
    most = spend.max_cost(new, now, scale)
    if most is None:
        raise OutOfMoney(f"{new.run}: a pod without a limit cannot be paid from {new.budget_name}; give --spend-limit")
    found = _state(journal, budget, rows, now, scale)
    _sweep(journal, found)  # otherwise the new row would put an expired reservation in force again
    own = found.runs.get(new.budget_run, BudgetRun(new.budget_run))
    if why := found.refusal(new.budget_run, max(own.reserved, own.most + most)):
        raise OutOfMoney(f"{why}; nothing was rented; see: inv status")


def _found(journal: Journal, name: str) -> SharedBudget:
    found = find(journal, name)
    if found is None:
        known = ", ".join(one.name for one in budgets(journal)) or "none"
        raise UsageError(f"budget {name!r} does not exist; known: {known}")
    return found


def _state(journal: Journal, budget: SharedBudget, rows: Iterable[Op], now: Clocks, scale: float) -> BudgetState:
    """Return the state of a budget, computed from rows and reservations."""
    own: dict[str, list[Op]] = {}
    for op in rows:
        if op.budget_name == budget.name:
            own.setdefault(op.budget_run, []).append(op)
    reserved, told = _in_force(journal, budget.name, own), journal.reported_costs("vendor")
    found = {}
    for run in (*own, *(run for run in reserved if run not in own)):
        costs = {op.token: max(spend.spent(op, now, scale), told.get(op.token, (0, 0))[1]) for op in own.get(run, [])}
        # Every pod was admitted with a limit; `max_cost` returns None only for a limit removed since.
        most = sum(max(costs[op.token], spend.max_cost(op, now, scale) or 0) for op in own.get(run, []))
        found[run] = BudgetRun(run, sum(costs.values()), most, reserved.get(run, 0))
    return BudgetState(budget, found)


def _in_force(journal: Journal, name: str, rows: Mapping[str, list[Op]]) -> dict[str, int]:
    """Return the reservations in force, by run, in micro-USD: those of runs with a process able to continue.

    Other runs may reserve all other amounts at any time: a process that continues an expired run after all must have
    the next pod admitted.
    """
    found = journal.read("SELECT run, amount, boot_id, pid, pid_starttime FROM reservations WHERE budget = ?", name)
    held, left = journal.leases.held_names(), journal.leases.abandoned_names()
    kept = {
        run for run, *_ in found if keeper_lease(run) in held or keeper_lease(run) in left and is_recent(journal, run)
    }
    return {
        run: amount
        for run, amount, *holder in found
        if is_alive(Identity(*holder)) or _may_go_on(rows.get(run, []), run in kept)
    }


def is_recent(journal: Journal, run: str) -> bool:
    """Return whether a new keeper may take over an abandoned run without a pod: the last event must be recent.

    The limit prevents renting for a run of last week. A waiting keeper records an event after each machine search.
    """
    return time.time() - journal.changed_at(run) < RECENT_S


def _may_go_on(rows: list[Op], is_kept: bool) -> bool:
    """Return whether a process may rent for the run again without a command of the user."""
    if any(op.is_live for op in rows):
        return True
    if not rows or rows[-1].outcome not in ("", NODE_LOST):
        return False
    return is_kept


def _sweep(journal: Journal, found: BudgetState) -> None:
    """Delete expired reservations; call within a transaction."""
    name = found.budget.name
    for (run,) in journal.read("SELECT run FROM reservations WHERE budget = ?", name):
        if run not in found.runs or not found.runs[run].reserved:
            journal.execute("DELETE FROM reservations WHERE budget = ? AND run = ?", name, run)
