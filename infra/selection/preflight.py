"""Preflight checks before spending money: limits, cost forecast, and whether the work fits on an offer.

A plan, offers and settings become the offers suitable for the plan. A launch without limits gets a default spend limit,
a multiple of the plan's high cost estimate: room for a wrong forecast, and still an end of a hanging pod before high
costs. The checks rent no machine and ask vendors for the balance only.
"""

import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from infra.agent.job import Limits
from infra.agent.limits import hard_limit_s
from infra.errors import UsageError
from infra.market import gpus
from infra.market.step_times import AROUND, GUESS, SETUP_S, total
from infra.records import Estimate, MachineKind, Offer, Plan
from infra.selection.choose import Tell, how_to_rent, payable
from infra.selection.machine_spec import LimitSpec, MachineSpec
from infra.settings import NO_KEY, Settings
from infra.units import BadAmount, cents, duration, in_usd, micro_usd, seconds, size, whole_usd
from store import credentials

USEFUL = 0.45  # share of the peak speed: 0.51 to 0.58 measured on one H200 from d20 to 2B, less on several GPUs
BUDGET_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
LONG_S = 86400.0  # a day: a longer simulation uses the forecast of the imitated machine
LARGE_BYTES, LARGE_VOLUME_BYTES = 50 * 10**9, 10**12  # size of checkpoints, and of a volume with data and caches
MEASURED, OF_TABLE = 3, 10  # factors on the high estimate
LEAST_MICRO_USD = 5_000_000
MOST_USD = "150"  # also the limit without a forecast: pods without work, sweeps, services
MOST_MICRO_USD = micro_usd(MOST_USD)
CENT = 10_000  # micro-USD
OTHER = "to change the limit: --spend-limit, --ttl"
PRACTICE = "inv rehearse"  # the command that rehearses a launch


@dataclass(frozen=True)
class Forecast:
    """Seconds and micro-USD of all nodes: low, expected, high. `is_cut`: a limit ends the run before the high end."""

    seconds: tuple[float, float, float]
    micro_usd: tuple[int, int, int]
    is_cut: bool


def machine_with(gpu: str, num_gpus: int, nodes: int = 1) -> MachineKind:
    """Return the machine kind with `num_gpus` GPUs per node, with the useful speed from the GPU table."""
    kind, per_gpu = (gpus.canonical_name(gpu), gpus.tflops(gpus.canonical_name(gpu))) if gpu else ("GPU", None)
    name = f"{num_gpus} x {kind}" if nodes == 1 else f"{nodes} nodes of {num_gpus} x {kind}"
    speed = None if per_gpu is None else USEFUL * per_gpu * 1e12 * num_gpus * nodes
    return MachineKind(name=name, flops_per_s=speed)


def forecast(
    work_s: tuple[float, float, float],
    offer: Offer,
    limits: Limits,
    nodes: int = 1,
    setup_s: tuple[float, float, float] = SETUP_S,
) -> Forecast:
    """Return the low, expected and high time and cost of the work on an offer, by the vendor's clock.

    `limits` apply to each pod and cap the times.
    """
    cut_s = hard_limit_s(replace(limits, micro_usd_per_hour=offer.micro_usd_per_hour))
    whole = [setup + work for setup, work in zip(setup_s, work_s, strict=True)]
    seconds = [one if cut_s is None else min(one, cut_s) for one in whole]
    costs = [math.ceil(one * nodes * offer.micro_usd_per_hour / 3600) for one in seconds]
    return Forecast((seconds[0], seconds[1], seconds[2]), (costs[0], costs[1], costs[2]), seconds[2] < whole[2])


def amount_of(flag: str, said: str) -> int:
    """Parse `40` or `$40` into micro-USD. Raises UsageError with the flag's name."""
    try:
        found = micro_usd(said.lstrip("$"))
    except BadAmount as error:
        raise UsageError(f"--{flag}: {error}") from None
    if found <= 0:
        raise UsageError(f"--{flag} is {said}; give an amount above 0")
    return found


