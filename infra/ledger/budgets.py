"""One amount for many pods: what each may cost is reserved before it is rented.

In: the journal's budgets and reservations, and the rows that a budget pays for. Out: what is spent, what is reserved,
and whether more can be. A budget is that of a sweep, of a set of pods, or of a service; its rows name it. A row counts
with the most that its pod may cost until that is proven gone, then with what it has cost. A run counts with what was
reserved for it where that is more: a pod that was taken away must leave money for the next one. So the sum never
passes the amount, whatever dies: a reservation outlives its process for as long as a pod, or a keeper, of its run does,
and is returned when nobody can go on with the run.

    open_budget -> reserve | admit, in the transaction that writes a row's intent | give_back
"""

import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from infra.agent.limits import Clocks, read_clocks
from infra.agent.process import Identity, is_alive, myself
from infra.agent.state import NODE_LOST
from infra.errors import OutOfMoney, UsageError
from infra.journal_file import Fenced
from infra.ledger import spend
from infra.ledger.journal import Journal
from infra.ledger.leases import keeper_lease
from infra.ledger.op import Op
from infra.money import in_usd

RECENT_S = 900.0  # time since it was written about in which a run whose keeper died may be taken up by another one


@dataclass(frozen=True)
class SharedBudget:
    """An amount for all pods that name it, in micro-dollars; `since`: UTC epoch seconds."""

    name: str
    epoch: int
    amount: int
    since: int


@dataclass(frozen=True)
class BudgetRun:
    """The spending of a budget on one run, in micro-dollars."""

    run: str
    spent: int = 0
    most: int = 0
    """The most that all of its pods can cost; pods that are gone count with what they did cost."""
    reserved: int = 0
    """Reservation for all of its pods together; 0 = none beyond what they can cost."""

    @property
    def committed(self) -> int:
        """Return the larger of both: the amount that counts against the budget."""
        return max(self.most, self.reserved)


@dataclass(frozen=True)
class BudgetState:
    """A budget as it stands."""

    budget: SharedBudget
    runs: Mapping[str, BudgetRun] = field(default_factory=dict)

    @property
    def spent(self) -> int:
        """Return the cost of all pods so far."""
        return sum(one.spent for one in self.runs.values())

    @property
    def committed(self) -> int:
        """Return the most that all pods may cost in the end."""
        return sum(one.committed for one in self.runs.values())

    @property
    def free(self) -> int:
        """Return the amount that can still be reserved."""
        return max(0, self.budget.amount - self.committed)

    def refusal(self, run: str, most: int) -> str:
        """Return why a run cannot come to cost so much; "" when it can."""
        others = self.committed - (self.runs[run].committed if run in self.runs else 0)
        if others + most <= self.budget.amount:
            return ""
        holders = [one.run for one in self.runs.values() if one.run != run and one.committed > one.spent]
        by = f", reserved by {', '.join(holders[:3])}{' and others' if len(holders) > 3 else ''}" if holders else ""
        left = max(0, self.budget.amount - others)
        return (
            f"{run} may cost {in_usd(most)}; of the {in_usd(self.budget.amount)} of {self.budget.name}, "
            f"{in_usd(self.spent)} are spent and {in_usd(left)} are free{by}"
        )


def budgets(journal: Journal) -> list[SharedBudget]:
    """Return all budgets, by name."""
    return [SharedBudget(*row) for row in journal.read("SELECT name, epoch, amount, since FROM budgets ORDER BY name")]


def find(journal: Journal, name: str) -> SharedBudget | None:
    """Return the budget of that name."""
    return next((one for one in budgets(journal) if one.name == name), None)


def open_budget(
    journal: Journal, name: str, amount: int, before: SharedBudget | None, scale: float = 1.0
) -> SharedBudget:
    """Write down what all pods of `name` may cost together, where it still stands as in `before`.

    Raises Fenced; UsageError for less than what is spent and reserved already.
    """
    flag = "--spend-limit" if ":" in name else f"--budget {name}=USD"  # of a sweep, a set or a service, or one's own
    if amount <= 0:
        raise UsageError(f"{name}: a limit of {in_usd(amount)} is too small to pay for anything; give more: {flag}")
    with journal.writing():
        now = find(journal, name)
        is_wanted = now is not None and now.amount == amount  # another process wanted the same and was first
        if not is_wanted and (now and now.epoch) != (before and before.epoch):
            raise Fenced(f"{name}: another command changed its limit meanwhile; run that again")
        if now is None:
            journal.execute("INSERT INTO budgets VALUES (?, 1, ?, ?)", name, amount, int(time.time()))
        elif now.amount != amount:
            found = _state(journal, now, journal.ops(), read_clocks(), scale)
            if amount < found.committed and amount < now.amount:
                kept = found.committed - found.spent
                raise UsageError(
                    f"{name} has cost {in_usd(found.spent)}, and {in_usd(kept)} are reserved for what runs; a limit of "
                    f"{in_usd(amount)} is less; give {in_usd(found.committed)} at least: {flag}, or end what "
                    "runs: inv status"
                )
            journal.execute("UPDATE budgets SET epoch = epoch + 1, amount = ? WHERE name = ?", amount, name)
    opened = find(journal, name)
    assert opened is not None
    return opened


