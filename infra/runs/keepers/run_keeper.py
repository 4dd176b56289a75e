"""Keeper of a run: follows the run, downloads the output, and recovers the run after a failure.

`RunKeeper.follow_run` yields the output of `follow` across all pods of a run. Only the report of the pod's machine
makes a pod dead, only the provider makes a pod gone, and only the verdict of the other nodes makes a pod lost. The
keeper waits for a merely silent pod. `recovery` decides:

    dead   guard and agent have ended without a verdict   start again on the same pods
    gone   a pod is proven absent, or the vendor says     other pods, from the downloads (`snapshot`) or, for pods
           that the pod has stopped                       that upload their own checkpoints, from the store
    lost   a node is silent, and all others have ended    as for gone, or a start when the machine answers again
"""

import contextlib
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from infra.agent.job import Limits
from infra.agent.limits import read_clocks
from infra.agent.state import NODE_LOST
from infra.errors import LimitHit, NoOffer, OutOfMoney, SlipwayError
from infra.interrupts import defer_interrupts
from infra.journal_file import Fenced
from infra.ledger import spend
from infra.ledger.op import ASKED, LOST, READY, Op
from infra.machines.host_memory import map_parallel
from infra.providers import market
from infra.records import Offer, Plan
from infra.runs import launch, observation, pods, renting, run_rows
from infra.runs.keepers.keeper import FINAL, RETRY_S, WAITS, GivenUp, Keeper
from infra.runs.keepers.recovery import RUN, RecoveryAction, RecoveryDecision, decide
from infra.runs.observation import AskedParties, Observation, ObservationKind, Seen, follow
from infra.runs.sync import mirror, reports, snapshot
from infra.runs.sync.snapshot import Downloads
from infra.runs.timing import Say
from infra.transport.protocol import ConnectionLost, TimedOut, Transport, Unreachable
from store.artifacts.artifacts import Store
from store.manifest import StoreError

MOST_LOOKS = 3  # Searches for a replacement of a silent machine, which may also return, before the keeper gives up.
LOOK_S = 300.0  # Timeout of a look at all nodes; each single query has a shorter timeout.
TELL_AFTER_S = 60.0  # Report a pod as unreachable after this silence.


class NoReplacement(NoOffer):
    """No machine can replace a silent machine; the run is unchanged."""


