"""Pods shared by the runs of a sweep: rented and held for the sweep, or already existing.

    trials and their pods -> `PodEntry` by name -> `SweepPods`: pods to rent, and their limit
    SweepPods, journal -> `WorkingPods`: rents pods in parallel, replaces lost pods, releases pods without work

The pods form a pod set with the sweep's name, as made by `inv apply`; the runs are launches on held pods
(`infra.ledger.op`). A common budget pays for all pods; each pod is rented under a share of the budget.
"""

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import NoReturn

from flows.limits.shared_resources import LaunchOffers
from flows.pods import apply, held_pods
from flows.pods.apply import SetLimit
from flows.specs.launch import LaunchSpec
from infra.agent.limits import Clocks
from infra.errors import LimitHit, NoOffer, OutOfMoney, SlipwayError, UsageError, describe
from infra.flags import flags_of
from infra.ledger import budgets, spend
from infra.ledger.held_pods import is_held
from infra.ledger.journal import Journal
from infra.ledger.op import READY, Op
from infra.market import gpus
from infra.records import Offer
from infra.runs.journal_upkeep import settle
from infra.runs.keepers.pod_set import PodEntry
from infra.runs.timing import Say
from infra.selection.machine_spec import MachineSpec
from infra.selection.preflight import amount_of
from infra.settings import Settings
from infra.units import dollars, in_usd
from packs.sweeps.control.schedule import Lane
from packs.sweeps.control.trials.records import SweepSpec
from packs.sweeps.control.trials.results import TrialResult
from store.backoff import Backoff

IDLE_MINUTES = 60.0  # without work on any GPU, after which the pod of an abandoned sweep ends
POLL_S = 0.3
KEYS = {"gpu": "gpu_type", "num_gpus": "gpu_count", "volume": "volume_id"}  # keys of pod files, by machine flag
LOOK_EVERY_S = 5.0  # polling interval for the vendors' pod states
MOST_MADE = 6  # attempts to rent a pod, the first included
BACKOFF = Backoff(first_s=2.0, longest_s=120.0, certain=1.0)


@dataclass(frozen=True)
class SweepPods:
    """Pods of a sweep, by name.

    `with_limit` sets a common limit once the runs of the pods are known.
    """

    set_name: str
    entries: Mapping[str, PodEntry] = field(default_factory=dict)
    """Pods to rent for the sweep and release at the end; {} means that the sweep uses existing pods, and keeps them."""
    limit: SetLimit | None = None
    existing: tuple[str, ...] = ()
    """Names of existing pods."""

    @property
    def is_open(self) -> bool:
        """Return whether a pod without a limit of its own would be rented without a common limit."""
        return self.limit is None and not all(one.spend_limit or one.ttl_hours for one in self.entries.values())

    def with_limit(self, amount: int) -> "SweepPods":
        """Return the pods with a common limit of `amount` micro-dollars. Raises UsageError."""
        found = SetLimit.for_set(self.set_name, dollars(amount), self.entries)
        return replace(self, limit=found and replace(found, budget=f"sweep:{self.set_name}"))


def pods_to_rent(spec: SweepSpec, pack: int, pods_wanted: int | None, provider: str) -> SweepPods:
    """Return the pods to rent: the described pods, or pods for the machine requested by the runs. Raises UsageError.

    pack: number of parallel runs per pod; applies only without described pods.
    """
    if spec.pods:
        used = {one.pod for one in spec.trials.values()}
        found = {one.name: one for one in spec.pods if one.name in used}
    else:
        each = shared_machine_of(common_flags(spec))
        number = pods_wanted or 1
        wide = replace(each, gpu_count=each.gpu_count * max(1, pack))
        found = {f"{spec.name}.pod-{one}": replace(wide, name=f"{spec.name}.pod-{one}") for one in range(1, number + 1)}
    entries = {
        name: replace(one, provider=one.provider or provider, idle_stop_minutes=one.idle_stop_minutes or IDLE_MINUTES)
        for name, one in found.items()
    }
    shared, limit = SweepPods(spec.name, entries), limit_of(spec)
    return shared if limit is None else shared.with_limit(limit)


