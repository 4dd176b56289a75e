"""The flags of a training: the artifacts to make, their inputs, and the method.

Packs add flags for sizes of their phases (`Phase.sizes`): on the command line, in job files and in sweep files. Without
the flag, the setting of the same name in the settings of the pack applies. Options of phases, such as
`sft.optimizer.lr=1e-3` on the command line or nested in a file, become the text of each option by path.
"""

import functools
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from types import MappingProxyType
from typing import Any, ClassVar, TypeVar

from infra.errors import UsageError
from infra.flags import Typed, command_words, flag, flags_of, nondefault_flags
from store import packs
from trainer.records.phase_registry import phase_names

WORK = "Work"
TEXT = "Text and conversations"
TRAINING = "Training"
RL = "Phase rl"
SAVING = "Checkpoints and artifacts"


def read_options(words: Sequence[str]) -> Mapping[str, str]:
    """Return the text of each option by path; the last of repeated options wins. Raise UsageError."""
    found: dict[str, str] = {}
    for word in words:
        path, equals, text = word.partition("=")
        if not equals or "." not in path.strip(".") or "" in path.split("."):
            raise UsageError(f"--set {word}: expected PHASE.FIELD=VALUE, such as sft.optimizer.lr=1e-3")
        found[path] = text
    return MappingProxyType(found)


def flatten_options(where: str, nested: Any) -> list[str]:
    """Return the options nested under `phases` in a file as words. Raise UsageError with the location."""
    return list(_option_words(where, "", nested))


def _option_words(where: str, path: str, value: Any) -> Iterable[str]:
    if isinstance(value, Mapping):
        for key, inner in value.items():
            yield from _option_words(f"{where}.{key}", f"{path}.{key}" if path else str(key), inner)
    elif "." not in path:
        raise UsageError(f"{where}: expected options by their names, such as `phases: {{sft: {{steps: 100}}}}`")
    elif isinstance(value, list) and all(isinstance(one, (int, float, str)) for one in value):
        yield f"{path}={','.join(map(str, value))}"
    elif value is None or isinstance(value, (bool, int, float, str)):
        yield f"{path}={'null' if value is None else value}"
    else:
        raise UsageError(f"{where}: expected a word, a number or a list of them, not {value!r}")


@dataclass(frozen=True, kw_only=True)
class WorkSpec(Typed):
    """The flags of the requested work; "" and None select the values of the profile and the settings."""

    phase: str = flag("sft", f"{phase_names()}, a sum such as mid+sft, or all", group=WORK)
    profile: str = flag(
        "",
        "recipe of model and training: a name (inv config --profile NAME shows the recipe), or a .yaml "
        "file; for rented GPUs start with the smallest, runpod_1b, then 2b and 4b",
        group=WORK,
    )
    tag: str = flag("", "name of the checkpoints in the store (default: the profile)", group=WORK)
    init: str = flag(
        "",
        "start from an existing model: a Hugging Face folder or a folder in the format of a pack, "
        "hf://user/repo[@revision], imported/NAME in the store, or hub (the published model of the "
        "profile, if the profile names a model)",
        group=WORK,
    )
    source: str = flag(
        "",
        "source of the text: pydocs, fineweb, files, a data set as hf://user/name[/config][:split], or "
        "several sources by weight",
        group=TEXT,
    )
    text_column: str = flag("", "--source: name of the text column (default: `text`)", group=TEXT)
    text_unit: str = flag(
        "",
        "--source: document of .txt files, line or file (default: file for a folder, line for a single file)",
        group=TEXT,
    )
    filter: str = flag(
        "", "--source: keep only rows that satisfy this expression, such as 'language_score > 0.9'", group=TEXT
    )
    exhausted: str = flag(
        "first",
        "end of a --source by weight: when the first part is exhausted (first), or when all parts were read once (all)",
        group=TEXT,
    )
    packages: str = flag("", "pydocs: additional installed packages to read, comma-separated", group=TEXT)
    mixture: str = flag(
        "",
        "conversations for mid and sft with weights, instead of the profile's: "
        "identity=0.3,talk.jsonl=0.5,hf://user/name/config:train[:1000]=0.2",
        group=TEXT,
    )
    task: str = flag(
        "",
        "task to learn, instead of the profile's: sort, gsm8k, math, mbpp, a .jsonl of questions and "
        "answers, or weights such as sort=1,gsm8k=3",
        group=RL,
    )
    problems: str = flag(
        "",
        "folder with the files of gsm8k, math or mbpp, or a data set with the same splits, instead of "
        "the original data",
        group=RL,
        unit="FOLDER",
    )
    reward: str = flag(
        "",
        "Python file with reward(question, answer, completion), or the name of an extension, instead of "
        "the task's reward",
        group=RL,
        unit="FILE",
    )
    unsafe_rewards: bool = flag(False, "run the code in the answers of mbpp even without a sandbox", group=RL)
    engine: str = flag(
        "",
        "engine that generates the answers: embedded (the model in training, the default), or vllm in "
        "separate processes",
        group=RL,
    )
    engine_devices: str = flag(
        "",
        "GPUs that generate answers with vLLM, counted from 0, such as 1,2,3 (default: all GPUs except "
        "--train-devices)",
        group=RL,
        unit="NUMBERS",
    )
    train_devices: str = flag(
        "",
        "GPUs for training while other GPUs generate answers, such as 0 (default: all GPUs except --engine-devices)",
        group=RL,
        unit="NUMBERS",
    )
    engine_tensor_parallel: int | None = flag(
        None,
        "number of GPUs that share the model in each vLLM process (1: each GPU holds the whole model)",
        group=RL,
        least=1,
    )
    lag: int = flag(
        0,
        "1: answers may come from the weights before the last update, so that vLLM also works during training",
        group=RL,
    )
    persona: str = flag("", "YAML file with the model's name, maker and purpose", group=TEXT, unit="FILE")
    identity: str = flag(
        "",
        "own conversations about the identity of the model (.jsonl in nanochat's format), instead of "
        "generated conversations; the conversations must use the name of the persona",
        group=TEXT,
        unit="FILE",
    )
    seed: int | None = flag(None, "random seed of the training", group=TRAINING)
    steps: int | None = flag(
        None,
        "optimizer steps per phase instead of the profile's; the learning-rate schedule is rescaled",
        group=TRAINING,
    )
    options: Mapping[str, str] = flag(
        {},
        "override an option of a phase: sft.optimizer.lr=1e-3, mid.rows=32, or the shape of the model in "
        "all phases: model.hidden_size=512; in a file `phases: {sft: {optimizer: {lr: 1e-3}}}`; "
        "repeatable",
        group=TRAINING,
        unit="PHASE.FIELD=VALUE",
        spelled="set",
        read=read_options,
    )
    track: str = flag(
        "",
        "trackers that receive metrics during training, each in a separate process: "
        f"{', '.join(packs.words('trackers'))}, a .py file or an extension, several separated by commas, "
        "or none (default: SLIPWAY_TRACK)",
        group=TRAINING,
        unit="NAMES",
    )
    save_every: int | None = flag(
        None, "optimizer steps between checkpoints instead of the profile's", group=SAVING, unit="STEPS"
    )
    keep: int | None = flag(None, "number of newest checkpoints kept during training (5)", group=SAVING)
    ckpt_prefix: str = flag(
        "",
        "prefix of the folder name of the run's checkpoints; for stages of 1.58 bits also the first part "
        "of NAME/<model>/stage<stage> in the store, instead of checkpoint",
        group=SAVING,
    )
    store: str = flag("", "store of the artifacts (default var/artifacts)", group=SAVING, unit="URI")
    with_missing: bool = flag(
        False,
        "rented: make missing text, tokenizer and questions on the rented machine, while the machine bills",
        group=SAVING,
    )
    remake: bool = flag(
        False, "make the named phases again if different code made the existing artifacts", group=SAVING
    )
    keep_made: bool = flag(False, "keep artifacts made by different code", group=SAVING)
    move_tag: bool = flag(False, "let the tag of a model move to a model of a different --init", group=SAVING)
    data_tag: str = flag("", "tag of data, tokenizer and imported model in the store (default: none)", group=SAVING)


