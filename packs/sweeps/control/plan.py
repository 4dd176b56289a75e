"""Plan of a sweep on the present machines: plan, price and pod of each trial. No run starts."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from data.config import ConfigError
from flows.planning import machine_choice
from flows.planning.training_plan import PlannedWork, plan_for
from flows.specs.launch import LaunchSpec
from flows.specs.work import prepare_command
from infra.checkout import ROOT
from infra.errors import NoOffer, SlipwayError, UsageError
from infra.job_environment import secrets
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.market.step_times import is_measured
from infra.providers import Provider
from infra.records import Offer, Plan, Request
from infra.runs.timing import Say
from infra.selection import preflight, registry
from infra.selection.machine_spec import request_on
from infra.selection.preflight import default_limit
from infra.settings import Settings
from infra.units import count, dollars
from packs.sweeps.control.limit import HighCost, default_of, limit_before
from packs.sweeps.control.pods import SweepPods, for_held_pod
from packs.sweeps.control.schedule import Lane, TrialSlot, pack, split
from packs.sweeps.control.trials.records import SweepSpec, SweepTrial
from store import credentials
from trainer.plan import profile_named


@dataclass
class PlannedTrial:
    """Trial with plan and price."""

    trial: SweepTrial
    plan: Plan
    spec: LaunchSpec
    """Launch flags: the trial's flags without the machine's flags."""
    most_micro_usd: int = 0
    """Highest possible cost; 0 if nothing is paid."""
    offers: tuple[Offer, ...] = ()
    """Offers of machines that fit the trial, cheapest first, when the trial rents a pod alone."""
    offer: Offer | None = None
    """First offer that the account can pay; determines the price."""

    @property
    def estimate_s(self) -> float:
        """Return the upper estimate of the run time in seconds; 0.0 if unknown."""
        return self.plan.displayed_estimate.range_s[1] if self.plan.displayed_estimate else 0.0


@dataclass
class SweepPlan:
    """Plan of a sweep."""

    spec: SweepSpec
    trials: dict[str, PlannedTrial]
    lanes: Sequence[Lane]
    """Pods, each with an ordered queue of trials; balanced by estimated time."""
    idle: int
    """Number of pods without a trial."""
    is_rented: bool
    limit: int | None
    """Limit for all trials together in micro-dollars; None if nothing is paid, or no limit was given."""
    shared: SweepPods | None = None
    """Pods that several trials share, with one lane per part; None when each trial rents a separate pod."""
    more: tuple[str, ...] = ()
    """Flags of every launch."""
    offers: Mapping[str, Offer] = field(default_factory=dict)
    """Offers for renting the shared pods, by pod name."""

    @property
    def budget(self) -> str:
        """Return the name of the trials' budget; "" without a budget."""
        return "" if self.limit is None else f"sweep:{self.spec.name}"

    @property
    def most_micro_usd(self) -> int:
        """Return the highest possible cost of all trials, in micro-dollars."""
        return sum(one.most_micro_usd for one in self.trials.values())


def limit_of(said: str) -> int | None:
    """Parse a spend limit into micro-dollars; None for "". Raises UsageError."""
    return preflight.amount_of("spend-limit", said) if said else None


def share(limit: int, trials: int, own: int | None) -> int:
    """Return the spend limit of a trial: an equal share of `limit`, or the `own` limit capped at `limit`."""
    each = limit // max(1, trials)
    return each if own is None else min(own, limit)


