"""Base class of all keepers. A keeper looks after one run, or one pod without work, until the run or pod ends.

One process at a time keeps a run. The process holds the lease `keep:<run>`, which becomes free when the process dies or
stays silent for a minute while the machine is awake. Subclasses use `remaining_job` and `replacement_terms` (limits and
checks of the next pod), `wait_before_retry` (retry with backoff) and `observe` (observe a pod).
"""

import contextlib
import signal
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from infra import checkout, job_environment
from infra.agent.job import Job, Limits
from infra.agent.limits import FINISH_BY, limits_until, read_clocks
from infra.agent.process import current_identity, send
from infra.errors import AuthError, LimitHit, SlipwayError, UsageError
from infra.journal_file import Fenced, JournalError
from infra.ledger import spend
from infra.ledger.journal import Journal
from infra.ledger.leases import SUPERVISOR, Lease, LeaseHeld, keeper_lease
from infra.ledger.op import TERMINATING, Op
from infra.notices.outbox import notify_end, notify_recovered
from infra.providers import Vendors, clock_scale
from infra.records import Offer, Request
from infra.runs import observation, renting, run_rows
from infra.runs.acceptance import terms_for
from infra.runs.observation import AskedParties, Observation
from infra.runs.renting import Terms
from infra.runs.run_home import RunHome
from infra.runs.sync import reports
from infra.runs.timing import Say
from infra.selection import registry
from infra.selection.choose import find_payable
from infra.settings import Settings
from store.backoff import Backoff

RETRY_S = 2.0
AGAIN = Backoff(first_s=5.0, longest_s=300.0)  # Wait between two attempts to get a resource, such as a machine.
WAITS = "; it could not go on at once: "  # Separator in a row's reason before the resource that the run waits for.
POLL_S = 0.25
LEAVE_S = 10.0


def end_keeper(run: str, journal: Journal, patience_s: float = LEAVE_S) -> None:
    """Wait for the keeper of an ended run to exit; send SIGTERM after `patience_s` seconds.

    Never signal this process or the supervisor, because the supervisor keeps other runs as well.
    """
    deadline = time.monotonic() + patience_s
    while (holder := journal.leases.holder(keeper_lease(run))) and holder != current_identity():
        if time.monotonic() > deadline:
            if holder != journal.leases.holder(SUPERVISOR):
                send(holder, signal.SIGTERM)
            return
        time.sleep(POLL_S)


Find = Callable[[Request], Sequence[Offer]]
K = TypeVar("K", bound="Keeper")


class GivenUp(SlipwayError):
    """The run reached the maximum number of restarts, or cannot be restarted."""


FINAL = (AuthError, GivenUp, JournalError, LimitHit, UsageError, renting.EndedDuringStart)
"""Errors that stop recovery: the user has to act, or a different process has taken over."""


