"""The base of all keepers. A keeper looks after one run, or one pod without work, until it has ended.

One process at a time keeps a run: it holds the lease `keep:<run>`, which is free when that process has died, or has
been silent for a minute while this machine was awake. In: a journal row. Out: what the next pod of the run may cost and
who may still rent it (`rest_of`, `terms_after`), patience while something is not to be had (`wait_for_success`), a look
at a pod (`look_at`).
"""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from infra import job_environment, own_code
from infra.agent.job import Job, Limits
from infra.agent.limits import read_clocks
from infra.agent.process import myself, send
from infra.errors import AuthError, LimitHit, SlipwayError, UsageError
from infra.journal_file import Fenced, JournalError
from infra.ledger import spend
from infra.ledger.journal import Journal
from infra.ledger.leases import SUPERVISOR, Held, Lease, keeper_lease
from infra.ledger.life_cycle import TERMINATING
from infra.ledger.op import Op
from infra.notices.tell import tell_back, tell_end
from infra.providers import Vendors, clock_scale
from infra.records import Offer, Request
from infra.runs import launch, run_rows, sight
from infra.runs.acceptance_policy import terms_for
from infra.runs.launch import Terms
from infra.runs.run_home import RunHome
from infra.runs.sight import Asks, Sight
from infra.runs.sync import reports
from infra.runs.timing import Say
from infra.selection import registry
from infra.selection.choose import find_payable
from infra.settings import Settings
from store.backoff import Backoff

RETRY_S = 2.0
AGAIN = Backoff(first_s=5.0, longest_s=300.0)  # between two looks for what a run waits for, such as a machine
WAITS = "; it could not go on at once: "  # in the reason of a pod whose run waits for something
POLL_S = 0.25
LEAVE_S = 10.0


def end_keeper(run: str, journal: Journal, patience_s: float = LEAVE_S) -> None:
    """End the keeper of a run that was ended: it sees that by itself, and is told when it is slow to.

    Not this process; nor the supervisor, which keeps others as well.
    """
    deadline = time.monotonic() + patience_s
    while (holder := journal.leases.holder(keeper_lease(run))) and holder != myself():
        if time.monotonic() > deadline:
            if holder != journal.leases.holder(SUPERVISOR):
                send(holder, signal.SIGTERM)
            return
        time.sleep(POLL_S)


Find = Callable[[Request], Sequence[Offer]]
K = TypeVar("K", bound="Keeper")


class GivenUp(SlipwayError):
    """The run was begun again as often as is tried, or cannot be."""


FINAL = (AuthError, GivenUp, JournalError, LimitHit, UsageError, launch.EndedMeanwhile)
"""Errors after which a run is not begun again: the user has to act, or another process does."""


