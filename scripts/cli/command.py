"""A command: one file with the record of its flags, its help and its work.

    @command(record=DrillFlags, world=BEGIN, example="inv drill --provider runpod")
    def drill(spec):
        '''Test what a vendor promises, on rented machines ...'''

The function gets the record, made of what was typed. A table names each command with its function and the first line of
its help: `scripts/commands.py` those of the core, the record of a pack those of the pack. A `LazyCommand` loads the
file when the command is named on a line, so that a listing of all commands loads none of them.
"""

import functools
import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any

from invoke import Collection, Task
from invoke.parser import Argument

from store import packs

FIND, BEGIN, APART = "find", "begin", "apart"  # what a command does about the rehearsal: see `command`
DRY_RUN = "dry_run"  # the field of a record whose command shows what it would do, and stops
ADDED = "added"  # records of the flags that packs add, in the same record
TYPED = "typed"  # names of the flags that were typed, beside the values of all: the field of `infra.flags.Typed`


class Command(Task):
    """A task that knows its record, its bare word, and an example of its use."""

    def __init__(
        self, body: Callable[..., Any], *, work: Callable[..., None], record: type | None, world: str, env: bool,
        example: str = "", rents: bool = False, is_here: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        self.work = work
        """The function that was decorated, which takes the record."""
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
        self.listens: str = options.pop("listens", "")
        self.added: list[str] = []
        """Places of the records of flags that packs add to the command: see `add_packs`."""
        super().__init__(body, auto_shortflags=False, positional=[], **options)

    @functools.cached_property
    def flags(self) -> tuple[Any, ...]:
        """Return its flags (`infra.flags.Flag`): of its record, of its world and environment, then those of packs."""
        from infra.flags import flags_of
        from scripts.cli import flags, line_runner

        more: list[type] = [*self.added_records]
        more += [flags.Environment] if self.takes_env else []
        more += [flags.Rehearse] if self.world in (FIND, BEGIN) else []
        more += [flags.Apart] if self.world else []
        own = flags_of(self.record) if self.record else ()
        of_line = () if self.is_here else line_runner.flags()
        return (*own, *(one for record in more for one in flags_of(record)), *of_line)

    @functools.cached_property
    def added_records(self) -> tuple[type, ...]:
        """Return the records of flags that packs add to the command. Their modules are imported now."""
        return tuple(map(packs.load, self.added))

    @property
    def word(self) -> str:
        """Return the flag that may be given as a bare word, "" where there is none."""
        return next((one.spelled.replace("-", "_") for one in self.flags if one.is_word), "")

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        """Return the flags as invoke's parser takes them."""
        found = []
        for one in self.flags:
            name = one.spelled.replace("-", "_")
            about = f"{one.about} (also as a bare word)" if one.is_word else one.about
            found.append(
                Argument(names=(name, *one.also), kind=list if one.is_many else one.kind,
                         default=None if one.is_many else one.default, help=about, optional=one.is_bare,
                         attr_name=None if one.name == name else one.name)
            )  # fmt: skip
        return found

    def values(self, typed: dict[str, Any]) -> dict[str, Any]:
        """Return the values of its flags by field, of what invoke has parsed. Raises UsageError."""
        return {one.name: one.value(typed[one.name]) for one in self.flags if one.name in typed}


class LazyCommand(Task):
    """A command whose name and first line of help are known; the rest is loaded when the command is used."""

    def __init__(self, typed_name: str, entry: packs.CommandEntry) -> None:
        name = typed_name.rpartition(".")[2]
        super().__init__(self._run, name=name, default=entry.is_default, auto_shortflags=False, positional=[])
        self.__doc__ = entry.summary
        self.typed_name = typed_name
        self.where = entry.where
        self.added: list[str] = []

    @property
    def is_of_pack(self) -> bool:
        """Return whether a pack has brought the command."""
        return self.where.startswith("packs.")

    @functools.cached_property
    def loaded(self) -> Command:
        """Return the command itself. Its module is imported now."""
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
    """Add commands to a namespace by the names that are typed, `a.b` as `b` of the collection `a`."""
    for typed_name, entry in entries.items():
        above = typed_name.rpartition(".")[0]
        if above and above not in namespace.collections:
            namespace.add_collection(Collection(above))
        (namespace.collections[above] if above else namespace).add_task(LazyCommand(typed_name, entry))


def add_packs(namespace: Collection) -> None:
    """Add the commands of all installed packs to a namespace, and the flags that packs add to commands."""
    for pack in packs.installed().values():
        add(namespace, pack.commands)
        for typed_name in pack.command_flags:
            namespace[typed_name].added = packs.command_flags(typed_name)


def command(
    record: type | None = None, *, world: str = FIND, env: bool = False, **options: Any
) -> Callable[[Callable[..., None]], Command]:  # fmt: skip
    """Return a decorator that makes a command of a function `(spec)`, or of `()` where the command has no flags.

    `record`: the dataclass of its flags, which the function gets. `world`: whether it deals with pods, and so has
    `--rehearse` and `--state-file`: then a rehearsal must run ("find") or is begun ("begin"); "apart" has
    `--state-file` alone; "" is for what has nothing to do with pods. `env`: it runs something, and has `--env`.
    `example`: a line of its use. `flag_file`: the flag that names a file with more flags. `file_word`: the flag that a
    bare word is for where it names a YAML file. `speed`: of the rehearsal that it begins, where that is not the usual
    one. `rents`: it may rent machines, whose price somebody pays: AGENTS.md forbids it without a person's word.
    `is_here`: it is about this very machine, and no other one can run it. `listens`: the flag that names the port on
    which it listens, which is forwarded where a line runs on another machine.
    """

    def make(work: Callable[..., None]) -> Command:
        @functools.wraps(work)
        def body(c: Any, **given: Any) -> None:
            # A call as a function names only what it gives.
            typed = given.pop(TYPED, None)
            typed = frozenset(given) if typed is None else typed
            values = made.values(given)
            fields = getattr(record, "__dataclass_fields__", {})
            if _is_dry(c):
                if DRY_RUN not in fields:
                    print(f"--dry: {made.typed_name} has no --dry-run, and was not run", file=sys.stderr)
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
    """Return a record made of its values among those of a command, which are taken away there."""
    from infra.flags import flags_of

    return record(**{one.name: values.pop(one.name) for one in flags_of(record) if one.name in values})


def _is_dry(c: Any) -> bool:
    """Return whether invoke's own `--dry` was given, which promises that nothing is done."""
    config = getattr(c, "config", None)
    return bool(config is not None and config.run.dry)


def _choose_world(made: Command, values: dict[str, Any]) -> None:
    """Step into what the flags of the world say, and take them away. Raises UsageError."""
    for one in importlib.import_module("scripts.cli.line_runner").flags():  # they have been read for the whole line
        values.pop(one.name, None)
    env_file, env = values.pop("env_file", ""), values.pop("env", ())
    if env or env_file:
        importlib.import_module("scripts.cli.context").give(env, env_file)
    if state_file := values.pop("state_file", ""):
        importlib.import_module("scripts.cli.rehearsal_world").keep_apart(state_file)
    if values.pop("rehearse", False):
        importlib.import_module("scripts.cli.rehearsal_world").enter(made.world == BEGIN, made.speed)
