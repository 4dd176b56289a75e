"""Parser for the user's request: phases, a mixture, a persona, a profile.

The parser turns the words of flags and files into `TrainingRequest` and the records inside. Raises UsageError with a
suggestion for unknown words.
"""

import difflib
import functools
import math
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from data.config import Persona, load
from infra.errors import UsageError
from store import packs
from trainer import recipes
from trainer.config import ImportSpec, PhaseConfig, Profile
from trainer.fingerprints import Node
from trainer.records import phase_options
from trainer.records.phase_registry import CHANGE, PHASES, all_phases, listed, phase_names

ROWS = ("text_column", "filter", "exhausted", "text_unit")
IMPORTED = "imported/"  # prefix of the names of imported models


@dataclass(frozen=True, kw_only=True)
class TrainingRequest:
    """The user's request, as plain values."""

    phases: tuple[str, ...] = ("sft",)
    profile: str = "smoke"
    tag: str = ""
    """Tag of the checkpoints in the store; "" = the profile's name."""
    data_tag: str = ""
    """Tag in the names of all other artifacts of the work; "" = names without a tag."""
    source: str = "pydocs"
    packages: tuple[str, ...] = ()
    rows: Mapping[str, str] = field(default_factory=dict)
    """Selection of the source's rows and text: the fields of `TextSpec` in `ROWS`."""
    persona: Persona
    identity: str = ""
    """Path of a .jsonl of conversations about the model's identity, instead of conversations made from the persona."""
    seed: int | None = None
    """Seed of training; the data split keeps a seed of its own."""
    steps: int | None = None
    """Optimizer steps of every phase, instead of the profile's; warm-ups are rescaled accordingly."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes for the phases with the size in `Phase.sizes`; 0 = the profile's."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of single phases, overriding the profile's: text by PHASE.FIELD."""
    init: ImportSpec | None = None
    """Imported model from which the first phase starts."""
    mixture: Mapping[str, float] | None = None
    """Mixture of every chat phase, instead of the profile's: weights of built-in kinds, paths or hf:// addresses."""
    tasks: Mapping[str, float] | None = None
    """Tasks of rl, instead of the profile's: names or .jsonl files of problems, with weights."""
    problems: str = ""
    """Folder with the files of the tasks, instead of the hub."""
    rl: Mapping[str, Any] = field(default_factory=dict)
    """Settings of rl from flags: fields of `RlConfig`."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Steps with an artifact that must already be in the store, with the fingerprint of the artifact."""
    made: str = ""
    """Choice for a phase of `phases` made by different code: `keep`, `remake`, or "" = undecided."""
    keeping: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the profile's fields of `CheckpointOptions`."""
    changes: Mapping[str, Callable[[PhaseConfig], PhaseConfig]] = field(default_factory=dict)
    """Functions of packs that change the configuration of each requested phase, by flag."""

    def with_changes(self, config: PhaseConfig) -> PhaseConfig:
        """Return the configuration of a phase with the changes of packs, for a requested phase."""
        if not self.changes or config.phase not in self.phases:
            return config
        changes = dict.fromkeys(self.changes.values())  # flags may share a change
        return functools.reduce(lambda one, change: change(one), changes, self.shaped(config))

    def shaped(self, config: PhaseConfig) -> PhaseConfig:
        """Return the configuration of a phase with the shape of the imported model, if any."""
        if self.init is None:
            return config
        model = self.init.model.with_features_of(config.model)
        return replace(config, model=model, sequence_len=min(config.sequence_len, model.max_position_embeddings))


