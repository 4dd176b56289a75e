"""A sweep in a rehearsal: its machines are simulated, and its models are replaced by toys where they are large.

    SweepSpec -> `reduced` -> the same pods, runs, arms and order, with toys; and what each run would be on its machine

A rehearsed pod is a process of this machine. It cannot train a billion parameters, and loads no model of the hub.
"""

import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from flows.specs.launch import LaunchSpec
from infra.checkout import ROOT
from infra.units import count
from packs.sweeps.control.trials.records import SweepSpec, SweepTrial
from trainer.config import PhaseConfig
from trainer.plan import parse_phases, profile_named
from trainer.recipes import PUBLISHED
from trainer.records import phase_options
from trainer.records.phase_registry import PHASES

MOST_PARAMS = 30e6  # of a model that a few CPUs train in minutes
TOY = "tiny"
TASK = "sort"  # problems that are made without the hub
ROWS = 16  # of a step of a toy, at most
# Options that a toy keeps, as parts of their paths: what arms differ in, but for sizes and numbers of steps.
KEPT = (".optimizer.", ".rl.loss", ".rl.clip", ".rl.beta")
SIZES = ("saliency_warmup",)
SIZES_AS_FLAGS = ("steps", "tokens", "block_size", "batch_size", "grad_accum")
# Flags of models and data that are not here, and of GPUs that a rehearsed pod does not have.
OF_LARGE_MODELS = (
    *("init", "source", "packages", "text_column", "filter", "mixture", "problems", "reward"),
    *("engine", "engine_devices", "train_devices"),
)


@dataclass(frozen=True, kw_only=True)
class Rehearsed:
    """A sweep of which a rehearsal does only what this machine can do."""

    spec: SweepSpec
    profile: str
    """Profile of the runs that name none."""
    real: Mapping[str, LaunchSpec]
    """The launches that toys stand for, by the names of the runs."""


def reduced(spec: SweepSpec, profile: str) -> Rehearsed:
    """Return the sweep with a toy for each run of a large model. Raises UsageError for an impossible run.

    profile: of the runs that name none.
    """
    trials: dict[str, SweepTrial] = {}
    real: dict[str, LaunchSpec] = {}
    for run, one in spec.trials.items():
        if not is_large(one.spec, profile):
            trials[run] = one
            continue
        toy, real[run] = toy_of(one.spec), one.spec
        # Arms may differ in what toys do not have, and runs that make the same artifact would make it once. This number
        # changes nothing but the fingerprint.
        last, own = parse_phases(toy.phase)[-1], 1e-8 * (1 + zlib.crc32(run.encode()) / 2**40)
        toy = replace(toy, options={**toy.options, f"{last}.optimizer.eps": f"{own:.12g}"})
        trials[run] = replace(one, spec=toy)
    about = f"{spec.about} (rehearsed: the runs are toys)" if real else spec.about
    return Rehearsed(spec=replace(spec, trials=trials, about=about), profile=profile, real=real)


def is_large(spec: LaunchSpec, profile: str) -> bool:
    """Return whether a launch is of a model that is not trained here in minutes, or that is on the hub."""
    return spec.init == "hub" or spec.init.startswith("hf://") or _params(spec, profile) > MOST_PARAMS


def toy_of(spec: LaunchSpec) -> LaunchSpec:
    """Return the launch of a toy that goes through the same phases on the same machine."""
    phases = [PHASES[name] for name in parse_phases(spec.phase)]
    kept = (*KEPT, *(part for one in phases for part in one.toy_options))
    options = {
        path: text
        for path, text in spec.options.items()
        if any(part in path for part in kept) and path.rpartition(".")[2] not in SIZES
    }
    if "rl.micro_rows" in spec.options:
        options |= {"rl.rows": str(ROWS), "rl.micro_rows": str(min(ROWS, int(spec.options["rl.micro_rows"])))}
    is_of_rl = "rl" in parse_phases(spec.phase)
    more: dict[str, Any] = dict.fromkeys(SIZES_AS_FLAGS)
    more |= {
        **dict.fromkeys(OF_LARGE_MODELS, ""),
        "engine_tensor_parallel": None,
        "lag": 0,
        "task": TASK if is_of_rl else "",
    }
    profile = next((str(ROOT / one.toy) for one in phases if one.toy), TOY)
    return replace(spec, **more, profile=profile, options=options, with_missing=True)


def rows(found: Rehearsed) -> Iterator[tuple[str, str, str]]:
    """Yield the name of each run that has a toy, what it is on its machine, and what it is here."""
    for run, real in found.real.items():
        yield run, described(real, found.profile), described(found.spec.trials[run].spec, found.profile)


def described(spec: LaunchSpec, profile: str) -> str:
    """Return a training in words: its model, its phases and their steps, and what gives answers."""
    named = PUBLISHED.get(spec.profile or profile, "") if spec.init == "hub" else spec.init
    model = named.removeprefix("hf://") or f"a model of {_params(spec, profile):,} parameters"
    phases = list(phases_of(spec, profile))
    said = f"{', '.join(f'{one.phase} {one.steps:,}' for one in phases)} steps of {model}"
    of_rl = next((one for one in phases if one.rl is not None), None)
    if of_rl is None:
        return said
    said += f" on {spec.task or ', '.join(of_rl.mixture or {})}, {count(of_rl.rows, 'answer')} a step"
    return f"{said}, answers by vLLM on GPUs {spec.engine_devices}" if spec.engine == "vllm" else said


def phases_of(spec: LaunchSpec, profile: str) -> Iterator[PhaseConfig]:
    """Yield the phases of a launch, as far as they are known without the model that it begins with."""
    whole = profile_named(spec.profile or profile)
    for name in parse_phases(spec.phase):
        if name in whole.phases:
            found = whole.phases[name]
            found = found if spec.steps is None or not found.steps else found.in_steps(spec.steps)
            yield phase_options.with_options(found, spec.options)


def _params(spec: LaunchSpec, profile: str) -> int:
    return max((one.model.num_params for one in phases_of(spec, profile)), default=0)