def check_names(wanted: SweepPods, journal: Journal) -> None:
    """Raise UsageError when a live pod or run outside the sweep has the name of a wanted pod.

    The sweep would otherwise end the pod or run of this name.
    """
    for op in journal.ops(live=True):
        if op.run in wanted.entries and op.pod_set != wanted.set_name:
            raise UsageError(
                f"{op.run} already exists, and not for this sweep; use the pod: --no-deploy, or end the run: "
                f"inv down {op.run}"
            )


def common_flags(spec: SweepSpec) -> LaunchSpec:
    """Return the flags of the first run, after a check for equal machine requests of all runs. Raises UsageError."""
    asked = {tuple(getattr(one.spec, flag.name) for flag in flags_of(MachineSpec)): one for one in spec.trials.values()}
    if len(asked) > 1:
        first, second = list(asked.values())[:2]
        raise UsageError(
            f"runs on a shared pod must ask for one kind of machine, but {first.run} and {second.run} "
            "differ; describe the pods in a function (docs/guides/sweeps.md), or leave --pack out"
        )
    return next(iter(spec.trials.values())).spec


def machine_of(one: LaunchSpec) -> PodEntry:
    """Return the pod requested by a run, without the flags that pod files have no key for: see `shared_machine_of`."""
    asked = {KEYS.get(each.name, each.name): getattr(one, each.name) for each in flags_of(MachineSpec)}
    keys = {each.name for each in fields(PodEntry)}
    found = {key: value for key, value in asked.items() if value and key in keys}
    return PodEntry(**found | {"name": "pod", "gpu_count": num_gpus(one)})


def shared_machine_of(one: LaunchSpec) -> PodEntry:
    """Return the pod shared by the runs. Raises UsageError for a machine flag that pod files have no key for."""
    keys = {each.name for each in fields(PodEntry)}
    for each in flags_of(MachineSpec):
        if getattr(one, each.name) and KEYS.get(each.name, each.name) not in keys:
            raise UsageError(
                f"--{each.spelling} does not apply to a pod that runs share; leave out the flag, or --pack"
            )
    return machine_of(one)


def num_gpus(spec: LaunchSpec) -> int:
    """Return a run's number of GPUs: as requested, else the smallest number of the acceptable kinds, else 1."""
    kinds = gpus.read_set(spec.gpu, spec.num_gpus)
    return spec.num_gpus or min((number for _, number in kinds if number), default=1)


def limit_of(spec: SweepSpec) -> int | None:
    """Return the common limit of all pods in micro-dollars, or None. Raises UsageError.

    Without a sweep limit, the sum of the runs' limits counts if every run has a limit.
    """
    if spec.spend_limit:
        return amount_of("spend-limit", spec.spend_limit)
    own = [one.spec.spend_limit for one in spec.trials.values() if one.spec.spend_limit]
    return sum(amount_of("spend-limit", one) for one in own) if own and len(own) == len(spec.trials) else None


def for_held_pod(spec: LaunchSpec, is_described: bool) -> LaunchSpec:
    """Return the trial's launch for a held pod, without the flags for choosing and renting a machine."""
    plain = {one.name: one.default for one in flags_of(MachineSpec)}
    number = num_gpus(spec) if spec.gpu or spec.num_gpus else 0
    more = {"ttl": ""} if is_described else {}
    return replace(
        spec,
        **{
            **plain,
            "num_gpus": number,
            "spend_limit": "",
            "budget": "",
            "pool": "",
            "host": "",
            "provider": "",
            "on_failure": "",
            "self_end": False,
            **more,
        },
    )


def find_held_pods(spec: SweepSpec, journal: Journal, tell: Say) -> list[Op]:
    """Return the held pods for a sweep: the named pods, else the pods of the sweep's set, else all held pods.

    Reports named pods missing among the held pods. Raises SlipwayError without a held pod.
    """
    held = [op for op in journal.ops(live=True) if is_held(op) and op.state == READY]
    named = [one.name for one in spec.pods if any(trial.pod == one.name for trial in spec.trials.values())]
    found = [op for op in held if op.run in named] if named else [op for op in held if op.pod_set == spec.name] or held
    for name in named:
        if name not in {op.run for op in found}:
            runs = ", ".join(run for run, one in spec.trials.items() if one.pod == name)
            tell(f"warning: pod {name} is not held; skipped: {runs}")
    if not found:
        wanted = f"none of {', '.join(named)} is" if named else "no pod is"
        raise SlipwayError(f"{wanted} held; rent the pods first: the same command with --deploy-only")
    return found


