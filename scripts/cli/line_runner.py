"""Runner of a command line on this or a remote machine, chosen by the line flags of packs.

    packs.entries("line_flags")  ->  LineFlags: flags of every command, and the run of the line elsewhere

The input is a parsed command line. `run_elsewhere` returns if the commands run on this machine; otherwise the program
exits. `scripts.cli.invoke_patch` calls `run_elsewhere` before the first command of a line.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from infra.flags import Flag, flags_of
from store import packs


@dataclass(frozen=True)
class CommandLine:
    """A typed command line. `commands`: contexts parsed by invoke; `namespace`: all available commands."""

    commands: Sequence[Any]
    namespace: Any
    words: Sequence[str]
    after_dashes: Sequence[str]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class LineFlags:
    """Flags of a pack for every command except commands about this very machine (`is_here`)."""

    def run(self, line: CommandLine) -> None:
        """Run the line on the chosen machine and exit with the line's exit code; return if the line runs here.

        Raises Exit with this code, UsageError for a line that cannot run remotely, SlipwayError for an unavailable
        machine.
        """
        raise NotImplementedError


@functools.cache
def flags() -> tuple[Flag, ...]:
    """Return the line flags of packs, which every command accepts."""
    return tuple(one for record in _records() for one in flags_of(record))


def run_elsewhere(line: CommandLine) -> None:
    """Let each pack with line flags run the line; a line flag applies to all commands of the line."""
    for record in _records():
        record(**{one.name: _typed(line.commands, one) for one in flags_of(record)}).run(line)


def _records() -> list[type[LineFlags]]:
    return [packs.load(where) for where in dict.fromkeys(packs.entries("line_flags").values())]


def _typed(commands: Sequence[Any], one: Flag) -> Any:
    """Return the value of a flag at the first command with a non-empty value, or the default."""
    name = one.spelling.replace("-", "_")
    return next(filter(None, (each.args[name].value for each in commands if name in each.args)), one.default)
