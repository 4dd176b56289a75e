"""The time and cost of work on kinds of machines, before a plan exists and without an account.

    words: phase, profile, steps, tokens, flags of packs -> work_named -> NamedWork
    NamedWork, offers of one kind of machine             -> quote -> Quote: low, middle, high, and the evidence

The input is words, settings, and offers of vendors or the price catalogue. Quotes use the estimator of plans
(`infra.market.step_times.estimate`), so that `cost --estimate`, `fit` and a plan show the same figures. The inputs of
the phases are not included.
"""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass, replace

from data.config import TextSpec
from flows.planning import estimates
from flows.planning.training_plan import PlannedWork, init_named
from flows.runs import work_kinds
from flows.specs import variables
from flows.specs.launch import LaunchSpec
from infra.agent.job import Limits
from infra.errors import MissingKey, UsageError
from infra.flags import Typed, flags_of
from infra.market import catalogue, gpus
from infra.market.filters import satisfying
from infra.market.step_times import SETUP_S
from infra.providers import offers as market
from infra.records import Estimate, Offer, Request
from infra.selection.machine_spec import MachineSpec
from infra.selection.preflight import forecast, machine_with
from infra.settings import Settings
from trainer import plan as planning
from trainer.config import PhaseConfig
from trainer.plan.estimates import known_text_bytes
from trainer.recipes import PROFILES, PUBLISHED
from trainer.records.phase_registry import PHASES

ESTIMATES = "Estimates"  # group of the flags of `inv cost` that describe the work


@dataclass(frozen=True, kw_only=True)
class NamedWork:
    """The phases selected by the words of the user."""

    words: str
    """Description of the phases and the recipe."""
    phases: tuple[PhaseConfig, ...]
    machine: MachineSpec = MachineSpec()
    """Machine requested with the phases."""
    text_bytes: int = 0
    """Size of the text of the phases; 0 = unknown."""


@dataclass(frozen=True, kw_only=True)
class Quote:
    """The low, middle and high estimate of time and cost on one kind of machine."""

    gpu: str
    """Requested GPU kind."""
    num_gpus: int
    estimate: Estimate | None
    """Estimate of the time; None if the user gave the time."""
    seconds: tuple[float, float, float]
    """Time of the work in seconds, without boot and set-up."""
    offer: Offer | None
    """Cheapest machine, or None without an offer."""
    median: int
    """Median price in micro-USD per hour."""
    offers: int
    micro_usd: tuple[int, int, int] | None
    """Cost in micro-USD with boot and set-up: low and middle at the lowest price, high at the median price."""


def work_named(
    phase: str, asked: Typed, settings: Settings, steps: int | None = None, tokens: float = 0.0
) -> NamedWork:
    """Return the selected phases of the recipe in the settings or the variables.

    asked: the flags that packs add to `inv cost`. tokens: length of the single named phase. The hub is not queried for
    the published model of a profile. Raises UsageError.
    """
    added = [one for record in asked.added for one in flags_of(type(record)) if one.group == ESTIMATES]
    flags = ["--phase", *(f"--{one.spelling}" for one in added)]
    spec = LaunchSpec(phase=phase or "sft", steps=steps, typed=frozenset({"steps"} if steps else ()))
    other = work_kinds.work_to_estimate(asked, spec, settings)
    if phase and other:
        raise UsageError(f"give only one of {', '.join(flags[:-1])} and {flags[-1]}")
    if not phase and not other:
        raise UsageError(f"no work is named; give {', '.join(flags[:-1])} or {flags[-1]}, or --hours for any work")
    spec, machine = (other.spec, other.machine) if other else (variables.applied(spec, settings.given), MachineSpec())
    settings = replace(settings, profile=spec.profile or settings.profile)
    if _is_of_its_shape(init_named(spec, settings), settings.profile):
        spec = replace(spec, init="")
    wanted = PlannedWork.from_spec(spec, settings).training_request(settings)
    if tokens and any("tokens" in PHASES[one].sizes for one in wanted.phases):
        wanted, tokens = replace(wanted, sizes={**wanted.sizes, "tokens": round(tokens)}), 0.0
    nodes = planning.recipe(wanted)
    found = tuple(one for name in wanted.phases if isinstance(one := nodes[name].spec, PhaseConfig))
    if tokens:
        found = (_of_tokens(found, tokens),)
    what = other.words if other else f"phase {spec.phase}"
    model = f"{max(one.model.num_params for one in found) / 1e6:,.0f}M parameters"
    length = ", ".join(f"{one.phase} {one.steps:,} steps" for one in found if one.steps)
    text_bytes = sum(known_text_bytes(one.spec) for one in nodes.values() if isinstance(one.spec, TextSpec))
    words = f"{what} of {settings.profile} ({model}; {length})"
    return NamedWork(words=words, phases=found, machine=machine, text_bytes=text_bytes)


