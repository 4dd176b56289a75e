"""The plan of a sweep here and now: each trial's plan and price, the pods it runs on. Nothing is started."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from data.config import ConfigError
from flows.planning import machine_choice
from flows.planning.training_plan import Work, plan_for
from flows.specs.launch import LaunchSpec
from infra.checkout import ROOT
from infra.errors import NoOffer, SlipwayError, UsageError
from infra.job_environment import secrets
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.market.expected import is_measured
from infra.money import dollars
from infra.providers import Provider
from infra.records import Offer, Plan, Request
from infra.runs.timing import Say
from infra.selection import preflight, registry
from infra.selection.default_limit import default_limit
from infra.selection.request import request_on
from infra.settings import Settings
from infra.units import count
from packs.sweeps.control.limit import HighCost, default_of, limit_before
from packs.sweeps.control.pods import SweepPods, on_held
from packs.sweeps.control.schedule import Berth, Lane, pack, split
from packs.sweeps.control.trials.records import SweepSpec, SweepTrial
from store import credentials
from trainer.plan import profile_named


@dataclass
class PlannedTrial:
    """A trial with its plan."""

    trial: SweepTrial
    plan: Plan
    spec: LaunchSpec
    """Flags of its launch: those of the trial, but for the ones that say where it runs."""
    most_micro_usd: int = 0
    """The most it may cost; 0 where nothing is paid."""
    offers: tuple[Offer, ...] = ()
    """Offers of machines that hold it, cheapest first, where it rents a pod of its own."""
    offer: Offer | None = None
    """The first of them that this account can pay, whose price counts."""

    @property
    def estimate_s(self) -> float:
        """Return the estimated time."""
        return self.plan.shown.range_s[1] if self.plan.shown else 0.0


@dataclass
class SweepPlan:
    """A sweep as it would go."""

    spec: SweepSpec
    trials: dict[str, PlannedTrial]
    lanes: Sequence[Lane]
    """Pods that have trials, and these in their order; all should take about the same time."""
    idle: int
    """Number of pods that have no trial."""
    is_rented: bool
    limit: int | None
    """Micro-dollars for all trials together; None = nothing is paid, or no limit was given."""
    shared: SweepPods | None = None
    """The pods that several trials share, each of which has a lane for each part; None: each trial rents its own."""
    more: tuple[str, ...] = ()
    """Flags of every launch."""
    offers: Mapping[str, Offer] = field(default_factory=dict)
    """Offers from which the pods that several trials share are rented, by the names of the pods."""

    @property
    def budget(self) -> str:
        """Return the name of the budget from which each trial is paid; "" = none is."""
        return "" if self.limit is None else f"sweep:{self.spec.name}"

    @property
    def most_micro_usd(self) -> int:
        """Return the most that all trials may cost."""
        return sum(one.most_micro_usd for one in self.trials.values())


def limit_of(said: str) -> int | None:
    """Return a limit in micro-dollars; None for none. Raises UsageError."""
    return preflight.amount_of("spend-limit", said) if said else None


def share(limit: int, trials: int, own: int | None) -> int:
    """Return the most that one trial may cost: its own limit, and an equal share of the common one."""
    each = limit // max(1, trials)
    return each if own is None else min(own, limit)


def plan_on(
    spec: SweepSpec, machines: Mapping[str, tuple[int, Offer | None]], shared: SweepPods, settings: Settings,
    again: str, tell: Say,
) -> SweepPlan:  # fmt: skip
    """Return the trials on pods that they share. Raises SlipwayError.

    `machines`: the GPUs of each pod by its name, and what it is rented from. `settings`: of runs on held pods.
    """
    candidates, trials = registry.candidates(settings), {}
    some = next(iter(machines.values()))[1]
    for run, one in spec.trials.items():
        launched = on_held(one.spec, bool(spec.pods))
        offer = machines.get(one.pod, (0, some))[1]
        found = plan_of(replace(one, spec=launched), settings, candidates, offer)
        if found.job is not None:
            preflight.check_work(found, settings, False, again)
        trials[run] = PlannedTrial(one, found, launched)
    refuse_rivals({run: one.plan for run, one in trials.items()})
    if spec.pods:
        held = {run: one for run, one in trials.items() if one.trial.pod in machines}
        idle = len(machines.keys() - {one.trial.pod for one in held.values()})
        return SweepPlan(spec, trials, list(in_turn(held)), idle, False, None, shared)
    each = max(one.plan.request.num_gpus for one in trials.values())
    berths = {
        part.name: part for name, (gpus, _) in machines.items() for part in split(Berth(name, name), gpus, each)
    }  # fmt: skip
    lanes = [
        replace(lane, host=berths[lane.pod].host, devices=berths[lane.pod].devices)
        for lane in pack({run: one.estimate_s for run, one in trials.items()}, list(berths), {})
    ]
    return SweepPlan(spec, trials, lanes, sum(not lane.runs for lane in lanes), False, None, shared)


def in_turn(trials: Mapping[str, PlannedTrial]) -> Iterator[Lane]:
    """Yield the queues of pods that are described: runs of a pod that share a GPU follow one another, in their order.

    Runs whose GPUs are disjoint, since their experiments say so, go side by side.
    """
    for pod in dict.fromkeys(one.trial.pod for one in trials.values()):
        queues: list[tuple[set[str], list[str]]] = []  # the GPUs of each, which no other has; {""} = all
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
    """Return the trials with their plans, their prices and their pods. Raises SlipwayError.

    `again`: the command that would make what is missing on the rented machines as well.
    """
    candidates = registry.candidates(settings)
    is_rented, limit = candidates[0].is_rented, limit_of(spec.spend_limit)
    trials = {run: PlannedTrial(one, plan_of(one, settings, candidates), one.spec) for run, one in spec.trials.items()}
    refuse_rivals({run: one.plan for run, one in trials.items()})
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
    """Return the trial with a limit of its own, which its pods enforce: its share of the sweep's, if it says none."""
    own = limit_of(trial.spec.spend_limit)
    most = share(limit, len(spec.trials), own)
    return replace(trial, spec=replace(trial.spec, spend_limit=dollars(most)))


