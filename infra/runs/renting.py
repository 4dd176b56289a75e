"""The machines of a run: rent one for every node, or none.

    Rental (plan, offers, terms) -> rent_and_start -> work(rows) -> the row of node 0

An error or a request to end the run ends every machine that was rented before the error.
"""

import contextlib
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from infra.agent.job import Job, Limits, Step
from infra.agent.limits import limits_until, read_clocks
from infra.errors import Ambiguous, Busy, LimitHit, NoOffer, RateLimited, SlipwayError
from infra.interrupts import ExitRequested, defer_interrupts, exit_reason
from infra.journal_file import Fenced
from infra.ledger import spend
from infra.ledger.journal import Admit, Journal
from infra.ledger.op import ASKED, CUT_OFF, Op, OwnerKind
from infra.ledger.wait_queue import QueueTicket
from infra.machines.survey import number_of_gpus
from infra.providers import Provider, Vendors, clock_scale, market, self_terminate_calls
from infra.records import Offer, Plan, Request
from infra.runs import observation, pods, run_rows
from infra.runs.boot import BootFailed, boot
from infra.runs.sync.sync_step import mounts_of, with_uploader
from infra.runs.throttling import Throttling
from infra.runs.timing import Say, stage
from infra.transport.protocol import ConnectionLost, TimedOut, Transport, Unreachable

MOST_STARTS = 3  # Maximum number of starts when vendors take pods away before the work begins.
VISIBLE = "CUDA_VISIBLE_DEVICES"  # Set for the steps of a run on a part of a machine's GPUs.
APART = os.path.join(os.pardir, "work", "artifacts")  # Local artifact store of a pod, relative to the code folder.

Accept = Callable[[Transport, Request, Offer], str]  # Returns the reason to reject a machine, or "" to accept.
Blame = Callable[[Offer, str], None]  # Called with the reason when an offer yields no pod.
Prepare = Callable[[Op, Transport], None]  # Prepares node 0 before the hand-over of the job.
Keep = Callable[[Op], None]  # Keeps local copies of the files for node 0 before the hand-over; this process may die.


@dataclass(frozen=True, kw_only=True)
class Terms:
    """The terms on which a launch rents machines."""

    accept: Accept | None = None
    on_rejected: Blame | None = None  # Called with every rejected offer.
    prepare: Prepare | None = None
    save_copies: Keep | None = None
    admit: Admit | None = None  # Checks the spend limits.
    boot_s: float = 900.0  # Vendor clock.
    recoveries: int = 0  # Number of recoveries of the run before this pod.
    owner_kind: OwnerKind = ""  # Kind and name of the owner in the journal.
    owner: str = ""
    spec_hash: str = ""  # Hash of the request, to recognize the same request later.
    budget: int | None = None  # Budget in micro-USD; None = limits of the plan's pods plus cost of earlier pods.
    budget_name: str = ""  # Name of a shared budget in the journal.
    ticket: QueueTicket | None = None  # Turn of a launch after a wait for the machine.
    asked: str = ""  # JSON of the launch flags; see `Op.asked`.
    sync: bool = True  # True: send the code. False: use the code on the machine.


PLAIN = Terms()


class PodTakenAway(SlipwayError):
    """A vendor ended a pod before the work began."""


class EndedDuringStart(SlipwayError):
    """The run was ended on request during the start."""


