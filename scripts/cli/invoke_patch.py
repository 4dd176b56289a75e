"""Mends invoke 2.2 for whoever types: exit codes, near matches, bare RUN words, no tracebacks.

`tasks.py` calls mend() while the running program loads it, so that plain `inv` has all of it. Our tasks are made by
`scripts.cli.command`; of the stages of invoke's Program the parsing of task words, their help and the execution are
replaced. What happens before `tasks.py` is loaded (a wrong core flag, such as `inv --list-depth x`) is still invoke's
own.
"""

import contextlib
import difflib
import errno
import gc
import itertools
import json
import os
import re
import select
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, is_dataclass
from pathlib import Path
from typing import Any

from invoke import Executor, Exit, ParseError, Program
from invoke.parser import ParserContext
from invoke.parser.parser import ParseResult

from data.errors import ConfigError
from infra.agent import denied
from infra.agent.process import leave_no_core
from infra.errors import SlipwayError
from infra.interrupts import Replaced, ToldToLeave, heed
from scripts.cli import command_hints, completion, front_page
from scripts.cli.command import TYPED
from store import packs, word_wrap
from store.manifest import StoreError

STATE_OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR}
MOST = 1 << 63  # numbers on a command line are below this
KINDS = {int: "a whole number", float: "a number"}
YOUNG = 50_000  # objects; what a command imports stays, and to look through it at Python's 700 took a fifth of its time


def mend() -> None:
    """Patch the program that is loading tasks.py. Without such a program, nothing happens."""
    running = sys.modules.get("invoke.main")
    if running is not None:
        gc.set_threshold(YOUNG)
        leave_no_core()
        os.umask(os.umask(0o022) | 0o022)  # nobody else writes the code and the files that we run and read
        open_streams()
        warnings.showwarning = tell_warning
        running.program.__class__ = Polite


def tell_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    """Print a warning without the line of Python that noticed it."""
    print(f"inv: {message}", file=sys.stderr)


def open_streams() -> None:
    """Open a stream that came closed (`inv status >&-`), to nowhere: the next file opened would take its number."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115 it stays


def words_after_dashes() -> list[str]:
    """Return the words after `--` on the command line, as they were quoted (invoke joins them into one string)."""
    return sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []


def line_after_dashes() -> list[str]:
    """Return the same for a shell on another machine, joined by spaces as ssh does it; [] = nothing follows."""
    words = words_after_dashes()
    return ["sh", "-c", " ".join(words)] if words else []


def print_json(document: Any, indent: int | None = 1) -> None:
    """Print one JSON document on stdout, at once.

    Dataclasses become objects; paths, times and amounts become strings.
    """

    def plain(value: Any) -> Any:
        if is_dataclass(value) and not isinstance(value, type):
            return asdict(value)
        return value.isoformat() if hasattr(value, "isoformat") else str(value)

    print(json.dumps(document, default=plain, indent=indent), flush=True)


class FlagContext(ParserContext):
    """The flags of one naming of a command; what the command is given names those that were typed."""

    @property
    def as_kwargs(self) -> dict[str, Any]:
        # invoke's raw value of a repeatable flag that nobody typed is an empty list, that of any other is None.
        typed = frozenset(one.name for one in self.args.values() if one.raw_value not in (None, []))
        return {**super().as_kwargs, TYPED: typed}


class Contexts(Mapping[str, Any]):
    """invoke's parser contexts by the names of commands; each is made when it is asked for, as few ever are."""

    def __init__(self, collection: Any) -> None:
        self._collection = collection
        self._primary = {one: name for name, others in collection.task_names.items() for one in (name, *others)}
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        primary = self._primary[name]
        if primary not in self._made:
            self._made[primary] = self.new(primary)
        return self._made[primary]

    def new(self, name: str) -> Any:
        """Return a context of that command for the flags of one naming of it."""
        primary = self._primary[name]
        task = self._collection[primary]
        kind = FlagContext if hasattr(task, "flags") else ParserContext
        return kind(primary, self._collection.task_names[primary], task.get_arguments())

    def __contains__(self, name: object) -> bool:
        return name in self._primary

    def __iter__(self) -> Iterator[str]:
        return iter(self._primary)

    def __len__(self) -> int:
        return len(self._primary)


@dataclass
class LazyParser:
    """The part of invoke's parser that its program uses after the arguments have been parsed."""

    contexts: Contexts


