"""Launch use case: from a request to a plan, machines and prices, and finally an active run.

    resolve -> prepare -> check -> begin.start        each step takes the record returned by the step before

The caller shows the result and asks the user between the steps. `tell` receives progress messages.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol, TypeVar

from flows.limits import shared_resources
from flows.planning import estimates, machine_choice
from flows.planning.training_plan import PlannedWork
from flows.runs import same_request
from flows.runs.same_request import TypedLaunch
from flows.specs.launch import LaunchSpec
from flows.specs.work import prepare_command
from infra import job_environment
from infra.agent.job import Job, Limits, Step
from infra.errors import UsageError
from infra.ledger import wait_queue
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.ledger.wait_queue import QueueTicket
from infra.names import check_name
from infra.providers import Provider, market
from infra.records import Offer, Plan, PlannedMount, Request
from infra.runs.engine import engine_of
from infra.runs.timing import Say
from infra.selection import choose, registry
from infra.selection.choose import ChosenMachine
from infra.selection.machine_spec import refuse_open, request_on
from infra.selection.preflight import check_work, limits_for, preflight
from infra.settings import HELD, MARKET, Settings, is_rented
from infra.units import count, size
from store import packs
from trainer.plan import profile_named
from trainer.plan.phase_needs import needs_of

ACCELERATOR = "ACCELERATOR"  # Variable of `-e` with the meaning of --gpu.

MOST_TOLD = 5  # Files named in an error.

S = TypeVar("S", bound=LaunchSpec)


class AnyWork(Protocol):
    """The work of a launch: a Slipway training, or the work of a pack."""

    @property
    def remake_policy(self) -> str:
        """Return the value of `Work.made`."""

    @property
    def name_prefix(self) -> str:
        """Return the prefix of the run name before a number; "" = random words."""

    def draft_request(self, request: Request, settings: Settings) -> Request:
        """Return the request of a first plan, before the choice of a rented machine. Raises UsageError."""

    def plan(
        self, settings: Settings, request: Request, vendor: Provider, limits: Limits, offer: Offer | None = None
    ) -> Plan:
        """Return the plan: the artifacts, and the job that makes the artifacts. Raises UsageError."""


@dataclass(frozen=True, kw_only=True)
class ResolvedLaunch:
    """A launch resolved by the settings; no store or vendor has been asked yet."""

    spec: LaunchSpec
    work: AnyWork
    request: Request
    limits: Limits
    """Limits of each node's pod, as typed; `prepare` replaces open limits by the default of the plan."""
    asked: TypedLaunch
    """The flags, used to compare this launch with an active run of the same work."""
    others: tuple[Request, ...] = ()
    """Alternatives to `request`, for rented machines."""
    named: str = ""
    """The machine named by the recipe, as display text; "" = no machine named, or a different machine typed."""
    is_ordered: bool = False
    """True: take the first available machine of `request` and `others`. False: take the cheapest."""


@dataclass(frozen=True, kw_only=True)
class Launch:
    """A launch ready to start; `plan.job` is None if no work is left."""

    resolved: ResolvedLaunch
    plan: Plan
    active_run: Op | None = None
    """The active run of the same work: the launch follows this run and rents no machine."""
    offers: tuple[Offer, ...] = ()
    """Offers of rented machines, in the order to try."""
    warnings: tuple[str, ...] = ()
    """Warnings to be accepted by the user before renting."""
    ticket: QueueTicket | None = None
    """The wait-queue turn of a launch after a wait for offers."""
    may_send: bool = False
    """True if the user agreed to send files from hidden folders of the home folder."""

    @property
    def mounts_to_approve(self) -> tuple[PlannedMount, ...]:
        """Return the mounts to be approved by the user before sending."""
        is_sent = self.plan.job is not None and self.active_run is None and not self.may_send
        return tuple(one for one in self.plan.mounts if one.needs_confirmation) if is_sent else ()

    @property
    def needs_decision(self) -> bool:
        """Return True if the user must first decide about artifacts made by other code: see `Work.made`."""
        return bool(self.plan.doubtful) and not self.resolved.work.remake_policy and not self.resolved.spec.dry_run


