"""The command `inv pipeline`: train a model from a text corpus on this machine, stage by stage.

The command fills the folders of `workspace.py` with shards, tokenizer, training.yaml and training.toml, and writes the
model to `runs/<experiment>/artifacts`. Each stage prints a line, reuses valid results of earlier runs and exists as a
separate command (`inv shard`, `inv tokenizer`, `inv train`). The training reads the experiment's own shards and
tokenizer: decision 24.
"""

import hashlib
import os
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from data.config import TextSpec
from flows.planning import estimates
from flows.planning.extensions import use_source
from flows.planning.training_plan import PlannedWork, plan_for
from flows.runs.run_leases import hold_inputs, move_names
from flows.specs.work import WorkSpec
from infra.agent.job import Limits
from infra.errors import UsageError
from infra.flags import flag
from infra.market.step_times import evidence, total
from infra.names import check_name
from infra.records import Estimate, Request
from infra.selection import registry
from infra.settings import Settings
from infra.units import about
from packs.pipeline.commands import board
from packs.pipeline.control import adopt, training_files
from packs.pipeline.control.settings import PipelineSettings
from packs.pipeline.control.workspace import WORKSPACE, Workspace, manifest
from scripts.cli import context, local_step, render
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.plan_text import whole_s
from scripts.cli.render import columns, print_json
from scripts.data.tokenizer_train import check_size
from store.artifacts.artifacts import Store
from trainer import plan as planning
from trainer.config import Profile
from trainer.plan.estimates import known_text_bytes

LONG_S = 86_400.0


@dataclass(frozen=True, kw_only=True)
class PipelineFlags(Output):
    input: str = flag("", "the corpus, as for `inv shard --source`")
    experiment: str = flag(
        "", "name of the experiment and of the experiment's folders (RUN_EXPERIMENT, else runpod-2b)"
    )
    workspace: str = flag("", WORKSPACE, unit="FOLDER")
    train_shard_lines: int | None = flag(None, "lines per shard (SHARD_LINES, else 250000)")
    validation: str = flag("", "hold out this corpus instead of a share of the input")
    reuse_shards: bool = flag(False, "keep finished shards, even of another input (also RUN_SHARD=0)")
    tokenizer_json: str = flag(
        "", "use this published tokenizer; the last nine ids must be the special tokens of chats", unit="FILE"
    )
    vocab_size: int | None = flag(None, "vocabulary size instead of the recipe's")
    profile: str = flag("", "recipe of model and training, or a .yaml file (RUN_CONFIG, else runpod_1b)")
    config: str = flag("", "the same as --profile", unit="FILE")
    steps: int | None = flag(None, "optimizer steps instead of the recipe's; the schedule is rescaled to them")
    tensorboard: bool = flag(
        False,
        "show TensorBoard on port 6006 during the training, and keep the files in the run's folder "
        "(on a pod with a volume always)",
    )
    dry_run: bool = flag(False, "show the stages, and stop")


@command(
    record=PipelineFlags, world="", env=True, example="inv pipeline --input corpus.txt --experiment mine --dry-run"
)
def pipeline(spec: PipelineFlags) -> None:
    """Train a model on a corpus here, stage by stage.

    The stages are folders, shards, tokenizer, configuration and training.
    """
    if spec.profile and spec.config:
        raise UsageError("--profile and --config both name the recipe; give one of them")
    if spec.tokenizer_json and spec.vocab_size is not None:
        raise UsageError("--tokenizer-json has a fixed number of ids; leave --vocab-size out")
    settings = context.settings(
        source=spec.input,
        experiment=spec.experiment,
        workspace=spec.workspace,
        run_config=spec.profile or spec.config,
        shard_lines=spec.train_shard_lines,
    )
    ours = settings.for_pack(PipelineSettings)
    if ours.run_shard not in (0, 1):
        raise UsageError(f"RUN_SHARD is {ours.run_shard}; 1 makes shards, 0 uses the existing shards")
    space = Workspace(ours.workspace, check_name(ours.experiment))
    recipe = recipe_of(ours, space, spec.steps, spec.vocab_size)
    text = shard_spec(settings, spec.validation)
    announce(settings, ours, space, recipe, "--profile" if spec.profile or spec.config else ours.sources["run_config"])
    if spec.dry_run:
        foretell(settings, ours, space, recipe, text, spec)
        return
    estimates.check_memory([recipe.phases["base"]])
    render.say(f"directories: {render.count(space.make(), 'new folder')}")
    shards(settings, space, text, spec.reuse_shards, bool(ours.run_shard), spec.json)
    tokenizer = make_tokenizer(settings, space, recipe.vocab_size, spec.tokenizer_json, spec.json)
    file = write_config(ours.run_config, space, recipe, tokenizer["vocab_size"])
    is_shown = spec.tensorboard or bool(os.environ.get("SLIPWAY_VOLUME"))
    with board.serve_tensorboard(space, settings) if is_shown else nullcontext():
        made = training(settings, space, file, tokenizer["tokenizer_sha256"], spec.json)
    if spec.json:
        print_json({"experiment": space.experiment, "store": space.store, "config": file, **made})
    else:
        render.say(f"Next: SLIPWAY_STORE={space.store} ./inv chat base --tag {space.experiment}")
        print(space.run)