class Polite(Program):
    """invoke's program with exit codes as in design: 2 for wrong words, 130 when interrupted, no tracebacks."""

    def _make_parser(self) -> Any:
        return LazyParser(Contexts(self.collection))

    def print_task_help(self, name: str) -> None:
        task = self.collection[name]
        if hasattr(task, "flags"):
            from scripts.cli import flag_help

            here = next((one for one in self.words.read_so_far[::-1] if one.name == name), None)
            typed = {} if here is None else here.as_kwargs
            print("\n".join(flag_help.lines(name, task, None if self.words.is_help_of_all else typed)))
        else:
            super().print_task_help(name)

    def parse_tasks(self) -> None:
        self.parser = self._make_parser()
        words = self.words = Words(self.core.unparsed, self.collection)
        as_json = "--json" in itertools.takewhile(lambda word: word != "--", self.core.unparsed)
        with manners(self.logs, as_json=as_json):
            try:
                self.tasks = ParseResult(words.read())
            except Exit as error:
                if as_json and error.code:
                    print_json({"error": re.sub(r"^inv( \S+)?: ", "", error.message or ""), "exit_code": error.code})
                raise
        if words.help_for:
            self.core[0].args["help"].value = words.help_for

    def parse_cleanup(self) -> None:
        if self.args.complete.value:
            self.print_candidates()
            raise Exit
        with manners(self.logs):
            if self.args.list.value == "--all":  # invoke takes the word for the name of a collection
                print("\n".join(front_page.listing(self.collection)))
                raise Exit
            try:
                super().parse_cleanup()
            except ParseError:
                name = self.args.help.value
                raise wrong(f"no task {name!r}", name, self.parser.contexts) from None
            except Exit as leaving:
                if leaving.message:  # `--list nowhere`, for which invoke leaves with code 0
                    raise Exit(f"inv: {leaving.message}", code=2) from None
                raise

    def print_candidates(self) -> None:
        """Print what Tab may put in the place of the last word; the first one is the program."""
        names = [name for task, others in self.collection.task_names.items() for name in (task, *others)]
        tasks = self._make_parser().contexts
        found = completion.candidates(words_after_dashes()[1:], tasks, names, self.initial_context)
        print("\n".join(found))

    def no_tasks_given(self) -> None:
        with manners(self.logs):
            print(front_page.FIRST_SCREEN)
        raise Exit

    def list_flat(self) -> None:
        if self.list_root or self.list_depth:
            super().list_flat()
        else:
            print("\n".join(front_page.first_listing(self.collection)))

    @property
    def logs(self) -> Path:
        return Path(self.collection.loaded_from or ".") / "var" / "logs"

    def execute(self) -> None:
        """Run the tasks one by one: each as often as it is named; a failure names the task that failed."""
        contexts = self.parser.contexts
        command_hints.teach(lambda name: contexts[name].flags if name in contexts else ())
        as_json = any("json" in one.args and one.args["json"].value for one in self.tasks)
        with manners(self.logs, self.tasks[0].name or "" if self.tasks else "", as_json):
            from scripts.cli import line_runner

            dry = ["--dry"] if self.args.dry.value else []  # the core flags are not among the others
            line = line_runner.CommandLine(
                self.tasks, self.collection, [*dry, *self.core.unparsed], words_after_dashes()
            )
            line_runner.run_elsewhere(line)
        for one in self.tasks:
            as_json = "json" in one.args and one.args["json"].value
            with manners(self.logs, one.name or "", as_json), heed(), last_words():
                Executor(self.collection, self.config, self.core).execute(one)


@contextlib.contextmanager
def last_words() -> Iterator[None]:
    """Print which pods of a line are left when a command of it fails, as the rest of the line is not done.

    When it was cut short, also which pods nobody looks after. Raises LimitHit when one should have been gone long ago.
    """
    try:
        yield
    except BaseException as error:
        session = sys.modules.get("scripts.cli.session")  # else no command of this line has dealt with a pod
        if session and not (isinstance(error, Exit) and error.code == 0):
            session.tell()
        if session and (isinstance(error, (KeyboardInterrupt, ToldToLeave, OSError))):
            session.tell_what_is_left()
        raise
    session = sys.modules.get("scripts.cli.session")
    if session:
        session.raise_alarm()


