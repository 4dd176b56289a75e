"""Packs: optional features, one folder each under `packs/`, declared by a record and loaded by name.

    packs/<name>/pack.py  ->  installed(): {name: Pack}  ->  load("module:attribute"), when the entry is used

A pack is on when its folder is there and the packs that it needs are on. Called by the command line, the settings and
every registry of the core; the core names no pack. `known_packs.json` lists the words of all packs, so that a word of
a pack whose folder was deleted is answered with the name of the pack. Standard library only: `inv --list` loads this
module and each `pack.py`, and nothing else of a pack.
"""

import functools
import importlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "packs"
INDEX = Path(__file__).with_name("known_packs.json")


@dataclass(frozen=True)
class CommandEntry:
    """A command, by the name that is typed: of a pack, or of the core in `scripts/commands.py`."""

    where: str
    """Function of the command, as "module:attribute"."""
    summary: str
    """First line of the help of the command."""
    is_default: bool = False
    """True if the name of the collection alone means this command: `tokenizer` for `tokenizer.train`."""


@dataclass(frozen=True, kw_only=True)
class PackProvider:
    """A provider of a pack: a cluster of the user's own, or an engine. Our ledger holds no pod of it to a limit."""

    where: str
    """Class that extends `infra.providers.Provider`, with `of(settings)`."""
    keeps_runs: bool = False
    """True if the provider is an engine (`infra.runs.engine`), which takes over whole runs. Known without the pack."""
    pool: str = ""
    """Meaning of `--pool` there, for help."""
    host: str = ""
    """Meaning of `--host` there, for help."""
    inventory: str = ""
    """Setting of the pack with the path of an inventory: where that file is, the provider is asked with all others."""
    doctor: str = ""
    """Function `(settings) -> list of DoctorLine`, for `inv doctor --provider NAME`."""


@dataclass(frozen=True, kw_only=True)
class PackWork:
    """A kind of work that a launch does instead of training phases."""

    where: str
    """Class that extends `flows.runs.work_kinds.WorkKind`. It is imported where a line or a file is of the kind."""
    file_keys: tuple[str, ...] = ()
    """Keys by which a YAML file is of the kind. Known without the pack."""
    about_key: str = ""
    """Function `(key) -> str`: which file has a key that is no flag, in words; "" for an unknown key."""


