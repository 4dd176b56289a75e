"""Named sweeps: the sweeps built into Slipway, and the functions of a user's file named in the settings.

A function returns `(pods, {pod: [experiments]})`. The first five sweeps and their numbers are GRAIL's:
Qwen2.5-1.5B-Instruct, 512 answers per step, 100 steps, pods of 8 A100 with 500 Mbit/s in both directions. Source:
GRAIL, research/trl, 54d6342.
"""

import difflib
import importlib.util
import inspect
import random
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from infra.checkout import ROOT
from infra.errors import UsageError
from infra.settings import Settings
from packs.sweeps.control import experiment, grail, sweep_file
from packs.sweeps.control.experiment import ExperimentConfig, PodSpec
from packs.sweeps.control.settings import SweepSettings
from packs.sweeps.control.trials.records import SweepSpec, SweepTrial, check_arms

Dealt = tuple[list[PodSpec], dict[str, list[ExperimentConfig]]]
EVAL_EVERY = 20  # value of GRAIL's configurations; a single experiment defaults to 40
LEARNING_RATES = (1e-6, 3e-6, 5e-6, 1e-5)
BATCHES = ((2, 256), (4, 128), (8, 64), (16, 32))
EFFECTIVE_BATCH = 512
ABLATIONS = ROOT / "examples" / "sweeps"
TOY = "_toy"  # suffix of a sweep's replacement on this machine


def pod(name: str, ttl_hours: float) -> PodSpec:
    """Return a pod with GRAIL's specification."""
    return PodSpec(
        name=name, gpu_type="A100", gpu_count=8, ttl_hours=ttl_hours, min_upload_mbps=500, min_download_mbps=500
    )


