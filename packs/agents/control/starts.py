"""Starts of an allowance: a plan -> the lock -> the checks again -> one `inv` line that rents.

Starts run one at a time, also after a kill: the process of `inv` inherits the lock, so a new broker waits until an
interrupted launch has written its rows. A line of the receipt precedes each `inv` line.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from infra.errors import SlipwayError, UsageError
from infra.units import dollars
from packs.agents.control.account import Account
from packs.agents.control.admission import check_money, check_time
from packs.agents.control.ending import locked
from packs.agents.control.plans import SERVICE, TRAIN, Plans, StartPlan, same_work, seconds_word
from packs.agents.control.time_left import left_s, refusal
from packs.agents.records.allowance import Allowance
from packs.agents.records.arguments import PlanId

AFTER_S = 3600.0  # after the limit of the machines: then the broker ends a hanging `inv` command with the lock
Note = Callable[[Mapping[str, Any]], None]
"""Writes facts about a start into the receipt."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """An admitted start."""

    plan: StartPlan
    run: str
    flags: Mapping[str, Any]
    lock: int
    """File descriptor of the lock."""
    ends: float
    """End of the allowance, in UTC epoch seconds."""

    @property
    def shown(self) -> dict[str, Any]:
        return {"run": self.run, "limit_usd": dollars(self.plan.micro_usd), "ends_at": self.ends}


def launch(account: Account, plans: Plans, asked: PlanId, note: Note) -> dict[str, Any]:
    """Start a planned training."""
    with admitted(account, plans, asked, TRAIN, note) as start:
        if same := same_work(account, start.plan.target):  # begun after the plan
            return same
        flags = {**start.flags, "run-name": start.run, "ttl": start_ttl(start, account.allowance)}
        most_s = seconds_of(flags["ttl"]) + AFTER_S
        account.inv.json("launch", flags, held=[start.lock], most_s=most_s)
        if start.run not in account.own_names():
            return {"rented": False, "message": "every artifact exists; no machine was rented", "next": "status"}
    return {**start.shown, "next": "status"}


def serve_up(account: Account, plans: Plans, asked: PlanId, note: Note) -> dict[str, Any]:
    """Start a planned service."""
    with admitted(account, plans, asked, SERVICE, note) as start:
        most_s = left_s(account.allowance) + AFTER_S
        account.inv.json("serve.up", start.flags, [start.run], [start.lock], most_s)
    return {**start.shown, "next": "status, serve_ask"}


@contextlib.contextmanager
def admitted(account: Account, plans: Plans, asked: PlanId, kind: str, note: Note) -> Iterator[Start]:
    """Hold the lock of the allowance, check, take the plan, and yield with the name of a new run. Raises UsageError."""
    with locked(account) as lock:
        one = account.allowance
        if why := refusal(one):
            raise UsageError(why)
        check_time(left_s(one))
        plan = plans.find(asked.plan_id, kind)
        check_money(account, plan.micro_usd, plan.machines)
        plans.remove(plan.plan_id)
        run = account.new_run(plan.held_back, plan.machines, plan.micro_usd if kind == SERVICE else 0)
        limit = {"limit_usd": dollars(plan.micro_usd), "machine": plan.machine, "usd_per_hour": plan.max_price}
        flags = {**plan.flags, "max-price": plan.max_price, "yes": True, "detach": True}
        try:
            account.fit_budget()
            note({"plan_id": plan.plan_id, "run": run, **limit})
            yield Start(plan=plan, run=run, flags=flags, lock=lock, ends=one.ends)
        finally:
            account.forget_unstarted(run)
            with contextlib.suppress(SlipwayError):  # the next start sets the budget, too
                account.fit_budget()


def forget_interrupted(account: Account) -> None:
    """Return names and money of starts that a kill has interrupted; wait for the end of a start under way."""
    with locked(account):
        for name in account.started.runs:
            account.forget_unstarted(name)
        account.fit_budget()


def start_ttl(start: Start, one: Allowance) -> str:
    """Return the time limit of a run: at most the time left now, which is less than at the plan."""
    return seconds_word(min(seconds_of(start.flags["ttl"]), left_s(one)))


def seconds_of(ttl: Any) -> float:
    """Return the seconds of a time limit by `seconds_word`."""
    return float(str(ttl).removesuffix("s"))
