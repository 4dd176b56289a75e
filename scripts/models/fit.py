"""The commands `inv fit` and `inv config --profile`: recipes as tables, and the GPUs with enough memory."""

import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from data.config import TextSpec
from flows.planning.training_plan import source_of
from flows.reading import quotes
from flows.reading.quotes import Quote
from flows.specs.work import phase_changes
from infra import units
from infra.errors import UsageError
from infra.flags import Typed, flag
from infra.market import gpus
from infra.market.step_times import evidence
from infra.settings import Settings
from infra.units import cents, dollars
from scripts.cli import context, render
from scripts.cli.command import BEGIN, command
from scripts.cli.flags import Output
from scripts.cli.plan_text import whole_s
from scripts.cli.render import columns, print_json
from store import terminal
from trainer.config import PhaseConfig, Profile
from trainer.memory import USABLE
from trainer.parallel import fitting
from trainer.parallel.fitting import Fit
from trainer.plan import profile_named
from trainer.plan.estimates import known_text_bytes

GB = 10**9
MOST_NAMED = 6  # kinds of GPU in a sentence


@dataclass(frozen=True, kw_only=True)
class FitFlags(Output, Typed):
    profile: str = flag("", "recipe (model and training): a name, or a .yaml file")
    phase: str = flag("base", "phase of the recipe")
    gpu: str = flag(
        "", "check only this kind of GPU, or kinds: H100, H100:8, A100-80GB,H100; one kind: memory part by part"
    )
    num_gpus: int = flag(
        1, "GPUs per machine; each GPU holds the whole model (ddp) or a shard of the model (fsdp, hybrid)"
    )
    nodes: int = flag(1, "number of machines")


@command(record=FitFlags, world=BEGIN, example="inv fit --profile runpod_1b --gpu H100")
def fit(spec: FitFlags) -> None:
    """Show which GPUs a recipe fits on, and with which batch.

    The effective batch stays the same. With --gpu, memory is shown part by part.
    """
    if spec.num_gpus < 1 or spec.nodes < 1:
        raise UsageError(f"--num-gpus {spec.num_gpus} --nodes {spec.nodes}: both must be at least 1")
    settings = context.settings(profile=spec.profile)
    recipe = profile_named(settings.profile)
    if spec.phase not in recipe.phases:
        raise UsageError(f"--phase {spec.phase}: known: {', '.join(recipe.phases)}")
    config, changes = recipe.phases[spec.phase], phase_changes(spec.added, settings)
    if idle := [flag for flag, change in changes.items() if change(config) is config]:
        raise UsageError(f"{', '.join(idle)}: no effect on the phase {spec.phase}")
    for change in dict.fromkeys(changes.values()):  # flags may share a change
        config = change(config)
    kinds = kinds_of(spec.gpu)
    spec = replace(spec, num_gpus=number_of(spec.gpu, spec.num_gpus))
    found = {kind.name: fitting.largest(config, kind.memory_gb * GB, spec.num_gpus, spec.nodes) for kind in kinds}
    seen = offers_of(kinds, spec.num_gpus, settings)
    text_bytes = known_text_bytes(TextSpec(source=source_of(settings)))
    said = {
        kind.name: quotes.quote(
            [config], kind.name, spec.num_gpus, seen.offers, settings, spec.nodes, text_bytes=text_bytes
        )
        for kind in kinds
        if found[kind.name].fits and gpus.tflops(kind.name)
    }
    if spec.json:
        print_json(
            {
                "profile": recipe.name,
                "phase": spec.phase,
                "params": config.model.num_params,
                "rows": config.rows,
                "sequence_len": config.sequence_len,
                "prices_as_of": seen.dated or None,
                "gpus": [about(kind, found[kind.name], said.get(kind.name)) for kind in kinds],
            }
        )
        return
    gpus_each = f"{spec.num_gpus} GPUs" if spec.num_gpus > 1 else "one GPU"
    machines = gpus_each if spec.nodes == 1 else f"{spec.nodes} machines of {gpus_each}"
    batch = f"{config.rows} x {config.sequence_len} tokens a step"
    title = f"{recipe.name}, {spec.phase}: {config.model.num_params:,} parameters, {config.steps:,} steps, {batch}"
    print(terminal.wrap_text(f"{title} (estimates; {machines})", sys.stdout))
    if spec.gpu and len(kinds) == 1:
        print(parts(kinds[0], found[kinds[0].name]))
    elif fitting_kinds := [kind for kind in kinds if found[kind.name].fits]:
        print(table(fitting_kinds, found, said))
    for line in advice(recipe, config, kinds, found, said):
        render.say(line)
    if seen.dated:
        render.say(f"no current offer matches; the prices are from the catalogue ({seen.dated})")
    for line in seen.silent:
        render.say(render.clean(line))