@contextlib.contextmanager
def manners(logs: Path, name: str = "", as_json: bool = False) -> Iterator[None]:
    """Turn whatever happens inside into an Exit with few words and the right code; as JSON on stdout too, if asked."""

    def leave(said: str, code: int) -> Exit:
        said = command_hints.as_typed(said)
        if as_json and not is_closed(1):
            print_json({"error": said, "exit_code": code})
        return Exit(word_wrap.fitted(f"{f'inv {name}' if name else 'inv'}: {said}", sys.stderr), code=code)

    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # here, where a closed pipe can still be answered
    except Exit as leaving:
        said = command_hints.as_typed(leaving.message or "")
        raise Exit(word_wrap.fitted(said, sys.stderr) or None, code=leaving.code) from None
    except SystemExit:
        raise
    except KeyboardInterrupt:
        raise Exit(code=130) from None
    except ToldToLeave as told:
        raise Exit(code=told.exit_code) from None
    except Replaced as error:
        raise leave(str(error), 1) from None
    except (SlipwayError, ConfigError, StoreError) as error:
        raise leave(str(error), getattr(error, "exit_code", 2)) from None
    except Exception as error:
        closed = [number for number in (1, 2) if is_closed(number)]
        if isinstance(error, BrokenPipeError) and closed:
            for number in closed:
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)  # or Python complains once more at its end
            raise Exit(code=141) from None
        if isinstance(error, OSError) and error.errno in STATE_OF_THE_DISK:
            raise leave(denied.told(error, logs.parents[1].absolute()), 1) from None
        said, where = f"unexpected {type(error).__name__}: {error}", write_down(error, logs)
        raise leave(f"{said}\n  this is a fault of inv itself; the full traceback: {where}", 1) from None


