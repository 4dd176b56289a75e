"""Patches for invoke 2.2: exit codes, near-match hints, bare RUN words, no tracebacks.

`tasks.py` calls `patch_invoke` while the running program loads it, so plain `inv` is patched, too.
`scripts.cli.command` makes our tasks; this module replaces the parsing of task words, their help and the execution in
invoke's Program. Errors before the import of `tasks.py` (a wrong core flag, such as `inv --list-depth x`) still come
from invoke.
"""

import contextlib
import difflib
import errno
import gc
import itertools
import os
import re
import select
import shlex
import sys
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from invoke import Executor, Exit, ParseError, Program
from invoke.parser import ParserContext
from invoke.parser.parser import ParseResult

from data.errors import ConfigError
from infra.agent import permission_hints
from infra.agent.process import disable_core_dumps
from infra.errors import SlipwayError
from infra.interrupts import ExitRequested, WorkTakenOver, raise_on_signals
from scripts.cli import command_hints, front_page
from scripts.cli.command import TYPED
from store import packs, terminal
from store.errors import StoreError

STATE_OF_THE_DISK = {errno.ENOSPC, errno.EDQUOT, errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOTDIR}
MOST = 1 << 63  # exclusive bound on the absolute value of numbers on a command line
KINDS = {int: "a whole number", float: "a number"}
YOUNG = 50_000  # objects; scanning the permanent imported objects at Python's default 700 took a fifth of the time


def patch_invoke() -> None:
    """Patch the invoke program that loads tasks.py; other programs are left alone."""
    running = sys.modules.get("invoke.main")
    if running is not None:
        gc.set_threshold(YOUNG)
        disable_core_dumps()
        os.umask(os.umask(0o022) | 0o022)  # prevent writes by other users to code and files that we run and read
        open_streams()
        terminal.replace_unencodable()
        warnings.showwarning = tell_warning
        running.program.__class__ = SlipwayProgram


def tell_warning(
    message: Warning | str, category: type[Warning], filename: str, lineno: int, file: Any = None, line: Any = None
) -> None:
    """Print a warning without the Python source line that raised it."""
    print(f"inv: {message}", file=sys.stderr)


def open_streams() -> None:
    """Open closed standard streams (`inv status >&-`) on /dev/null, so that no file takes their descriptors."""
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        if getattr(sys, name) is None:
            os.dup2(os.open(os.devnull, os.O_RDWR), number)
            setattr(sys, name, open(number, "w" if number else "r", encoding="utf-8", closefd=False))  # noqa: SIM115 it stays


def words_after_dashes() -> list[str]:
    """Return the words after `--` on the command line unchanged (invoke joins them into a single string)."""
    return sys.argv[sys.argv.index("--") + 1 :] if "--" in sys.argv else []


def line_after_dashes() -> list[str]:
    """Return the words after `--` as an `sh -c` command, joined by spaces as ssh does; [] without words."""
    words = words_after_dashes()
    return ["sh", "-c", " ".join(words)] if words else []


class FlagContext(ParserContext):
    """Parser context for a single occurrence of a command; also passes the typed flags' names to the command."""

    @property
    def as_kwargs(self) -> dict[str, Any]:
        # For an untyped flag invoke's raw value is [] if the flag is repeatable, else None.
        typed = frozenset(one.name for one in self.args.values() if one.raw_value not in (None, []))
        return {**super().as_kwargs, TYPED: typed}


class Contexts(Mapping[str, Any]):
    """invoke's parser contexts by command name, created on access because a line uses few of them."""

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
        """Return a new context with the flags of a single occurrence of the command."""
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