@dataclass
class Keeper:
    """The supervisor of one journal row; `home` holds the downloads of the run."""

    journal: Journal
    vendors: Vendors
    find: Find  # Offers for a request, in the order to try; raises NoOffer.
    home: RunHome
    secrets: Mapping[str, str]
    say: Say
    terms: Terms = renting.PLAIN
    on_pod_lost: Callable[[Op], None] = lambda _: None  # Called with the row of every gone pod.
    on_recovered: Callable[[Op], None] = lambda _: None  # Called with the row of the run after each recovery.
    reserve_bytes: int = 0  # Bytes to keep free on the local disk.
    lease: Lease | None = None  # None: a different process keeps the run, and this process only follows.

    @classmethod
    def for_op(cls: type[K], op: Op, journal: Journal, settings: Settings, say: Say) -> K:
        """Return the keeper of a run. The keeper searches machines like a launch and sends notices about lost pods."""
        return cls(
            journal,
            registry.vendors(settings),
            find=lambda request: find_payable(request, settings, say),
            home=RunHome.for_run(op.run, settings.homes),
            secrets=job_environment.secrets_for(op.read_job().secrets if op.job else (), settings),
            say=say,
            terms=terms_for(settings, registry.provider(settings, op.vendor)),
            on_pod_lost=lambda gone: notify_end(gone, "preempted", journal, settings, say, aside=True),
            on_recovered=lambda op: notify_recovered(op, settings, say),
            reserve_bytes=settings.reserve_bytes,
        )

    @contextlib.contextmanager
    def hold_lease(self, run: str) -> Iterator[None]:
        """Hold the keeper lease of the run inside the block, unless the lease is taken.

        Release the lease on success and on SlipwayError. On a signal or an internal error, abandon the lease, so that
        the next keeper takes over the run.
        """
        self._acquire_lease(run)
        let_go = self.journal.leases.release_for_takeover
        try:
            yield
            let_go = self.journal.leases.release
        except SlipwayError:
            let_go = self.journal.leases.release
            raise
        finally:
            lease, self.lease = self.lease, None
            if lease is not None:
                with contextlib.suppress(Fenced):  # A different process keeps the run by now.
                    let_go(lease)

    def _acquire_lease(self, run: str) -> None:
        if self.lease is None:
            with contextlib.suppress(LeaseHeld):  # A different process keeps the run.
                self.lease = self.journal.leases.acquire(keeper_lease(run), checkout.stamp())

    def wait_for_change(self, op: Op, seconds: float) -> bool:
        """Wait up to `seconds`; return True as soon as the row of the run changes, False after the wait."""
        deadline = time.monotonic() + seconds
        while (is_same := self.journal.ops(run=op.run)[-1] == op) and time.monotonic() < deadline:
            time.sleep(min(POLL_S, seconds))
        return not is_same

    def wait_before_retry(self, op: Op, problem: str, tries: int) -> None:
        """Wait with backoff before retry number `tries` of a step needed by `op`.

        Log the first problem, and store each problem in the reason of the row for `inv status`.
        """
        if tries == 1:
            self.say(f"{op.run}: {problem}; retrying until success. To end the run: inv down {op.run}")
        if op.state != TERMINATING and self.lease is not None:
            with contextlib.suppress(Fenced):  # A different process is changing the row.
                why = problem.partition("\n")[0]
                op = self.journal.note(op, reason=f"{op.reason.partition(WAITS)[0]}{WAITS}{why}")
        self.wait_for_change(op, AGAIN.wait_s(tries))

    def observe(self, op: Op | None, asks: AskedParties = AskedParties.ALL) -> Observation:
        """Look at the pod of one node. A missing, ended or detached pod counts as gone for this run."""
        if op is None or not op.is_live or op.detached:
            return Observation(False)
        return observation.observe_pod(op, self.vendors(op.vendor), asks)

    def recoveries(self, op: Op) -> int:
        return max(row.recoveries for row in self.journal.ops(run=op.run))

    def replacement_terms(self, op: Op, recoveries: int, budget: int | None, may_be_over: bool = False) -> Terms:
        """Return the terms of the replacement of `op`.

        With `may_be_over`, the terms also admit a pod for a run ended on request.
        """

        def admit(rows: list[Op], new: Op) -> None:
            if not may_be_over and run_rows.is_over(next(row for row in rows if row.token == op.token)):
                raise renting.EndedDuringStart(f"{op.run} was ended by inv down; nothing was rented")
            self._admit(rows, new)

        return replace(
            self.terms,
            recoveries=recoveries,
            owner_kind=op.owner_kind,
            owner=op.owner,
            spec_hash=op.spec_hash,
            admit=admit,
            budget=budget,
            budget_name=op.budget_name,
        )

    def _admit(self, rows: list[Op], new: Op) -> None:
        """Check a new pod in the transaction that writes the row. Raises Fenced after the loss of the lease."""
        if self.lease is not None and not self.journal.leases.is_ours(self.lease):
            raise Fenced(f"{new.run}: another process has taken over the run; nothing was rented; run: inv status")
        if self.terms.admit:
            self.terms.admit(rows, new)

    def remaining_job(self, op: Op, given: Limits) -> tuple[Job, int | None]:
        """Return the job with the remaining time and money, and the budget of the whole run in micro-USD or None.

        Limits in `given` replace the recorded limits. Raises LimitHit when a limit is used up.
        """
        job, provider = op.read_job(), self.vendors(op.vendor)
        if provider.is_rented:
            now, scale = read_clocks(), clock_scale(provider)
            used_s, used_micro_usd = spend.age_s(op, now, scale), spend.spent(op, now, scale)
        else:  # An unrented pod has no billing record; use the last report of the guard.
            guard = reports.read_local(op, self.home).get("guard", {})
            if guard.get("token") != op.token:  # An earlier pod's guard; this pod's limits already exclude the cost.
                guard = {}
            used_s, used_micro_usd = guard.get("elapsed_s", 0.0), guard.get("spent_micro_usd", 0)
        limits = spend.remaining_limits(job.limits, used_s, used_micro_usd)
        if given.time_s is not None:
            limits = replace(limits, time_s=given.time_s)
            job = replace(job, environ={**job.environ, FINISH_BY: ""})
        limits = limits_until(limits, job, read_clocks(), clock_scale(provider))
        budget, nodes = op.budget if given.spend_micro_usd is None else given.spend_micro_usd, run_rows.size_of(op)
        if budget is not None:  # One amount covers all nodes, and the nodes may have cost different amounts.
            rows = run_rows.rows_of(op.run, nodes, self.journal)
            used_micro_usd = sum(spend.reserved(row, read_clocks(), clock_scale(provider)) for row in rows)
            limits = replace(limits, spend_micro_usd=(budget - used_micro_usd) // nodes)
        if spend.is_used_up(limits):
            flags = {"--ttl TIME": limits.time_s, "--spend-limit USD": limits.spend_micro_usd}
            more = " ".join(flag for flag, left in flags.items() if left is not None and left <= 0)
            more = f"inv resume {op.run} {more}, above the amount used so far" if provider.is_rented else "inv launch"
            if not op.target:
                more = "inv apply, with the file of the set"
            raise LimitHit(f"{op.run}: the pod is gone, and the limit is reached; continue with a higher limit: {more}")
        return replace(job, limits=limits), budget


def requested_at(run: str, journal: Journal) -> float:
    """Return when the run's newest pod was rented other than by a recovery, in UTC epoch seconds; 0 if unknown."""
    return max((float(op.intent_at) for op in journal.ops(run=run) if not op.recoveries), default=0.0)