@dataclass
class RunKeeper(Keeper):
    """The supervisor of a run."""

    report_after_s: float = TELL_AFTER_S
    since: float = field(default_factory=lambda: float(int(time.time())))
    """UTC epoch seconds; earlier recoveries do not count, because the user asked since then to continue the run."""
    downloads: Downloads = field(init=False)

    def __post_init__(self) -> None:
        self.downloads = Downloads(self.home, self.say, self.reserve_bytes)

    def follow_run(self, op: Op) -> Iterator[Seen]:
        """Yield (progress, verdict) at every look until the verdict of the run's last pod.

        A verdict that a node was lost is final only if no replacement machine exists. Raises SlipwayError if recovery
        fails, and LimitHit when the time or money is used up.
        """
        progress: dict[str, Any] = {}
        verdict: dict[str, Any] = {}
        while True:
            heard, waiting = False, _Waiting(op, self.say, self.report_after_s)
            try:
                if not op.is_live or op.detached:
                    raise SlipwayError(f"{op.run} was ended in the meantime; run: inv status")
                transport = self.vendors(op.vendor).reach(observation.pod_of(op))
                with self._downloading(op, transport):
                    for progress, verdict in follow(
                        op, self.journal, transport, partial(self._verdict_of_other_nodes, op)
                    ):
                        heard = True
                        if verdict.get("state") == NODE_LOST:
                            break
                        waiting.update(progress)
                        if not verdict:
                            self._enforce_limit(op)
                        if progress.get("recoveries", 0) > op.recoveries:  # An engine has recovered the run by itself.
                            op = self.journal.note(op, recoveries=progress["recoveries"])
                        yield {**progress, "recoveries": op.recoveries}, verdict
                    else:
                        return
                failure = SlipwayError(f"{op.run}: {verdict['reason']}")
            except SlipwayError as error:
                now = self.journal.ops(run=op.run)[-1]
                is_over = run_rows.is_over(now)  # A different process has downloaded the results and ended the run.
                is_ours = now.state in (READY, LOST) and not now.detached and now.token == op.token
                if not is_over and is_ours and not heard and self._is_healthy(now):
                    if not isinstance(error, (ConnectionLost, TimedOut, Unreachable)):
                        raise  # The pod is alive, and only the local read fails.
                    self.wait_for_change(now, RETRY_S)  # The look was luckier, or an engine's answer of a moment ago.
                    continue
                failure = error
                if last := self._unobserved_verdict(now):
                    at_home = reports.read_local(now, self.home).get("progress", {})
                    yield {"steps": [], **at_home, **progress, "recoveries": now.recoveries}, last
                    return
                if is_over:
                    raise
            try:
                before, op = op, self._recover(op, failure)
                if op.recoveries > before.recoveries:
                    self.on_recovered(op)
            except NoOffer as error:
                if verdict.get("state") != NODE_LOST:
                    raise
                yield {**progress, "recoveries": op.recoveries}, {**verdict, "reason": f"{verdict['reason']}; {error}"}
                return

    def _unobserved_verdict(self, op: Op) -> dict[str, Any]:
        """Return the verdict of a rented pod that ended unobserved, and end the row; return {} without a verdict.

        Otherwise the keeper would recover a finished run on a new, paid pod.
        """
        provider = self.vendors(op.vendor)
        if not provider.is_ephemeral or op.is_live and self.observe(op, AskedParties.PROVIDER).exists is not False:
            return {}
        tries, verdict = 0, None
        while verdict is None:
            try:
                verdict = mirror.final_verdict(op, self.home)
            except StoreError as error:
                tries += 1
                problem = f"the pod is gone, and the state of the work is unknown: {error}"
                self.wait_before_retry(op, problem, tries)
                op = self.journal.ops(run=op.run)[-1]
                if run_rows.is_over(op):
                    return {}
        if verdict.get("state") in ("", None, NODE_LOST):
            return {}
        if op.is_live:
            pods.end(provider, op, self.journal, pods.end_reason(verdict), verdict["state"])
        else:
            pods.record_verdict(op, self.journal, verdict)
        return verdict

    def _recover(self, op: Op, failure: SlipwayError) -> Op:
        """Recover the run, and return the row to follow next. Raises `failure` when the run is over.

        While the pod is gone and no machine is on offer, the run costs nothing and waits without a time limit. A run
        bound to one machine does not wait.
        """
        tried_at, looks, told = list[float](), 0, ""
        while True:
            op = self.journal.ops(run=op.run)[-1]
            if run_rows.is_over(op):
                raise (renting.EndedDuringStart(f"{op.run} was ended by inv down") if op.outcome == ASKED else failure)
            self._acquire_lease(op.run)
            if self.lease is None:  # A different keeper is active.
                self.wait_for_change(op, RETRY_S)
                return self.journal.ops(run=op.run)[-1]
            begun_at = self._begun_at(op)
            try:
                provider = self.vendors(op.vendor)
                if op.is_live and op.is_head and op.state not in (READY, LOST):
                    # The renting process may still be alive.
                    pods.settle(provider, op, self.journal)
                    self.wait_for_change(op, RETRY_S)
                    continue
                rows = self._rows(op)
                sights = self._observe_nodes(rows)
                course = decide(sights, RUN, [*begun_at, *tried_at], time.time())
                if course.action is RecoveryAction.GIVE_UP:
                    raise GivenUp(f"{failure}; the run was restarted {len(begun_at)} times, which is the maximum")
                if (
                    course.action is RecoveryAction.LEAVE
                    or course.action is RecoveryAction.WAIT
                    and sights[0].exists is None
                ):
                    return op  # Follow the row to get progress, verdict or silence.
                if course.action is RecoveryAction.WAIT:
                    self._enforce_limit(op)
                    words = "; ".join(f"{_named(rows[rank])}: {sights[rank].why}" for rank in course.silent_ranks)
                    if words != told:
                        told = words
                        self.say(f"{op.run} has stopped; waiting for {words}. To end the run: inv down {op.run}")
                    self.wait_for_change(op, RETRY_S)
                    continue
            except (ConnectionLost, TimedOut, Unreachable, pods.StillBills) as error:
                self.say(f"{op.run}: {error}")
                self.wait_for_change(op, RETRY_S)
                continue
            if self.wait_for_change(op, course.wait_s):
                continue
            tried_at.append(time.time())
            self.lease = self.journal.leases.renew(self.lease)
            try:
                if course.action is RecoveryAction.RESUME:
                    return self._resume(op, course, sights[0])
                return self._restart_on_new_pods(op, rows, course)
            except FINAL:
                raise
            except SlipwayError as error:
                now = self.journal.ops(run=op.run)[-1]
                # No pod was rented, and later offers may fit. A sweep moves a run bound to one machine.
                is_in_vain = now.token == op.token and not now.is_live and not op.read_request().host
                if is_in_vain or len(self._begun_at(op)) > len(begun_at):  # Not counted, or counted in the journal.
                    tried_at.pop()
                if is_in_vain:
                    looks += 1
                    self.wait_before_retry(now, str(error), looks)
                    continue
                self.say(f"{op.run}: {error}")
                tries = len(tried_at)
                if tries >= RUN.retries.most or isinstance(error, NoReplacement) and tries >= MOST_LOOKS:
                    raise
                self.wait_for_change(op, RETRY_S)

    def _begun_at(self, op: Op) -> list[float]:
        return [at for at in self.journal.recovered_at(op.run) if at >= self.since]

    def _verdict_of_other_nodes(self, op: Op) -> dict[str, Any]:
        """Return the verdict of any other node of the run while node 0 does not answer; {} without a verdict.

        Raises SlipwayError if the vendor reports the pod of node 0 as gone.
        """
        self._check_pod_exists(op)
        for other in run_rows.nodes_of(op, self.journal)[1:]:
            if verdict := self.observe(other, AskedParties.FILES).verdict:
                return dict(verdict)
        return {}

    def _check_pod_exists(self, op: Op) -> None:
        """Raise SlipwayError if the vendor reports a rented pod as gone; ignore an unknown state."""
        if self.vendors(op.vendor).is_ephemeral:
            seen = self.observe(op, AskedParties.PROVIDER)
            if seen.exists is False:
                raise SlipwayError(f"{op.run}: {seen.why}")

    def _enforce_limit(self, op: Op) -> None:
        """End the pods of a run past the limit that the guard has not ended, and raise LimitHit.

        The guard of a silent pod may be dead, and `inv status` leaves the pod to the keeper. No-op without the lease.
        """
        rented = market(self.vendors(op.vendor))
        if self.lease is None or rented is None:
            return
        now = self.journal.op(op.token)  # The limit may have changed since the last read.
        if now.is_live and (why := spend.due(now, read_clocks(), rented.clock_scale)):
            for node in run_rows.nodes_of(now, self.journal):
                pods.end(rented, node, self.journal, why, "limit")
            raise LimitHit(f"{op.run} was ended: {why}, and the pod had not ended itself")

    def _is_healthy(self, op: Op) -> bool:
        """Return True if the guard or agent lives, or a verdict exists. Raises SlipwayError for an unknown state."""
        seen = self.observe(op)
        if seen.kind is ObservationKind.SILENT:
            raise SlipwayError(f"{op.run}: {seen.why}")
        return bool(seen.is_alive or seen.verdict)

    def _rows(self, op: Op) -> list[Op | None]:
        """Return the newest row of each node, by rank; None for a node given up and not yet replaced."""
        found = {row.rank: row for row in run_rows.nodes_of(op, self.journal)[1:]}
        return [op, *(found.get(rank) for rank in range(1, max([run_rows.size_of(op) - 1, *found]) + 1))]

    def _observe_nodes(self, rows: Sequence[Op | None]) -> list[Observation]:
        """Look at all nodes in parallel. Raises SlipwayError if node 0 answers, but with unreadable files."""
        found = map_parallel(self.observe, rows, LOOK_S)
        sights = [one if isinstance(one, Observation) else Observation(why=str(one)) for one in found]
        if sights[0].exists and sights[0].kind is ObservationKind.SILENT:
            raise SlipwayError(f"{_named(rows[0])}: {sights[0].why}")
        return sights

    def _resume(self, op: Op, course: RecoveryDecision, seen: Observation) -> Op:
        """Resume the run on the same pods, and return the row of node 0.

        Each write names the epoch of the last row read, so that a concurrent end or takeover of the run stays in force.
        """
        provider = self.vendors(op.vendor)
        op = self.journal.note(op, recoveries=self.recoveries(op) + 1)
        why = f"{course.lost_reason}; all nodes answer again" if course.lost_reason else seen.failure_text
        self.say(f"{op.run}: {why}; resuming on the same pods (recovery {op.recoveries})")
        op = launch.resume(op, provider, self.journal, self.secrets)
        now = self.journal.op(op.token)
        if now.epoch != op.epoch:  # The row was ended during the start, so the pod must not run.
            self.journal.leases.check_held()
            provider.delete(op.remote_id or op.token)
            raise Fenced(f"{op.run}: another process changed the run in the meantime; run: inv status")
        return op

    def _restart_on_new_pods(self, op: Op, rows: Sequence[Op | None], course: RecoveryDecision) -> Op:
        """End the remaining pods of the run, restart the run on other pods, and return the row of the new node 0.

        Detach a silent pod that the provider cannot end either, until the machine answers. End node 0 last, so that the
        verdict survives an interruption. Raises NoReplacement before any change.
        """
        live = [row for row in rows if row is not None and row.is_live and not row.detached]
        silent = [row for row in live if row.rank in course.silent_ranks]
        what = course.lost_reason or f"{', '.join(_named(rows[rank]) for rank in course.gone_ranks)} is gone"
        provider, recoveries = self.vendors(op.vendor), self.recoveries(op) + 1
        if op in live and 0 not in (*course.silent_ranks, *course.gone_ranks) and not provider.is_here:
            self.downloads.download_all(op, provider.reach(observation.pod_of(op)), provider.pod_store)
        if silent:
            self._find_replacement(op, silent)
        if WAITS not in op.reason:
            self.say(f"{op.run}: {what}; looking for a new machine (recovery {recoveries})")
        if provider.is_here:  # A run cannot leave this machine; a gone node gets a new pod in the same folder.
            for row in live:
                if row.rank in course.gone_ranks:
                    pods.end(provider, row, self.journal, observation.GONE)
            new = launch.resume(self.journal.op(op.token), provider, self.journal, self.secrets)
            return self.journal.note(new, recoveries=recoveries)
        for row in sorted(live, key=lambda row: (row.rank not in course.silent_ranks, -row.rank)):
            reason = observation.GONE if row.rank in course.gone_ranks else what
            self._end(row, reason, may_detach=bool(course.lost_reason) or row.rank > 0)
        self.on_pod_lost(self.journal.op(op.token))
        # A terminal that closes now would cost this pod too, so a keeper asked to exit finishes the start first.
        with defer_interrupts(f"{op.run} is being restarted", self.say):
            return self.restart_on_next_offer(op, recoveries)

    def _find_replacement(self, op: Op, silent: Sequence[Op]) -> None:
        names = ", ".join(_named(row) for row in silent)
        try:
            self.find(replace(op.read_request(), nodes=len(silent)))
        except (NoOffer, OutOfMoney) as error:
            raise NoReplacement(f"no machine can replace {names}: {error}") from error

    def _end(self, op: Op, reason: str, may_detach: bool) -> None:
        try:
            pods.end(self.vendors(op.vendor), op, self.journal, reason)
        except Fenced:
            raise
        except SlipwayError as error:
            if not may_detach:
                raise
            self.say(
                f"{_named(op)} is unreachable; the pod is detached from the run, and ended once reachable: {error}"
            )
            pods.detach(self.journal.op(op.token), self.journal, reason)

    def restart_on_next_offer(
        self,
        op: Op,
        recoveries: int = 0,
        limits: Limits | None = None,
        is_asked: bool = False,
        offers: Sequence[Offer] = (),
    ) -> Op:
        """Restart the run of an ended pod on the next offer, with the original code.

        `limits` holds the time from now on and the money of the whole run; None keeps what remains. `is_asked` marks a
        request of the user, which also restarts an ended run. `offers` lists the offers to try; () means all matching
        offers. Raises LimitHit when a limit is used up, and GivenUp without a snapshot of the code.
        """
        code = self.home.snapshot.code
        if not code.is_dir():
            raise GivenUp(f"{op.run}: no pod and no copy of the code is left; repeat the launch with the same flags")
        request = op.read_request()
        # The other nodes cannot continue without node 0; all nodes restart together.
        for other in run_rows.nodes_of(op, self.journal)[1:]:
            if other.is_live:
                self._end(other, observation.GONE, may_detach=True)
        op = self.journal.op(op.token)  # The row has ended, so the cost is final.
        job, budget = self.remaining_job(op, limits or Limits())
        plan = Plan(
            target=op.target,
            store=op.store,
            artifacts=(),
            job=job,
            request=request,
            carried=snapshot.carried_of(self.home),
        )

        def prepare(new: Op, transport: Transport) -> None:
            snapshot.restore(new, transport, self.home, Store(op.store))

        is_kept_here = bool(self.vendors(op.vendor).pod_store)  # A rented pod fetches the artifacts from the store.
        terms = replace(
            self.replacement_terms(op, recoveries, budget, may_be_over=is_asked),
            prepare=prepare if is_kept_here else None,
            asked=self.terms.asked or op.asked,
        )
        offers = offers or self.find(request)
        return launch.start(plan, offers, self.vendors, self.journal, code, self.secrets, self.say, terms)

    def _downloading(self, op: Op, transport: Transport) -> contextlib.AbstractContextManager[None]:
        """Return a context that downloads growing files in the background; no-op for a local run or without lease."""
        provider = self.vendors(op.vendor)
        if provider.is_here or self.lease is None:
            return contextlib.nullcontext()
        return self.downloads.run_in_background(op, transport, provider.pod_store)


@dataclass
class _Waiting:
    """Reporter of a pod's silence after `after_s` seconds, and of the pod's return."""

    op: Op
    say: Say
    after_s: float
    since: float | None = None
    is_reported: bool = False

    def update(self, progress: Mapping[str, Any]) -> None:
        silence = progress.get("unreachable")
        now = time.monotonic()
        if not silence:
            if self.is_reported:
                self.say(f"{self.op.run}: {_named(self.op)} answers again")
            self.since, self.is_reported = None, False
            return
        self.since = now if self.since is None else self.since
        if not self.is_reported and now - self.since >= self.after_s:
            self.is_reported = True
            self.say(
                f"{self.op.run}: waiting for {_named(self.op)}: {silence}; the work may still run there, so the run is "
                f"not started elsewhere. Check: inv status {self.op.run}; to end the run once {_named(self.op)} "
                f"answers: inv down {self.op.run}"
            )


def _named(op: Op | None) -> str:
    """Return the display name of a node."""
    if op is None:
        return "an abandoned node"
    place = op.place or op.remote_id or "the pod"
    return f"node {op.rank} ({place})" if run_rows.size_of(op) > 1 else place