@dataclass
class Keeper:
    """The supervisor of one row; `home` holds what is downloaded of its run."""

    journal: Journal
    vendors: Vendors
    find: Find  # offers that satisfy a request, in the order in which they are tried; raises NoOffer
    home: RunHome
    secrets: Mapping[str, str]
    say: Say
    terms: Terms = launch.PLAIN
    lost: Callable[[Op], None] = lambda _: None  # gets every pod that is gone
    back: Callable[[Op], None] = lambda _: None  # gets the run each time it was brought back
    reserve_bytes: int = 0  # of this machine's disk, which stay free
    lease: Lease | None = None  # None: another process has it, and this one only follows

    @classmethod
    def of(cls: type[K], op: Op, journal: Journal, settings: Settings, say: Say) -> K:
        """Return the keeper of this run, which looks for other machines as a launch does, and reports lost pods."""
        return cls(
            journal,
            registry.vendors(settings),
            find=lambda request: find_payable(request, settings, say),
            home=RunHome.of(op.run, settings.homes),
            secrets=job_environment.secrets_for(op.read_job().secrets if op.job else (), settings),
            say=say,
            terms=terms_for(settings, registry.provider(settings, op.vendor)),
            lost=lambda gone: tell_end(gone, "preempted", journal, settings, say, aside=True),
            back=lambda op: tell_back(op, settings, say),
            reserve_bytes=settings.reserve_bytes,
        )

    @contextlib.contextmanager
    def keeping(self, run: str) -> Iterator[None]:
        """Hold the lease meanwhile, if nobody else does. A signal, or a fault of ours, leaves the run to the next."""
        self._take(run)
        let_go = self.journal.leases.forsake
        try:
            yield
            let_go = self.journal.leases.release
        except SlipwayError:
            let_go = self.journal.leases.release
            raise
        finally:
            lease, self.lease = self.lease, None
            if lease is not None:
                with contextlib.suppress(Fenced):  # another process keeps the run by now
                    let_go(lease)

    def _take(self, run: str) -> None:
        if self.lease is None:
            with contextlib.suppress(Held):  # another process keeps the run, and this one only follows
                self.lease = self.journal.leases.take(keeper_lease(run), own_code.stamp())

    def rest(self, op: Op, seconds: float) -> bool:
        """Wait; True at once when somebody changes the run meanwhile."""
        deadline = time.monotonic() + seconds
        while (is_same := self.journal.ops(run=op.run)[-1] == op) and time.monotonic() < deadline:
            time.sleep(min(POLL_S, seconds))
        return not is_same

    def wait_for_success(self, op: Op, problem: str, tries: int) -> None:
        """Wait before something is tried again that `op` cannot go on without; `inv status` says why."""
        if tries == 1:
            self.say(f"{op.run}: {problem}; this is tried again until it succeeds; to end it: inv down {op.run}")
        if op.state != TERMINATING and self.lease is not None:
            with contextlib.suppress(Fenced):  # somebody changes it now
                why = problem.partition("\n")[0]
                op = self.journal.note(op, reason=f"{op.reason.partition(WAITS)[0]}{WAITS}{why}")
        self.rest(op, AGAIN.wait_s(tries))

    def look_at(self, op: Op | None, asks: Asks = Asks.ALL) -> Sight:
        """Look at one node; one that was given up, or detached, is gone for this run."""
        if op is None or not op.is_live or op.detached:
            return Sight(False)
        return sight.look(op, self.vendors(op.vendor), asks)

    def recoveries(self, op: Op) -> int:
        return max(row.recoveries for row in self.journal.ops(run=op.run))

    def terms_after(self, op: Op, recoveries: int, budget: int | None, may_be_over: bool = False) -> Terms:
        """Return the terms of the pod in place of this one; `may_be_over`: also when somebody has ended it."""

        def admit(rows: list[Op], new: Op) -> None:
            if not may_be_over and run_rows.is_over(next(row for row in rows if row.token == op.token)):
                raise launch.EndedMeanwhile(f"{op.run}: somebody ended it (inv down); nothing was rented")
            self._admit(rows, new)

        return replace(self.terms, recoveries=recoveries, owner_kind=op.owner_kind, owner=op.owner,
                       spec_hash=op.spec_hash, admit=admit, budget=budget, budget_name=op.budget_name)  # fmt: skip

    def _admit(self, rows: list[Op], new: Op) -> None:
        """Check a new pod in the transaction that writes it down: another keeper's run is not ours to recover."""
        if self.lease is not None and not self.journal.leases.is_ours(self.lease):
            raise Fenced(f"{new.run}: another process has taken it over; nothing was rented; run: inv status")
        if self.terms.admit:
            self.terms.admit(rows, new)

    def rest_of(self, op: Op, given: Limits) -> tuple[Job, int | None]:
        """Return the job with what is left of its time and money, and what all pods of the run may cost.

        Raises LimitHit.
        """
        job, provider = op.read_job(), self.vendors(op.vendor)
        if provider.is_rented:
            now, scale = read_clocks(), clock_scale(provider)
            used_s, used_micro_usd = spend.age_s(op, now, scale), spend.spent(op, now, scale)
        else:  # as its guard reported last
            guard = reports.at_home(op, self.home).get("guard", {})
            if guard.get("token") != op.token:  # the cost of an earlier pod was taken off when this one was rented
                guard = {}
            used_s, used_micro_usd = guard.get("elapsed_s", 0.0), guard.get("spent_micro_usd", 0)
        limits = spend.less(job.limits, used_s, used_micro_usd)
        if given.time_s is not None:
            limits = replace(limits, time_s=given.time_s)
        budget, nodes = op.budget if given.spend_micro_usd is None else given.spend_micro_usd, run_rows.size_of(op)
        if budget is not None:  # one amount for all nodes, some of which may have cost more than others
            rows = run_rows.rows_of(op.run, nodes, self.journal)
            used_micro_usd = sum(spend.reserved(row, read_clocks(), clock_scale(provider)) for row in rows)
            limits = replace(limits, spend_micro_usd=(budget - used_micro_usd) // nodes)
        if spend.is_used_up(limits):
            flags = {"--ttl TIME": limits.time_s, "--spend-limit USD": limits.spend_micro_usd}
            more = " ".join(flag for flag, left in flags.items() if left is not None and left <= 0)
            more = f"inv resume {op.run} {more}, above what it has used" if provider.is_rented else "inv launch"
            if not op.target:
                more = "inv apply, with the file of its set"
            raise LimitHit(f"{op.run}: its pod is gone, and its limit is reached; go on with a higher one: {more}")
        return replace(job, limits=limits), budget


def asked_at(run: str, journal: Journal) -> float:
    """Return when somebody last had a pod rented for the run, in UTC epoch seconds; 0: that is not on record."""
    return max((float(op.intent_at) for op in journal.ops(run=run) if not op.recoveries), default=0.0)