def read_budget(said: str) -> tuple[str, int | None]:
    """Parse `NAME` or `NAME=USD` into the name and the amount in micro-USD, or None. Raises UsageError."""
    name, equals, amount = said.partition("=")
    if not BUDGET_NAME.fullmatch(name):
        raise UsageError(f"--budget {said}: expected NAME, or NAME=USD, such as evals=40")
    return name, amount_of("budget", amount) if equals else None


def limits_for(settings: Settings, is_rented: bool, spec: LimitSpec, practice: str = PRACTICE) -> Limits:
    """Return the limits from the typed flags; rented machines without limits get a default, see `is_open`, `with_most`.

    `practice`: see `refuse_money_flags`. Raises UsageError, also for an invalid budget.
    """
    spend_limit = spec.spend_limit
    time_s, idle_s = seconds(spec.ttl), seconds(spec.idle_stop)
    if not is_rented:
        machine = spec if isinstance(spec, MachineSpec) else MachineSpec()
        paid: dict[str, str | bool] = {"spend-limit": spec.spend_limit, "budget": spec.budget}
        paid |= {"max-price": machine.max_price, "use-spot": machine.use_spot}
        refuse_money_flags(settings, paid, {"gpu": machine.gpu, "num-gpus": machine.num_gpus}, practice)
        return Limits(time_s=time_s, idle_gpu_s=idle_s, reserve_bytes=settings.reserve_bytes)
    if spec.budget:
        read_budget(spec.budget)
    try:
        spend = micro_usd(spend_limit.lstrip("$")) if spend_limit else None
    except BadAmount as error:
        raise UsageError(f"--spend-limit: {error}") from None
    if spend == 0:
        raise UsageError("--spend-limit is 0; give an amount above 0")
    return Limits(time_s=time_s, spend_micro_usd=spend, idle_gpu_s=idle_s, reserve_bytes=settings.reserve_bytes)


def refuse_money_flags(
    settings: Settings,
    paid: Mapping[str, str | bool],
    others: Mapping[str, Any] | None = None,
    practice: str = PRACTICE,
    instead: str = "",
) -> None:
    """Raise UsageError for a flag of rented machines, with the way to rent if only the key of a vendor is missing.

    paid: values of the flags of rented machines, by name; falsy values are not typed. others: further flags of the
    command `practice`, which rehearses the same work. instead: advice about a flag for machines without costs.
    """
    if not (named := next((name for name, value in paid.items() if value), "")):
        return
    why = "this provider costs nothing"
    if settings.sources["provider"] == NO_KEY:
        how = how_to_rent({**(others or {}), **paid}, practice)
        why = f"without a key of a vendor the work runs on this machine, which costs nothing. {how}"
    raise UsageError(f"--{named} is for rented machines; {why}{instead}")


def is_open(limits: Limits) -> bool:
    """Return whether neither time nor money is limited; a rented machine then gets a default limit."""
    return limits.time_s is None and limits.spend_micro_usd is None


def with_most(limits: Limits, is_rented: bool, tell: Tell) -> Limits:
    """Return the limits of a rented pod with unknown work: the largest default limit if the limits are open."""
    if not (is_rented and is_open(limits)):
        return limits
    tell(default_limit(None, is_measured=False).description)
    return replace(limits, spend_micro_usd=MOST_MICRO_USD)


def forecast_of(plan: Plan, offer: Offer, settings: Settings) -> Forecast:
    """Return the forecast of the plan's time and cost on the offer, as the vendor bills; see `billed`."""
    assert plan.job is not None
    found = billed(plan)
    if found is None or found is plan.imitated:
        return shown_forecast(plan, offer)
    around = next((one for one in found.steps if one.step == AROUND), None)
    setup_s = setup_of(settings)
    if around and around.source != GUESS:
        scale = settings.clock_scale
        setup_s = (scale * around.low, scale * around.seconds, scale * around.high)
    return forecast(billed_s(plan, settings), offer, plan.job.limits, plan.request.nodes, setup_s)


