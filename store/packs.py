"""The registry of packs: optional features, each a folder under `packs/` with a declaration, loaded by name.

    packs/<name>/pack.py  ->  installed(): {name: Pack}  ->  load("module:attribute"), on first use of the entry

A pack is installed if its folder exists and all packs in `needs` are installed. The command line, the settings and the
registries of the core use this module; the core names no pack. `known_packs.json` lists the words of all packs, so that
a word of a deleted pack yields an error with the name of the pack. Standard library only: `inv --list` imports this
module and each `pack.py`, and no other module of a pack.
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
# Fields of `Pack` with words as keys.
BY_WORD = (
    *("works", "providers", "schemas", "shard_engines", "trackers", "phases", "profiles", "model_formats"),
    *("model_features", "model_layouts", "model_changes", "phase_settings", "served_models", "exports", "line_flags"),
    *("row_readers", "schedule_ends"),
)


@dataclass(frozen=True, eq=False, repr=False)
class CommandEntry:
    """A command by the name on the command line: of a pack, or of the core in `scripts/commands.py`."""

    where: str
    """Function of the command, as "module:attribute"."""
    summary: str
    """First line of the help of the command."""
    is_default: bool = False
    """True if the name of the collection alone means this command: `tokenizer` for `tokenizer.train`."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PackProvider:
    """A provider of a pack: a cluster of the user or an engine. The ledger applies no spend limit to these pods."""

    where: str
    """Subclass of `infra.providers.Provider` with a static method `from_settings(settings)`."""
    is_run_engine: bool = False
    """True if the provider is an engine (`infra.runs.engine`), which takes over whole runs. Known without the pack."""
    pool: str = ""
    """Meaning of `--pool` for this provider, for the help text."""
    host: str = ""
    """Meaning of `--host` for this provider, for the help text."""
    inventory: str = ""
    """Setting of the pack with the path of an inventory file. If the file exists, offer searches ask the provider."""
    doctor: str = ""
    """Function `(settings) -> list of DoctorLine`, for `inv doctor --provider NAME`."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class PackWork:
    """A kind of work that a launch does instead of training phases."""

    where: str
    """Class that extends `flows.runs.work_kinds.WorkKind`. It is imported where a line or a file is of the kind."""
    file_keys: tuple[str, ...] = ()
    """Keys by which a YAML file is of the kind. Known without the pack."""
    about_key: str = ""
    """Function `(key) -> str`: which file has a key that is no flag, in words; "" for an unknown key."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Pack:
    """The declaration of one pack. Every value of the form "module:attribute" is imported on first use."""

    name: str
    about: str
    """Line of the pack in `inv --list`."""
    needs: tuple[str, ...] = ()
    """Names of the packs that this pack imports."""
    commands: Mapping[str, CommandEntry] = field(default_factory=dict)
    """Commands by the name on the command line, such as `drill` or `ckpt.list`."""
    command_flags: Mapping[str, str] = field(default_factory=dict)
    """Records of flags added to a command, by the command's name; `spec.added_record(TheRecord)` reads the values."""
    works: Mapping[str, PackWork] = field(default_factory=dict)
    """Kinds of work of a launch, by a word for each."""
    settings: str = ""
    """Record that extends `infra.settings.PackSettings`; `settings.for_pack(TheRecord)` reads its values."""
    shard_engines: Mapping[str, str] = field(default_factory=dict)
    """Functions `(spec, folder, how, world, options) -> summary` that write the shards of `inv shard --engine NAME`.

    spec: `data.config.TextSpec`; how: `data.shards.pipeline.RunOptions`; world: number of ranks; options: the settings
    of the pack by name, as text.
    """
    run_groups: Mapping[str, str] = field(default_factory=dict)
    """Classes that extend `flows.runs.run_groups.RunGroups`: groups of runs that commands show and end together."""
    group_pages: Mapping[str, str] = field(default_factory=dict)
    """Functions `(settings, name of a run group, folder, tell) -> Path` that write a page about the group."""
    schemas: Mapping[str, str] = field(default_factory=dict)
    """Functions that return the JSON Schema of a user-written file, by the name in `config --schema`."""
    file_pages: Mapping[str, str] = field(default_factory=dict)
    """Functions that return the reference section for user-written files of the pack, as lines of Markdown."""
    providers: Mapping[str, PackProvider] = field(default_factory=dict)
    """Providers by the name in `--provider` and in the journal."""
    doctor_checks: Mapping[str, str] = field(default_factory=dict)
    """Functions `(root, settings) -> DoctorLine` by line name, for the lines that `inv doctor` always shows."""
    account_notes: Mapping[str, str] = field(default_factory=dict)
    """Functions `(settings, vendors, now) -> AccountNotes`: lines about accounts, printed below offers and runs.

    The name is the key in the JSON of `inv offers`. vendors: names of vendors and of providers of extensions; now: UTC
    epoch seconds.
    """
    hints: Mapping[str, str] = field(default_factory=dict)
    """Replies to command lines of other tools, by "command word"; the reply names our command."""
    config_paths: Mapping[str, str] = field(default_factory=dict)
    """Functions `(settings) -> iterable of (name, path, state)` for the files named in the settings of the pack."""
    line_flags: Mapping[str, str] = field(default_factory=dict)
    """Records that extend `scripts.cli.line_runner.LineFlags`, by flag of every command, such as `--control`."""
    always_on: Mapping[str, str] = field(default_factory=dict)
    """Classes that extend `AlwaysOn`, by kind of machine."""
    trackers: Mapping[str, str] = field(default_factory=dict)
    """Classes that extend `NamedTracker`, by the name in `--track`."""
    model_formats: Mapping[str, str] = field(default_factory=dict)
    """Records `trainer.records.model_formats.ModelFormat`, by the format name in import specs."""
    phases: Mapping[str, str] = field(default_factory=dict)
    """Records `trainer.records.phase_registry.Phase`, by the name in `--phase`."""
    profiles: Mapping[str, str] = field(default_factory=dict)
    """Functions `(profiles of the core) -> Profile`, by the name in `--profile`."""
    profile_phases: Mapping[str, str] = field(default_factory=dict)
    """Functions `(profile) -> phases by name`, by the core profile that gains the phases; "*" = every profile."""
    row_readers: Mapping[str, str] = field(default_factory=dict)
    """Classes that extend `data.chat.imported.RowReader`, by the word in front of a source: `WORD:FILE`."""
    model_features: Mapping[str, str] = field(default_factory=dict)
    """Classes that extend `trainer.records.model_config.ModelFeature`, by the field of `ModelConfig`."""
    model_layouts: Mapping[str, str] = field(default_factory=dict)
    """Functions `(config.json) -> the same in our spelling`, by a word in it: see `trainer.model.huggingface`."""
    phase_settings: Mapping[str, str] = field(default_factory=dict)
    """Classes that extend `trainer.config.PhaseConfig`, by the field that the class adds to a phase of the core."""
    model_changes: Mapping[str, str] = field(default_factory=dict)
    """Classes that extend `trainer.model.changes.ModelChange`, by the file that marks a stored change of a model."""
    served_models: Mapping[str, str] = field(default_factory=dict)
    """Records `serve.model_kinds.ModelKind` by a word of config.json: the engines that support a model."""
    variant_routes: Mapping[str, str] = field(default_factory=dict)
    """ASGI middlewares that load variants of a model into a running engine, by engine: see `serve.variants`."""
    cost_views: Mapping[str, str] = field(default_factory=dict)
    """Classes that extend `flows.reading.cost_views.CostView`, by the key in the JSON of `inv cost RUN`."""
    exports: Mapping[str, str] = field(default_factory=dict)
    """Functions `(model folder, new folder, dtype)` by the name in `inv export --bits`."""
    plan_parts: Mapping[str, str] = field(default_factory=dict)
    """Functions `(plan, flags, settings, inventory) -> plan`: variables and notes of a training."""
    store_secrets: Mapping[str, str] = field(default_factory=dict)
    """Functions `(settings) -> values by variable`: secrets of a job whose store is remote."""
    kernel_keepers: Mapping[str, str] = field(default_factory=dict)
    """Classes that extend `trainer.kernels.KernelKeeper`, which keep compiled kernels beyond a run."""
    launch_changes: Mapping[str, str] = field(default_factory=dict)
    """Functions `(flags of a launch, whether the machine is rented) -> flags`, applied before the limits are read."""
    schedule_ends: Mapping[str, str] = field(default_factory=dict)
    """Classes that extend `trainer.schedule_end.ScheduleEnd`, by the word in `ScheduleConfig.end`."""


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class AccountNotes:
    """Notes on vendor accounts. `lines`: text for users; `document`: the same data as JSON, by vendor."""

    lines: tuple[str, ...]
    document: Mapping[str, Any]


