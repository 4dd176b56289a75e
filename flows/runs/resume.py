"""Resumption of a run: join an active run, restart a stopped run, or continue a run on a new pod."""

import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flows.limits.run_limits import check_used, spent_by
from flows.planning.extensions import changed_extensions
from flows.runs import receipt, run_groups
from flows.runs.same_request import with_limits
from infra import job_environment
from infra.agent.job import Limits
from infra.errors import SlipwayError, UsageError
from infra.ledger.journal import Journal
from infra.ledger.op import READY, AlreadyLive, Op
from infra.records import Offer, Plan
from infra.runs import hand_over, observation, pods, run_rows
from infra.runs import launch as runs_launch
from infra.runs.keepers.run_keeper import RunKeeper
from infra.runs.lookup import find_run, last_verdict, transport_to
from infra.runs.timing import Say
from infra.selection import registry
from infra.selection.machine_spec import LimitSpec
from infra.selection.preflight import limits_for
from infra.settings import Settings, is_secret
from infra.units import in_usd


@dataclass(frozen=True, kw_only=True)
class Resumption:
    """A run to resume; no state has changed yet."""

    op: Op
    """The newest pod of node 0."""
    limits: Limits | None = None
    """Typed limits in the form for `Keeper.elsewhere`."""
    asked: str = ""
    """The new journal record of the launch flags."""
    plan: Plan | None = None
    """The remaining work for a new rented machine; None if no machine will be rented."""
    offers: tuple[Offer, ...] = ()
    """Offers for the new machine, in the order to try."""
    money: str = ""
    """The limit and cost of the run, as display text."""


def resumption(run: str, spend_limit: str, ttl: str, journal: Journal, settings: Settings, tell: Say) -> Resumption:
    """Return the resumption of a run; `spend_limit` and `ttl` replace the limits of a rented run.

    Raises UsageError if no work is left, LimitHit if the run ended at a limit, NoOffer and OutOfMoney.
    """
    op = find_run(journal, run)
    if op.detached and run_rows.run_of(op) != op.run:
        raise UsageError(f"{op.run} was a node of {run_rows.run_of(op)}; run: inv resume {run_rows.run_of(op)}")
    if not op.detached and last_verdict(op, settings).get("state") == "succeeded":
        raise UsageError(f"{op.run} has succeeded; no work is left to resume")
    check_groups(op, settings)
    if is_idle(op, settings):
        raise UsageError(f"{op.run} is idle; give the pod work: inv pod.run {op.run}")
    limits = new_limits(op, journal, settings, spend_limit, ttl)
    asked = with_limits(op.asked, ttl, spend_limit, limits) if limits else ""
    found = Resumption(op=op, limits=limits, asked=asked)
    vendor = registry.provider(settings, op.vendor)
    if op.is_live or not vendor.is_rented or vendor.is_run_engine:
        return found
    check_used(op, limits or Limits(), journal, settings)
    keeper = RunKeeper.for_op(op, journal, settings, tell)
    job, budget = keeper.remaining_job(op, limits or Limits())
    request = op.read_request()
    plan = Plan(target=op.target, store=op.store, artifacts=(), job=job, request=request)
    spent, of_all = spent_by(op, journal, settings), "" if budget is None else f" of {in_usd(budget)}"
    money = f"{op.run} has cost {in_usd(spent)}{of_all} since the first launch; the limit covers the whole run"
    return replace(found, plan=plan, offers=tuple(keeper.find(request)), money=money)


def check_groups(op: Op, settings: Settings) -> None:
    """Raise UsageError if the group of a run refuses to resume the run."""
    for kind in run_groups.kinds():
        if why := kind.refusal_of_resume(op, settings):
            raise UsageError(why)


def with_offers(found: Resumption, offers: Sequence[Offer]) -> Resumption:
    """Return the resumption with the offers accepted by the user."""
    return replace(found, offers=tuple(offers))


def resume(found: Resumption, journal: Journal, settings: Settings, tell: Say) -> Op:
    """Resume the run, and return the active run. Raises UsageError."""
    tell_extensions(found.op, settings, tell)
    op = with_environment(found.op, journal, settings)
    for left in run_rows.detached_of(op.run, journal):  # A lost machine that answers again becomes free.
        try:
            pods.end(registry.provider(settings, left.vendor), left, journal, observation.GONE)
        except SlipwayError as error:
            tell(str(error))
    if found.plan is not None:
        return restart(op, journal, settings, tell, found)
    return continue_run(op, journal, settings, tell)


