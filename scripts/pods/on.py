"""The command `inv on`: run a command on the named machines, and label the output with machine names."""

import shlex
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from invoke import Exit

from flows.pods.run_on import run_on
from infra import targets
from infra.errors import UsageError
from infra.flags import flag
from infra.units import seconds
from scripts.cli import context, render, session
from scripts.cli.command import command
from scripts.cli.flags import Output
from scripts.cli.invoke_patch import words_after_dashes
from scripts.cli.render import print_json
from scripts.cli.session import open_journal

if TYPE_CHECKING:
    from infra.transport.group_run import CommandOutcome

LONGEST_LINE = 1 << 16  # characters buffered before an unfinished line is printed


@dataclass(frozen=True, kw_only=True)
class OnFlags(Output):
    pods: tuple[str, ...] = flag(
        (),
        "names of runs, sets of pods, services, pools or machines of the inventory, or the first letters of pod names",
        word=True,
    )
    all: bool = flag(False, "every pod")
    sudo: bool = flag(False, "run as root; for a login other than root, with sudo and without a password")
    timeout: str = flag(
        "", "end the command on a machine after this time, and count the command as failed there", unit="duration"
    )


@command(record=OnFlags, example="inv on --all -- nvidia-smi")
def on(spec: OnFlags) -> None:
    """Run a command on many machines at once.

    `inv on PODS -- COMMAND` runs the command in each pod's folder, or in the home folder of an own machine. Each line
    of output starts with the name of the machine. The exit code is the highest of all machines: 124 after a timeout,
    255 if a machine did not answer. Ctrl-C ends the command on every machine.
    """
    typed = words_after_dashes()
    command = typed[0] if len(typed) == 1 else shlex.join(typed)  # a single word is a shell line
    if not command:
        raise UsageError("the command is missing: inv on PODS -- nvidia-smi")
    words = spec.pods or ((session.current(),) if session.current() else ())
    if not words and not spec.all:
        raise UsageError("name the pods: inv on PODS -- command, or use every pod: inv on --all -- command")
    timeout_s = seconds(spec.timeout) if spec.timeout else None
    settings = context.settings()
    with open_journal(settings) as journal:
        machines = targets.find(words, spec.all, journal, settings)
    names = [one.name for one in machines]
    lines = NamedLines(names)
    outcomes = run_on(
        machines,
        command,
        (lambda *_: None) if spec.json else lines.write,
        sudo=spec.sudo,
        timeout_s=timeout_s,
        keeps=spec.json,
        interrupted=tell_interrupted,
    )
    lines.flush()
    worst = max(one.code for one in outcomes)
    if spec.json:
        print_json({"command": command, "exit_code": worst, "machines": outcomes})
    else:
        conclude(outcomes)
    if worst:
        raise Exit(code=worst)


def conclude(outcomes: Sequence["CommandOutcome"]) -> None:
    """Print the failed machines, and the failure count if there are several machines."""
    for one in outcomes:
        if one.problem or one.exit_code:
            render.tell(f"{one.name}: {one.problem or f'exit code {one.exit_code}'}")
    bad = sum(one.code != 0 for one in outcomes)
    if bad and len(outcomes) > 1:
        render.say(f"{bad} of {render.count(len(outcomes), 'machine')} failed")


def tell_interrupted(deaf: Sequence[str]) -> None:
    if deaf:
        render.say(
            f"interrupted; the command may still run on machines that did not confirm the end: {', '.join(deaf)}"
        )
    else:
        render.say("interrupted; the command was ended on every machine")


class NamedLines:
    """Line-buffered output of several machines, prefixed with machine names; thread-safe."""

    def __init__(self, names: Sequence[str]) -> None:
        self._width = max(map(len, names))
        self._partial_lines = {(name, is_error): "" for name in names for is_error in (False, True)}
        self._lock = threading.Lock()

    def write(self, name: str, is_error: bool, text: str) -> None:
        """Print complete lines; of a line overwritten by carriage returns (progress bars), the last state."""
        with self._lock:
            *lines, rest = (self._partial_lines[name, is_error] + text).split("\n")
            if len(rest) > LONGEST_LINE:
                lines, rest = [*lines, rest], ""
            self._partial_lines[name, is_error] = rest
            self._print(name, is_error, lines)

    def flush(self) -> None:
        """Print the buffered incomplete lines."""
        with self._lock:
            for (name, is_error), rest in self._partial_lines.items():
                if rest:
                    self._print(name, is_error, [rest])
            self._partial_lines = dict.fromkeys(self._partial_lines, "")

    def _print(self, name: str, is_error: bool, lines: Sequence[str]) -> None:
        out = sys.stderr if is_error else sys.stdout
        for line in lines:
            seen = line.rstrip("\r").rpartition("\r")[2]
            print(f"{name:{self._width}} | {render.clean(seen)}".rstrip(), file=out)
        if lines:
            out.flush()