def recipe_of(ours: PipelineSettings, space: Workspace, steps: int | None, vocab_size: int | None) -> Profile:
    """Return the recipe, renamed to the experiment, with the requested steps and vocabulary size."""
    found = replace(planning.profile_named(ours.run_config), name=space.experiment)
    if steps is not None:
        found = replace(found, phases={**found.phases, "base": found.phases["base"].with_steps(steps)})
    if vocab_size is not None:
        check_size(vocab_size)
        found = with_ids(found, vocab_size)
    return found


def with_ids(recipe: Profile, count: int) -> Profile:
    """Return the recipe with a vocabulary of `count` ids in the tokenizer and in every model."""
    phases = {
        name: replace(phase, model=replace(phase.model, vocab_size=count)) for name, phase in recipe.phases.items()
    }
    return replace(recipe, vocab_size=count, phases=phases)


def announce(settings: Settings, ours: PipelineSettings, space: Workspace, recipe: Profile, source: str) -> None:
    base, found = recipe.phases["base"], estimate_of(recipe, settings)
    seconds = found.range_s[1]
    work = f"{base.steps:,} steps of {base.model.num_params:,} parameters"
    render.say(
        f"experiment {space.experiment} in {space.root}; recipe {ours.run_config} ({source}): {work}, "
        f"{about(seconds)} on this machine ({evidence(found)})"
    )
    if seconds > LONG_S:
        render.say("That is long. For a recipe of minutes: --profile smoke, or RUN_CONFIG=smoke")


def estimate_of(recipe: Profile, settings: Settings) -> Estimate:
    text_bytes = known_text_bytes(TextSpec(source=settings.source))
    return estimates.of_phases([recipe.phases["base"]], estimates.this_machine(1), settings, text_bytes)


def shard_spec(settings: Settings, validation: str) -> dict[str, Any]:
    held_out = {"validation": context.settings(source=validation).source} if validation else {}
    share = 0.0 if validation else TextSpec().val_ratio
    return {"source": settings.source, "lines_per_shard": settings.shard_lines, "val_ratio": share, **held_out}


def shards(
    settings: Settings, space: Workspace, spec: dict[str, Any], reuse: bool, is_making: bool, quiet: bool
) -> None:
    """Write the shards, or reuse finished shards. Raise UsageError for RUN_SHARD=0 without finished shards."""
    there = manifest(space.train)
    if there and (reuse or not is_making):
        held_out = len((manifest(space.val) or {"shards": ()})["shards"])
        render.say(f"reusing {render.count(len(there['shards']) + held_out, 'shard')}")
        return
    if not is_making:
        raise UsageError(
            f"RUN_SHARD is 0, but {space.train} holds no finished shards; make the shards with RUN_SHARD=1"
        )
    own = {**use_source(settings.source, settings), **use_source(spec.get("validation", ""), settings)}
    config = {"out": str(space.text), "spec": spec, **({"extensions": own} if own else {})}
    made = local_step.run("shards", ("-m", "data", "text"), config, settings, quiet, space.environ)
    render.say(
        f"shards: {render.count(made['shards'], 'shard')}, {made['documents']:,} lines, of which "
        f"{made['held_out']:,} are held out"
    )