def parse_phases(words: str) -> tuple[str, ...]:
    """Return the phases of `sft`, `base+mid` or `all` in the order of execution. Raises UsageError."""
    if words == "all":
        return all_phases()
    aliases = {one.alias: name for name, one in PHASES.items() if one.alias}
    asked = [aliases.get(word, word) for word in words.split("+")]
    for word in asked:
        if said := packs.missing_pack_message("phases", word):
            raise UsageError(said)
        if word not in PHASES:
            near = difflib.get_close_matches(word, PHASES if "+" in words else (*PHASES, "all"), 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            if aliases and re.fullmatch(r"[0-9.]+", word):
                hint = f"the {PHASES[next(iter(aliases.values()))].family} are {listed([*aliases])}; "
            raise UsageError(f"unknown phase {word!r}; {hint}known: {phase_names()}, a sum such as mid+sft, or all")
    return tuple(phase for phase in PHASES if phase in asked)


def parse_mixture(words: str) -> dict[str, float] | None:
    """Return the weights of `identity=0.3,talk.jsonl=0.7`, or None for an empty text. Raises UsageError."""
    found: dict[str, float] = {}
    for word in filter(None, (part.strip() for part in words.split(","))):
        source, equals, weight = word.rpartition("=")
        try:
            found[source] = float(weight)
        except ValueError:
            equals = ""
        if not equals or not source or not 0 < found[source] < math.inf:
            raise UsageError(f"--mixture {word}: expected SOURCE=WEIGHT, such as identity=0.3 or talk.jsonl=0.7")
    return found or None


def load_persona(path: Path) -> Persona:
    """Return the persona of a file. Raises UsageError for a missing file or a file without a valid persona."""
    import yaml

    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"persona {path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"persona {path}: not YAML: {recipes.yaml_error(error)}") from None
    return load(Persona, raw, f"persona {path}")


def profile_named(name: str, phases: Collection[str] | None = None) -> Profile:
    """Return a profile by name or file; `configs/NAME.yaml` without such a file means the profile NAME.

    phases: leave out the phases of packs that these phases do not need; None = keep all.

    Raises UsageError with the nearest name, ConfigError for an error in a file.
    """
    if recipes.is_file(name):
        path = Path(name).expanduser()
        if path.parent.name != "configs" or path.stem not in recipes.PROFILES or path.exists():
            return _with_own(recipes.from_file(path))
        name = path.stem
    if said := packs.missing_pack_message("profiles", name):
        raise UsageError(said)
    if name not in recipes.PROFILES:
        near = difflib.get_close_matches(name, recipes.PROFILES, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"unknown profile {name!r}; {hint}known: {', '.join(recipes.PROFILES)}, or a .yaml file")
    return _with_own(recipes.PROFILES[name](phases))


def _with_own(profile: Profile) -> Profile:
    """Return the profile with the phases of known extensions added, each with the settings of the phase in `like`."""
    own = {
        name: replace(profile.phases[one.like], phase=name, extension=one.extension)
        for name, one in PHASES.items()
        if one.extension and one.like in profile.phases
    }
    return replace(profile, phases={**profile.phases, **own}) if own else profile


def profile_before(wanted: TrainingRequest) -> Profile:
    """Return the profile with the changes of packs, before the options are applied."""
    named = {phase_options.phase_of(path)[0] for path in wanted.options}
    # An option of the shape applies to the phases that train a feature, such as ternary matrices, if there are any.
    found = profile_named(wanted.profile, None if phase_options.MODEL in named else {*wanted.phases, *named})
    asked = [wanted.shaped(one) for name, one in found.phases.items() if wanted.changes and name in wanted.phases]
    if idle := [flag for flag, change in wanted.changes.items() if all(change(one) is one for one in asked)]:
        raise UsageError(f"{listed(idle)}: no effect on the phase {listed(wanted.phases)}")
    return replace(found, phases={name: wanted.with_changes(one) for name, one in found.phases.items()})


def profile_of(wanted: TrainingRequest) -> Profile:
    """Return the profile with the options for the shape and the phases applied. Raises UsageError, ConfigError."""
    shape = phase_options.of_model(wanted.options)
    if wanted.init is not None and (odd := sorted(shape.keys() - recipes.feature_fields().keys())):
        raise UsageError(f"--set model.{odd[0]}: --init fixes the shape of the model")
    whole = profile_before(wanted)
    phase_options.refuse_unknown(wanted.options, whole.phases)
    fields = {name: phase_options.fields_of(phase, wanted.options) for name, phase in whole.phases.items()}
    whole = recipes.with_shape(whole, shape, fields, f"--set model.{', model.'.join(shape)}")
    phases = {name: phase_options.with_options(phase, wanted.options) for name, phase in whole.phases.items()}
    return replace(whole, phases=phases)


def default_tag(wanted: TrainingRequest, profile: Profile) -> str:
    """Return the default tag of checkpoints: the profile's name, or the name of the imported model."""
    return profile.name if wanted.init is None else init_slug(wanted.init.source)


def init_slug(source: str) -> str:
    """Return the name of an imported model: the last part of the model's path."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", Path(source).name).strip(".-")[:100] or "model"


def imported_name(source: str) -> str:
    """Return the name of the artifact of an imported model, without a data tag."""
    return f"{IMPORTED}{init_slug(source)}"


def tagged(name: str, tag: str) -> str:
    """Return the name of an artifact with a tag, "" = none: names of other work stay. The kind (`kind_of`) is kept."""
    folder, _, rest = name.partition("/")
    return name if not tag else f"{folder}/{tag}.{rest}" if rest else f"datasets/{tag}/{folder}"


def origin_of(about: Mapping[str, Any]) -> str:
    """Return the imported model from which a trained model starts, by the record of the artifact; "" = none."""
    inputs, spec = (one if isinstance(one, Mapping) else {} for one in (about.get("inputs"), about.get("spec")))
    names = [str(one.get("name")) for one in inputs.values() if isinstance(one, Mapping)]
    unnamed = "an imported model" if spec.get("adopted") else ""
    return next((one for one in names if one.startswith(IMPORTED)), unnamed)


def with_change(node: Node, before: str, code: tuple[str, ...]) -> tuple[Node, Node]:
    """Return the step that imports the change from which the phase `node` starts, and the phase after the step.

    before: input role of the changed model; code: code of the import.
    """
    start = node.spec.imported_change
    inputs = {role: node.inputs[role] for role in ("tokenizer", before)}
    step = Node(CHANGE, start.artifact, ("-m", "trainer", "import"), code, start, inputs)
    return step, replace(node, inputs={**node.inputs, CHANGE: CHANGE})
