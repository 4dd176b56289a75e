"""The resources shared by several runs: budgets, and machines of the user.

    reserve_budget              opens or finds the budget of a launch and reserves the maximum cost of the run
    release_launch_reservation  returns a reservation if no machine was rented
    on_devices                  selects GPUs of a machine for a launch; other runs may use the rest
    wait_in_queue               puts a launch into the wait queue for a machine: first come, first served
    find_launch_offers          returns offers for a launch; waits for offers if requested

The records are in `infra.ledger.budgets` and `infra.ledger.wait_queue`.
"""

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from infra.agent.job import Limits
from infra.errors import Busy, NoOffer, OutOfMoney, UsageError
from infra.ledger import budgets, wait_queue
from infra.ledger.budgets import SharedBudget
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.ledger.wait_queue import QueueTicket
from infra.names import run_name
from infra.providers import Provider, clock_scale
from infra.records import Offer, Request
from infra.runs.timing import Say
from infra.selection import choose
from infra.selection.choose import ChosenMachine
from infra.selection.preflight import read_budget
from infra.settings import Settings
from infra.units import count, duration

# Polling interval in seconds; on remote machines each poll opens a connection.
WAIT_S = {"local": 1.0}
WAIT_ELSEWHERE_S = 5.0
LOOK_S = 60.0  # seconds between queries for offers, on the vendor's clock
WAIT = "--wait"
BUDGET = "budget"  # name of the wait queue for money


def check_budget(said: str, journal: Journal) -> None:
    """Raise UsageError if a budget is missing and the flag does not open one. `said`: flag value; "" = none."""
    name, amount = read_budget(said) if said else ("", None)
    if name and amount is None:
        budgets.state(journal, name)


def set_budget(journal: Journal, name: str, amount: int, settings: Settings) -> SharedBudget:
    """Set the amount of a budget. Raise UsageError for less than the amount already spent and reserved."""
    return budgets.open_budget(journal, name, amount, budgets.find(journal, name), settings.clock_scale)


def reserve_budget(
    said: str, run: str, most: int, journal: Journal, settings: Settings, tell: Say, waits: bool = False
) -> str:
    """Reserve `most` micro-USD for a run in a budget and return the name of the budget.

    `said`: flag value; "" = no budget. `waits`: wait in the queue until enough money is free. Raise OutOfMoney, and
    UsageError for a budget that does not exist.
    """
    if not said:
        return ""
    name, amount = read_budget(said)
    budget = set_budget(journal, name, amount, settings) if amount is not None else budgets.find(journal, name)
    if budget is not None:  # the reservation includes the cost of earlier pods
        own = budgets.state(journal, name, settings.clock_scale).runs.get(run)
        most += own.most if own else 0
    will_do = budget is not None and most <= budget.amount  # possible once other reservations are released
    if not (waits and will_do):
        try:
            budgets.reserve(journal, name, run, most, settings.clock_scale)
        except OutOfMoney as error:
            raise (OutOfMoney(f"{error}; to wait until enough money is free: --wait") if will_do else error) from None
        return name
    place, why = f"budget {name}", ""
    turn = wait_queue.enqueue(journal, run, BUDGET, (place,), "")
    try:
        while True:
            wait_queue.check_queued(journal, turn)
            before, now = wait_queue.find_blocker((), wait_queue.waiting(journal), turn, place), ""
            try:
                if before is None:
                    budgets.reserve(journal, name, run, most, settings.clock_scale)
                    return name
                now = wait_queue.describe_blocker(before, place)
            except OutOfMoney as error:
                now = f"{place}: {str(error).removesuffix('; nothing was rented')}"
            if now != why:
                why = now
                wait_queue.note(journal, turn, why)
                tell(f"{run} waits for {why}; Ctrl-C stops waiting")
            time.sleep(WAIT_ELSEWHERE_S)
            from infra.runs.journal_upkeep import settle_rows

            live = [op.token for op in journal.ops(live=True) if op.budget_name == name]
            settle_rows(journal, settings, tell, live)  # finished runs release unspent reservations
    finally:
        wait_queue.dequeue(journal, turn)


