"""The user's wishes, parsed from words: phases, a mixture, a persona, a profile.

In: words of flags and files. Out: `Wanted`, and records in it. Raises UsageError with what was meant perhaps.
"""

import difflib
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from data.config import (
    Persona,
    load,
)
from infra.errors import UsageError
from store import packs
from trainer import recipes
from trainer.config import ImportSpec, Profile
from trainer.records import phase_options
from trainer.records.phase_registry import (
    PHASES,
    all_phases,
    listed,
    phase_names,
)

ROWS = ("text_column", "filter", "exhausted")


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The user's wishes, as plain values."""

    phases: tuple[str, ...] = ("sft",)
    profile: str = "smoke"
    tag: str = ""
    """Tag of the checkpoints in the store; "" = the profile's name."""
    source: str = "pydocs"
    packages: tuple[str, ...] = ()
    rows: Mapping[str, str] = field(default_factory=dict)
    """Selection of the source's rows, and of their text: fields of `TextSpec`, those of `ROWS`."""
    persona: Persona
    identity: str = ""
    """A .jsonl of conversations that say who the model is, instead of those made of the persona."""
    seed: int | None = None
    """Seed of training; the split of the data keeps its own."""
    steps: int | None = None
    """Optimizer steps of every phase, instead of the profile's; warm-ups are rescaled with them."""
    sizes: Mapping[str, int] = field(default_factory=dict)
    """Sizes of the phases that take them, by `Phase.sizes`; 0 = the profile's."""
    options: Mapping[str, str] = field(default_factory=dict)
    """Options of single phases that replace the profile's: text by PHASE.FIELD."""
    init: ImportSpec | None = None
    """Imported model from which the first phase goes on."""
    mixture: Mapping[str, float] | None = None
    """Mixture of every chat phase, instead of the profile's: weights of our own kinds, paths or hf:// addresses."""
    tasks: Mapping[str, float] | None = None
    """Tasks of rl, instead of the profile's: names or .jsonl files of problems, with their weights."""
    problems: str = ""
    """Folder with the files of the tasks, instead of the hub."""
    rl: Mapping[str, Any] = field(default_factory=dict)
    """Settings of rl given by flags: fields of `RlConfig`."""
    given: Mapping[str, str] = field(default_factory=dict)
    """Steps whose artifact we do not make: it is in the store, with this fingerprint."""
    made: str = ""
    """The choice for a phase of `phases` that other code made: `keep`, `remake`, or "" = undecided."""
    keeping: Mapping[str, Any] = field(default_factory=dict)
    """Changes to the profile's fields of `Keeping`."""


def parse_phases(words: str) -> tuple[str, ...]:
    """Return `sft`, `base+mid` or `all` as phases in the order in which they run. Raises UsageError."""
    if words == "all":
        return all_phases()
    aliases = {one.alias: name for name, one in PHASES.items() if one.alias}
    asked = [aliases.get(word, word) for word in words.split("+")]
    for word in asked:
        if said := packs.lacking("phases", word):
            raise UsageError(said)
        if word not in PHASES:
            near = difflib.get_close_matches(word, PHASES if "+" in words else (*PHASES, "all"), 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            if aliases and re.fullmatch(r"[0-9.]+", word):
                hint = f"the {PHASES[next(iter(aliases.values()))].family} are {listed([*aliases])}; "
            raise UsageError(f"unknown phase {word!r}; {hint}known: {phase_names()}, a sum such as mid+sft, or all")
    return tuple(phase for phase in PHASES if phase in asked)


def parse_mixture(words: str) -> dict[str, float] | None:
    """Return the shares of `identity=0.3,talk.jsonl=0.7`; None for nothing. Raises UsageError."""
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
    """Return the persona of a file. Raises UsageError when the file is missing or is not a persona."""
    import yaml

    try:
        raw = yaml.safe_load(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"persona {path}: {error.strerror}") from None
    except (yaml.YAMLError, ValueError, RecursionError) as error:
        raise UsageError(f"persona {path}: not YAML: {recipes.yaml_error(error)}") from None
    return load(Persona, raw, f"persona {path}")


def profile_named(name: str) -> Profile:
    """Return a profile by its name or its file; `configs/NAME.yaml` that is no file is NAME.

    Raises UsageError with the nearest name, ConfigError for what is wrong in a file.
    """
    if recipes.is_file(name):
        path = Path(name).expanduser()
        if path.parent.name != "configs" or path.stem not in recipes.PROFILES or path.exists():
            return _with_own(recipes.from_file(path))
        name = path.stem
    if said := packs.lacking("profiles", name):
        raise UsageError(said)
    if name not in recipes.PROFILES:
        near = difflib.get_close_matches(name, recipes.PROFILES, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise UsageError(f"unknown profile {name!r}; {hint}known: {', '.join(recipes.PROFILES)}, or a .yaml file")
    return _with_own(recipes.PROFILES[name]())


def _with_own(profile: Profile) -> Profile:
    """Return the profile with the phases of extensions that this process knows, each with the settings of another."""
    own = {
        name: replace(profile.phases[one.like], phase=name, extension=one.extension)
        for name, one in PHASES.items()
        if one.extension and one.like in profile.phases
    }
    return replace(profile, phases={**profile.phases, **own}) if own else profile


def profile_of(wanted: Wanted) -> Profile:
    """Return the profile with the options of its shape and of its phases. Raises UsageError, ConfigError."""
    shape = phase_options.of_model(wanted.options)
    if wanted.init is not None and (odd := sorted(shape.keys() - recipes.feature_fields().keys())):
        raise UsageError(f"--set model.{odd[0]}: the shape is that of the model of --init")
    whole = profile_named(wanted.profile)
    phase_options.refuse_unknown(wanted.options, whole.phases)
    fields = {name: phase_options.fields_of(phase, wanted.options) for name, phase in whole.phases.items()}
    whole = recipes.with_shape(whole, shape, fields, f"--set model.{', model.'.join(shape)}")
    phases = {name: phase_options.with_options(phase, wanted.options) for name, phase in whole.phases.items()}
    return replace(whole, phases=phases)


def default_tag(wanted: Wanted, profile: Profile) -> str:
    """Return the name under which the checkpoints are kept when none was given."""
    return profile.name if wanted.init is None else init_slug(wanted.init)


def init_slug(init: ImportSpec) -> str:
    """Return the name of somebody else's model: the last part of where it is."""
    return re.sub(r"[^A-Za-z0-9._-]", "-", Path(init.source).name).strip(".-")[:100] or "model"
