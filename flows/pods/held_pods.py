"""Held pods, which stay between jobs: create, set up and put to work. `flows.pods.stop` ends held pods."""

import json
from dataclasses import replace

from flows.limits import shared_resources
from flows.limits.shared_resources import LaunchOffers
from flows.planning.training_plan import PlannedWork, environments_of, plan_for
from flows.runs import run_leases
from infra import job_environment
from infra.agent.job import Job, Limits
from infra.checkout import ROOT
from infra.errors import UsageError
from infra.ledger import wait_queue
from infra.ledger.held_pods import gpus_of, runs_of_pod
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.market import gpus
from infra.records import Offer, Plan, Request
from infra.runs import launch as runs_launch
from infra.runs import renting
from infra.runs.acceptance import terms_for
from infra.runs.run_home import RunHome
from infra.runs.sync import snapshot
from infra.runs.timing import Say
from infra.selection import registry
from infra.settings import Settings, is_secret


def rent(
    had: LaunchOffers,
    limits: Limits,
    journal: Journal,
    settings: Settings,
    tell: Say,
    unchecked: bool = False,
    pod_set: str = "",
    spec_hash: str = "",
    budget: str = "",
) -> Op:
    """Rent a held pod under the request's name or a new name. Raises as `infra.runs.launch.hold`.

    `pod_set` is the set of the pod. `budget` is the name of the budget that pays, as typed.
    """
    offers, turn = had.offers, had.ticket
    request = replace(had.request, run=turn.run if turn else name_of(had.request, journal))
    vendor = registry.provider(settings, offers[0].provider)
    paid_from = shared_resources.reserve_budget(
        budget, request.run, shared_resources.max_cost(limits, 1, offers), journal, settings, tell
    )
    terms = replace(
        terms_for(settings, vendor, unchecked),
        owner_kind="pod_set" if pod_set else "held",
        owner=pod_set,
        spec_hash=spec_hash,
        budget_name=paid_from,
        ticket=turn,
    )
    scale = settings.clock_scale if settings.rehearsal else 1.0
    try:
        return runs_launch.hold(request, limits, offers, registry.vendors(settings), journal, tell, terms, scale)
    finally:  # From now on the journal row reserves the money.
        shared_resources.release_launch_reservation(paid_from, request.run, journal)
        if turn is not None:
            wait_queue.dequeue(journal, turn)


def name_of(request: Request, journal: Journal) -> str:
    """Return the requested name of a pod, or a new name."""
    return shared_resources.new_name(journal) if request.run == "new" else request.run


def set_up(op: Op, journal: Journal, settings: Settings, tell: Say) -> Op:
    """Send the code to a pod, and create the train environment. Raises UsageError while the pod runs a job."""
    vendor, request = registry.provider(settings, op.vendor), request_of(op)
    torch, environments = environments_of(settings, request, vendor)
    hidden = tuple(name for name in job_environment.of_job(settings) if is_secret(name))
    job = Job(
        run=op.run,
        token=op.token,
        steps=(),
        setup=("train",),
        torch=torch,
        environments=environments,
        clock_scale=settings.clock_scale if settings.rehearsal else 1.0,
        secrets=hidden,
        environ=job_environment.plain(settings),
    )
    plan = Plan(target="", store=op.store or settings.store, artifacts=(), job=job, request=request)
    return runs_launch.submit_to_held_pod(op, plan, vendor, journal, ROOT, job_environment.secrets(settings), tell)


def plan(op: Op, work: PlannedWork, settings: Settings) -> Plan:
    """Return the plan of the work on the pod. Raises UsageError."""
    vendor, request, offer = registry.provider(settings, op.vendor), request_of(op), None
    if vendor.is_rented:
        offer = Offer(provider=op.vendor, offer_id="", gpu=request.gpu, num_gpus=request.num_gpus)
    return plan_for(work, settings, request, vendor, op.read_job().limits, offer)


def start_work(op: Op, plan: Plan, journal: Journal, settings: Settings, tell: Say, sync: bool = True) -> Op:
    """Start work on a pod. Raises UsageError for a busy pod, AlreadyLive if a different pod has the target."""
    vendor = registry.provider(settings, op.vendor)
    if guests := runs_of_pod(op, journal.ops(live=True)):
        raise UsageError(
            f"{op.run} is shared by {', '.join(one.run for one in guests)}; wait until these runs end, or share "
            f"the pod: inv launch --no-deploy --host {op.run} --devices N"
        )
    run_leases.acquire(plan, op.run, journal.installation)
    run_leases.move_names(plan)
    secrets = job_environment.secrets(settings)

    def keep(given: Op) -> None:
        snapshot.keep_code(given, ROOT, RunHome.for_run(given.run, settings.homes))

    terms = renting.Terms(sync=sync, save_copies=None if vendor.is_here else keep)
    return runs_launch.submit_to_held_pod(op, plan, vendor, journal, ROOT, secrets, tell, terms)


def request_of(op: Op) -> Request:
    """Return the request of the pod, with the number of GPUs of the pod and the kinds with this number."""
    request, number = Request(**json.loads(op.request)), gpus_of(op)
    kinds = ",".join(kind for kind, many in gpus.read_set(request.gpu, number) if many == number)
    return replace(request, run=op.run, provider=op.vendor, gpu=kinds, num_gpus=number)


def purpose(op: Op) -> str:
    """Return the display name of the pod's purpose or work."""
    if op.service:
        return f"a replica of {op.service}"
    job = op.read_job() if op.job else None
    making = [step.config["making"]["name"] for step in job.steps if "making" in step.config] if job else []
    work = making[-1] if making and (op.target or not op.outlives_run) else "nothing yet" if op.outlives_run else "?"
    return f"{work} (set {op.pod_set})" if op.pod_set else work