def billed(plan: Plan) -> Estimate | None:
    """Return the estimate of the billed work; in a rehearsal, of the simulated work.

    If the simulation would take longer than LONG_S, return the estimate of the imitated machine. None = unknown.
    """
    is_long = plan.imitated is not None and bool(plan.forecast) and total(plan.forecast)[1] > LONG_S
    found = plan.imitated if is_long else plan.estimate
    return found if found is not None and found.steps else None


def billed_s(plan: Plan, settings: Settings) -> tuple[float, float, float]:
    """Return the low, expected and high time of the work by the vendor's clock, in seconds."""
    found = billed(plan)
    scale = 1.0 if found is None or found is plan.imitated else settings.clock_scale
    low, expected, high = total(one for one in (found.steps if found else ()) if one.step != AROUND)
    return scale * low, scale * expected, scale * high


def shown_forecast(plan: Plan, offer: Offer, is_cut: bool = True) -> Forecast:
    """Return the forecast on the offer's real machine, which a rehearsal only imitates.

    `is_cut`: apply the job's limits.
    """
    assert plan.job is not None
    low, expected, high = total(
        one for one in (plan.displayed_estimate.steps if plan.displayed_estimate else ()) if one.step != AROUND
    )
    limits = plan.job.limits if is_cut else Limits()
    return forecast((low, expected, high), offer, limits, plan.request.nodes)


def setup_of(settings: Settings) -> tuple[float, float, float]:
    """Return the low, expected and high seconds until work begins, by the vendor's clock.

    In a rehearsal, real set-up time is multiplied by the clock's scale.
    """
    scale = settings.clock_scale
    return (5 * scale, 15 * scale, 60 * scale) if settings.rehearsal else SETUP_S


def preflight(
    plan: Plan, offers: Sequence[Offer], settings: Settings, with_missing: bool, again: str, prepare: str, tell: Tell
) -> list[Offer]:
    """Run all checks without cost and return the affordable offers.

    `again`, `prepare`: see `check_work`. Raises UsageError.
    """
    check_work(plan, settings, with_missing, again, prepare)
    return payable(lasting(plan, roomy(plan, offers, tell), settings), plan.request.nodes, settings, tell)


def check_work(plan: Plan, settings: Settings, with_missing: bool, again: str, prepare: str) -> None:
    """Check the preconditions of work on a rented machine: reachable store, existing inputs. Raises UsageError.

    `again`: the command to make the inputs on the rented machine too. `prepare`: the command to make the inputs here.
    """
    if not settings.rehearsal and "://" not in plan.store:
        raise UsageError(
            f"artifacts would go to {plan.store}, which a rented machine cannot reach; "
            "choose a remote store: --store hf://user/repo, s3://bucket/folder or gs://bucket/folder"
        )
    is_google = credentials.kind(plan.store) == "gs" and not os.environ.get("STORAGE_EMULATOR_HOST")
    if is_google and plan.job and "GOOGLE_CREDENTIALS" not in plan.job.secrets:
        raise UsageError(
            f"a rented machine has no key to {plan.store}, because the login of gcloud stays on this machine; "
            "set GOOGLE_CREDENTIALS to the key file of a service account"
        )
    missing = [one.name for one in plan.artifacts if one.step and not one.name.split("/")[0].endswith("_checkpoints")]
    if (missing or plan.untyped) and not settings.rehearsal and not with_missing:
        first = "" if plan.untyped else f"make the inputs here first: {prepare}; or "
        raise UsageError(
            f"{', '.join([*missing, *plan.untyped])} would be made on the rented machine while billing, at the "
            f"price above; {first}make the inputs on the rented machine: {again}"
        )


