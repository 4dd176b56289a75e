"""Reconciliation of a receipt: the calls against the rows of the ledger and the bills of the vendors.

Calls, journal, vendors -> `Reconciliation`: a row per machine, three sums, and each difference in words
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from flows.reading import spending
from infra.agent.limits import read_clocks
from infra.ledger import spend
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.ledger.spend import PodCost
from infra.units import in_usd, micro_usd
from packs.agents.control import ending, money
from packs.agents.control.account import Account
from packs.agents.control.receipt import BEGUN


@dataclass(frozen=True, kw_only=True)
class Reconciliation:
    """Machines and money of an allowance. Amounts in micro-USD."""

    machines: tuple[PodCost, ...]
    counted: int
    """Money counted by the allowance: each machine until the proof that it is gone, and never less than the bill."""
    ledger: int
    """Sum of the ledger, as in `inv cost`: the bill of an ended machine, else price and time."""
    billed: int
    """Sum of the vendors' bills."""
    differences: tuple[str, ...]
    unanswered: tuple[str, ...]
    """Bills that no vendor has reported, with reasons."""


def reconcile(calls: Sequence[Mapping[str, Any]], account: Account, journal: Journal) -> Reconciliation:
    """Compare the calls of a receipt with the ledger, after asking the vendors for their bills."""
    settings, started = account.settings, account.started
    rows = [op for op in journal.ops() if op.service in started.services or op.budget_name == account.allowance.budget]
    problems = spending.ask_bills(rows, journal, settings)
    told = journal.reported_costs("vendor")
    lines = spend.ledger(rows, told, read_clocks(), clock_scale=settings.clock_scale)
    counted = money.state(account.allowance, started, journal, settings.clock_scale).spent
    ledger = sum(line.micro_usd for line in lines)
    found = [*differences(calls, rows, {line.token for line in lines}, ending.is_starting(account))]
    found += money_differences(calls, {op.token: start_of(op) for op in rows}, lines)
    if ledger > counted:
        found.append(f"the ledger has {in_usd(ledger)}, and the allowance has counted {in_usd(counted)}")
    if counted > account.allowance.micro_usd:
        found.append(f"cost {in_usd(counted)} is above the allowance of {in_usd(account.allowance.micro_usd)}")
    unknown = [one for one in lines if one.ended_at and not one.is_final]
    return Reconciliation(
        machines=tuple(lines),
        counted=counted,
        ledger=ledger,
        billed=sum(line.billed_micro_usd or 0 for line in lines),
        differences=tuple(found),
        unanswered=(
            *problems,
            *(f"{one.run}: {one.provider} has reported no final bill of {one.pod_id}" for one in unknown),
        ),
    )


def start_of(op: Op) -> str:
    """Return the run or service of a row, as named by the call that started it."""
    return op.service or money.run_of(op)


def money_differences(
    calls: Sequence[Mapping[str, Any]], starts: Mapping[str, str], lines: Sequence[PodCost]
) -> list[str]:
    """Return each bill above the price and time of its machine, and each run above the limit of its call, in words.

    starts: run or service of each row, by token.
    """
    found: list[str] = []
    costs = Counter[str]()
    for line in lines:
        costs[starts[line.token]] += line.micro_usd
        most = line.quoted_micro_usd + money.held_back(line.micro_usd_per_hour, 1)
        if line.billed_micro_usd is not None and line.billed_micro_usd > most:
            found.append(
                f"{line.run}: {line.provider} bills {in_usd(line.billed_micro_usd)} for {line.pod_id}, more than "
                f"price times time, {in_usd(line.quoted_micro_usd)}"
            )
    limits = {name: micro_usd(call["limit_usd"]) for name, call in starts_in(calls).items() if call.get("limit_usd")}
    found += [
        f"{name}: cost {in_usd(costs[name])}, and the limit of the call is {in_usd(limit)}"
        for name, limit in limits.items()
        if costs[name] > limit
    ]
    return found


def starts_in(calls: Sequence[Mapping[str, Any]]) -> dict[str, Mapping[str, Any]]:
    """Return the calls that started something, by run or service."""
    return {call["run"]: call for call in calls if call["tool"] in ("launch", "serve_up") and call.get("run")}


def differences(
    calls: Sequence[Mapping[str, Any]], rows: Sequence[Op], rented: set[str], is_starting: bool = False
) -> list[str]:
    """Return each start without a machine, machine without a start, unanswered start and higher price, in words.

    is_starting: the newest start is under way, and has no outcome yet.
    """
    starts = starts_in(calls)
    of_starts: dict[str, list[Op]] = {name: [] for name in starts}
    found = []
    for op in rows:
        if op.token not in rented:
            continue
        if start_of(op) not in starts:
            found.append(f"{op.run}: no call started the run, and the ledger has a machine at {op.vendor}")
            continue
        of_starts[start_of(op)].append(op)
        most = micro_usd(starts[start_of(op)].get("usd_per_hour") or "0")
        if op.rate > most:
            found.append(f"{op.run}: rented at {in_usd(op.rate)} per hour, and planned at most at {in_usd(most)}")
    newest = [*starts][-1:] if is_starting else []
    for name, call in starts.items():
        machines = len(of_starts[name])
        if call["outcome"] == BEGUN and name not in newest:
            found.append(f"{name}: the broker was killed during the call; machines in the ledger: {machines}")
        # A service may wait for a machine, and a training needs none if the artifacts exist.
        elif call["outcome"] == "done" and call["tool"] == "launch" and call.get("rented", True) and not machines:
            found.append(f"{name}: the call started the run, and the ledger has no machine of the run")
    return found