S = TypeVar("S", bound=WorkSpec)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PhaseFlags:
    """Base class of a record of flags that a pack adds for sizes of a phase; None = the flag was not given."""

    change: ClassVar[Mapping[str, str] | str] = {}
    """Function `(the record, configuration) -> configuration`, by flag or for all; the same object = no effect."""
    resolve: ClassVar[str] = ""
    """Function `(the record, settings, ImportSpec of --init or None) -> the record for change`; "" = the same."""
    of_launch: ClassVar[bool] = False
    """True if the flags concern a launch as a whole, so that no run of a sweep has the flags."""


def phase_flags() -> tuple[type[PhaseFlags], ...]:
    """Return the records of the installed packs."""
    found = map(packs.load, packs.command_flags("launch"))
    return tuple(one for one in found if issubclass(one, PhaseFlags))


def typed_sizes(spec: WorkSpec) -> dict[str, int]:
    """Return the sizes that the flags of a training set, by name."""
    sizes = [one for one in spec.added if isinstance(one, PhaseFlags) and not one.change]
    return {name: value for one in sizes for name, value in vars(one).items() if value is not None}


def phase_changes(added: Iterable[Any], settings: Any = None, init: Any = None) -> dict[str, Any]:
    """Return the functions that change the configuration of a phase, by the flags given."""
    found: dict[str, Any] = {}
    for one in added:
        if isinstance(one, PhaseFlags) and one.change and (names := nondefault_flags(one)):
            resolved = packs.load(one.resolve)(one, settings, init) if one.resolve else one
            by_flag = dict.fromkeys(names, one.change) if isinstance(one.change, str) else one.change
            made = {where: functools.partial(packs.load(where), resolved) for where in by_flag.values()}
            found |= {f"--{name}": made[by_flag[name]] for name in names if name in by_flag}
    return found


def prepare_command(spec: WorkSpec) -> str:
    """Return the command that makes the inputs of a training on this machine, with the flags that `train` has."""
    known = {one.name for of in (WorkSpec, *map(packs.load, packs.command_flags("train"))) for one in flags_of(of)}
    given = {one.name for record in (spec, *spec.added) for one in flags_of(type(record))}
    but = {*(given - known), "phase", "track", "with_missing"}  # `train` has no trackers, and makes all inputs
    return shlex.join(["inv", "train", "--prepare", "--phase", spec.phase, *command_words(spec, but)])


def filled(spec: S, values: Mapping[str, Any]) -> S:
    """Return a training with these values by field name, of its own fields and of the records of packs."""
    own = {one.name for one in fields(spec)}
    added = {type(one): one for one in spec.added}
    for record in phase_flags():
        if given := {one.name: values[one.name] for one in fields(record) if one.name in values}:
            added[record] = replace(added.get(record, record()), **given)
    return replace(spec, **{name: value for name, value in values.items() if name in own}, added=tuple(added.values()))