class NamedTracker:
    """A tracker of a pack: the sidecar on the pod, and the tracker's part of the settings.

    settings: `infra.settings.Settings`, which this module cannot import.
    """

    title = ""
    """Display name of the tracker."""
    environment = ""
    """Python environment of the sidecar and of the page."""
    opened_by = ""
    """Class on the pod as "module:attribute", called with a `TrackedRun`: see `trainer.tracking.tracker.Tracker`."""
    sent_later_by = ""
    """Command that sends the metrics which the tracker missed; the name of a run follows. "" = none."""
    page = ""
    """Module on the pod that serves the metrics of a run: `python -m MODULE --host HOST --port PORT`; "" = none."""
    port = 0
    """Default local port of the page on the machine of the user."""

    def is_enabled(self, settings: Any) -> bool:
        """Return whether the settings of the tracker enable the tracker without `--track`."""
        return False

    def variables(self, settings: Any) -> Mapping[str, str]:
        """Return the non-secret environment variables of the sidecar; the caller drops empty values."""
        return {}

    def secrets(self, settings: Any) -> Mapping[str, str]:
        """Return the secrets of the sidecar by variable name; the caller drops empty values."""
        return {}

    def describe_location(self, settings: Any) -> str:
        """Return a description of the location of a run in the tracker, or "" if the location is obvious."""
        return ""

    def describe_runs(self, environs: Sequence[Mapping[str, str]], settings: Any) -> str:
        """Return a line about runs with these environment variables for the plan of a sweep, or ""."""
        return ""