def settings_of(trial: SweepTrial, settings: Settings) -> Settings:
    """Return the settings of a trial's own launch."""
    chosen = {"provider": settings.provider, "profile": trial.spec.profile, "source": trial.spec.source}
    env = [f"{name}={value}" for name, value in {**settings.given, **trial.env}.items()]
    return Settings.load(ROOT, chosen, env)


def request_of(trial: SweepTrial, own: Settings, candidates: Sequence[Provider]) -> tuple[Request, str]:
    """Return the request of a trial, and the machine that its recipe names, in words. Raises UsageError."""
    spec, named = trial.spec, ""
    if candidates[0].is_rented:
        spec, named = machine_choice.with_recipe(spec, profile_named(own.profile))
    return request_on(candidates, spec, trial.run, pool=spec.pool), named


def plan_of(
    trial: SweepTrial, settings: Settings, candidates: Sequence[Provider], offer: Offer | None = None,
    request: Request | None = None,
) -> Plan:  # fmt: skip
    """Return the plan of a trial. Raises UsageError, which names it.

    `offer`: as `plan_for` takes it. `request`: of the machine that was chosen; None = none was yet.
    """
    own, vendor = settings_of(trial, settings), candidates[0]
    credentials.lend(secrets(own))
    try:
        work = Work.of(replace(trial.spec, with_missing=True), own)
        if request is None:
            request, _ = request_of(trial, own, candidates)
            request = work.draft(request, own) if vendor.is_rented else request
        limits = preflight.limits_for(own, vendor.is_rented, trial.spec)
        return plan_for(work, own, request, vendor, limits, offer)
    except (UsageError, ConfigError) as error:
        raise UsageError(f"trial {trial.run}: {error}") from None


def due_of(trials: Iterable[PlannedTrial], journal: Journal) -> list[PlannedTrial]:
    """Return the trials that rent a machine: something is left to make, and they are not at work."""
    at_work = {op.run for op in journal.ops(live=True)}
    return [one for one in trials if one.plan.job is not None and one.trial.run not in at_work]


def find_machines(
    one: PlannedTrial, candidates: Sequence[Provider], settings: Settings, again: str, tell: Say
) -> str:  # fmt: skip
    """Find offers of machines for a trial, and plan it for the first; return the fact that decided for that.

    Raises SlipwayError.
    """
    try:
        preflight.check_work(one.plan, settings, False, again)  # before any vendor is asked
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
    """Return the highest forecast of a trial's cost; None where its time is not known."""
    found = preflight.billed(one.plan)
    if found is None:
        return None
    high = preflight.forecast_of(one.plan, one.offers[0], settings).micro_usd[2]
    return HighCost(high, is_measured(found.steps))