def number_of(asked: str, num_gpus: int) -> int:
    """Return the number of GPUs in `H100:8`, or `num_gpus` without a number. Raises UsageError for several numbers."""
    numbers = {number or num_gpus for _, number in gpus.read_set(asked)} or {num_gpus}
    if len(numbers) > 1:
        raise UsageError(f"--gpu {asked}: fit compares machines with one number of GPUs; give each number alone")
    return numbers.pop()


def kinds_of(asked: str) -> list[gpus.Gpu]:
    """Return the GPU kinds of a set such as `A100:1,H100`, smallest memory first.

    One kind stands for all kinds of a name if the memory is the same. Raises UsageError for an unknown kind.
    """
    kinds = [] if asked else list(gpus.GPUS)
    near = gpus.typos(asked)
    for name, _ in gpus.read_set(asked):
        matching = [one for one in gpus.GPUS if gpus.is_asked(name, one.name)]
        if not matching:
            known = (
                f"did you mean {near[name]}?" if name in near else f"known: {', '.join(one.name for one in gpus.GPUS)}"
            )
            raise UsageError(f"--gpu {name} is unknown; {known}")
        kinds += matching[:1] if len({one.memory_gb for one in matching}) == 1 else matching
    return sorted(dict.fromkeys(kinds), key=lambda one: one.memory_gb)


def offers_of(kinds: list[gpus.Gpu], num_gpus: int, settings: Settings) -> quotes.CurrentOffers:
    """Return offers of machines with `num_gpus` GPUs of each kind, current offers or else the catalogue."""
    return quotes.offers_of([(one.name, num_gpus) for one in kinds], settings)


def parts(kind: gpus.Gpu, found: Fit) -> str:
    rows = [(name, render.size(size)) for name, size in asdict(found.memory).items()]
    rows += [("spread", f"{found.parallel} over {found.gpus}")] if found.gpus > 1 else []
    rows += [("together", render.size(found.memory.total)), (kind.name, render.size(kind.memory_gb * GB))]
    return columns(rows)


def table(kinds: list[gpus.Gpu], found: dict[str, Fit], said: Mapping[str, Quote]) -> str:
    """Return a row per GPU kind that fits: memory, and the phase's duration and cost on the cheapest machine."""
    rows = [("GPU", "memory", "takes", "micro-batch", "steps of it", "recompute", "spread", "USD/h", "about", "USD")]
    for kind in kinds:
        one, quote = found[kind.name], said.get(kind.name)
        again = "yes" if one.config.recompute else "no"
        price = units.rate(quote.offer.micro_usd_per_hour) if quote and quote.offer else "?"
        spread = one.parallel if one.gpus > 1 else ""
        time = units.estimated(quote.seconds[1]) if quote else "?"
        usd = cents(quote.micro_usd[1]) if quote and quote.micro_usd else "?"
        rows.append(
            (
                kind.name,
                f"{kind.memory_gb} GB",
                render.size(one.memory.total),
                f"{one.config.micro_rows}",
                f"{one.accumulation}",
                again,
                spread,
                price,
                time,
                usd,
            )
        )
    return columns(rows, least=(6, 5, 4, 1, 2))