class SlipwayProgram(Program):
    """invoke's Program with our exit codes: 2 for usage errors, 130 when interrupted, no tracebacks."""

    def _make_parser(self) -> Any:
        return SimpleNamespace(contexts=Contexts(self.collection))  # all that Program uses of invoke's parser

    def print_task_help(self, name: str) -> None:
        task = self.collection[name]
        if hasattr(task, "flags"):
            from scripts.cli import flag_help

            typed = next((one.as_kwargs for one in self.words.read_so_far[::-1] if one.name == name), dict[str, Any]())
            lines = flag_help.lines(name, task, None if self.words.is_help_of_all else typed)
            print(terminal.wrap_text("\n".join(lines), sys.stdout))
        else:
            super().print_task_help(name)

    def parse_tasks(self) -> None:
        self.parser = self._make_parser()
        line = self.core.unparsed
        if line[:1] == ["help"]:  # `inv help launch`
            line = [*line[1:], "--help"] if line[1:] else []
        words = self.words = CommandParser(line, self.collection)
        as_json = "--json" in itertools.takewhile(lambda word: word != "--", self.core.unparsed)
        with convert_errors(self.logs, as_json=as_json):
            try:
                self.tasks = ParseResult(words.read())
            except Exit as error:
                if as_json and error.code:
                    from scripts.cli.render import print_json  # a listing of the commands needs no output of theirs

                    print_json({"error": re.sub(r"^inv( \S+)?: ", "", error.message or ""), "exit_code": error.code})
                raise
        if words.help_for:
            self.core[0].args["help"].value = words.help_for

    def parse_cleanup(self) -> None:
        if self.args.complete.value:
            self.print_candidates()
            raise Exit
        with convert_errors(self.logs):
            if self.args.list.value == "--all":  # invoke takes `--all` for the name of a collection
                print(terminal.wrap_text("\n".join(front_page.listing(self.collection)), sys.stdout))
                raise Exit
            try:
                super().parse_cleanup()
            except ParseError:
                name = self.args.help.value
                raise usage_error(f"no task {name!r}", name, self.parser.contexts) from None
            except Exit as leaving:
                if leaving.message:  # `--list nowhere`, for which invoke exits with code 0
                    raise Exit(f"inv: {leaving.message}", code=2) from None
                raise

    def print_candidates(self) -> None:
        """Print the completion candidates for the last word; the first word is the program."""
        from scripts.cli import completion, value_completion

        names = [name for task, others in self.collection.task_names.items() for name in (task, *others)]
        tasks = self._make_parser().contexts
        found = completion.candidates(
            words_after_dashes()[1:],
            tasks,
            names,
            self.initial_context,
            lambda name: getattr(self.collection[name], "word", ""),
            value_completion.values,
        )
        print("\n".join(found))

    def no_tasks_given(self) -> None:
        with convert_errors(self.logs):
            print(terminal.wrap_text(front_page.FIRST_SCREEN, sys.stdout))
        raise Exit

    def list_flat(self) -> None:
        if self.list_root or self.list_depth:
            super().list_flat()
        else:
            print(terminal.wrap_text("\n".join(front_page.first_listing(self.collection)), sys.stdout))

    @property
    def logs(self) -> Path:
        return Path(self.collection.loaded_from or ".") / "var" / "logs"

    def execute(self) -> None:
        """Run the tasks in order, repeated tasks repeatedly; error messages name the failed task."""
        contexts = self.parser.contexts
        command_hints.set_flag_lookup(lambda name: contexts[name].flags if name in contexts else ())
        as_json = any("json" in one.args and one.args["json"].value for one in self.tasks)
        with convert_errors(self.logs, self.tasks[0].name or "" if self.tasks else "", as_json):
            from scripts.cli import line_runner

            dry = ["--dry"] if self.args.dry.value else []  # `core.unparsed` lacks the core flags
            line = line_runner.CommandLine(
                self.tasks, self.collection, [*dry, *self.core.unparsed], words_after_dashes()
            )
            line_runner.run_elsewhere(line)
        for one in self.tasks:
            as_json = "json" in one.args and one.args["json"].value
            with convert_errors(self.logs, one.name or "", as_json), raise_on_signals(), report_remaining_pods():
                Executor(self.collection, self.config, self.core).execute(one)


@contextlib.contextmanager
def report_remaining_pods() -> Iterator[None]:
    """Print the remaining pods of the line if a command fails, because the rest of the line is skipped.

    For an interrupted command, also print the pods without a supervisor. After a successful command, raise LimitHit if
    a pod is overdue to end.
    """
    try:
        yield
    except BaseException as error:
        session = sys.modules.get("scripts.cli.session")  # absent if no command of this line dealt with a pod
        if session and not (isinstance(error, Exit) and error.code == 0):
            session.print_live_pods()
        if session and (isinstance(error, (KeyboardInterrupt, ExitRequested, OSError))):
            session.print_unsupervised_pods()
        raise
    session = sys.modules.get("scripts.cli.session")
    if session:
        session.raise_if_overdue()