def make_tokenizer(settings: Settings, space: Workspace, size: int, given: str, quiet: bool) -> dict[str, Any]:
    """Train a tokenizer, or adopt the published tokenizer file `given`; return the step's result. Raise UsageError."""
    if given:
        step = "adopt"
        config: dict[str, Any] = {"spec": {"path": str(Path(given).expanduser().absolute())}}
    else:
        step = "tokenizer"
        config = {"inputs": {"text": str(space.text)}, "spec": {"vocab_size": size}}
    config |= {"out": str(space.tokenizer)}
    try:
        found = local_step.run("tokenizer", ("-m", "data", step), config, settings, quiet, space.environ)
    except UsageError as error:  # The usual cause is a text too small for the vocabulary.
        raise UsageError(f"{error}" if given else f"{error} (--vocab-size, or another recipe: --profile)") from None
    render.say(
        f"tokenizer: {'reused' if found['reused'] else 'taken' if given else 'made'}, "
        f"{found['vocab_size']:,} ids, sha256 {found['tokenizer_sha256'][:12]}"
    )
    return found


def write_config(of: str, space: Workspace, recipe: Profile, ids: int) -> Path:
    """Write training.yaml and training.toml before the training and return the YAML path.

    `of` names the base recipe; `ids` is the vocabulary size of the tokenizer.
    """
    if ids != recipe.vocab_size:
        render.say(f"the model gets {ids:,} ids instead of {recipe.vocab_size:,}, the number of ids of the tokenizer")
    file = training_files.write(with_ids(recipe, ids), of, space.run)
    render.say(f"config: {file} and training.toml")
    return file


def training(settings: Settings, space: Workspace, file: Path, digest: str, quiet: bool) -> dict[str, Any]:
    """Train or reuse the model and return the model's metadata. `digest` is the tokenizer's SHA-256."""
    sources = {**settings.sources, "source": "--input"}  # so that no recipe names other text
    ours = replace(settings, profile=str(file), source=str(space.train), store=str(space.store), sources=sources)
    given = {"text": adopt.publish_text(space), "tokenizer": adopt.publish_tokenizer(space, digest)}
    limits = Limits(reserve_bytes=settings.reserve_bytes)
    here = registry.provider(settings, "local")
    asked = WorkSpec(phase="base", tag=space.experiment, with_missing=True)
    work = PlannedWork(spec=asked, given=given, remake_policy="keep")
    plan = plan_for(work, ours, Request(run="foreground"), here, limits)
    due = plan.job.steps if plan.job else ()
    said = "everything is here"
    if due and plan.estimate:
        time = f"{about(total(plan.forecast)[1])} ({evidence(plan.estimate)})"
        said = f"{', '.join(one.name for one in due)}, {time}"
    render.say(f"training: {said}")
    with hold_inputs(plan, render.say):
        for step in due:
            local_step.run(step.name, step.words, step.config, ours, quiet, space.environ)
    move_names(plan)
    made = Store(space.store).manifest(f"base_checkpoints/{space.experiment}").about
    lying = hashlib.sha256((space.tokenizer / "tokenizer.json").read_bytes()).hexdigest()
    assert made["tokenizer_sha256"] == lying, f"trained with another tokenizer than {space.tokenizer}"
    return dict(made)


def foretell(
    settings: Settings,
    ours: PipelineSettings,
    space: Workspace,
    recipe: Profile,
    text: dict[str, Any],
    spec: PipelineFlags,
) -> None:
    """Show the planned stages, folders and environment without running a stage."""
    base = recipe.phases["base"]
    facts = {
        "workspace": str(space.root),
        "experiment": space.experiment,
        "folders": [str(folder) for folder in space.folders],
        "environ": space.environ,
        "shard": bool(ours.run_shard),
        "shards": text,
        "tokenizer": spec.tokenizer_json or recipe.vocab_size,
        "profile": ours.run_config,
        "steps": base.steps,
        "params": base.model.num_params,
        "training_s": whole_s(estimate_of(recipe, settings).range_s[1]),
    }
    if spec.json:
        print_json(facts)
        return
    rows = [("folder", str(folder)) for folder in space.folders]
    rows += [("environment", f"{name}={value}") for name, value in space.environ.items()]
    rows += [
        (
            "shards",
            ", ".join(f"{name} {value}" for name, value in text.items())
            if ours.run_shard
            else "the existing shards (RUN_SHARD=0)",
        )
    ]
    rows += [("tokenizer", spec.tokenizer_json or f"{recipe.vocab_size:,} ids, trained on the shards")]
    rows += [("training", f"{ours.run_config}, {base.steps:,} steps, into {space.store}")]
    print(columns(rows))
    if found := estimates.memory_shortage([base]):
        render.say(f"without --dry-run the training would be refused: {found}")
    render.say("dry run: nothing was made")