def price(one: PlannedTrial, settings: Settings, again: str, tell: Say) -> None:
    """Know what a trial costs at most, by its limits. Raises SlipwayError: it cannot be had for that."""
    assert one.plan.job is not None
    limits, high = preflight.limits_for(settings, True, one.spec), high_of(one, settings)
    if preflight.is_open(limits):  # others of the sweep have limits
        own = default_limit(high.micro_usd if high else None, high is not None and high.is_measured)
        tell(f"{one.trial.run}: {own.words}")
        limits = replace(limits, spend_micro_usd=own.micro_usd)
    one.plan = replace(one.plan, job=replace(one.plan.job, limits=limits))
    try:
        first = preflight.preflight(one.plan, one.offers, settings, False, again, tell)[0]
    except SlipwayError as error:
        error.args = (f"trial {one.trial.run}: {error}; nothing was rented",)
        raise
    one.offer = first
    most = [] if limits.time_s is None else [-(-round(limits.time_s * first.micro_usd_per_hour) // 3600)]
    one.most_micro_usd = min([*most, *filter(None, [limits.spend_micro_usd])])


def makings(plan: Plan) -> dict[str, str]:
    """Return the artifacts of the plan's job: fingerprints by name."""
    found = [step.config["making"] for step in plan.job.steps if "making" in step.config] if plan.job else []
    return {one["name"]: one["fingerprint"] for one in found}


def refuse_rivals(plans: Mapping[str, Plan]) -> None:
    """Raise UsageError for trials that make different artifacts under one name.

    A checkpoint's name stands for one artifact: one of them could not be found by it.
    """
    seen: dict[str, tuple[str, str]] = {}
    for run, one in plans.items():
        for artifact, fingerprint in makings(one).items():
            if "_checkpoints/" not in artifact:
                continue
            other, known = seen.setdefault(artifact, (run, fingerprint))
            if known != fingerprint:
                raise UsageError(
                    f"{other} and {run} want different artifacts under the name {artifact}; give them different tags"
                )


def lanes_of(
    trials: Mapping[str, PlannedTrial], provider: str, candidates: Sequence[Provider], journal: Journal,
    wanted: int | None,
) -> tuple[list[Lane], int]:  # fmt: skip
    """Return the lanes that have trials, and how many pods have none. Raises NoOffer when there are too few pods."""
    vendors = [one.name for one in candidates]
    rows = {op.run: op for op in journal.ops() if op.vendor in vendors and op.run in trials}  # the last of each
    each = max(one.plan.request.num_gpus for one in trials.values())
    request = next(iter(trials.values())).plan.request
    if provider == "ssh":
        found = [_berth(op) for op in rows.values() if op.is_live and op.place]
        if len(set(found)) < (wanted or sys.maxsize):
            try:
                for offer in candidates[0].offers(request):
                    found += split(Berth(offer.place, offer.place), offer.num_gpus, each)
            except NoOffer:
                if not found:
                    raise
        found = list(dict.fromkeys(found))
        if wanted and wanted > len(found):
            free = ", ".join(one.name for one in found)
            raise NoOffer(f"ssh: {wanted} pods wanted, {len(found)} are free and fit: {free}; run: inv pool.up")
        found = found[:wanted]
    else:
        found = [Berth(f"{provider}-{number}") for number in range(1, (wanted or 1) + 1)]
        if candidates[0].is_here and each:
            found = _parts_of_this_machine(candidates[0], request, each, wanted)
    berths = {one.name: one for one in found}
    placed = {run: _berth(op).name for run, op in rows.items() if op.place}
    lanes = pack({run: one.estimate_s for run, one in trials.items()}, list(berths), placed)
    lanes = [replace(one, host=berths[one.pod].host, devices=berths[one.pod].devices) for one in lanes]
    return [lane for lane in lanes if lane.runs], sum(1 for lane in lanes if not lane.runs)


def _berth(op: Op) -> Berth:
    """Return the part of an own machine that a run has, or had."""
    return Berth(f"{op.place} device {op.devices}" if op.devices else op.place, op.place, op.devices)


def _parts_of_this_machine(here: Provider, request: Request, each: int, wanted: int | None) -> list[Berth]:
    """Return as many parts of this machine as are wanted. Raises NoOffer when it has fewer."""
    parts = [part for one in here.offers(request) for part in split(Berth("local-1"), one.num_gpus, each)]
    if not parts or wanted and wanted > len(parts):
        said = f"local: {count(wanted or 1, 'run')} at once, with {count(each, 'GPU')} each, and this machine has "
        if not parts:
            raise NoOffer(f"{said}not as many; rent them (--provider), or ask for fewer in the sweep")
        raise NoOffer(f"{said}room for {len(parts)}; give fewer: --pods {len(parts)}")
    return parts[:wanted]