@contextlib.contextmanager
def convert_errors(logs: Path, name: str = "", as_json: bool = False) -> Iterator[None]:
    """Convert exceptions to Exit with a short message and the right code; with `as_json`, also print a JSON error."""

    def leave(said: str, code: int) -> Exit:
        said = command_hints.insert_carried_flags(said)
        if as_json and not is_closed(1):
            from scripts.cli.render import print_json

            print_json({"error": said, "exit_code": code})
        return Exit(terminal.wrap_text(f"{f'inv {name}' if name else 'inv'}: {said}", sys.stderr), code=code)

    try:
        try:
            yield
        finally:
            sys.stdout.flush()  # flush here, so that a closed pipe is still handled
    except Exit as leaving:
        said = command_hints.insert_carried_flags(leaving.message or "")
        raise Exit(terminal.wrap_text(said, sys.stderr) or None, code=leaving.code) from None
    except SystemExit:
        raise
    except KeyboardInterrupt:
        raise Exit(code=130) from None
    except ExitRequested as told:
        raise Exit(code=told.exit_code) from None
    except WorkTakenOver as error:
        raise leave(str(error), 1) from None
    except (SlipwayError, ConfigError, StoreError) as error:
        raise leave(str(error), getattr(error, "exit_code", 2)) from None
    except Exception as error:
        closed = [number for number in (1, 2) if is_closed(number)]
        if isinstance(error, BrokenPipeError) and closed:
            for number in closed:
                os.dup2(os.open(os.devnull, os.O_WRONLY), number)  # prevents a second error from Python at exit
            raise Exit(code=141) from None
        if isinstance(error, OSError) and error.errno in STATE_OF_THE_DISK:
            raise leave(permission_hints.error_with_hint(error, logs.parents[1].absolute()), 1) from None
        if isinstance(error, RuntimeError) and "home directory" in str(error):  # of `Path.expanduser`
            *_, (frame, _) = traceback.walk_tb(error.__traceback__)
            raise leave(
                f"{frame.f_locals.get('self')}: ~ names no user of this machine; write the whole path", 2
            ) from None
        said, where = f"unexpected {type(error).__name__}: {error}", write_traceback(error, logs)
        raise leave(f"{said}\n  this is a bug in inv; full traceback: {where}", 1) from None


def is_closed(descriptor: int) -> bool:
    """Return whether the reading end of this pipe is closed."""
    poll = select.poll()
    poll.register(descriptor, select.POLLOUT)
    return any(event & select.POLLERR for _, event in poll.poll(0))


def write_traceback(error: BaseException, logs: Path) -> Path:
    """Write the traceback to a file in `logs`, or in the temporary folder if `logs` is read-only; return the path."""
    try:
        logs.mkdir(parents=True, exist_ok=True)
        usable = os.access(logs, os.W_OK)
    except OSError:  # a read-only checkout
        usable = False
    if not usable:
        import tempfile

        logs = Path(tempfile.gettempdir())
    path = logs / time.strftime(f"inv-%Y%m%d-%H%M%S-{os.getpid()}.txt")
    path.write_text(f"{sys.argv}\n" + "".join(traceback.format_exception(error)), encoding="utf-8")
    return path


def usage_error(said: str, word: str, known: Iterable[str], task_name: str = "") -> Exit:
    """Return an Exit with code 2 that suggests the equivalent or nearest valid word."""
    bare = {one.lstrip("-"): one for one in known}  # dashes would make all flags similar
    near = difflib.get_close_matches(word.lstrip("-"), bare, 1)
    meant = command_hints.our_equivalent(word, task_name)
    hint = (
        f"here that is: {meant}"
        if meant
        else f"did you mean {bare[near[0]]}?"
        if near
        else f"see: inv --help {task_name}"
        if task_name
        else f"see: inv --list, or inv docs {shlex.quote(word.lstrip('-'))}"
    )
    return Exit(f"inv{' ' + task_name if task_name else ''}: {said}; {hint}", code=2)