@dataclass(frozen=True, kw_only=True)
class Pack:
    """The declaration of one pack. Every text of the form "module:attribute" is imported when it is used by name."""

    name: str
    about: str
    """The line of the pack in `inv --list`."""
    needs: tuple[str, ...] = ()
    """Names of the packs that this one imports."""
    commands: Mapping[str, CommandEntry] = field(default_factory=dict)
    """Commands by the names that are typed, such as `drill` or `ckpt.list`."""
    command_flags: Mapping[str, str] = field(default_factory=dict)
    """Records of flags by the command that takes them as well; `spec.of(TheRecord)` reads their values."""
    works: Mapping[str, PackWork] = field(default_factory=dict)
    """Kinds of work of a launch, by a word for each."""
    settings: str = ""
    """A record that extends `infra.settings.PackSettings`; `settings.of(TheRecord)` reads its values."""
    shard_engines: Mapping[str, str] = field(default_factory=dict)
    """Functions `(spec, folder, how, world, options) -> summary` that write the shards of `inv shard --engine NAME`.

    spec: `data.config.TextSpec`; how: `data.shards.pipeline.How`; world: number of ranks; options: the settings of the
    pack by name, as text.
    """
    run_groups: Mapping[str, str] = field(default_factory=dict)
    """Classes that extend `flows.runs.run_groups.RunGroups`: groups of runs that are shown and ended as one."""
    schemas: Mapping[str, str] = field(default_factory=dict)
    """Functions that return the JSON Schema of a file that users write, by the name typed in `config --schema`."""
    file_pages: Mapping[str, str] = field(default_factory=dict)
    """Functions that return a section of the pack's reference, as lines of Markdown: files that users write."""
    providers: Mapping[str, PackProvider] = field(default_factory=dict)
    """Providers by the names that `--provider` and the journal spell."""
    doctor_checks: Mapping[str, str] = field(default_factory=dict)
    """Functions `(root, settings) -> DoctorLine` by the name of the line: what `inv doctor` shows without asking."""
    account_notes: Mapping[str, str] = field(default_factory=dict)
    """Functions `(settings, vendors, now) -> AccountNotes`: lines about accounts, printed below offers and runs.

    The name is the key in the JSON of `inv offers`. vendors: names of vendors and of providers of extensions;
    now: UTC epoch seconds.
    """
    hints: Mapping[str, str] = field(default_factory=dict)
    """Answers to words of other tools, by "command word": the text names our word."""
    config_paths: Mapping[str, str] = field(default_factory=dict)
    """Functions `(settings) -> iterable of (name, path, state)`: files that the settings of the pack name."""
    line_flags: Mapping[str, str] = field(default_factory=dict)
    """Records that extend `scripts.cli.line_runner.LineFlags`, by the flag of every command, such as `--control`."""
    always_on: Mapping[str, str] = field(default_factory=dict)
    """Classes that extend `AlwaysOn`, by the kind of machine."""
    trackers: Mapping[str, str] = field(default_factory=dict)
    """Classes that extend `NamedTracker`, by the name that is typed in `--track`."""
    model_formats: Mapping[str, str] = field(default_factory=dict)
    """Records `trainer.records.model_formats.ModelFormat` by the name of the format that import specs hold."""
    phases: Mapping[str, str] = field(default_factory=dict)
    """Records `trainer.records.phase.Phase` by the name that is typed in `--phase`."""
    profiles: Mapping[str, str] = field(default_factory=dict)
    """Functions `(profiles of the core) -> Profile` by the name that is typed in `--profile`."""
    profile_phases: Mapping[str, str] = field(default_factory=dict)
    """Functions `(profile) -> phases by name` by the profile of the core that has them with this pack; "*" = each."""
    model_features: Mapping[str, str] = field(default_factory=dict)
    """Classes that extend `trainer.records.model_config.ModelFeature`, by the field of `ModelConfig`."""
    model_layouts: Mapping[str, str] = field(default_factory=dict)
    """Functions `(config.json) -> the same in our spelling`, by a word in it: see `trainer.records.model_layouts`."""
    served_models: Mapping[str, str] = field(default_factory=dict)
    """Records `serve.model_kinds.ModelKind` by a word of config.json: which engines compute with a model."""
    exports: Mapping[str, str] = field(default_factory=dict)
    """Functions `(model folder, new folder, dtype)` by the name that is typed in `inv export --bits`."""


@dataclass(frozen=True, kw_only=True)
class AccountNotes:
    """Notes on accounts with vendors. `lines`: for people; `document`: as JSON, by vendor."""

    lines: tuple[str, ...]
    document: Mapping[str, Any]


class NamedTracker:
    """A tracker of a pack: its sidecar on the pod, and its part of the settings.

    settings: `infra.settings.Settings`, which this module cannot import.
    """

    title = ""
    """Name of the tracker for people."""
    environment = ""
    """Environment of the sidecar, and of the page."""
    opened_by = ""
    """Class on the pod as "module:attribute", called with a `TrackedRun`: see `trainer.tracking.tracker.Tracker`."""
    page = ""
    """Module on the pod that shows the figures of a run: `python -m MODULE --host HOST --port PORT`; "" = none."""
    port = 0
    """Port of the page on the machine of the user, where the user names none."""

    def is_meant(self, settings: Any) -> bool:
        """Return whether settings of the tracker say that figures go there, without a word in `--track`."""
        return False

    def variables(self, settings: Any) -> Mapping[str, str]:
        """Return the variables of the sidecar that are no secrets; those without a value are left out later."""
        return {}

    def secrets(self, settings: Any) -> Mapping[str, str]:
        """Return the secrets of the sidecar by variable; those without a value are left out later."""
        return {}

    def note(self, settings: Any) -> str:
        """Return where the tracker keeps a run, in words; "" where that is obvious."""
        return ""

    def about_runs(self, environs: Sequence[Mapping[str, str]], settings: Any) -> str:
        """Return a line about runs with these variables, for the plan of a sweep; "" = nothing to tell."""
        return ""


class AlwaysOn:
    """A kind of machine that stays on, and that follows runs and ends their pods while the laptop is off.

    settings: `infra.settings.Settings`, which this module cannot import.
    """

    suggestion = ""
    """The sentence of a plan that says what to type for such a machine."""
    end = ""
    """The clause of a plan that names such a machine as an end of a pod that hangs."""
    letter, answer = "", ""
    """An answer to the question which offer to rent: its letter and its text."""

    def name_here(self, settings: Any) -> str:
        """Return what a plan calls this machine where it is such a machine; "" elsewhere."""
        return ""

    def state_here(self, settings: Any) -> str:
        """Return the line of `inv status` on such a machine; "" elsewhere."""
        return ""

    def how(self, again: Callable[..., str]) -> str:
        """Return what to type after that answer. again: returns the line that was typed, with more words."""
        return ""