def resolve(spec: LaunchSpec, settings: Settings) -> ResolvedLaunch:
    """Return the resolved launch of phases. Raises UsageError for invalid requests."""
    name = check_name(spec.run_name) if spec.run_name else ""
    nodes = 1 if spec.nodes is None else spec.nodes
    if nodes < 1:
        raise UsageError(f"--nodes is {nodes}; it must be at least 1")
    if spec.on_failure not in ("", "keep", "end"):
        raise UsageError(f"--on-failure {spec.on_failure}: known: end, keep")
    spec = replace(spec, gpu=spec.gpu or job_environment.of_job(settings).get(ACCELERATOR, ""))
    if spec.notify or settings.hooks:
        from infra.notices import hooks

        hooks.check((*hooks.split(spec.notify), *hooks.for_all(settings)), settings)
    candidates = registry.candidates(settings)
    for where in packs.entries("launch_changes").values():
        spec = packs.load(where)(spec, candidates[0].is_rented, settings)
    work = PlannedWork.from_spec(spec, settings)
    check_stages(spec, candidates[0])
    if spec.self_end and not candidates[0].is_rented:
        raise UsageError("--self-end applies to rented machines; a machine of your own does not bill after the work")
    limits = limits_for(settings, candidates[0].is_rented, spec)
    wished, named = spec, ""
    if candidates[0].is_rented:
        wished, named = machine_choice.with_recipe(spec, profile_named(settings.profile, ()))
    request = request_on(candidates, wished, name or "new", nodes, spec.pool, spec.host)
    request = shared_resources.on_devices(request, spec.devices, candidates[0])
    chosen = () if settings.sources["provider"].startswith("default") else tuple(one.name for one in candidates)
    asked = same_request.typed_launch(spec, request, limits, vendors=chosen, env=job_environment.of_job(settings))
    limits = replace(limits, spend_micro_usd=limits.spend_micro_usd and limits.spend_micro_usd // nodes)
    return ResolvedLaunch(spec=spec, work=work, request=request, limits=limits, asked=asked, named=named)


def check_stages(spec: LaunchSpec, vendor: Provider) -> None:
    """Raise UsageError for --no-sync or --no-setup on a new machine, and for contradicting flags."""
    left_out = [flag for flag, is_given in (("--no-sync", spec.no_sync), ("--no-setup", spec.no_setup)) if is_given]
    if left_out and (vendor.is_rented or vendor.restarts_runs):
        raise UsageError(
            f"{' and '.join(left_out)}: a new machine has no code and no environment yet. Use a held pod "
            "(--no-deploy), or your own machine (--provider local, ssh)"
        )
    if spec.no_deploy and spec.deploy_only:
        raise UsageError("--no-deploy and --deploy-only contradict each other; give only one of the flags")


def on_held(spec: S) -> S:
    """Return the launch on held pods; own machines are never rented, so their launches stay unchanged."""
    if spec.provider not in ("", HELD) and not is_rented(spec.provider):
        return spec
    vendor = "" if spec.provider in (MARKET, HELD) else spec.provider
    return replace(spec, provider=HELD, pool=spec.pool or vendor)


def prepare(resolved: ResolvedLaunch, journal: Journal, settings: Settings, tell: Say) -> Launch:
    """Return the plan and the offers, without renting. While `needs_decision`, no offers are requested.

    Raises UsageError for an impossible launch, also if the flags conflict with an active run of the same work, and
    NoOffer.
    """
    shared_resources.check_budget(resolved.spec.budget, journal)
    candidates = registry.candidates(settings)
    vendor = candidates[0]
    if journal.ops():
        from flows.planning import learned  # imported here, because the first launch follows no run

        learned.save_measured_times(journal, settings)
    likely = vendor.predict_offer(resolved.request)
    first = resolved.work.draft_request(resolved.request, settings) if vendor.is_rented else resolved.request
    plan = resolved.work.plan(settings, first, vendor, resolved.limits, likely)
    found = Launch(resolved=resolved, plan=plan)
    if found.needs_decision:
        return found
    before = last_on(plan, journal)
    if before and before.is_live and plan.job:
        if resolved.spec.dry_run and (said := resolved.asked.difference(before)):
            tell(f"{said}. The plan is for a launch after the end of this run: inv down {before.run}")
        else:
            resolved.asked.check(before)
            found = replace(found, active_run=before)
    if vendor.is_rented and plan.job and not found.active_run:
        fit = machine_choice.of_plan(plan, candidates, settings, resolved.named, resolved.spec.all_configs)
        if taker := engine_of(vendor):
            found = with_chosen_machine(found, fit.choose_kinds(resolved.request, taker), settings)
            return _kept(with_run_limits(found, taker.quote(found.plan, tell), journal, settings))
        name = partial(run_name, plan, resolved, journal, settings) if resolved.spec.wait else None
        need, asked = plan.request.work_disk_bytes, (resolved.request, *resolved.others)
        requests = [fit.vendor_request(replace(one, work_disk_bytes=need)) for one in asked]
        had = shared_resources.find_launch_offers(
            candidates, requests, resolved.is_ordered, name, journal, settings, tell, fit.narrow
        )
        found = with_chosen_machine(found, had, settings)
        found = replace(with_run_limits(found, had.offers, journal, settings), ticket=had.ticket)
        if had.ticket and (resolved.spec.dry_run or not found.plan.job):  # This launch rents no machine.
            wait_queue.dequeue(journal, had.ticket)
    if found.plan.job and resolved.spec.self_end:
        refuse_foreign_code(found.plan.job)
    return _kept(found)


def with_chosen_machine(found: Launch, choice: ChosenMachine, settings: Settings) -> Launch:
    """Return the launch planned for the chosen machine, with the reason of the choice as a note."""
    resolved, vendor = found.resolved, registry.candidates(settings)[0]
    plan = resolved.work.plan(settings, choice.request, vendor, resolved.limits, next(iter(choice.offers), None))
    plan = replace(plan, notes=(*plan.notes, *filter(None, [choice.reason])))
    asked = resolved.asked if resolved.others else resolved.asked.with_machine(choice.request)
    return replace(found, plan=plan, resolved=replace(resolved, request=choice.request, asked=asked))


def with_picked_offers(found: Launch, offers: Sequence[Offer], settings: Settings) -> Launch:
    """Return the launch with the offers in the order chosen by the user.

    If the offers differ in the number of GPUs, keep the offers with as many GPUs as the first and plan for this number.
    """
    if not (offers and found.resolved.spec.all_configs):
        return replace(found, offers=tuple(offers))
    number = offers[0].num_gpus
    alike = tuple(one for one in offers if one.num_gpus == number)
    if number != found.plan.request.num_gpus:
        request = replace(found.resolved.request, num_gpus=number)
        found = _kept(with_chosen_machine(found, ChosenMachine(request=request, offers=alike), settings))
    return replace(found, offers=alike)


def narrow_held(resolved: ResolvedLaunch, settings: Settings) -> choose.Narrow:
    """Return the filter for machines to rent and hold for this work. Raises UsageError.

    A user's own job names the machine, so all offers remain.
    """
    candidates = registry.candidates(settings)
    if not candidates[0].is_rented or not isinstance(resolved.work, PlannedWork):
        return choose.as_found
    first = resolved.work.draft_request(resolved.request, settings)
    plan = resolved.work.plan(settings, first, candidates[0], resolved.limits)
    if plan.job is None:
        refuse_open(resolved.request)
    return machine_choice.of_plan(plan, candidates, settings, resolved.named, resolved.spec.all_configs).narrow


def with_run_limits(found: Launch, offers: Sequence[Offer], journal: Journal, settings: Settings) -> Launch:
    """Return the launch with these offers, and with the limits of the run. Raises LimitHit."""
    plan, resolved = found.plan, found.resolved
    found = replace(found, offers=tuple(offers))
    if plan.job is None:
        return found
    from flows.limits.run_limits import run_limits  # imported here, because work on this machine has no such limits

    own = run_limits(plan, offers, interrupted_pod(plan, resolved, journal, settings), journal, settings)
    plan = replace(plan, job=replace(plan.job, limits=own.limits), notes=(*plan.notes, *filter(None, [own.words])))
    asked = resolved.asked.with_spend_limit(own.spend_micro_usd)
    return replace(found, plan=plan, resolved=replace(resolved, limits=own.limits, asked=asked))


def _kept(found: Launch) -> Launch:
    """Return the launch with the options for failed and finished pods, and without set-up steps under --no-setup."""
    plan, resolved = found.plan, found.resolved
    if not plan.job:
        return found
    end = resolved.spec.on_failure or "end"
    job = replace(plan.job, on_failure=end, self_end=resolved.spec.self_end)
    if resolved.spec.no_setup:
        steps = tuple(step for step in job.steps if not step.is_setup)
        job = replace(job, steps=steps, no_setup=True)
    return replace(found, plan=replace(plan, job=job))


def check(found: Launch, settings: Settings, again: str, tell: Say) -> Launch:
    """Return the launch with only the affordable offers able to run the plan. Raises UsageError, NoOffer.

    `again` is the command for also making missing artifacts on the rented machine.
    """
    resolved, plan, prepare = found.resolved, found.plan, prepare_command(found.resolved.spec)
    if not resolved.spec.dry_run and not found.active_run:
        refuse_empty(plan.mounts)
    if found.offers:
        offers = preflight(plan, found.offers, settings, resolved.spec.with_missing, again, prepare, tell)
        if plan.job and plan.job.self_end:
            found = replace(found, warnings=self_end_warnings(offers, settings))
        return replace(found, offers=tuple(offers))
    if plan.job and not found.active_run:
        vendor = registry.candidates(settings)[0]
        if vendor.is_ephemeral:
            check_work(plan, settings, resolved.spec.with_missing, again, prepare)
        if vendor.is_here:
            phases = estimates.phases_of(plan.job.steps)
            estimates.check_memory(phases, resolved.request.num_gpus)
            for phase in phases:
                if (where := needs_of(phase).sandbox(phase)) and (why := packs.load(where)()):
                    raise UsageError(f"{phase.phase}: {why}. No work has begun")
        if resolved.spec.dry_run:
            # Refuse a plan without a suitable machine before showing the plan.
            choose.of_machines(vendor, resolved.request)
    return found


def refuse_foreign_code(job: Job) -> None:
    """Raise UsageError for a job with unreviewed code, because the code could use the guard's key."""
    for step in (*job.steps, *job.trackers):
        if what := _code_of_others(step):
            raise UsageError(
                f"--self-end cannot be used with {what}: step {step.name} runs code on the pod, and the code could "
                "use the key of the guard. Leave out --self-end: the vendor's own limit ends the pod"
            )


def _code_of_others(step: Step) -> str:
    """Return the source of foreign code in a step as display text; "" = no foreign code."""
    if step.config.get("code"):
        return f"--track {step.config['tracker']}"
    if own := step.config.get("extensions"):
        return f"extension {', '.join(sorted(own))}"
    return next((found for one in estimates.phases_of([step]) if (found := needs_of(one).foreign_code(one))), "")


def takes_self_end(found: Launch, settings: Settings) -> bool:
    """Return True if `--self-end` is possible, and no other process on the pod ends a finished pod."""
    job = found.plan.job
    if not found.offers or job is None or job.self_end or any(map(_code_of_others, job.steps)):
        return False
    vendors = [market(registry.provider(settings, name)) for name in {one.provider for one in found.offers}]
    return not job.trackers and all(one and one.uses_self_end for one in vendors)


def with_self_end(found: Launch, settings: Settings) -> Launch:
    """Return the launch with a self-termination key for the pod. Raises UsageError for an unusable key."""
    assert found.plan.job is not None
    resolved = found.resolved
    resolved = replace(resolved, spec=replace(resolved.spec, self_end=True), asked=resolved.asked.with_self_end())
    plan = replace(found.plan, job=replace(found.plan.job, self_end=True))
    return replace(found, resolved=resolved, plan=plan, warnings=self_end_warnings(found.offers, settings))


def self_end_warnings(offers: Sequence[Offer], settings: Settings) -> tuple[str, ...]:
    """Return warnings to accept before pods of these offers get a key. Raises UsageError for a bad key."""
    found = [market(registry.provider(settings, name)) for name in dict.fromkeys(one.provider for one in offers)]
    return tuple(filter(None, (one.check_self_end() for one in found if one)))


def refuse_empty(mounts: Sequence[PlannedMount]) -> None:
    """Raise UsageError for a mount without files to send, because the job would find an empty folder."""
    for one in mounts:
        if not one.files:
            listed = "; ".join(one.refused[:MOST_TOLD])
            raise UsageError(
                f"no file of {one.source} would be sent: {listed}; nothing was rented or sent. To send a file that "
                "git tracks, or a file outside of any checkout, name the file: --send-anyway FILE"
            )


def refusal(mounts: Sequence[PlannedMount]) -> str:
    """Return the reason why mounts of hidden folders need consent, and the flag for consent."""
    listed = ", ".join(f"{one.source} ({count(one.files, 'file')}, {size(one.bytes)})" for one in mounts)
    flags = " ".join(f"--send-anyway '{one.source}'" for one in mounts)
    return (
        f"the job would send {listed} from a hidden folder of your home; hidden folders often hold keys. --yes does "
        f"not give consent; nothing was rented or sent. If you trust the job with the files: {flags}"
    )


def last_on(plan: Plan, journal: Journal) -> Op | None:
    """Return the newest pod for the same target in the same store, or None."""
    return next((op for op in reversed(journal.ops()) if (op.target, op.store) == (plan.target, plan.store)), None)


def run_name(plan: Plan, resolved: ResolvedLaunch, journal: Journal, settings: Settings) -> str:
    """Return the name of the run: the requested name, the name of an interrupted run, or a new name."""
    before = interrupted_pod(plan, resolved, journal, settings)
    named = before.run if before else resolved.asked.name
    return named or shared_resources.new_name(journal, resolved.work.name_prefix)


def interrupted_pod(plan: Plan, resolved: ResolvedLaunch, journal: Journal, settings: Settings) -> Op | None:
    """Return the newest pod of the interrupted run to continue; None for a new run."""
    before = last_on(plan, journal)
    if before is None or resolved.asked.name not in ("", before.run):
        return None
    from infra.runs.lookup import has_machine, last_verdict  # imported here, because a new run looks at no other run

    is_unfinished = last_verdict(before, settings).get("state") != "succeeded"
    return before if is_unfinished and has_machine(before, settings) else None