class CommandParser:
    """Parser of `task --flag value RUN task ...` into invoke's contexts, a context for each named task."""

    def __init__(self, words: Sequence[str], collection: Any) -> None:
        self.words = list(words)
        self.contexts = Contexts(collection)
        self.collection = collection
        self.help_for = ""
        self.is_help_of_all = False
        self.is_rest = False  # the words after a command such as docs are a question, also names of commands
        self.in_front: dict[str, str] = {}  # pack flags before the first command, by argument name
        self.bare: dict[int, str] = {}  # bare words by the id of their argument
        self.read_so_far: list[Any] = []

    def read(self) -> list[Any]:
        """Return the tasks of the line with their flags. Raises Exit with code 2 for an unexpected word."""
        while self.words:
            word = self.words.pop(0)
            if word.startswith("-") and len(word) > 1:
                self.read_flag(*word.partition("="))
            elif word in self.contexts and not self.is_rest:
                self.read_so_far.append(self.contexts.new(word))
                self.is_rest = getattr(self.collection[word], "takes_rest", False)
            else:
                self.read_bare(word)
        for one in self.read_so_far:
            for name, value in self.in_front.items():
                if name in one.args and one.args[name].raw_value is None:
                    one.args[name].value = value
            self.read_file(one)
        return self.read_so_far

    def read_file(self, here: Any) -> None:
        """Apply the flags of a task's flag file; typed flags override the file."""
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
            if argument.kind is list:  # append the typed values, which then override the file
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
                    self.set_value(here, argument, called, value)

    def read_bare(self, word: str) -> None:
        here = self.read_so_far[-1] if self.read_so_far else None
        taken = getattr(self.collection[here.name], "word", "") if here else ""
        if not here and (why := packs.missing_pack_message("commands", word)):
            raise Exit(f"inv: {why}", code=2)
        if not here or not taken:
            raise usage_error(f"no task {word!r}", word, self.contexts)
        if Path(word).suffix in (".yaml", ".yml") or Path(word).is_file():
            taken = getattr(self.collection[here.name], "file_word", "") or taken
        argument = here.args[taken]
        if argument.raw_value is not None and argument.kind is not list:
            raise usage_error(f"{taken} is already given, and {word!r} is no task", word, self.contexts, here.name)
        self.set_value(here, argument, taken.upper(), word)
        self.bare[id(argument)] = word

    def read_flag(self, flag: str, equals: str, value: str) -> None:
        """Parse a flag and the value. Raises Exit with code 2 for an unknown flag or a bad value."""
        if not self.read_so_far and flag in packs.entries("line_flags") and (equals or self.words):
            self.in_front[flag[2:].replace("-", "_")] = value if equals else self.words.pop(0)
            return
        if why := packs.missing_pack_message("line_flags", flag):
            raise Exit(f"inv: {why}", code=2)
        if not self.read_so_far:
            raise usage_error(f"no flag {flag}", flag, ["--list", "--help", "--version", "--search-root"])
        here = self.read_so_far[-1]
        if flag in here.inverse_flags and not equals:
            here.flags[here.inverse_flags[flag]].set_value(False, cast=False)
        elif flag in here.flags:
            argument = here.flags[flag]
            if argument.kind is not list and (word := self.bare.get(id(argument))):
                model = f"; for a model: --model {word}" if "--model" in here.flags and argument.name != "model" else ""
                raise Exit(f"inv {here.name}: {word!r} means {flag} {word}; leave out one of the two{model}", code=2)
            if not argument.takes_value:
                if equals:
                    raise Exit(f"inv {here.name}: {flag} takes no value", code=2)
                argument.value = True
            elif equals or self.has_value(here, argument):
                self.set_value(here, argument, flag, value if equals else self.words.pop(0))
            elif argument.optional:
                argument.set_value(True, cast=False)
            else:
                raise Exit(f"inv {here.name}: {flag} needs a value", code=2)
        elif flag in ("-h", "--help", "--help-all"):
            self.help_for = here.name
            self.is_help_of_all = flag == "--help-all"
        elif why := packs.missing_pack_message("command_flags", f"{here.name} {flag}"):
            raise Exit(f"inv {here.name}: {why}", code=2)
        else:
            raise usage_error(f"no flag {flag}", flag, [*here.flags, *here.inverse_flags], here.name)

    def has_value(self, here: Any, argument: Any) -> bool:
        """Return whether the next word is the value of `argument`.

        An optional value must also have the right type, and must not be the name of a command.
        """
        if not self.words or self.words[0].startswith("--") or self.words[0] in here.flags:
            return False
        if not argument.optional:
            return True
        try:
            argument.kind(self.words[0])
        except ValueError:
            return False
        return self.words[0] not in self.contexts

    def set_value(self, here: Any, argument: Any, called: str, value: str) -> None:
        task = self.collection[here.name]
        try:
            argument.value = value
            if argument.kind in KINDS and not -MOST < argument.value < MOST:  # rejects `nan`, too
                raise ValueError
        except ValueError:
            kind = KINDS.get(argument.kind, argument.kind.__name__)
            raise Exit(f"inv {here.name}: {called} {value[:40]!r} is not {kind}", code=2) from None
        least = next((one.minimum for one in getattr(task, "flags", ()) if one.name == argument.name), None)
        if least is not None and argument.value < least:
            raise Exit(f"inv {here.name}: {called} is {value}; it must be at least {least}", code=2)