def find_offers(wanted: SweepPods, journal: Journal, settings: Settings, tell: Say) -> dict[str, Offer]:
    """Return the offer of each pod by name: the price of an existing pod, or the best offer now. Raises SlipwayError.

    Once some pods exist, pods without an offer are left out; the sweep keeps trying to rent these pods.
    """
    rows = {op.run: op for op in journal.ops(live=True) if op.pod_set == wanted.set_name}
    found: dict[PodEntry, Offer] = {}
    offers: dict[str, Offer] = {}
    for name, one in wanted.entries.items():
        alike = replace(one, name="pod")
        if op := rows.get(name):
            offers[name] = Offer(
                provider=op.vendor,
                offer_id="",
                gpu=one.gpu_type or "",
                num_gpus=one.gpu_count,
                micro_usd_per_hour=op.rate,
            )
            continue
        try:
            found[alike] = offers[name] = found.get(alike) or apply.find(one, settings, tell, wanted.limit)[2][0]
        except NoOffer as error:
            if not rows:
                raise
            tell(f"{str(error).splitlines()[0]}; the sweep asks again while the other pods work")
    return offers


@dataclass
class WorkingPods:
    """Pods of a running sweep. `end`: starts a process that ends the pod with the given name."""

    wanted: SweepPods
    journal: Journal
    settings: Settings
    tell: Say
    end: "Callable[[str], subprocess.Popen[bytes]]"
    renting: dict[str, threading.Thread] = field(default_factory=dict)
    num_attempts: Counter[str] = field(default_factory=Counter)
    """Number of attempts to rent each pod."""
    due_at: dict[str, float] = field(default_factory=dict)
    """Times on the monotonic clock for the next attempt to rent pods that were unavailable."""
    given_up: dict[str, str] = field(default_factory=dict)
    """Reasons why pods are not rented again, in words."""
    ending: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict)
    looked_at: float = 0.0

    def ready_names(self) -> set[str]:
        """Return the names of the pods ready for runs."""
        rows = self.journal.ops(live=True)
        return {op.run for op in rows if is_held(op) and op.state == READY and op.run not in self.ending}

    def reconcile(self, needed: Collection[str]) -> None:
        """Rent missing pods in `needed`, release idle pods, and reconcile the other pods with their vendors."""
        names = (*self.wanted.entries, *self.wanted.existing)
        rows = {op.run: op for op in self.journal.ops(live=True) if op.run in names and op.is_head}
        if rows and time.monotonic() - self.looked_at > LOOK_EVERY_S:
            # Reconciling ends a pod left by a dead renting process; pods already ending are skipped.
            seen = [op.token for name, op in rows.items() if name not in self.ending]
            settle(self.journal, self.settings, self.tell, seen)
            self.looked_at = time.monotonic()
        for name in self.wanted.existing:
            if name not in rows and name not in self.given_up:
                self.given_up[name] = f"{name} is gone"
                self.tell(self.given_up[name])
        for name in self.wanted.entries:
            is_made = name in self.renting and self.renting[name].is_alive()
            if name in needed:
                if name not in rows and not is_made and name not in self.given_up:
                    self._start_renting(name)
            elif name in rows and rows[name].state == READY and not is_made and name not in self.ending:
                self.tell(f"{time.strftime('%H:%M:%S')} {name}: no run is left for this pod; the pod is deleted")
                self.ending[name] = self.end(name)

    def finish(self, needed: Collection[str]) -> None:
        """Wait until all pods in progress are rented, and all released pods have ended."""
        if alive := [name for name, thread in self.renting.items() if thread.is_alive()]:
            self.tell(f"waiting for the rental of {', '.join(alive)}")
        for thread in self.renting.values():
            thread.join()
        self.reconcile(needed)
        for name in sorted({*needed} & {*self.wanted.entries}):
            self.tell(
                f"{name} stays on for the runs on this pod, until all GPUs are idle for {IDLE_MINUTES:.0f} "
                f"min or the limit is reached; end the pod: inv down {name}"
            )
        for process in self.ending.values():
            process.wait()

    def _start_renting(self, name: str) -> None:
        last = next(iter(self.journal.ops(run=name)[-1:]), None)
        if self.num_attempts[name] and last is not None and last.outcome == "limit":
            self.given_up[name] = f"{name} has reached its limit"
        elif self.num_attempts[name] >= MOST_MADE:
            self.given_up[name] = f"{name} is given up after {MOST_MADE} attempts to rent the pod"
        elif time.monotonic() >= self.due_at.get(name, 0.0):
            self.num_attempts[name] += 1
            self.renting[name] = threading.Thread(target=self._rent, args=(name,), name=f"make {name}")
            self.renting[name].start()
        if name in self.given_up:
            self.tell(self.given_up[name])

    def _rent(self, name: str) -> None:
        """Rent a pod in this thread, while other pods are rented and work."""
        try:
            with Journal.open(self.settings.state_file) as journal:
                rent_pod(self.wanted, name, journal, self.settings, self.tell)
        except (LimitHit, OutOfMoney, UsageError) as error:
            self.given_up[name] = f"{name}: {error}"
            self.tell(self.given_up[name])
        except Exception as error:  # the other pods continue; the attempt is repeated later
            said = str(error).splitlines()[0] if isinstance(error, NoOffer) else describe(error)
            wait_s = BACKOFF.wait_s(self.num_attempts[name])
            self.due_at[name] = time.monotonic() + wait_s
            self.tell(f"{name} could not be rented: {said}; trying again in {wait_s:.0f} s")