def advice(
    recipe: Profile, config: PhaseConfig, kinds: list[gpus.Gpu], found: dict[str, Fit], said: Mapping[str, Quote]
) -> list[str]:
    """Return the conclusions as text: the largest micro-batch, and the cheapest GPU with enough memory."""
    lines = []
    fitting = [kind for kind in kinds if found[kind.name].fits]
    small = [kind for kind in kinds if not found[kind.name].fits]
    if small and len(kinds) > 1:
        needed = render.size(min(found[kind.name].memory.total for kind in small))
        names = ", ".join(f"{kind.name} ({kind.memory_gb} GB)" for kind in small)
        if len(small) > MOST_NAMED:
            names = f"{len(small)} kinds with {small[0].memory_gb} to {small[-1].memory_gb} GB"
        lines.append(
            f"too small: {names}; a row with recomputation needs {needed}, and a training can use {USABLE:.0%} of the "
            "memory of a GPU"
        )
    if not fitting:
        lines.append(
            f"{recipe.name} fits on none of these GPUs, not even with a single row per micro-batch and recomputation"
        )
    elif len(kinds) == 1:
        one = found[fitting[0].name]
        phase, again = config.phase, ", recompute: true" if one.config.recompute and not config.recompute else ""
        lines.append(
            f"largest micro-batch: {one.config.micro_rows} rows, {one.accumulation} forward passes per "
            f"step (the profile has {config.micro_rows} rows). In a file of flags: phases: {{{phase}: "
            f"{{micro_rows: {one.config.micro_rows}{again}}}}}"
        )
    priced = [(one.offer.micro_usd_per_hour, name, one) for name, one in said.items() if one.offer]
    if priced:
        _, name, best = min(priced, key=lambda each: each[:2])
        assert best.offer and best.micro_usd and best.estimate
        low, middle, high = best.seconds
        lines.append(
            f"cheapest GPU with enough memory: {name} at {best.offer.provider}, "
            f"{units.per_hour(best.offer.micro_usd_per_hour)}; the phase takes {units.about(middle)} "
            f"({units.between(low, high)}; {evidence(best.estimate)}), {cents(best.micro_usd[1])} USD "
            "with boot and set-up"
        )
    return lines


def about(kind: gpus.Gpu, found: Fit, quote: Quote | None) -> dict[str, Any]:
    """Return the fit of a recipe on a GPU kind for JSON; `takes` is in bytes per GPU."""
    offer = quote.offer if quote else None
    return {
        "gpu": kind.name,
        "memory_bytes": kind.memory_gb * GB,
        "fits": found.fits,
        "micro_rows": found.config.micro_rows,
        "accumulation": found.accumulation,
        "recompute": found.config.recompute,
        "parallel": found.parallel,
        "takes": {**asdict(found.memory), "total": found.memory.total},
        "provider": offer.provider if offer else None,
        "usd_per_hour": dollars(offer.micro_usd_per_hour) if offer else None,
        "estimate_s": whole_s(quote.seconds[1]) if quote else None,
        "estimate_range_s": [whole_s(quote.seconds[0]), whole_s(quote.seconds[2])] if quote else None,
        "estimate_from": evidence(quote.estimate) if quote and quote.estimate else None,
        "usd": dollars(quote.micro_usd[1]) if quote and quote.micro_usd else None,
    }


def show(name: str, params: bool, json: bool) -> None:
    """Print a recipe, or only the parameter count if `params`, for `inv config --profile`."""
    recipe = profile_named(name)
    model = recipe.phases["base"].model
    counts = {
        "total": model.num_params,
        "embedding": model.vocab_size * model.hidden_size,
        "multiplied": model.num_matrix_params,
    }
    if params:
        if json:
            print_json({"profile": recipe.name, "params": counts})
        else:
            print(f"{recipe.name}: {short(model.num_params)} parameters ({model.num_params:,})")
        return
    if json:
        print_json({**asdict(recipe), "params": counts})
        return
    shapes = asdict(model)
    rows = [(f"model.{key}", str(value)) for key, value in shapes.items() if value is not None]
    for phase, config in recipe.phases.items():
        settings = [(key, value) for key, value in plain(asdict(config)) if not key.startswith("model.")]
        rows += [(f"{phase}.{key}", str(value) or "-") for key, value in settings]
    rows += [(f"keeping.{key}", str(value) or "-") for key, value in asdict(recipe.keeping).items()]
    print(f"{recipe.name}: {short(model.num_params)} parameters ({model.num_params:,})")
    print(columns(rows))


def plain(values: dict[str, Any], before: str = "") -> list[tuple[str, Any]]:
    """Flatten nested mappings to dotted keys, without None values; a `mixture` stays a mapping."""
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        if isinstance(value, dict) and key != "mixture":
            found += plain(value, f"{before}{key}.")
        elif value is not None:
            found.append((f"{before}{key}", value))
    return found


def short(count: int) -> str:
    """Format a parameter count as 1.97B or 22.2M."""
    return f"{count / 1e9:.2f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"