@functools.cache
def installed() -> Mapping[str, Pack]:
    """Return the packs that are on, by name. Raises ValueError for a folder whose record has another name."""
    found = {}
    for path in sorted(FOLDER.glob("*/pack.py")):
        pack = load(f"packs.{path.parent.name}.pack:PACK")
        if pack.name != path.parent.name:
            raise ValueError(f"{path}: the pack is called {pack.name}, and its folder {path.parent.name}")
        found[pack.name] = pack
    while without_needs := [name for name, pack in found.items() if not all(need in found for need in pack.needs)]:
        for name in without_needs:
            del found[name]
    return found


def load(where: str) -> Any:
    """Import the object at "module:attribute" and return it."""
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name)


def entries(kind: str) -> dict[str, str]:
    """Return where the entries of one kind are, by their names, of all installed packs."""
    return {name: where for pack in installed().values() for name, where in getattr(pack, kind).items()}


def providers() -> dict[str, PackProvider]:
    """Return the providers of all installed packs, by name."""
    return {name: entry for pack in installed().values() for name, entry in pack.providers.items()}


def command_flags(command: str) -> list[str]:
    """Return where the records of flags are that installed packs add to a command."""
    return [pack.command_flags[command] for pack in installed().values() if command in pack.command_flags]


def works() -> list[PackWork]:
    """Return the kinds of work of all installed packs."""
    return [entry for pack in installed().values() for entry in pack.works.values()]


def flags_added_to(command: str) -> list[str]:
    """Return the flags that packs, installed or not, add to a command."""
    return [flag for name, _, flag in (word.partition(" ") for word in words("command_flags")) if name == command]


def provider_traits() -> dict[str, Mapping[str, Any]]:
    """Return the traits of the providers of all packs, installed or not, by name: see the index."""
    return {name: traits for pack in known().values() for name, traits in pack["providers"].items()}


def engines() -> list[str]:
    """Return the providers of all packs, installed or not, that keep their runs."""
    return [name for name, traits in provider_traits().items() if traits["keeps_runs"]]


def named_trackers() -> dict[str, NamedTracker]:
    """Return the trackers of all installed packs, by name."""
    return {name: load(where)() for name, where in entries("trackers").items()}


def always_on_machines() -> list[AlwaysOn]:
    """Return the kinds of machines that stay on, of all installed packs."""
    return [load(where)() for where in entries("always_on").values()]


@functools.cache
def known() -> Mapping[str, Mapping[str, Any]]:
    """Return the words of every pack, installed or not, by pack and kind: see `scripts.project.packs_index`."""
    found: Mapping[str, Mapping[str, Any]] = json.loads(INDEX.read_text(encoding="utf-8"))
    return found


def words(kind: str) -> list[str]:
    """Return the words of one kind of all packs, installed or not."""
    return [word for pack in known().values() for word in pack.get(kind, ())]


def lacking(kind: str, word: str) -> str:
    """Return in words which pack has `word` and is not installed; "" where no such pack does.

    kind: a key of the index: `commands`, `settings`, `phases` and so on; see `scripts.project.packs_index`. A word of
    `command_flags` is a command with a flag, such as "launch --cmd".
    """
    name = next((name for name, words in known().items() if word in words.get(kind, ())), "")
    if not name or name in installed():
        return ""
    gone = [one for one in _below(name) if not (FOLDER / one).is_dir()]
    folders = [f"packs/{one}" for one in gone]
    said = f"{word} belongs to the pack {name}, and {' and '.join(folders)} is not there"
    return f"{said}; to bring it back: git checkout HEAD -- {' '.join(folders)}"


def _below(name: str) -> list[str]:
    """Return a pack and all that it needs, directly or not."""
    return [name, *(one for need in known()[name]["needs"] for one in _below(need))]


def typed(line: str) -> str:
    """Return a command line that a text suggests, with a note where its command is of a pack that is not installed."""
    note = lacking("commands", line.split()[1])
    return f"{line} ({note})" if note else line
