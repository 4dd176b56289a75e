"""Commands of `inv`: each command file declares a record of flags, a help text and a function.

    @command(record=DrillFlags, world=BEGIN, example="inv drill --provider runpod")
    def drill(spec):
        '''Test the promises of a vendor on rented machines ...'''

The function receives the record, filled from the typed flags. A table maps each command name to the function and the
first line of the help: `scripts/commands.py` for the core, the record of a pack for pack commands. A `LazyCommand`
imports the file only when a line names the command, so listing all commands imports no command file.
"""

import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from invoke import Collection, Task
from invoke.parser import Argument

from store import packs

FIND, BEGIN, APART = "find", "begin", "apart"  # values of `world`, the rehearsal mode of a command: see `command`
DRY_RUN = "dry_run"  # record field for which invoke's `--dry` is set: the command shows the plan and stops
ADDED = "added"  # record field with the flag records added by packs
TYPED = "typed"  # record field with the names of the typed flags: the field of `infra.flags.Typed`


class Command(Task):
    """A task with a record of flags, an optional bare word and an example."""

    def __init__(
        self,
        body: Callable[..., Any],
        *,
        work: Callable[..., None],
        record: type | None,
        world: str,
        env: bool,
        example: str = "",
        rents: bool = False,
        is_here: bool = False,
        **options: Any,
    ) -> None:
        self.work = work
        """The decorated function, which takes the record."""
        self.record = record
        self.typed_name = work.__name__.rstrip("_")
        self.world = world
        self.takes_env = env
        self.example = example
        self.rents = rents
        self.is_here = is_here
        self.flag_file: str = options.pop("flag_file", "")
        self.file_word: str = options.pop("file_word", "")
        self.speed: float = options.pop("speed", 0.0)
        self.takes_rest: bool = options.pop("takes_rest", False)
        self.listens: str = options.pop("listens", "")
        self.added: list[str] = []
        """Import paths of the flag records added by packs: see `add_packs`."""
        super().__init__(body, auto_shortflags=False, positional=[], **options)

    @functools.cached_property
    def flags(self) -> tuple[Any, ...]:
        """Return the flags (`infra.flags.Flag`) of the record, packs, environment, world and line, in this order."""
        from infra.flags import flags_of
        from scripts.cli import flags, line_runner

        more: list[type] = [*self.added_records]
        more += [flags.Environment] if self.takes_env else []
        more += [flags.Rehearse] if self.world in (FIND, BEGIN) else []
        more += [flags.JournalFlag] if self.world else []
        own = flags_of(self.record) if self.record else ()
        of_line = () if self.is_here else line_runner.flags()
        return (*own, *(one for record in more for one in flags_of(record)), *of_line)

    @functools.cached_property
    def added_records(self) -> tuple[type, ...]:
        """Import and return the flag records added by packs."""
        return tuple(map(packs.load, self.added))

    @property
    def word(self) -> str:
        """Return the flag for bare words, or "" without such a flag."""
        return next((one.spelling.replace("-", "_") for one in self.flags if one.is_word), "")

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        """Return the flags as arguments of invoke's parser."""
        found = []
        for one in self.flags:
            name = one.spelling.replace("-", "_")
            about = f"{one.about} (also as a bare word)" if one.is_word else one.about
            found.append(
                Argument(
                    names=(name, *one.aliases),
                    kind=list if one.is_many else one.kind,
                    default=None if one.is_many else one.default,
                    help=about,
                    optional=one.is_bare,
                    attr_name=None if one.name == name else one.name,
                )
            )
        return found

    def values(self, typed: dict[str, Any]) -> dict[str, Any]:
        """Convert invoke's parsed arguments to flag values by field name. Raises UsageError."""
        return {one.name: one.value(typed[one.name]) for one in self.flags if one.name in typed}


class LazyCommand(Task):
    """A command known by name and help summary; the module is imported on first use."""

    def __init__(self, typed_name: str, entry: packs.CommandEntry) -> None:
        name = typed_name.rpartition(".")[2]
        super().__init__(self._run, name=name, default=entry.is_default, auto_shortflags=False, positional=[])
        self.__doc__ = entry.summary
        self.typed_name = typed_name
        self.where = entry.where
        self.added: list[str] = []

    @property
    def is_of_pack(self) -> bool:
        """Return whether a pack supplies the command."""
        return self.where.startswith("packs.")

    @functools.cached_property
    def loaded(self) -> Command:
        """Import the module and return the full command."""
        found: Command = packs.load(self.where)
        found.typed_name, found.added = self.typed_name, self.added
        self.__doc__ = found.__doc__
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "where" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.loaded, name)

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        return self.loaded.get_arguments(ignore_unknown_help)

    def _run(self, c: Any, **given: Any) -> Any:
        return self.loaded.body(c, **given)


