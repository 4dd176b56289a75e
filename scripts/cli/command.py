"""A command: a task of invoke whose flags are the fields of a record.

    @command("scripts.runs.launch", "scripts.runs.flags:LaunchFlags", example="inv launch --gpu H100")
    def launch(c, spec):
        '''Train one or more phases ...'''

The function is the declaration: its name, and what it says of itself. Its namesake in the module of the first word gets
the record, made of what was typed. Both modules are loaded when the command is named on a line, so that a listing of
all commands loads none of them.

A command of a pack is one module, which declares its record and does the work:

    @command(record=DrillFlags, world=BEGIN, example="inv drill --provider runpod")
    def drill(spec):
        '''Test what a vendor promises, on rented machines ...'''

The record of the pack has its name and its line in the list; a `PackTask` loads the module when the command is named.
"""

import functools
import importlib
import sys
from collections.abc import Callable
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
        self, body: Callable[..., Any], *, does: str = "", record: str | type = "", world: str = "", env: bool = False,
        example: str = "", flag_file: str = "", speed: float = 0.0, is_here: bool = False, **options: Any,
    ) -> None:  # fmt: skip
        self.does = does
        self.is_here = is_here
        self.listens, self.rents = options.pop("listens", ""), options.pop("rents", False)
        self.record_name = record
        self.world = world
        self.takes_env = env
        self.example = example
        self.flag_file = flag_file
        self.file_word: str = options.pop("file_word", "")
        self.speed = speed
        self.added: list[str] = []
        """Places of the records of flags that packs add to the command: see `add_packs`."""
        self.work = body
        """The function that was decorated: of a command of one module it does the work, and takes the record."""
        super().__init__(body, auto_shortflags=False, positional=[], **options)

    @functools.cached_property
    def record(self) -> Any:
        """Return the record of its own flags, or None where it has none."""
        if isinstance(self.record_name, str):
            return packs.load(self.record_name) if self.record_name else None
        return self.record_name

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


class PackTask(Task):
    """A command of a pack: its name and the first line of its help are known, the rest is loaded when it is used."""

    def __init__(self, name: str, entry: packs.PackCommand) -> None:
        super().__init__(self._run, name=name, auto_shortflags=False, positional=[])
        self.__doc__ = entry.summary
        self._where = entry.where

    @functools.cached_property
    def loaded(self) -> Command:
        """Return the command itself. Its module is imported now."""
        found: Command = packs.load(self._where)
        self.__doc__ = found.__doc__
        return found

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or "_where" not in self.__dict__:
            raise AttributeError(name)
        return getattr(self.loaded, name)

    def get_arguments(self, ignore_unknown_help: bool | None = None) -> list[Argument]:
        return self.loaded.get_arguments(ignore_unknown_help)

    def _run(self, c: Any, **given: Any) -> Any:
        return self.loaded.body(c, **given)


def add_packs(namespace: Collection) -> None:
    """Add the commands of all installed packs to a namespace, `a.b` as `b` of the collection `a`, and their flags."""
    for pack in packs.installed().values():
        for spelled, entry in pack.commands.items():
            above, _, name = spelled.rpartition(".")
            if above and above not in namespace.collections:
                namespace.add_collection(Collection(above))
            (namespace.collections[above] if above else namespace).add_task(PackTask(name, entry))
        for spelled in pack.command_flags:
            namespace[spelled].added = packs.command_flags(spelled)


def command(
    does: str = "", record: str | type = "", *, world: str = FIND, env: bool = False, example: str = "", **options: Any
) -> Callable[[Callable[..., Any]], Command]:  # fmt: skip
    """Return a decorator that makes a command of a function `(c, spec)`, or of `(c)` where it has no flags.

    `does`: the module whose namesake of the function does the work; "" for the function itself. `record`: where the
    record of its flags is, as `module:Name`, or the record itself: then the function is `(spec)`. `world`: whether it
    deals with pods, and so has `--rehearse` and `--state-file`: then a rehearsal must run ("find") or is begun
    ("begin"); "apart" has `--state-file` alone; "" is for what has nothing to do with pods. `env`: it runs something,
    and has `--env`. `flag_file`: the flag that names a file with more flags. `file_word`: the flag that a bare word is
    for where it names a YAML file. `speed`: of the rehearsal that it begins, where that is not the usual one. `rents`:
    it may rent machines, whose price somebody pays: AGENTS.md forbids it without a person's word. `is_here`: it is
    about this very machine, and no other one can run it. `listens`: the flag that names the port on which it listens,
    which is forwarded where a line runs on another machine. Other options are invoke's.
    """

    def make(declared: Callable[..., Any]) -> Command:
        @functools.wraps(declared)
        def body(c: Any, **given: Any) -> Any:
            # A call as a function names only what it gives.
            typed = given.pop(TYPED, None)
            typed = frozenset(given) if typed is None else typed
            values = made.values(given)
            if _is_dry(c):
                if DRY_RUN not in getattr(made.record, "__dataclass_fields__", {}):
                    name = declared.__name__.replace("_", ".", 1)
                    print(f"--dry: {name} has no --dry-run, and was not run", file=sys.stderr)
                    return None
                values[DRY_RUN], typed = True, typed | {DRY_RUN}
            _choose_world(made, values)
            if made.added_records:
                values[ADDED] = tuple(_taken(record, values) for record in made.added_records)
            if TYPED in getattr(made.record, "__dataclass_fields__", {}):
                values[TYPED] = typed
            spec = [made.record(**values)] if made.record else []
            if does:
                return getattr(importlib.import_module(does), declared.__name__)(*spec)
            return declared(*spec) if is_whole else declared(c, *spec)

        is_whole = isinstance(record, type)
        world_of = world if does or is_whole else ""
        made = Command(body, does=does, record=record, world=world_of, env=env, example=example, **options)
        made.work = declared
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
