"""Start of a planned launch: rent the machine and hand the run over.

    Launch -> start -> journal row

A dry run does not load this module.
"""

import contextlib
import time
from dataclasses import replace

from flows.limits import shared_resources
from flows.planning import learned
from flows.runs import launch, receipt, rented_offer, resume, run_leases
from flows.runs.launch import Launch
from infra import job_environment
from infra.checkout import ROOT
from infra.errors import SlipwayError, UsageError
from infra.ledger import wait_queue
from infra.ledger.journal import Journal
from infra.ledger.op import AlreadyLive, Op
from infra.runs import launch as runs_launch
from infra.runs.acceptance import terms_for
from infra.runs.engine import RunStart, engine_of
from infra.runs.run_home import RunHome
from infra.runs.sync import snapshot
from infra.runs.timing import Say, stage
from infra.selection import choose, registry
from infra.settings import Settings


def start(found: Launch, journal: Journal, settings: Settings, tell: Say) -> Op:
    """Return the active run: joined, continued, or newly started. Raises the errors of renting."""
    if found.mounts_to_approve:
        raise UsageError(launch.refusal(found.mounts_to_approve))
    known, asked_at = {op.token for op in journal.ops()}, time.time()
    if found.active_run:
        op = resume.continue_run(found.active_run, journal, settings, tell)
    else:
        op = _begin(found, journal, settings, tell)
    if op.token not in known:
        offer = rented_offer.find(op, found.plan, found.offers, settings)
        with contextlib.suppress(OSError):  # On a full disk the run continues without a receipt.
            receipt.write(op, settings, offer)
        plan = rented_offer.plan_on(offer, found.plan, found.offers, settings)
        learned.save_forecast(op, plan, asked_at, settings, offer)
    return op


def _begin(found: Launch, journal: Journal, settings: Settings, tell: Say) -> Op:
    """Return the run of this plan: an interrupted run, a new run, or a run just started by a concurrent launch."""
    asked, offers = found.resolved.asked, list(found.offers)
    vendor = registry.candidates(settings)[0]
    name = found.ticket.run if found.ticket else launch.run_name(found.plan, found.resolved, journal, settings)
    if not asked.name and name in journal.runs():
        tell(f"resuming {name}")
    plan = replace(found.plan, request=replace(found.plan.request, run=name))
    run_leases.acquire(plan, name, journal.installation)
    run_leases.move_names(plan)
    assert plan.job is not None
    if plan.job.no_setup:
        tell("setup: skipped; the run uses the environments on the machine")
    paid_from = ""

    def keep(op: Op) -> None:
        snapshot.keep_code(op, ROOT, RunHome.for_run(op.run, settings.homes), plan.carried)

    def rent() -> Op:
        found_now = offers
        if vendor.is_here:
            found_now = choose.of_machines(vendor, plan.request)
        elif not vendor.is_rented:
            with stage("connect", tell):
                found_now = choose.of_machines(vendor, plan.request)
        assert plan.job is not None
        terms = terms_for(settings, vendor, found.resolved.spec.no_accept)
        terms = replace(
            terms,
            asked=asked.to_json(),
            budget_name=paid_from,
            ticket=line.ticket or found.ticket,
            sync=not found.resolved.spec.no_sync,
            save_copies=None if vendor.is_here else keep,
        )
        secrets = job_environment.secrets_for(plan.job.secrets, settings)
        if taker := engine_of(vendor):
            return taker.submit(
                RunStart(
                    plan=plan, offers=found_now, journal=journal, root=ROOT, secrets=secrets, say=tell, terms=terms
                )
            )
        return runs_launch.start(plan, found_now, registry.vendors(settings), journal, ROOT, secrets, tell, terms)

    try:
        most = shared_resources.max_cost(plan.job.limits, plan.request.nodes, offers)
        paid_from = shared_resources.reserve_budget(
            found.resolved.spec.budget, name, most, journal, settings, tell, waits=found.resolved.spec.wait
        )
        with shared_resources.wait_in_queue(
            plan.request, found.resolved.spec.wait, vendor, journal, settings, tell
        ) as line:
            return line.run_at_turn(rent)
    except AlreadyLive as taken_by:
        if taken_by.op.run != name:
            run_leases.release(plan.store, name, journal.installation, tell)
            shared_resources.release_launch_reservation(paid_from, name, journal)
        if (taken_by.op.target, taken_by.op.store) != (plan.target, plan.store):
            raise
        asked.check(taken_by.op)
        return resume.attach(taken_by.op, journal, settings, tell)
    except SlipwayError:
        if not any(op.run == name for op in journal.ops(live=True)):
            run_leases.release(plan.store, name, journal.installation, tell)
            shared_resources.release_launch_reservation(paid_from, name, journal)
        raise
    finally:
        if found.ticket is not None:
            wait_queue.dequeue(journal, found.ticket)