class AlwaysOn:
    """A kind of machine that stays on, follows runs and ends their pods while the laptop of the user is off.

    settings: `infra.settings.Settings`, which this module cannot import.
    """

    suggestion = ""
    """Sentence of a plan with the command that sets up such a machine."""
    end = ""
    """Clause of a plan that lists such a machine among the mechanisms that end a hanging pod."""
    letter, answer = "", ""
    """Letter and text of an extra choice in the prompt for the offer to rent."""

    def this_machine_name(self, settings: Any) -> str:
        """Return the name of the current machine for plans if it is of this kind, else ""."""
        return ""

    def this_machine_status(self, settings: Any) -> str:
        """Return the line of `inv status` on a machine of this kind, else ""."""
        return ""

    def setup_hint(self, again: Callable[..., str]) -> str:
        """Return the command to run after this choice. again: returns the current command line with extra arguments."""
        return ""


@functools.cache
def installed() -> Mapping[str, Pack]:
    """Return the installed packs by name."""
    found = {}
    for path in sorted(FOLDER.glob("*/pack.py")):
        found[path.parent.name] = _record_of(path)
    while without_needs := [name for name, pack in found.items() if not all(need in found for need in pack.needs)]:
        for name in without_needs:
            del found[name]
    return found


def _record_of(path: Path) -> Pack:
    """Return the record in a `pack.py`. Exit with the failing line of the file: every command needs the record."""
    try:
        pack = load(f"packs.{path.parent.name}.pack:PACK")
        if not isinstance(pack, Pack) or pack.name != path.parent.name:
            raise TypeError(f"PACK must be a Pack with the name of its folder, {path.parent.name}")
        return pack
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # including SystemExit
        from store.errors import explain_pack

        raise SystemExit(explain_pack(path, error)) from None


def load(where: str) -> Any:
    """Import the object at "module:attribute" and return the object."""
    module, _, name = where.partition(":")
    return getattr(importlib.import_module(module), name)


def entries(kind: str) -> dict[str, str]:
    """Return the "module:attribute" paths of all entries of a kind, by name, from all installed packs."""
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


def provider_traits() -> dict[str, Mapping[str, Any]]:
    """Return the traits of the providers of all packs, installed or not, by name."""
    found = {name: vars(entry) for pack in unlisted() for name, entry in pack.providers.items()}
    return found | {name: traits for pack in known().values() for name, traits in pack["providers"].items()}


def engines() -> list[str]:
    """Return the names of the providers of all packs, installed or not, that are engines."""
    return [name for name, traits in provider_traits().items() if traits["is_run_engine"]]


def named_trackers() -> dict[str, NamedTracker]:
    """Return an instance of each tracker of the installed packs, by name."""
    return {name: load(where)() for name, where in entries("trackers").items()}


def always_on_machines() -> list[AlwaysOn]:
    """Return an instance of each always-on machine kind of the installed packs."""
    return [load(where)() for where in entries("always_on").values()]


@functools.cache
def known() -> Mapping[str, Mapping[str, Any]]:
    """Return the words of every pack, installed or not, by pack and kind; see `scripts.project.packs_index`."""
    found: Mapping[str, Mapping[str, Any]] = json.loads(INDEX.read_text(encoding="utf-8"))
    return found


def unlisted() -> list[Pack]:
    """Return the installed packs that the index does not list: packs of the user."""
    return [pack for name, pack in installed().items() if name not in known()]


def words(kind: str) -> list[str]:
    """Return the words of a kind of entry in all packs, installed or not."""
    found = [word for pack in known().values() for word in pack.get(kind, ())]
    return found + [word for pack in unlisted() if kind in BY_WORD for word in getattr(pack, kind)]


def missing_pack_message(kind: str, word: str) -> str:
    """Return a message that names the missing pack of `word`, or "" if no missing pack has the word.

    kind: a key of the index: `commands`, `settings`, `phases` and so on; see `scripts.project.packs_index`. A word of
    `command_flags` is a command with a flag, such as "launch --cmd".
    """
    name = next((name for name, words in known().items() if word in words.get(kind, ())), "")
    if not name or name in installed():
        return ""
    gone = [one for one in _below(name) if not (FOLDER / one).is_dir()]
    folders = [f"packs/{one}" for one in gone]
    said = f"{word} belongs to the pack {name}, and {' and '.join(folders)} is missing"
    return f"{said}; to restore the pack: git checkout HEAD -- {' '.join(folders)}"


def _below(name: str) -> list[str]:
    """Return a pack and all direct and indirect dependencies of the pack."""
    return [name, *(one for need in known()[name]["needs"] for one in _below(need))]


def typed(line: str) -> str:
    """Return a suggested command line, with a note if the command belongs to a missing pack."""
    note = missing_pack_message("commands", line.split()[1])
    return f"{line} ({note})" if note else line