def plan_on(
    spec: SweepSpec,
    machines: Mapping[str, tuple[int, Offer | None]],
    shared: SweepPods,
    settings: Settings,
    again: str,
    tell: Say,
) -> SweepPlan:
    """Plan the trials on shared pods. Raises SlipwayError.

    machines: number of GPUs and offer (None for an existing pod) of each pod, by name. settings: settings for runs on
    held pods.
    """
    candidates, trials = registry.candidates(settings), {}
    some = next(iter(machines.values()))[1]
    for run, one in spec.trials.items():
        launched = for_held_pod(one.spec, bool(spec.pods))
        offer = machines.get(one.pod, (0, some))[1]
        found = plan_of(replace(one, spec=launched), settings, candidates, offer)
        if found.job is not None:
            preflight.check_work(found, settings, False, again, prepare_command(launched))
        trials[run] = PlannedTrial(one, found, launched)
    refuse_name_conflicts({run: one.plan for run, one in trials.items()})
    if spec.pods:
        held = {run: one for run, one in trials.items() if one.trial.pod in machines}
        idle = len(machines.keys() - {one.trial.pod for one in held.values()})
        return SweepPlan(spec, trials, list(pod_lanes(held)), idle, False, None, shared)
    each = max(one.plan.request.num_gpus for one in trials.values())
    berths = {
        part.name: part for name, (gpus, _) in machines.items() for part in split(TrialSlot(name, name), gpus, each)
    }
    lanes = [
        replace(lane, host=berths[lane.pod].host, devices=berths[lane.pod].devices)
        for lane in pack({run: one.estimate_s for run, one in trials.items()}, list(berths), {})
    ]
    return SweepPlan(spec, trials, lanes, sum(not lane.runs for lane in lanes), False, None, shared)


def pod_lanes(trials: Mapping[str, PlannedTrial]) -> Iterator[Lane]:
    """Yield the lanes of described pods: runs on a common GPU run in sequence, in the sweep's order.

    Runs on disjoint GPUs, as named in their experiments, run in parallel.
    """
    for pod in dict.fromkeys(one.trial.pod for one in trials.values()):
        queues: list[tuple[set[str], list[str]]] = []  # the queues' disjoint sets of GPUs; {""} means all
        for run, one in trials.items():
            if one.trial.pod != pod:
                continue
            own = set(one.trial.devices.split(","))
            met = [queue for queue in queues if own & queue[0] or "" in own | queue[0]]
            queues = [queue for queue in queues if queue not in met]
            queues.append((own.union(*(gpus for gpus, _ in met)), [*(name for _, some in met for name in some), run]))
        for gpus, runs in queues:
            devices = "" if "" in gpus else ",".join(sorted(gpus, key=int))
            name = f"{pod} device {devices}" if len(queues) > 1 else pod
            in_order = tuple(run for run in trials if run in runs)
            yield Lane(name, in_order, sum(trials[run].estimate_s for run in in_order), pod, devices)


def plan(spec: SweepSpec, journal: Journal, settings: Settings, again: str, tell: Say) -> SweepPlan:
    """Plan the trials with their prices and pods. Raises SlipwayError.

    again: the command to also create missing artifacts on the rented machines.
    """
    candidates = registry.candidates(settings)
    is_rented, limit = candidates[0].is_rented, limit_of(spec.spend_limit)
    trials = {run: PlannedTrial(one, plan_of(one, settings, candidates), one.spec) for run, one in spec.trials.items()}
    refuse_name_conflicts({run: one.plan for run, one in trials.items()})
    if is_rented:
        due = due_of(trials.values(), journal)
        why: dict[str, list[str]] = {}
        for one in due:
            reason = find_machines(one, candidates, settings, again, tell)
            why.setdefault(reason, []).append(one.trial.run)
        for reason, runs in why.items():
            if reason:
                others = f" and {count(len(runs) - 1, 'other run')}" if runs[1:] else ""
                tell(f"{runs[0]}{others}: {reason}")
        if limit is None and not any(one.spec.spend_limit or one.spec.ttl for one in spec.trials.values()):
            highs = [high_of(one, settings) for one in due]
            limit = default_of(spec.name, highs, journal, tell) if due else limit_before(spec.name, journal)
        for one in trials.values():
            if limit is not None:
                one.trial = limited(one.trial, spec, limit)
                one.spec = one.trial.spec
        spec = replace(spec, trials={run: one.trial for run, one in trials.items()})
        for one in due:
            price(one, settings, again, tell)
    lanes, idle = lanes_of(trials, settings.provider, candidates, journal, spec.num_pods)
    return SweepPlan(spec, trials, lanes, idle, is_rented, limit if is_rented else None)


def limited(trial: SweepTrial, spec: SweepSpec, limit: int) -> SweepTrial:
    """Return the trial with a spend limit, which the pod enforces.

    The limit is the trial's stated limit, capped at `limit`, or an equal share of `limit`.
    """
    own = limit_of(trial.spec.spend_limit)
    most = share(limit, len(spec.trials), own)
    return replace(trial, spec=replace(trial.spec, spend_limit=dollars(most)))