def _is_of_its_shape(init: str, profile: str) -> bool:
    """Return whether `init` is a published model with the shape of the recipe."""
    shape = planning.profile_named(profile).phases["base"].model
    return any(
        init == address and shape == PROFILES[name]().phases["base"].model for name, address in PUBLISHED.items()
    )


def _of_tokens(phases: Sequence[PhaseConfig], tokens: float) -> PhaseConfig:
    """Return the single phase resized to `tokens`. Raise UsageError if tokens do not define the length of the phase."""
    one = phases[-1]
    if len(phases) > 1 or not (one.reads_text and one.trains):
        said = "+".join(each.phase for each in phases)
        sized = "".join(f", or of {one.name}" for one in PHASES.values() if "tokens" in one.sizes)
        raise UsageError(f"--tokens is the length of a single phase that reads text{sized}; for {said}, give --steps")
    return one.with_steps(math.ceil(tokens / (one.rows * one.sequence_len)))


def quote(
    work: Sequence[PhaseConfig] | float,
    kind: str,
    num_gpus: int,
    offered: Sequence[Offer],
    settings: Settings,
    nodes: int = 1,
    spot: bool = False,
    text_bytes: int = 0,
) -> Quote:
    """Return the quote for phases, or for a number of seconds, on machines of a GPU kind among the offers.

    The time is an estimate for the cheapest machine. text_bytes: size of the text of the phases; 0 = unknown. Raise
    UsageError for a GPU kind without a known speed.
    """
    request = Request(run="new", gpu=kind, num_gpus=num_gpus, spot=spot)
    fitting = satisfying(request, offered)
    first = fitting[0] if fitting else None
    found, setup_s = None, (0.0, 0.0, 0.0)
    if isinstance(work, float):
        seconds = (work, work, work)
    else:
        machine = machine_with(first.gpu if first else kind, num_gpus, nodes)
        found, setup_s = estimates.of_phases(work, machine, settings, text_bytes), SETUP_S
        if not found.steps:
            raise UsageError(
                f"the speed of {kind} is not known; give --hours; GPUs with a known speed: {', '.join(gpus.TFLOPS)}"
            )
        seconds = found.range_s
    median, usd = 0, None
    if first:
        median = math.ceil(statistics.median(one.micro_usd_per_hour for one in fitting))
        low, middle, _ = forecast(seconds, first, Limits(), nodes, setup_s).micro_usd
        usual = replace(first, micro_usd_per_hour=median)
        usd = (low, middle, forecast(seconds, usual, Limits(), nodes, setup_s).micro_usd[2])
    return Quote(
        gpu=kind,
        num_gpus=num_gpus,
        estimate=found,
        seconds=seconds,
        offer=first,
        median=median,
        offers=len(fitting),
        micro_usd=usd,
    )


@dataclass(frozen=True, kw_only=True)
class CurrentOffers:
    """The current offers, or the price catalogue without an account."""

    offers: tuple[Offer, ...]
    silent: tuple[str, ...] = ()
    """Vendors that did not answer, with reasons."""
    dated: str = ""
    """Dates of the catalogue prices; "" for current offers."""


def offers_of(
    kinds: Sequence[tuple[str, int]], settings: Settings, provider: str = "", spot: bool = False
) -> CurrentOffers:
    """Return the offers of all vendors with a key for these GPU kinds and counts, else the catalogue."""
    wanted = Request(run="new", gpu=",".join(f"{kind}:{count}" for kind, count in kinds), spot=spot)
    try:
        asked = [one for one in market.sources(settings, provider) if one.name != "ssh"]  # no market price
        if not asked:
            raise MissingKey("no vendor's key is set")
    except MissingKey as error:
        listed = catalogue.read(catalogue.file_beside(settings.state_file), provider)
        fitting = [one for one in listed if any(gpus.is_asked(kind, one.offer.gpu) for kind, _ in kinds)]
        dates = "; ".join(sorted({one.label for one in fitting}))
        return CurrentOffers(
            offers=tuple(one.offer for one in listed), dated=dates, silent=(f"prices without a current offer: {error}",)
        )
    seen = market.survey(asked, wanted)
    silent = tuple(f"{one.provider}: {' '.join(str(one.error).split())}" for one in seen.failures)
    return CurrentOffers(offers=tuple(seen.considered), silent=silent)