def add(namespace: Collection, entries: Mapping[str, packs.CommandEntry]) -> None:
    """Add commands to a namespace by typed name; `a.b` becomes `b` of the collection `a`."""
    for typed_name, entry in entries.items():
        above = typed_name.rpartition(".")[0]
        if above and above not in namespace.collections:
            namespace.add_collection(Collection(above))
        (namespace.collections[above] if above else namespace).add_task(LazyCommand(typed_name, entry))


def add_packs(namespace: Collection) -> None:
    """Add the commands of all installed packs to a namespace, and the pack flags to existing commands."""
    for pack in packs.installed().values():
        add(namespace, pack.commands)
        for typed_name in pack.command_flags:
            namespace[typed_name].added = packs.command_flags(typed_name)


def command(
    record: type | None = None, *, world: str = FIND, env: bool = False, **options: Any
) -> Callable[[Callable[..., None]], Command]:
    """Return a decorator for a function `(spec)`, or `()` without flags; the decorator makes a command.

    `record`: the dataclass of the flags, passed to the function. `world`: "find" (needs a running rehearsal) and
    "begin" (starts a rehearsal if none runs) are for commands on pods, and add `--rehearse` and `--state-file`; "apart"
    adds only `--state-file`; "" is for commands without pods. `env`: the command runs user work, so add `--env`.
    `example`: a sample command line. `flag_file`: the flag that names a file with more flags. `file_word`: the flag for
    a bare word ending in `.yaml` or `.yml`. `speed`: the speed of a new rehearsal, if not the default. `rents`: the
    command may rent machines and so spend money; AGENTS.md forbids agents to run such commands without a person's
    approval. `is_here`: the command concerns this machine and cannot run on a remote machine. `listens`: the flag with
    the listening port, which is forwarded when the line runs on a remote machine. `takes_rest`: all bare words after
    the command are words of the command, also names of commands.
    """

    def make(work: Callable[..., None]) -> Command:
        @functools.wraps(work)
        def body(c: Any, **given: Any) -> None:
            # A direct Python call passes only the flags to set, so the passed names are the typed flags.
            typed = given.pop(TYPED, None)
            typed = frozenset(given) if typed is None else typed
            values = made.values(given)
            fields = getattr(record, "__dataclass_fields__", {})
            if _is_dry(c):
                if DRY_RUN not in fields:
                    print(f"--dry: {made.typed_name} has no --dry-run and was skipped", file=sys.stderr)
                    return
                values[DRY_RUN], typed = True, typed | {DRY_RUN}
            _choose_world(made, values)
            if made.added_records:
                values[ADDED] = tuple(_taken(added, values) for added in made.added_records)
            if TYPED in fields:
                values[TYPED] = typed
            work(*([record(**values)] if record else []))

        made = Command(body, work=work, record=record, world=world, env=env, **options)
        return made

    return make


def _taken(record: type, values: dict[str, Any]) -> Any:
    """Build a record from the matching entries of `values`, and remove these entries."""
    from infra.flags import flags_of

    return record(**{one.name: values.pop(one.name) for one in flags_of(record) if one.name in values})


def _is_dry(c: Any) -> bool:
    """Return whether the user gave invoke's own `--dry`, which promises no changes."""
    config = getattr(c, "config", None)
    return bool(config is not None and config.run.dry)


def _choose_world(made: Command, values: dict[str, Any]) -> None:
    """Apply the environment, journal and rehearsal flags, and remove them from `values`. Raises UsageError."""
    for one in importlib.import_module("scripts.cli.line_runner").flags():  # already applied to the whole line
        values.pop(one.name, None)
    env_file, env = values.pop("env_file", ""), values.pop("env", ())
    if env or env_file:
        importlib.import_module("scripts.cli.context").set_environment(env, env_file)
    if state_file := values.pop("state_file", ""):
        importlib.import_module("scripts.cli.rehearsal_world").set_state_file(state_file)
    if values.pop("rehearse", False):
        importlib.import_module("scripts.cli.rehearsal_world").enter(made.world == BEGIN, made.speed)