def settings_of(trial: SweepTrial, settings: Settings) -> Settings:
    """Return the settings of a trial's own launch."""
    chosen = {"provider": settings.provider, "profile": trial.spec.profile, "source": trial.spec.source}
    env = [f"{name}={value}" for name, value in {**settings.given, **trial.env}.items()]
    return Settings.load(ROOT, chosen, env)


def request_of(trial: SweepTrial, own: Settings, candidates: Sequence[Provider]) -> tuple[Request, str]:
    """Return the trial's machine request, and the machine named in the recipe, in words. Raises UsageError."""
    spec, named = trial.spec, ""
    if candidates[0].is_rented:
        spec, named = machine_choice.with_recipe(spec, profile_named(own.profile))
    return request_on(candidates, spec, trial.run, pool=spec.pool), named


def plan_of(
    trial: SweepTrial,
    settings: Settings,
    candidates: Sequence[Provider],
    offer: Offer | None = None,
    request: Request | None = None,
) -> Plan:
    """Return the plan of a trial. Raises UsageError with the trial's name.

    offer: passed to `plan_for`. request: the request of the chosen machine; None before the choice.
    """
    own, vendor = settings_of(trial, settings), candidates[0]
    credentials.set_credentials(secrets(own))
    try:
        work = PlannedWork.from_spec(replace(trial.spec, with_missing=True), own)
        if request is None:
            request, _ = request_of(trial, own, candidates)
            request = work.draft_request(request, own) if vendor.is_rented else request
        limits = preflight.limits_for(own, vendor.is_rented, trial.spec)
        return plan_for(work, own, request, vendor, limits, offer)
    except (UsageError, ConfigError) as error:
        raise UsageError(f"trial {trial.run}: {error}") from None


def due_of(trials: Iterable[PlannedTrial], journal: Journal) -> list[PlannedTrial]:
    """Return the trials in need of a rented machine: trials with missing artifacts and without a live run."""
    at_work = {op.run for op in journal.ops(live=True)}
    return [one for one in trials if one.plan.job is not None and one.trial.run not in at_work]


def find_machines(one: PlannedTrial, candidates: Sequence[Provider], settings: Settings, again: str, tell: Say) -> str:
    """Find machine offers for a trial and plan the trial for the first offer; return the reason for the choice.

    Raises SlipwayError with the trial's name.
    """
    try:
        # Before any vendor is asked.
        preflight.check_work(one.plan, settings, False, again, prepare_command(one.spec))
        own = settings_of(one.trial, settings)
        request, named = request_of(one.trial, own, candidates)
        request = replace(request, work_disk_bytes=one.plan.request.work_disk_bytes)
        fit = machine_choice.of_plan(one.plan, candidates, settings, named, one.spec.all_configs)
        found = fit.find(request, candidates, settings, tell)
        one.plan = plan_of(one.trial, settings, candidates, found.offers[0], found.request)
        one.offers = found.offers
        return found.reason
    except SlipwayError as error:
        error.args = (f"trial {one.trial.run}: {error}; nothing was rented",)
        raise


def high_of(one: PlannedTrial, settings: Settings) -> HighCost | None:
    """Return the highest forecast of a trial's cost; None for an unknown run time."""
    found = preflight.billed(one.plan)
    if found is None:
        return None
    high = preflight.forecast_of(one.plan, one.offers[0], settings).micro_usd[2]
    return HighCost(high, is_measured(found.steps))