def tell_extensions(op: Op, settings: Settings, tell: Say) -> None:
    """Report changed or missing extensions of a run; the run continues with the original code."""
    with contextlib.suppress(UsageError):  # A run without a receipt.
        for said in changed_extensions(receipt.read(op, settings).extensions):
            tell(f"{said}; {op.run} continues with the code of the launch")


def with_environment(op: Op, journal: Journal, settings: Settings) -> Op:
    """Add the variables of `--env` to the jobs of the run. Raises UsageError while the run is active."""
    if not job_environment.of_job(settings):
        return op
    if op.is_live and observation.is_alive(op, transport_to(settings, op)):
        raise UsageError(
            f"--env: {op.run} is running with the environment of the launch; end the run first: inv down {op.run}"
        )
    for one in run_rows.nodes_of(op, journal):
        job = one.read_job()
        hidden = [name for name in job_environment.of_job(settings) if is_secret(name)]
        job = replace(
            job,
            environ={**job.environ, **job_environment.plain(settings)},
            secrets=tuple(dict.fromkeys([*job.secrets, *hidden])),
        )
        journal.note(one, job=job.to_json())
    return journal.op(op.token)


def is_idle(op: Op, settings: Settings) -> bool:
    """Return True for a live pod that stays and has no work."""
    return op.is_live and op.outlives_run and runs_launch.is_idle(op, transport_to(settings, op))


def continue_run(op: Op, journal: Journal, settings: Settings, tell: Say) -> Op:
    """Return a stopped or lost run as an active run; leave a run with a lost node to the keeper."""
    if run_rows.is_in_pieces(op, journal):
        return op
    try:
        return (attach if op.is_live else restart)(op, journal, settings, tell)
    except AlreadyLive as taken_by:
        return attach(taken_by.op, journal, settings, tell)


def attach(op: Op, journal: Journal, settings: Settings, tell: Say) -> Op:
    """Join a run started by a concurrent launch; restart the run if no process is alive."""
    deadline = time.monotonic() + hand_over.ARM_S
    while op.state in ("PLANNED", "CREATING", "BOOTING") and time.monotonic() < deadline:
        time.sleep(0.1)
        op = journal.op(op.token)
    if observation.is_alive(op, transport_to(settings, op)):
        tell(f"{op.run} is already running")
        return op
    return restart(op, journal, settings, tell)


def restart(op: Op, journal: Journal, settings: Settings, tell: Say, found: Resumption | None = None) -> Op:
    """Restart a stopped run on the old pod, or on a new pod if the old pod is gone. Raises UsageError on an engine.

    `found` holds the limits and offers accepted by the user, for a rented pod.
    """
    tell(f"resuming {op.run}")
    vendor = registry.provider(settings, op.vendor)
    if vendor.is_run_engine:
        raise UsageError(
            f"{op.run}: {vendor.name} runs whole jobs only. Launch the job again with the same flags and --run-name "
            f"{op.run}; the run continues from the checkpoints in {op.store}"
        )
    if op.state == READY and not vendor.is_run_engine and not last_verdict(op, settings):
        op = journal.advance(op, "unreachable")  # Recorded for `inv why`.
    if vendor.is_ephemeral and not op.is_live:
        keeper = RunKeeper.for_op(op, journal, settings, tell)
        agreed = found or Resumption(op=op)
        keeper.terms = replace(keeper.terms, asked=agreed.asked)
        return keeper.restart_on_next_offer(op, limits=agreed.limits, is_asked=True, offers=agreed.offers)
    return runs_launch.resume(op, vendor, journal, job_environment.secrets_for(op.read_job().secrets, settings))


def new_limits(op: Op, journal: Journal, settings: Settings, spend_limit: str, ttl: str) -> Limits | None:
    """Return new limits of a run in the form for `Keeper.elsewhere`; None without new limits.

    Raises UsageError.
    """
    if not spend_limit and not ttl:
        return None
    if not registry.provider(settings, op.vendor).is_rented:
        raise UsageError(f"{op.run} costs nothing; --spend-limit and --ttl apply to rented machines")
    if op.is_live:
        raise UsageError(f"{op.run} still has a pod with the limits of the rental; first: inv down {op.run}")
    limits = limits_for(settings, True, LimitSpec(ttl=ttl, spend_limit=spend_limit))
    if limits.spend_micro_usd is not None:
        spent = spent_by(op, journal, settings)
        if spent >= limits.spend_micro_usd:
            raise UsageError(f"{op.run} has already cost {in_usd(spent)}; give a higher --spend-limit")
    return limits