def end_waiting(run: str, journal: Journal, tell: Say) -> list[str]:
    """Remove waiting launches with this name, or all waiting launches, from the queue; return their names.

    A launch already starting is left out and must be ended as a run.
    """
    waiting = [one for one in wait_queue.waiting(journal) if run in ("", one.run)]
    for one in waiting:
        wait_queue.withdraw(journal, one)
    begun = {op.run for op in journal.ops(live=True)}
    ended = [one.run for one in waiting if one.run not in begun]
    for name in ended:
        tell(f"{name}: no longer waits; nothing of it runs")
    return ended


def new_name(journal: Journal, stem: str = "") -> str:
    """Return an unused name for a run, distinct from earlier and waiting runs; `stem` as in `run_name`."""
    return run_name([*(op.run for op in journal.ops()), *(one.run for one in wait_queue.waiting(journal))], stem)


def release_launch_reservation(name: str, run: str, journal: Journal) -> None:
    """Return the reservation of a run to the budget `name`; no effect if `name` is ""."""
    if name:
        budgets.release_reservation(journal, name, run)


def max_cost(limits: Limits, nodes: int, offers: Sequence[Offer]) -> int:
    """Return the maximum cost in micro-USD of all pods of a run on the dearest of these offers, or 0 for no limit."""
    ends = [] if limits.spend_micro_usd is None else [limits.spend_micro_usd]
    if limits.time_s is not None and offers:
        rate = max(one.micro_usd_per_hour for one in offers)
        ends.append(-(-round(limits.time_s * rate) // 3600))
    return min(ends) * nodes if ends else 0


def on_devices(request: Request, said: str, vendor: Provider) -> Request:
    """Return the request with the GPUs in `--devices`. Raise UsageError."""
    if not said:
        return vendor.with_gpu_count(request)
    if vendor.is_rented or vendor.restarts_runs:
        raise UsageError(
            "--devices applies to your own machines and to held pods (--no-deploy); a newly rented pod is always used "
            "as a whole"
        )
    if request.nodes > 1:
        raise UsageError("--devices names GPUs of a single machine; leave out --nodes")
    devices = wait_queue.read_devices(said)
    number = devices.count(",") + 1
    if request.num_gpus not in (0, number):
        raise UsageError(
            f"--devices {said} names {count(number, 'GPU')}, but --num-gpus is {request.num_gpus}; give only one of "
            "the flags"
        )
    return replace(request, devices=devices, num_gpus=number)


@dataclass
class MachineQueue:
    """The place of a run in the wait queue for a machine of the user; without `turn` the run does not wait."""

    journal: Journal
    settings: Settings
    tell: Say
    nodes: int = 1
    ticket: QueueTicket | None = None
    may_wait: bool = False
    reported_reason: str = ""

    def run_at_turn(self, work: Callable[[], Op]) -> Op:
        """Call `work`, which takes the machine, at the turn of the run. Errors except shortages propagate."""
        if self.ticket is None:
            try:
                return work()
            except Busy as error:
                if not self.may_wait or WAIT in str(error):
                    raise
                raise Busy(f"{error}\nto wait in line: {WAIT}") from error
        while True:
            wait_queue.check_queued(self.journal, self.ticket)
            found = wait_queue.find_blockers(self.journal, self.ticket)
            if sum(one is None for one in found.values()) >= self.nodes:
                try:
                    return work()
                except Busy as error:
                    self._record_reason(str(error))
            else:
                self._record_reason("")
            self._report_reason(wait_queue.why_waiting(self.journal, self.ticket))
            from infra.runs.journal_upkeep import settle_rows

            ended = [one.token for one in found.values() if isinstance(one, Op)]
            settle_rows(self.journal, self.settings, self.tell, ended)  # the launch of the blocking row may be gone
            time.sleep(WAIT_S.get(self.ticket.vendor, WAIT_ELSEWHERE_S))

    def _record_reason(self, why: str) -> None:
        if self.ticket is not None and why != self.ticket.why:
            wait_queue.note(self.journal, self.ticket, why)
            self.ticket = replace(self.ticket, why=why)

    def _report_reason(self, why: str) -> None:
        if why != self.reported_reason:
            self.reported_reason = why
            self.tell(f"{self.ticket.run if self.ticket else ''} {why}; Ctrl-C stops waiting")


@contextlib.contextmanager
def wait_in_queue(
    request: Request, waits: bool, vendor: Provider, journal: Journal, settings: Settings, tell: Say
) -> Iterator[MachineQueue]:
    """Join the wait queue for a machine of the user if `waits`; leave the queue on exit."""
    line = MachineQueue(journal, settings, tell, 1 if vendor.is_here else request.nodes)
    line.may_wait = not (vendor.is_rented or vendor.restarts_runs)
    if waits and line.may_wait:
        places = vendor.named_places(request)
        line.ticket = wait_queue.enqueue(journal, request.run, vendor.name, places, request.devices)
    try:
        yield line
    finally:
        if line.ticket is not None:
            wait_queue.dequeue(journal, line.ticket)


@dataclass(frozen=True, kw_only=True)
class LaunchOffers(ChosenMachine):
    """The offers for a launch. `turn`: the turn of a waiting launch, to be left after renting."""

    ticket: QueueTicket | None = None


def find_launch_offers(
    candidates: Sequence[Provider],
    requests: Sequence[Request],
    is_ordered: bool,
    name: Callable[[], str] | None,
    journal: Journal,
    settings: Settings,
    tell: Say,
    narrow: choose.Narrow = choose.as_found,
) -> LaunchOffers:
    """Return the chosen request and offers, as `choose.choose_request` does with `narrow`.

    `name`: factory for the name in the wait queue; None = do not wait. Raise NoOffer or EndedInQueue.
    """
    turn: QueueTicket | None = None
    told = set[str]()

    def tell_new(said: str) -> None:
        if said not in told:
            told.add(said)
            tell(said)

    try:
        while True:
            try:
                found = choose.choose_request(candidates, requests, is_ordered, settings, tell_new, narrow)
            except NoOffer as error:
                if name is None:
                    raise NoOffer(f"{error}\nto wait until an offer matches: {WAIT}") from None
                why = f"{_offer_of(requests)}: {str(error).splitlines()[0]}"
            else:
                if turn is not None:
                    wait_queue.note(journal, turn, "")
                return LaunchOffers(request=found.request, offers=found.offers, reason=found.reason, ticket=turn)
            pause_s = LOOK_S / clock_scale(candidates[0])
            if turn is None:
                run = name()
                turn = wait_queue.enqueue(journal, run, requests[0].provider, (f"an offer for {run}",), "", why)
            elif why != turn.why:
                wait_queue.note(journal, turn, why)
                turn = replace(turn, why=why)
            tell_new(f"{turn.run} waits for {why}; looking again every {duration(pause_s)}; Ctrl-C stops waiting")
            deadline = time.monotonic() + pause_s
            while (left_s := deadline - time.monotonic()) > 0:
                wait_queue.check_queued(journal, turn)
                time.sleep(min(WAIT_S["local"], left_s))
            wait_queue.check_queued(journal, turn)
    except BaseException:  # including Ctrl-C
        if turn is not None:
            wait_queue.dequeue(journal, turn)
        raise


def _offer_of(requests: Sequence[Request]) -> str:
    """Return a description of the awaited offer: `an offer of 8 x H100 or 4 x H200`."""
    each = [f"{one.num_gpus} x {one.gpu}" if one.num_gpus and one.gpu else one.gpu or "a machine" for one in requests]
    return f"an offer of {' or '.join(dict.fromkeys(each))}"