def lr_sweep() -> Dealt:
    """Try four learning rates on GSM8K, two on each of two pods."""
    pods = [pod(f"lr-pod-{number}", 6) for number in range(2)]
    dealt: dict[str, list[ExperimentConfig]] = {one.name: [] for one in pods}
    for number, rate in enumerate(LEARNING_RATES):
        one = ExperimentConfig(name=f"gsm8k_lr_{rate:.0e}", learning_rate=rate, eval_every=EVAL_EVERY)
        dealt[pods[number // 2].name].append(one)
    return pods, dealt


def multi_dataset() -> Dealt:
    """Train on GSM8K, MATH and MBPP at one rate, a pod each."""
    pods = [pod(f"{dataset}-pod", 8) for dataset in experiment.DATASETS]
    return pods, {
        one.name: [ExperimentConfig(name=dataset, dataset=dataset, eval_every=EVAL_EVERY)]
        for one, dataset in zip(pods, experiment.DATASETS, strict=True)
    }


def model_size() -> Dealt:
    """Train Qwen2.5 of 1.5B, 3B and 7B parameters on GSM8K, a pod each."""
    sizes = ("1.5B", "3B", "7B")
    pods = [pod(f"qwen-{size.lower()}-pod", 12) for size in sizes]
    return pods, {
        one.name: [
            ExperimentConfig(
                name=f"qwen2.5_{size.lower()}", model_id=f"Qwen/Qwen2.5-{size}-Instruct", eval_every=EVAL_EVERY
            )
        ]
        for one, size in zip(pods, sizes, strict=True)
    }


def batch_grid() -> Dealt:
    """Try four ways to the same 512 answers a step, a pod each."""
    pods = [pod(f"batch-pod-{number}", 8) for number in range(len(BATCHES))]
    dealt = {}
    for one, (batch, accumulated) in zip(pods, BATCHES, strict=True):
        found = ExperimentConfig(
            name=f"batch_{batch}x{accumulated}", batch_size=batch, grad_accum_steps=accumulated, eval_every=EVAL_EVERY
        )
        assert found.effective_batch == EFFECTIVE_BATCH
        dealt[one.name] = [found]
    return pods, dealt


def custom_advanced() -> Dealt:
    """Run one experiment with variables and options of its own."""
    one = ExperimentConfig(
        name="advanced",
        eval_every=EVAL_EVERY,
        custom_env={"WANDB_TAGS": "gsm8k,advanced", "WANDB_NOTES": "longer warm-up"},
        custom_args={"rl.schedule.warmup_steps": 50},
    )
    return [pod("advanced-pod", 10)], {"advanced-pod": [one]}


@dataclass(frozen=True, kw_only=True)
class NamedSweep:
    """Sweep with a name."""

    name: str
    about: str
    where: str
    """Origin of the sweep: built in, or a file."""
    make: Callable[[], SweepSpec]


RL = (lr_sweep, multi_dataset, model_size, batch_grid, custom_advanced)
HOURS = {"model_size": (10.0, 12.0)}  # rental hours, if different from the pods' limit


def known(settings: Settings) -> dict[str, NamedSweep]:
    """Return all named sweeps; the user's sweeps override built-in sweeps of the same name.

    Raises UsageError when the configured file is missing or cannot be loaded.
    """
    found = {one.__name__: _configuration(one, "built in") for one in RL}
    for path in sorted(ABLATIONS.glob("ablation_*.yaml")):
        about = sweep_file.load(path).about
        found[path.stem] = NamedSweep(name=path.stem, about=about, where="built in", make=_loader(path))
    own = settings.for_pack(SweepSettings)
    path = own.sweeps
    if path.is_file():
        found |= {one.__name__: _configuration(one, str(path)) for one in functions(path)}
    elif not own.sources["sweeps"].startswith("default"):
        raise UsageError(f"the file of sweep functions {path} does not exist; {own.sources['sweeps']} sets this path")
    return found


def _loader(path: Path) -> Callable[[], SweepSpec]:
    return lambda: sweep_file.load(path)


def _configuration(function: Callable[[], Any], where: str) -> NamedSweep:
    about = (inspect.getdoc(function) or "").split("\n")[0]
    return NamedSweep(name=function.__name__, about=about, where=where, make=lambda: of_function(function))


def functions(path: Path) -> Iterator[Callable[[], Any]]:
    """Yield the public functions without parameters of a Python file. Raises UsageError when the file cannot run."""
    spec = importlib.util.spec_from_file_location(f"sweeps_{path.stem}", path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # The user's dataclasses look up their module.
    try:
        with grail.modules():
            spec.loader.exec_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # user code may raise anything, SystemExit too
        raise UsageError(f"{_place(str(path), error)}: {type(error).__name__}: {error}") from None
    for name, one in vars(module).items():
        is_own = inspect.isfunction(one) and one.__module__ == spec.name and not name.startswith("_")
        if is_own and not inspect.signature(one).parameters:
            yield one


def _place(path: str, error: BaseException) -> str:
    """Return the file with the line of an error of the user's own code."""
    lines = [one.lineno for one in traceback.extract_tb(error.__traceback__) if one.filename == path and one.lineno]
    if isinstance(error, SyntaxError) and error.filename == path and error.lineno:
        lines.append(error.lineno)
    return f"{path}: line {lines[-1]}" if lines else path


def of_function(function: Callable[[], Any]) -> SweepSpec:
    """Return the sweep described by a function. Raises UsageError with the expected format."""
    name, path = function.__name__, inspect.getfile(function)
    try:
        said = function()
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # user code may raise anything, SystemExit too
        kind = "" if isinstance(error, UsageError) else f"{type(error).__name__}: "
        raise UsageError(f"{_place(path, error)}: {name}(): {kind}{error}") from None
    try:
        pods, dealt = experiment.parse_result(name, said)
    except UsageError as error:
        raise UsageError(f"{path}: line {function.__code__.co_firstlineno}: {error}") from None
    machines = {one.name: one for one in pods}
    different = experiment.differing(one for some in dealt.values() for one in some)
    trials = [experiment.trial(name, one, machines[place], different) for place, some in dealt.items() for one in some]
    longest = max((one.ttl_hours or 0.0 for one in pods), default=0.0)
    return check_arms(
        f"{name}()",
        SweepSpec(
            name=name,
            trials={one.run: one for one in _in_arms(trials)},
            about=(inspect.getdoc(function) or "").split("\n")[0],
            pods=pods,
            num_pods=len(trials),  # each trial rents a part of a pod
            hours=HOURS.get(name, (longest, longest)),
            rank=experiment.RANK,
        ),
    )


def _in_arms(trials: list[SweepTrial]) -> Iterator[SweepTrial]:
    """Yield the trials with merged arms: trials with different seeds but equal settings share the first trial's arm."""
    arms: dict[Any, str] = {}
    for one in trials:
        rest = (repr(replace(one.spec, seed=None, tag="", options={})), *sorted(one.spec.options.items()))
        arm = arms.setdefault((rest, *sorted(one.env.items())), one.arm)
        yield replace(one, arm=arm)


def named(word: str, settings: Settings, is_here: bool = False) -> SweepSpec:
    """Return the sweep for a file or a name. Raises UsageError with the closest name.

    is_here: the sweep runs on this machine, so the toy of a named sweep replaces the sweep.
    """
    path = Path(word).expanduser()
    if path.suffix in (".yaml", ".yml") or path.is_file():
        return sweep_file.load(path)
    every: Mapping[str, NamedSweep] = known(settings)
    if word not in every:
        near = difflib.get_close_matches(word, every, 1)
        hint = f"did you mean {near[0]}? " if near else ""
        raise UsageError(f"unknown sweep {word!r}; {hint}known: {', '.join(every)}, or a .yaml file")
    toy = every.get(f"{word}{TOY}")
    return (toy if toy and is_here else every[word]).make()


def on_own(spec: SweepSpec) -> SweepSpec:
    """Return the sweep for own machines: without spot machines and price limits."""
    trials = {
        run: replace(one, spec=replace(one.spec, use_spot=False, max_price="")) for run, one in spec.trials.items()
    }
    return replace(spec, trials=trials)


def shuffle_arms(spec: SweepSpec) -> SweepSpec:
    """Return the sweep with the arms in a fixed random order.

    Arms are compared on arrival: in a systematic order, such as ascending rates, each arm could be the best so far.
    """
    arms = list(spec.arms)
    random.Random(0).shuffle(arms)
    place = {arm: number for number, arm in enumerate(arms)}
    turns = {one.run: (some.index(one), place[arm]) for arm, some in spec.arms.items() for one in some}
    return replace(spec, trials={run: spec.trials[run] for run in sorted(spec.trials, key=turns.__getitem__)})