def lasting(plan: Plan, offers: Sequence[Offer], settings: Settings) -> list[Offer]:
    """Return the offers on which limits in time and money last at least until work begins.

    Raises UsageError with advice if no offer remains.
    """
    assert plan.job is not None
    limits, setup_s = plan.job.limits, setup_of(settings)[0]

    def lasts_s(offer: Offer) -> float:
        limit_s = hard_limit_s(replace(limits, micro_usd_per_hour=offer.micro_usd_per_hour))
        return math.inf if limit_s is None else limit_s

    left = [one for one in offers if lasts_s(one) >= setup_s]
    if not left:
        longest = max(offers, key=lasts_s)
        costs = cents(math.ceil(setup_s * longest.micro_usd_per_hour * plan.request.nodes / 3600))
        raise UsageError(
            f"the limits end the pod after {duration(lasts_s(longest))} at most, before the work begins: set-up "
            f"alone takes about {duration(setup_s)}, {costs} USD; give larger limits: --spend-limit, --ttl"
        )
    return left


def roomy(plan: Plan, offers: Sequence[Offer], tell: Tell) -> list[Offer]:
    """Return the offers with enough disk for the checkpoints. Raises UsageError with the required size."""
    need_gb = -(-plan.disk_bytes // 10**9)
    small = next((one for one in offers if 0 < one.volume_bytes < max(plan.disk_bytes, LARGE_VOLUME_BYTES)), None)
    if small and small.volume_bytes < plan.disk_bytes:
        has = size(small.volume_bytes)
        raise UsageError(
            f"checkpoints take about {need_gb} GB, and volume {small.volume} has {has}; choose a larger volume"
        )
    if small and plan.disk_bytes >= LARGE_BYTES:
        tell(
            f"volume {small.volume} has {size(small.volume_bytes)}; for checkpoints of {need_gb} GB, "
            "data and caches, 1 TB is recommended"
        )
    fits = [one for one in offers if one.volume or not one.disk_bytes or one.disk_bytes >= plan.disk_bytes]
    if not fits:
        raise UsageError(
            f"checkpoints take about {need_gb} GB of disk, and these offers have less; add --disk-size {need_gb}"
        )
    return fits


@dataclass(frozen=True, kw_only=True)
class DefaultLimit:
    """A spend limit for all pods of a run, with the reason."""

    micro_usd: int
    reason: str

    @property
    def description(self) -> str:
        """Return the limit as a sentence, with the flags that set a different limit."""
        given = "neither --ttl nor --spend-limit is given"
        return f"{given}: the limit is {in_usd(self.micro_usd)}, {self.reason}; {OTHER}"


def default_limit(high_micro_usd: int | None, is_measured: bool) -> DefaultLimit:
    """Return the limit for a plan with the given high cost estimate in micro-USD; None = unknown cost.

    `is_measured`: the forecast is based on measurements of this kind of GPU, else on a table.
    """
    if high_micro_usd is None:
        return DefaultLimit(micro_usd=MOST_MICRO_USD, reason="because the cost of the work is unknown")
    times, basis = (MEASURED, "measurements of this kind of machine") if is_measured else (OF_TABLE, "a table")
    wanted = -(-times * high_micro_usd // CENT) * CENT
    found = max(LEAST_MICRO_USD, min(wanted, MOST_MICRO_USD))
    factor = f"{times} times the high estimate of {in_usd(high_micro_usd)}, based on {basis}"
    if found > wanted:
        return DefaultLimit(micro_usd=found, reason=f"the smallest default ({factor}, is less)")
    if found < wanted:
        short = high_micro_usd > found
        more = f"; the work may need more: --spend-limit {whole_usd(high_micro_usd)}" if short else ""
        return DefaultLimit(micro_usd=found, reason=f"the largest default ({factor}, is more){more}")
    return DefaultLimit(micro_usd=found, reason=factor)
