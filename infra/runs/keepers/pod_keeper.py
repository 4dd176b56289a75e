"""Keeper of a pod of a set without work. When the provider takes the pod away, the keeper rents a replacement.

The keeper accepts rows with `recovers` in the request. The replacement gets the same name and the remaining limits;
data on the lost pod is lost. `recovery.decide` with `recovery.POD` selects the action. The keeper stops when the pod is
ended (`inv down`, `inv apply`), reaches a limit, or gets work and so becomes a run (`run_keeper`). A process that
changes the set takes precedence.
"""

import contextlib
import time
from collections.abc import Iterator

from infra.agent.job import Limits
from infra.agent.limits import read_clocks
from infra.errors import LimitHit, SlipwayError
from infra.interrupts import defer_interrupts
from infra.journal_file import Fenced
from infra.ledger import spend
from infra.ledger.leases import LeaseHeld
from infra.ledger.op import LOST, READY, Op
from infra.providers import clock_scale
from infra.runs import launch, pods, run_rows
from infra.runs.keepers.keeper import FINAL, RETRY_S, WAITS, GivenUp, Keeper
from infra.runs.keepers.pod_set import set_lease
from infra.runs.keepers.recovery import POD, RecoveryAction, decide, recovers
from infra.runs.observation import GONE, AskedParties, Observation
from infra.units import duration

LOOK_EVERY_S = 30.0  # Vendor clock.
LEAST_S = 300.0  # Vendor clock: minimum remaining time for a replacement, because a new pod needs minutes to start.


class PodKeeper(Keeper):
    """The keeper of a pod without work. `keeping` takes the lease, as for a run."""

    def watch_pod(self, op: Op) -> Op:
        """Watch the pod and rent replacements until the pod is ended or gets work; return the last row.

        Raises GivenUp after too many replacements, LimitHit when too little of the limits remains, and OutOfMoney.
        """
        tries = 0
        while self.lease is not None:
            op = self.journal.ops(run=op.run)[-1]
            if not recovers(op) or run_rows.is_over(op):
                break
            try:
                self._watch_until_change(op)
                tries = 0
            except (Fenced, LeaseHeld):  # A different process changes the pod or the set; look at the result.
                self.wait_for_change(op, RETRY_S)
            except FINAL:
                raise
            except SlipwayError as error:
                tries += 1
                self.wait_before_retry(self.journal.ops(run=op.run)[-1], str(error), tries)
        return op

    def _watch_until_change(self, op: Op) -> None:
        """Look at the pod until the row changes."""
        provider = self.vendors(op.vendor)
        if op.is_live and op.state not in (READY, LOST):
            pods.settle(provider, op, self.journal)
            self.wait_for_change(op, RETRY_S)
            return
        while True:
            seen = self.observe(op, AskedParties.PROVIDER)
            course = decide([seen], POD, self.journal.recovered_at(op.run), time.time())
            if course.action is RecoveryAction.GIVE_UP:
                raise GivenUp(
                    f"{op.run}: {seen.why}; the pod was rented again {POD.retries.most} times within "
                    f"{duration(POD.retries.window_s)}, which is the maximum"
                )
            if course.action is RecoveryAction.BEGIN_ANEW:
                if not self.wait_for_change(op, course.wait_s):
                    self._rent_replacement(op, seen)
                return
            if self.wait_for_change(op, LOOK_EVERY_S / clock_scale(provider)):
                return

    def _rent_replacement(self, op: Op, seen: Observation) -> None:
        with self._hold_set_lease(op.pod_set):
            provider, recoveries = self.vendors(op.vendor), self.recoveries(op) + 1
            left_s = spend.left_s(op, read_clocks(), clock_scale(provider))
            is_used_up = left_s is not None and left_s < LEAST_S
            op = pods.end(provider, op, self.journal, seen.why or GONE, "limit" if is_used_up else "")
            if is_used_up:
                raise LimitHit(f"{op.run}: {op.reason}, and the limits leave no time for a new pod")
            if WAITS not in op.reason:
                self.say(f"{op.run}: {op.reason}; looking for a new machine (recovery {recoveries})")
            self.on_pod_lost(op)
            request = op.read_request()
            job, budget = self.remaining_job(op, Limits())
            terms = self.replacement_terms(op, recoveries, budget)
            with defer_interrupts(f"{op.run} is being rented again", self.say):
                new = launch.hold(
                    request,
                    job.limits,
                    self.find(request),
                    self.vendors,
                    self.journal,
                    self.say,
                    terms,
                    clock_scale(provider),
                )
            self.on_recovered(new)

    @contextlib.contextmanager
    def _hold_set_lease(self, set_name: str) -> Iterator[None]:
        """Hold the lease on the pods of the set. Raises LeaseHeld."""
        lease = self.journal.leases.acquire(set_lease(set_name))
        try:
            yield
        finally:
            self.journal.leases.release(lease)