@dataclass
class Rental:
    """The state of one start: the remaining offers in order, and the pods given back after rental."""

    plan: Plan
    offers: list[Offer]
    vendors: Vendors
    journal: Journal
    say: Say
    terms: Terms
    returned_ops: list[Op] = field(default_factory=list)
    budget: int | None = field(init=False)  # Budget of the run, micro-USD.
    ended_before: frozenset[str] = field(init=False)  # Tokens of pods ended on request before this start.

    def __post_init__(self) -> None:
        self.ended_before = frozenset(row.token for row in self._ended(self.journal.ops()))
        assert self.plan.job is not None
        each, self.budget = self.plan.job.limits.spend_micro_usd, self.terms.budget
        if self.budget is None and each is not None:
            self.budget = self.reserved() + each * self.plan.request.nodes

    @property
    def scale(self) -> float:
        """Return the clock scale of the vendor of the next offer, 1.0 without offers; all vendors share one clock."""
        return clock_scale(self.vendors(self.offers[0].provider)) if self.offers else 1.0

    def reserved(self) -> int:
        """Return the micro-USD reserved by all pods, past and present, of the run's nodes."""
        rows = run_rows.rows_of(self.plan.request.run, self.plan.request.nodes, self.journal)
        return sum(spend.reserved(row, read_clocks(), self.scale) for row in rows)

    def check_not_ended(self, rows: Sequence[Op]) -> None:
        """Raise EndedDuringStart if the run was ended on request since this start began."""
        if any(row.token not in self.ended_before for row in self._ended(rows)):
            raise EndedDuringStart(f"{self.plan.request.run} was ended by inv down during the start")

    def _ended(self, rows: Sequence[Op]) -> list[Op]:
        names = {run_rows.name_of(self.plan.request.run, rank) for rank in range(self.plan.request.nodes)}
        return [row for row in rows if row.run in names and row.outcome == ASKED]

    def admit(self, rows: list[Op], new: Op) -> None:
        """Check a new pod in the transaction that writes the row."""
        self.check_not_ended(rows)
        if self.terms.admit:
            self.terms.admit(rows, new)

    def skip_offer(self, offer: Offer, why: str) -> None:
        self.say(why)
        if self.terms.on_rejected:
            self.terms.on_rejected(offer, why)

    def limits(self, nodes: int) -> Limits:
        """Return the limits of the next pod, which shares the remaining money with all `nodes` still to rent.

        Raises LimitHit if the pods given back have used up a limit.
        """
        assert self.plan.job is not None
        left = self.plan.job.limits
        for op in self.returned_ops:
            left = spend.remaining_limits(left, spend.age_s(self.journal.op(op.token), read_clocks(), self.scale), 0)
        left = limits_until(left, self.plan.job, read_clocks(), self.scale)
        if self.budget is not None:
            left = replace(left, spend_micro_usd=(self.budget - self.reserved()) // nodes)
        if spend.is_used_up(left):
            cause = "pods that were given back have" if self.returned_ops else "the wait for a machine has"
            raise LimitHit(
                f"{self.plan.request.run}: {cause} used up the limit; no pod of the run "
                "is left. See the cost: inv cost; launch again with larger limits: --spend-limit, --ttl"
            )
        return left


def rent_and_start(rental: Rental, work: Callable[[list[Op]], None]) -> Op:
    """Rent all pods, run `work` on the pods, and return the row of node 0. Raises as `start`."""
    for starts_left in reversed(range(MOST_STARTS)):
        ops: list[Op] = []
        try:
            with end_all_on_error(ops, rental):
                rent_all(rental, ops)
                work(ops)
            break
        except PodTakenAway as error:
            if not starts_left:
                raise
            rental.returned_ops += ops
            used = rental.offers.pop(0)
            rental.skip_offer(used, str(error))
            rental.offers.append(used)  # The vendor may have more machines; try this offer last.
    return ops[0]


@contextlib.contextmanager
def end_all_on_error(ops: list[Op], rental: Rental) -> Iterator[None]:
    """End the pods in `ops` if the block raises: a launch starts all pods or none."""
    vendors, journal, say = rental.vendors, rental.journal, rental.say
    try:
        yield
    except BaseException as error:  # Includes Ctrl-C: a pod without a job must not stay.
        taken = _why_taken(ops, rental) if isinstance(error, SlipwayError) else None
        if ops:
            left = exit_reason(error)
            why = left or str(taken or error).removeprefix(f"{ops[0].run}: ") or type(error).__name__
            reason = f"{CUT_OFF}: {why}" if left else f"hand-over failed: {why}"
            with contextlib.suppress(OSError, ExitRequested):  # The output is closed; the pods must end regardless.
                say(f"{ops[0].run} did not start: {why}; ending the pods")
            with defer_interrupts(f"{ops[0].run} is being ended" if ops else "", say):
                end_all(ops, vendors, journal, reason, OUTCOMES.get(type(taken), ""))
        if taken:
            then = THEN.get(type(taken), "")
            raise type(taken)(f"{taken}; no pod of the run is left, and nothing bills{then}") from error
        if ops and isinstance(error, (ConnectionLost, TimedOut, Unreachable)):  # The unknown state is resolved by now.
            words = f"{ops[0].run}: {error}; the run was ended, and no pod is left: launch again"
            raise SlipwayError(words) from error
        raise


OUTCOMES: Mapping[type, str] = {LimitHit: "limit", EndedDuringStart: ASKED}
THEN: Mapping[type, str] = {
    LimitHit: ": launch again with larger limits: --spend-limit, --ttl",
    PodTakenAway: ": launch again",
}


def _why_taken(ops: list[Op], rental: Rental) -> SlipwayError | None:
    """Return the error for pods that a user, a limit or the vendor ended before they were active, or None."""
    journal = rental.journal
    try:
        rental.check_not_ended(journal.ops())
    except EndedDuringStart as error:
        return error
    for op in map(journal.op, [op.token for op in ops]):
        rented = market(rental.vendors(op.vendor))
        if rented is None or not op.is_live:
            continue
        seen = observation.observe_pod(op, rented, observation.AskedParties.PROVIDER)
        if seen.exists is False:
            if why := spend.due(op, read_clocks(), rented.clock_scale):
                return LimitHit(f"{op.run}: {why} before the work began; {seen.why}")
            return PodTakenAway(f"{op.run}: the pod was taken away before the work began: {seen.why}")
    return None


def end_all(ops: list[Op], vendors: Vendors, journal: Journal, reason: str, outcome: str = "") -> None:
    """End all pods, even if the end of one pod fails, and then raise the error of the last failure."""
    with contextlib.ExitStack() as stack:
        for op in ops:
            stack.callback(pods.end, vendors(op.vendor), journal.op(op.token), journal, reason, outcome)


def rent_all(rental: Rental, ops: list[Op]) -> None:
    """Rent pods into `ops`, by rank.

    An inventory machine provides one node; a vendor's offer provides as many as possible.
    Remove rejected offers from `rental.offers`; used offers stay. Raises NoOffer, or Busy for too few pods.
    """
    request, vendors, journal, say = rental.plan.request, rental.vendors, rental.journal, rental.say
    passed, is_busy, throttling = [], False, Throttling(say)
    for offer in list(rental.offers):
        provider, why = vendors(offer.provider), throttling.closed.get(offer.provider, "")
        while len(ops) < request.nodes and not why:
            try:
                rent = stage("rent", say, clock_scale(provider)) if not provider.is_here else contextlib.nullcontext()
                with rent, defer_interrupts(f"a machine was requested from {offer.provider}", say):
                    ops.append(_rent(rental, offer, provider, len(ops)))
            except RateLimited as error:
                why = "" if throttling.wait_for_retry(provider, offer.offer_id, error) else str(error)
            except NoOffer as error:
                why, is_busy = str(error), is_busy or isinstance(error, Busy)
            except Ambiguous as error:  # The pod may exist; end the pod once listed and try the next offer.
                unclear = journal.ops(run=run_rows.name_of(request.run, len(ops)))[-1]
                pods.detach(unclear, journal, f"the request for the machine was not answered: {error}")
                rental.returned_ops.append(unclear)
                why = (
                    f"{error}; the request may have created a machine, which is ended once listed by the vendor. "
                    "Check: inv reap"
                )
            else:
                failure = _try(ops, provider, journal, offer, replace(request, run=ops[-1].run), say, rental.terms)
                if failure:
                    rental.check_not_ended(journal.ops())
                    why = f"{offer.place or offer.offer_id} was given back: {failure}"
                    with defer_interrupts(f"{ops[-1].run} is being given back", say):
                        rental.returned_ops.append(pods.end(provider, journal.op(ops.pop().token), journal, failure))
                elif offer.place:
                    break
        if why:
            passed.append(why)
            rental.offers.remove(offer)
            rental.skip_offer(offer, why)
    if len(ops) < request.nodes:
        have = f" ({len(ops)} of {request.nodes} were available)" if ops else ""
        kind = Busy if is_busy else NoOffer
        raise kind(f"{request.provider}: no machine is left{have}: {'; '.join(dict.fromkeys(passed))}")


def _rent(rental: Rental, offer: Offer, provider: Provider, rank: int) -> Op:
    plan, terms = rental.plan, rental.terms
    assert plan.job is not None
    request = replace(plan.request, run=run_rows.name_of(plan.request.run, rank))
    job = _job_of(plan.job, rank, plan.request.nodes, provider, offer)
    limits = rental.limits(plan.request.nodes - rank)
    job = replace(job, self_terminate_calls=self_terminate_calls(provider), limits=limits)
    if job.num_gpus and market(provider):  # The request may name a number for each kind, or none.
        job = replace(job, num_gpus=offer.num_gpus, torch="cuda" if offer.num_gpus else "cpu")
    elif job.num_gpus and not request.num_gpus:
        job = replace(job, num_gpus=number_of_gpus(request, offer) or job.num_gpus)
    if job.kind == "hold" and market(provider):  # Later work on the pod reads the number from the row.
        request = replace(request, num_gpus=offer.num_gpus or request.num_gpus)
    if request.devices and job.num_gpus:  # The GPUs of a rehearsal do not exist.
        job = replace(job, environ={**job.environ, VISIBLE: request.devices})
    if rank == 0 and provider.is_ephemeral or mounts_of(job):
        store = plan.store if "://" in plan.store else provider.pod_store or plan.store
        job = with_uploader(job, store, plan.request.run, rank)
    row = pods.RowDraft(
        target="" if rank else plan.target,
        store=plan.store,
        rank=rank,
        recoveries=terms.recoveries,
        admit=rental.admit,
        owner_kind=terms.owner_kind,
        owner=terms.owner,
        spec_hash=terms.spec_hash,
        budget=rental.budget,
        budget_name=terms.budget_name,
        ticket=terms.ticket,
        asked=terms.asked,
        budget_run=plan.request.run if terms.budget_name else "",
    )
    return pods.rent(provider, request, offer, job, rental.journal, row)


def _try(
    ops: list[Op], provider: Provider, journal: Journal, offer: Offer, request: Request, say: Say, terms: Terms
) -> str:
    """Return the reason if the last pod of `ops` does not boot or fails the acceptance check, "" otherwise."""
    if rented := market(provider):
        try:
            with stage("boot", say, clock_scale(provider)):
                ops[-1] = boot(ops[-1], rented, journal, terms.boot_s)
        except BootFailed as error:
            return str(error)
    beside = [op for op in journal.ops(live=True) if op.place and op.place == offer.place and op.run != request.run]
    if not terms.accept or beside:  # Other pods on the machine would distort a check and be disturbed.
        return ""
    with stage("accept", say, clock_scale(provider)):
        refusal = terms.accept(provider.reach(observation.pod_of(ops[-1])), request, offer)
    # The note ends the part `checks` of the bill; Fenced: another process has ended the pod.
    with contextlib.suppress(Fenced):
        ops[-1] = journal.note(ops[-1], last_seen_at=int(read_clocks().wall_s))
    return refusal


def _job_of(job: Job, rank: int, nodes: int, provider: Provider, offer: Offer) -> Job:
    """Return the job of a node.

    Nodes on one machine share the cores. Only node 0 writes to the shared store; other nodes use a local store.
    """
    if nodes == 1 or provider.pod_store and not provider.restarts_runs:
        return job
    threads = {"OMP_NUM_THREADS": str(max(1, offer.cpus // nodes))} if provider.is_here else {}
    environ = {**threads, **job.environ}
    return replace(job, environ=environ, steps=tuple(_apart(step) for step in job.steps) if rank else job.steps)


def _apart(step: Step) -> Step:
    if "making" not in step.config:
        return step
    return replace(step, config={**step.config, "making": {**step.config["making"], "store": APART}})