def deploy(wanted: SweepPods, journal: Journal, settings: Settings, tell: Say) -> list[str]:
    """Rent all missing pods; return the reasons for the pods still missing."""
    at_work = WorkingPods(wanted, journal, settings, tell, _nobody)
    while not wanted.entries.keys() <= at_work.ready_names() | at_work.given_up.keys():
        at_work.reconcile(wanted.entries)
        time.sleep(POLL_S)
    return list(at_work.given_up.values())


def _nobody(name: str) -> NoReturn:
    raise AssertionError(f"{name} is needed")


def pods_with_work(
    lanes: Sequence[Lane],
    free: Sequence[int],
    busy: Collection[str],
    ready: Collection[str],
    waiting: Sequence[str],
    fits: Callable[[str, int], bool],
) -> set[str]:
    """Return the pods with work: the busy pods, and enough free pods for the waiting runs, existing pods first. Pure.

    free: numbers of the free lanes. fits: whether a run may use a lane.
    """
    found, left = set(busy), list(waiting)
    for number in sorted(free, key=lambda one: (lanes[one].host not in found, lanes[one].host not in ready)):
        run = next((run for run in left if fits(run, number)), None)
        if run is not None:
            left.remove(run)
            found.add(lanes[number].host)
    return found


def share_costs(
    wanted: SweepPods,
    lanes: Sequence[Lane],
    trials: Mapping[str, TrialResult],
    journal: Journal,
    now: Clocks,
    scale: float,
) -> None:
    """Set each trial's cost to its share of the pods' cost, in proportion to the trials' seconds."""
    for host in wanted.entries:
        cost = sum(spend.spent(op, now, scale) for op in journal.ops(run=host) if op.pod_set == wanted.set_name)
        names = {lane.pod for lane in lanes if lane.host == host}
        on_it = [one for one in trials.values() if one.pod in names]
        whole = sum(max(1.0, one.seconds or 0.0) for one in on_it)
        for one in on_it:
            one.micro_usd = round(cost * max(1.0, one.seconds or 0.0) / whole)


def rent_pod(wanted: SweepPods, name: str, journal: Journal, settings: Settings, tell: Say) -> Op:
    """Rent a pod of a sweep under a share of the common limit. Raises OutOfMoney, and the errors of renting."""
    limit = wanted.limit
    if limit is not None:  # earlier pods count, too
        free = budgets.state(journal, limit.budget, settings.clock_scale).free
        limit = replace(limit, share=min(limit.share, free))
        if limit.share <= 0:
            raise OutOfMoney(f"the {in_usd(limit.amount)} of {limit.budget} are fully reserved; nothing was rented")
    request, limits, offers = apply.find(wanted.entries[name], settings, tell, limit)
    paid_from = limit.budget if limit and offers[0].micro_usd_per_hour else ""
    had = LaunchOffers(request=request, offers=tuple(offers))
    return held_pods.rent(
        had,
        limits,
        journal,
        settings,
        tell,
        pod_set=wanted.set_name,
        spec_hash=wanted.entries[name].digest,
        budget=paid_from,
    )