def is_closed(descriptor: int) -> bool:
    """Return whether nobody reads at the other end of this pipe."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def write_down(error: BaseException, logs: Path) -> Path:
    """Write the traceback into a new file under `logs`, or else for temporary files, and return its path."""
    try:
        logs.mkdir(parents=True, exist_ok=True)
        usable = os.access(logs, os.W_OK)
    except OSError:  # a checkout that may only be read
        usable = False
    if not usable:
        import tempfile

        logs = Path(tempfile.gettempdir())
    path = logs / time.strftime(f"inv-%Y%m%d-%H%M%S-{os.getpid()}.txt")
    path.write_text(f"{sys.argv}\n" + "".join(traceback.format_exception(error)), encoding="utf-8")
    return path


def wrong(said: str, word: str, known: Iterable[str], task_name: str = "") -> Exit:
    """Return an Exit with code 2 that names the nearest word that would have been right."""
    bare = {one.lstrip("-"): one for one in known}  # the dashes that all flags share make none of them alike
    near = difflib.get_close_matches(word.lstrip("-"), bare, 1)
    meant = command_hints.ours(word, task_name)
    hint = (
        f"here that is: {meant}"
        if meant
        else f"did you mean {bare[near[0]]}?"
        if near
        else f"see: inv {'--help ' + task_name if task_name else '--list'}"
    )
    return Exit(f"inv{' ' + task_name if task_name else ''}: {said}; {hint}", code=2)


class Words:
    """Reads `task --flag value RUN task ...` into invoke's contexts, one per task named."""

    def __init__(self, words: Sequence[str], collection: Any) -> None:
        self.words = list(words)
        self.contexts = Contexts(collection)
        self.collection = collection
        self.help_for = ""
        self.is_help_of_all = False
        self.in_front: dict[str, str] = {}  # flags of packs in front of all commands, by the names of arguments
        self.read_so_far: list[Any] = []

    def read(self) -> list[Any]:
        """Return the tasks of the line with their flags. Raises Exit with code 2 for a word that fits nowhere."""
        while self.words:
            word = self.words.pop(0)
            if word.startswith("-") and len(word) > 1:
                self.read_flag(*word.partition("="))
            elif word in self.contexts:
                self.read_so_far.append(self.contexts.new(word))
            else:
                self.read_bare(word)
        for one in self.read_so_far:
            for name, value in self.in_front.items():
                if name in one.args and one.args[name].raw_value is None:
                    one.args[name].value = value
            self.read_file(one)
        return self.read_so_far

    def read_file(self, here: Any) -> None:
        """Read the flags of a file that a task was given, but for those that were typed."""
        named = getattr(self.collection[here.name], "flag_file", "")
        path = here.args[named].value if named else ""
        if not path:
            return
        from scripts.cli import flag_file

        flags = {name.lstrip("-"): argument for name, argument in here.flags.items() if argument.name != named}
        typed = {name for name, argument in flags.items() if argument.raw_value is not None}
        try:
            written = flag_file.read(Path(path), flags, typed)
        except SlipwayError as error:
            raise Exit(f"inv {here.name}: {error}", code=2) from None
        for name, values in written.items():
            argument = flags[name]
            if argument.kind is list:  # typed values come after it, and so override it
                values = [*values, *argument.value]
                argument.value.clear()
            elif argument.raw_value is not None:
                continue
            for value in values:
                called = f"{path}: {name}"
                if argument.kind is bool and isinstance(value, bool):
                    argument.set_value(value, cast=False)
                elif argument.kind is bool or isinstance(value, bool) or len(values) > 1 and argument.kind is not list:
                    wanted = "true or false" if argument.kind is bool else "one word or number (quote yes, no, on, off)"
                    raise Exit(f"inv {here.name}: {called}: expected {wanted}", code=2)
                else:
                    self.give(here, argument, called, value)

    def read_bare(self, word: str) -> None:
        here = self.read_so_far[-1] if self.read_so_far else None
        taken = getattr(self.collection[here.name], "word", "") if here else ""
        if not here and (why := packs.lacking("commands", word)):
            raise Exit(f"inv: {why}", code=2)
        if not here or not taken:
            raise wrong(f"no task {word!r}", word, self.contexts)
        if Path(word).suffix in (".yaml", ".yml"):
            taken = getattr(self.collection[here.name], "file_word", "") or taken
        argument = here.args[taken]
        if argument.raw_value is not None and argument.kind is not list:
            raise wrong(f"one {taken} is enough, and {word!r} is no task", word, self.contexts, here.name)
        self.give(here, argument, taken.upper(), word)

    def read_flag(self, flag: str, equals: str, value: str) -> None:
        """Read one flag and its value. Raises Exit with code 2 for one that is none, or does not fit."""
        if not self.read_so_far and flag in packs.entries("line_flags") and (equals or self.words):
            self.in_front[flag[2:].replace("-", "_")] = value if equals else self.words.pop(0)
            return
        if why := packs.lacking("line_flags", flag):
            raise Exit(f"inv: {why}", code=2)
        if not self.read_so_far:
            raise wrong(f"no flag {flag}", flag, ["--list", "--help", "--version", "--search-root"])
        here = self.read_so_far[-1]
        if flag in here.inverse_flags and not equals:
            here.flags[here.inverse_flags[flag]].set_value(False, cast=False)
        elif flag in here.flags:
            argument = here.flags[flag]
            if not argument.takes_value:
                if equals:
                    raise Exit(f"inv {here.name}: {flag} takes no value", code=2)
                argument.value = True
            elif equals or self.has_value(here, argument):
                self.give(here, argument, flag, value if equals else self.words.pop(0))
            elif argument.optional:
                argument.set_value(True, cast=False)
            else:
                raise Exit(f"inv {here.name}: {flag} needs a value", code=2)
        elif flag in ("-h", "--help", "--help-all"):
            self.help_for = here.name
            self.is_help_of_all = flag == "--help-all"
        elif why := packs.lacking("command_flags", f"{here.name} {flag}"):
            raise Exit(f"inv {here.name}: {why}", code=2)
        else:
            raise wrong(f"no flag {flag}", flag, [*here.flags, *here.inverse_flags], here.name)

    def has_value(self, here: Any, argument: Any) -> bool:
        """Return whether the next word is the value of `argument`. Where a value may be left out, only if it fits."""
        if not self.words or self.words[0].startswith("--") or self.words[0] in here.flags:
            return False
        if not argument.optional:
            return True
        try:
            argument.kind(self.words[0])
        except ValueError:
            return False
        return self.words[0] not in self.contexts

    def give(self, here: Any, argument: Any, called: str, value: str) -> None:
        task = self.collection[here.name]
        try:
            argument.value = value
            if argument.kind in KINDS and not -MOST < argument.value < MOST:  # nor `nan`
                raise ValueError
        except ValueError:
            kind = KINDS.get(argument.kind, argument.kind.__name__)
            raise Exit(f"inv {here.name}: {called} {value[:40]!r} is not {kind}", code=2) from None
        least = next((one.least for one in getattr(task, "flags", ()) if one.name == argument.name), None)
        if least is not None and argument.value < least:
            raise Exit(f"inv {here.name}: {called} is {value}; it must be at least {least}", code=2)
