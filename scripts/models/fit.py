"""The commands `inv fit` and `inv config --profile`: the recipes as tables, and the GPUs on which they fit."""

from dataclasses import asdict
from typing import Any

from infra.errors import UsageError
from infra.market import gpus
from infra.money import dollars
from infra.providers import offers as market
from infra.records import Offer, Request
from infra.settings import Settings
from scripts.cli import context, render
from scripts.cli.invoke_patch import print_json
from scripts.cli.render import columns
from scripts.models.flags import FitFlags
from trainer import memory
from trainer.config import PhaseConfig, Profile
from trainer.memory import Fit
from trainer.plan import profile_named

GB = 10**9


def fit(spec: FitFlags) -> None:
    if spec.num_gpus < 1 or spec.nodes < 1:
        raise UsageError(f"--num-gpus {spec.num_gpus} --nodes {spec.nodes}: at least 1 of each")
    settings = context.settings(profile=spec.profile)
    recipe = profile_named(settings.profile)
    if spec.phase not in recipe.phases:
        raise UsageError(f"--phase {spec.phase}: known: {', '.join(recipe.phases)}")
    config = recipe.phases[spec.phase]
    kinds = kinds_of(spec.gpu)
    found = {kind.name: memory.largest(config, kind.memory_gb * GB, spec.num_gpus, spec.nodes) for kind in kinds}
    offers = offers_of(settings)
    if spec.json:
        print_json({
            "profile": recipe.name, "phase": spec.phase, "params": config.model.num_params, "rows": config.rows,
            "sequence_len": config.sequence_len,
            "gpus": [about(kind, found[kind.name], cheapest(kind.name, offers)) for kind in kinds],
        })  # fmt: skip
        return
    gpus_each = f"{spec.num_gpus} GPUs" if spec.num_gpus > 1 else "one GPU"
    machines = gpus_each if spec.nodes == 1 else f"{spec.nodes} machines of {gpus_each}"
    batch = f"{config.rows} x {config.sequence_len} tokens a step"
    print(f"{recipe.name}, {spec.phase}: {config.model.num_params:,} parameters, {batch} (estimates; {machines})")
    if spec.gpu and len(kinds) == 1:
        print(parts(kinds[0], found[kinds[0].name]))
    else:
        print(table(kinds, found, offers))
    for line in advice(recipe, config, kinds, found, offers):
        render.say(line)


def kinds_of(asked: str) -> list[gpus.Gpu]:
    """Return those of the table that are meant, smallest first. Raises UsageError when none is."""
    kinds = [one for one in gpus.GPUS if not asked or gpus.is_asked(asked, one.name)]
    if not kinds:
        raise UsageError(f"--gpu {asked}: not known; known: {', '.join(one.name for one in gpus.GPUS)}")
    if asked and len({one.memory_gb for one in kinds}) == 1:
        kinds = kinds[:1]
    return sorted(kinds, key=lambda one: one.memory_gb)


def offers_of(settings: Settings) -> list[Offer]:
    """Return one GPU of each kind, as it can be had now; [] when there is nobody to ask."""
    try:
        asked = market.sources(settings)
    except UsageError:
        return []
    found = market.survey(asked, Request(run="new", num_gpus=1))
    for one in found.silent:
        render.say(render.clean(f"{one.provider}: {' '.join(str(one.error).split())}"))
    return list(found.offers)


def cheapest(kind: str, offers: list[Offer]) -> Offer | None:
    mine = [one for one in offers if one.gpu and gpus.is_asked(kind, one.gpu)]
    return min(mine, key=lambda one: one.micro_usd_per_hour, default=None)


def parts(kind: gpus.Gpu, found: Fit) -> str:
    rows = [(name, render.size(size)) for name, size in asdict(found.memory).items()]
    rows += [("spread", f"{found.parallel} over {found.gpus}")] if found.gpus > 1 else []
    rows += [("together", render.size(found.memory.total)), (kind.name, render.size(kind.memory_gb * GB))]
    return columns(rows)


def table(kinds: list[gpus.Gpu], found: dict[str, Fit], offers: list[Offer]) -> str:
    rows = [("GPU", "memory", "takes", "micro-batch", "steps of it", "recompute", "spread", "from USD/h")]
    for kind in kinds:
        one, offer = found[kind.name], cheapest(kind.name, offers)
        size, times = (f"{one.config.micro_rows}", f"{one.accumulation}") if one.fits else ("does not fit", "")
        again = "yes" if one.config.recompute else "no"
        price = dollars(offer.micro_usd_per_hour) if offer else "?"
        spread = one.parallel if one.gpus > 1 else ""
        rows.append(
            (kind.name, f"{kind.memory_gb} GB", render.size(one.memory.total), size, times, again, spread, price)
        )
    return columns(rows)


def advice(
    recipe: Profile, config: PhaseConfig, kinds: list[gpus.Gpu], found: dict[str, Fit], offers: list[Offer]
) -> list[str]:
    """Return the conclusions, in words."""
    lines = []
    fitting = [kind for kind in kinds if found[kind.name].fits]
    if not fitting:
        lines.append(f"{recipe.name} fits on none of these, not even one row at a time with recomputation")
    elif len(kinds) == 1:
        one = found[fitting[0].name]
        phase, again = config.phase, ", recompute: true" if one.config.recompute and not config.recompute else ""
        lines.append(
            f"largest micro-batch: {one.config.micro_rows} rows, {one.accumulation} times a step (the profile has "
            f"{config.micro_rows}); in a file: phases: {{{phase}: {{micro_rows: {one.config.micro_rows}{again}}}}}"
        )
    priced = [(offer, kind) for kind in fitting if (offer := cheapest(kind.name, offers))]
    if priced:
        offer, kind = min(priced, key=lambda one: one[0].micro_usd_per_hour)
        lines.append(f"cheapest that fits: {kind.name} at {offer.provider}, {dollars(offer.micro_usd_per_hour)} USD/h")
    elif not offers:
        lines.append("no offers were seen: no vendor's key is set, or none has one GPU alone; see inv offers")
    return lines


def about(kind: gpus.Gpu, found: Fit, offer: Offer | None) -> dict[str, Any]:
    """Return how a recipe fits one kind of GPU, as JSON; `takes` in bytes of each GPU."""
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
    }


def show(name: str, params: bool, json: bool) -> None:
    """Show all of a recipe, or its parameters alone, for `inv config --profile`."""
    recipe = profile_named(name)
    model = recipe.phases["base"].model
    counts = {"total": model.num_params, "embedding": model.vocab_size * model.hidden_size,
              "multiplied": model.num_matrix_params}  # fmt: skip
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
    """Return nested mappings as dotted keys; what is None is left out."""
    found: list[tuple[str, Any]] = []
    for key, value in values.items():
        if isinstance(value, dict) and key != "mixture":
            found += plain(value, f"{before}{key}.")
        elif value is not None:
            found.append((f"{before}{key}", value))
    return found


def short(count: int) -> str:
    """Return a count as 1.97B or 22.2M."""
    return f"{count / 1e9:.2f}B" if count >= 1e9 else f"{count / 1e6:.1f}M"