def state(journal: Journal, name: str, scale: float = 1.0, now: Clocks | None = None) -> BudgetState:
    """Return the state of a budget. Raises UsageError when there is none."""
    return _state(journal, _found(journal, name), journal.ops(), now or read_clocks(), scale)


def states(journal: Journal, scale: float = 1.0) -> list[BudgetState]:
    """Return all budgets as they stand."""
    return [state(journal, one.name, scale) for one in budgets(journal)]


def reserve(journal: Journal, name: str, run: str, amount: int, scale: float = 1.0) -> None:
    """Reserve what all pods of a run may cost together, and do so in the name of this process; again, another amount.

    Raises OutOfMoney when so much is not free: nothing was changed.
    """
    me = myself()
    with journal.writing():
        budget = _found(journal, name)
        found = _state(journal, budget, journal.ops(), read_clocks(), scale)
        _sweep(journal, found)
        most = max(amount, found.runs[run].most if run in found.runs else 0)
        if why := found.refusal(run, most):
            raise OutOfMoney(f"{why}; nothing was rented")
        values = (name, run, amount, me.boot_id, me.pid, me.started)
        journal.execute("INSERT OR REPLACE INTO reservations VALUES (?, ?, ?, ?, ?, ?)", *values)


def give_back(journal: Journal, name: str, run: str) -> None:
    """Return the reservation of a run that is over; what its pods may still cost counts until they are proven gone."""
    with journal.writing():
        journal.execute("DELETE FROM reservations WHERE budget = ? AND run = ?", name, run)


def admit(journal: Journal, rows: Iterable[Op], new: Op, scale: float = 1.0) -> None:
    """Check that the budget of a new row has what its pod may cost; within the transaction that writes the row.

    Raises OutOfMoney; nothing was rented then.
    """
    if not new.budget_name or not new.rate:
        return
    budget, now = _found(journal, new.budget_name), read_clocks()
    most = spend.worst(new, now, scale)
    if most is None:
        raise OutOfMoney(f"{new.run}: a pod without a limit cannot be paid from {new.budget_name}; give --spend-limit")
    found = _state(journal, budget, rows, now, scale)
    _sweep(journal, found)  # otherwise this row would put a budget in force again that no longer is
    own = found.runs.get(new.budget_run, BudgetRun(new.budget_run))
    if why := found.refusal(new.budget_run, max(own.reserved, own.most + most)):
        raise OutOfMoney(f"{why}; nothing was rented; see: inv status")


def _found(journal: Journal, name: str) -> SharedBudget:
    found = find(journal, name)
    if found is None:
        known = ", ".join(one.name for one in budgets(journal)) or "none"
        raise UsageError(f"there is no budget {name!r}; known: {known}")
    return found


def _state(journal: Journal, budget: SharedBudget, rows: Iterable[Op], now: Clocks, scale: float) -> BudgetState:
    """Return the state of a budget, by its rows and reservations."""
    own: dict[str, list[Op]] = {}
    for op in rows:
        if op.budget_name == budget.name:
            own.setdefault(op.budget_run, []).append(op)
    reserved, told = _in_force(journal, budget.name, own), journal.told("vendor")
    found = {}
    for run in (*own, *(run for run in reserved if run not in own)):
        costs = {op.token: max(spend.spent(op, now, scale), told.get(op.token, (0, 0))[1]) for op in own.get(run, [])}
        # Each was admitted with a limit: there is none only where somebody took it away since.
        most = sum(max(costs[op.token], spend.worst(op, now, scale) or 0) for op in own.get(run, []))
        found[run] = BudgetRun(run, sum(costs.values()), most, reserved.get(run, 0))
    return BudgetState(budget, found)


def _in_force(journal: Journal, name: str, rows: Mapping[str, list[Op]]) -> dict[str, int]:
    """Return the reservations in force, by run, in micro-dollars: those with which somebody can still go on.

    What is left out is safe to be reserved by others at any time: whoever goes on with such a run all the same has to
    have its next pod admitted.
    """
    found = journal.read("SELECT run, amount, boot_id, pid, pid_starttime FROM reservations WHERE budget = ?", name)
    held, left = journal.leases.held(), journal.leases.abandoned()
    kept = {
        run for run, *_ in found if keeper_lease(run) in held or keeper_lease(run) in left and is_recent(journal, run)
    }
    return {
        run: amount
        for run, amount, *holder in found
        if is_alive(Identity(*holder)) or _may_go_on(rows.get(run, []), run in kept)
    }


def is_recent(journal: Journal, run: str) -> bool:
    """Return whether another keeper may take up a run without a pod that was left: nobody rents for one of last week.

    A keeper that waits for a machine writes that down each time that it has looked for one.
    """
    return time.time() - journal.changed_at(run) < RECENT_S


def _may_go_on(rows: list[Op], is_kept: bool) -> bool:
    """Return whether somebody may rent for that run again without a person who asks for it."""
    if any(op.is_live for op in rows):
        return True
    if not rows or rows[-1].outcome not in ("", NODE_LOST):
        return False
    return is_kept


def _sweep(journal: Journal, found: BudgetState) -> None:
    """Delete the reservations that are in force no more; within a transaction."""
    name = found.budget.name
    for (run,) in journal.read("SELECT run FROM reservations WHERE budget = ?", name):
        if run not in found.runs or not found.runs[run].reserved:
            journal.execute("DELETE FROM reservations WHERE budget = ? AND run = ?", name, run)