def price(one: PlannedTrial, settings: Settings, again: str, tell: Say) -> None:
    """Set limits, offer and highest cost of a trial.

    Without any limit, the trial gets a default limit. Raises SlipwayError when no offer passes the preflight checks.
    """
    assert one.plan.job is not None
    limits, high = preflight.limits_for(settings, True, one.spec), high_of(one, settings)
    if preflight.is_open(limits):  # the other trials have limits
        own = default_limit(high.micro_usd if high else None, high is not None and high.is_measured)
        tell(f"{one.trial.run}: {own.description}")
        limits = replace(limits, spend_micro_usd=own.micro_usd)
    one.plan = replace(one.plan, job=replace(one.plan.job, limits=limits))
    try:
        prepare = prepare_command(one.spec)
        first = preflight.preflight(one.plan, one.offers, settings, False, again, prepare, tell)[0]
    except SlipwayError as error:
        error.args = (f"trial {one.trial.run}: {error}; nothing was rented",)
        raise
    one.offer = first
    most = [] if limits.time_s is None else [-(-round(limits.time_s * first.micro_usd_per_hour) // 3600)]
    one.most_micro_usd = min([*most, *filter(None, [limits.spend_micro_usd])])


def makings(plan: Plan) -> dict[str, str]:
    """Return the artifacts made by the plan's job: fingerprints by name."""
    found = [step.config["making"] for step in plan.job.steps if "making" in step.config] if plan.job else []
    return {one["name"]: one["fingerprint"] for one in found}


def refuse_name_conflicts(plans: Mapping[str, Plan]) -> None:
    """Raise UsageError when two trials make different artifacts under the same name.

    A checkpoint's name refers to a single artifact, so one of the two artifacts could not be found by name.
    """
    seen: dict[str, tuple[str, str]] = {}
    for run, one in plans.items():
        for artifact, fingerprint in makings(one).items():
            if "_checkpoints/" not in artifact:
                continue
            other, known = seen.setdefault(artifact, (run, fingerprint))
            if known != fingerprint:
                raise UsageError(
                    f"{other} and {run} would publish different artifacts under the name {artifact}; give the "
                    "runs different tags"
                )


def lanes_of(
    trials: Mapping[str, PlannedTrial],
    provider: str,
    candidates: Sequence[Provider],
    journal: Journal,
    wanted: int | None,
) -> tuple[list[Lane], int]:
    """Return the lanes with trials, and the number of pods without trials. Raises NoOffer when pods are missing."""
    vendors = [one.name for one in candidates]
    rows = {op.run: op for op in journal.ops() if op.vendor in vendors and op.run in trials}  # the last row of each run
    each = max(one.plan.request.num_gpus for one in trials.values())
    request = next(iter(trials.values())).plan.request
    if provider == "ssh":
        found = [_berth(op) for op in rows.values() if op.is_live and op.place]
        if len(set(found)) < (wanted or sys.maxsize):
            try:
                for offer in candidates[0].offers(request):
                    found += split(TrialSlot(offer.place, offer.place), offer.num_gpus, each)
            except NoOffer:
                if not found:
                    raise
        found = list(dict.fromkeys(found))
        if wanted and wanted > len(found):
            free = ", ".join(one.name for one in found)
            raise NoOffer(
                f"ssh: {wanted} pods wanted, but only {len(found)} are free and fit: {free}; run: inv pool.up"
            )
        found = found[:wanted]
    else:
        found = [TrialSlot(f"{provider}-{number}") for number in range(1, (wanted or 1) + 1)]
        if candidates[0].is_here and each:
            found = _parts_of_this_machine(candidates[0], request, each, wanted)
    berths = {one.name: one for one in found}
    placed = {run: _berth(op).name for run, op in rows.items() if op.place}
    lanes = pack({run: one.estimate_s for run, one in trials.items()}, list(berths), placed)
    lanes = [replace(one, host=berths[one.pod].host, devices=berths[one.pod].devices) for one in lanes]
    return [lane for lane in lanes if lane.runs], sum(1 for lane in lanes if not lane.runs)


def _berth(op: Op) -> TrialSlot:
    """Return the part of an own machine used by a run, now or earlier."""
    return TrialSlot(f"{op.place} device {op.devices}" if op.devices else op.place, op.place, op.devices)


def _parts_of_this_machine(here: Provider, request: Request, each: int, wanted: int | None) -> list[TrialSlot]:
    """Return up to `wanted` parts of this machine (None: all). Raises NoOffer when the machine has too few parts."""
    parts = [part for one in here.offers(request) for part in split(TrialSlot("local-1"), one.num_gpus, each)]
    if not parts or wanted and wanted > len(parts):
        said = (
            f"local: {count(wanted or 1, 'run')} at once, with {count(each, 'GPU')} each, do not fit: this machine has "
        )
        if not parts:
            raise NoOffer(f"{said}too few GPUs; rent machines (--provider), or ask for fewer GPUs in the sweep")
        raise NoOffer(f"{said}room for {len(parts)}; reduce the number: --pods {len(parts)}")
    return parts[:wanted]
