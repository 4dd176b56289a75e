"""Sweep in a rehearsal: simulates the machines, and replaces large models by toys.

    SweepSpec -> `reduced` -> same pods, runs, arms and order, with toys; descriptions of the real runs

A rehearsed pod is a process on this machine, which can neither train a billion parameters nor load a model from the
hub.
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

MOST_PARAMS = 30e6  # parameters; a few CPUs train such a model in minutes
TOY = "tiny"
TASK = "sort"  # problems generated without the hub
ROWS = 16  # upper limit for the rows per step of a toy
# Options kept for a toy, as parts of their paths: the options in which arms differ, except sizes and step counts.
KEPT = (".optimizer.", ".rl.loss", ".rl.clip", ".rl.beta")
SIZES = ("saliency_warmup",)
# Flags for models and data missing on this machine, and for GPUs missing on a rehearsed pod.
OF_LARGE_MODELS = (
    *("init", "source", "packages", "text_column", "text_unit", "filter", "mixture", "problems", "reward"),
    *("engine", "engine_devices", "train_devices"),
)


@dataclass(frozen=True, kw_only=True)
class RehearsedSweep:
    """Sweep for a rehearsal on this machine, with toys in place of large models."""

    spec: SweepSpec
    profile: str
    """Profile of the runs that name none."""
    real: Mapping[str, LaunchSpec]
    """Launches that toys replace, by run name."""


def reduced(spec: SweepSpec, profile: str) -> RehearsedSweep:
    """Return the sweep with a toy for each run of a large model. Raises UsageError for an impossible run.

    profile: profile of the runs that name none.
    """
    trials: dict[str, SweepTrial] = {}
    real: dict[str, LaunchSpec] = {}
    for run, one in spec.trials.items():
        if not is_large(one.spec, profile):
            trials[run] = one
            continue
        toy, real[run] = toy_of(one.spec), one.spec
        # Arms may differ only in settings without effect on toys, and identical artifacts would be made only once. A
        # distinct epsilon changes only the fingerprint.
        last, own = parse_phases(toy.phase)[-1], 1e-8 * (1 + zlib.crc32(run.encode()) / 2**40)
        toy = replace(toy, options={**toy.options, f"{last}.optimizer.eps": f"{own:.12g}"})
        trials[run] = replace(one, spec=toy)
    about = f"{spec.about} (rehearsed: the runs are toys)" if real else spec.about
    return RehearsedSweep(spec=replace(spec, trials=trials, about=about), profile=profile, real=real)


def is_large(spec: LaunchSpec, profile: str) -> bool:
    """Return whether a launch uses a model from the hub, or a model with more than `MOST_PARAMS` parameters."""
    return spec.init == "hub" or spec.init.startswith("hf://") or _params(spec, profile) > MOST_PARAMS


def toy_of(spec: LaunchSpec) -> LaunchSpec:
    """Return the launch of a toy with the same phases on the same machine."""
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
    more: dict[str, Any] = {
        "steps": None,
        "added": (),  # the flags of packs set sizes
        **dict.fromkeys(OF_LARGE_MODELS, ""),
        "engine_tensor_parallel": None,
        "lag": 0,
        "task": TASK if is_of_rl else "",
    }
    profile = next((str(ROOT / one.toy) for one in phases if one.toy), TOY)
    return replace(spec, **more, profile=profile, options=options, with_missing=True)


def rows(found: RehearsedSweep) -> Iterator[tuple[str, str, str]]:
    """Yield run name, description of the real run and description of the toy for each replaced run."""
    for run, real in found.real.items():
        yield run, described(real, found.profile), described(found.spec.trials[run].spec, found.profile)


def described(spec: LaunchSpec, profile: str) -> str:
    """Describe a training in words: phases with steps, model, and for RL the task and the generation engine."""
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
    """Yield the phase configurations of a launch, as far as known without loading the initial model."""
    whole = profile_named(spec.profile or profile)
    for name in parse_phases(spec.phase):
        if name in whole.phases:
            found = whole.phases[name]
            found = found if spec.steps is None or not found.steps else found.with_steps(spec.steps)
            yield phase_options.with_options(found, spec.options)


def _params(spec: LaunchSpec, profile: str) -> int:
    return max((one.model.num_params for one in phases_of(spec, profile)), default=0)
