"""The runner of a command line: this machine, or another one, by flags that a pack adds to every command.

    packs.entries("line_flags")  ->  LineFlags: flags of every command, and the run of the line elsewhere

In: the commands of a line, parsed. Out: nothing where they run here, else the end of this program.
`scripts.cli.invoke_patch` asks this before it runs the first command of a line.
"""

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from infra.flags import Flag, flags_of
from store import packs


@dataclass(frozen=True)
class CommandLine:
    """A line as it was typed. `commands`: as invoke's parser has read them; `namespace`: every command there is."""

    commands: Sequence[Any]
    namespace: Any
    words: Sequence[str]
    after_dashes: Sequence[str]


@dataclass(frozen=True, kw_only=True)
class LineFlags:
    """Flags of a pack that every command has, but for the commands about this very machine (`is_here`)."""

    def run(self, line: CommandLine) -> None:
        """Run the line elsewhere and leave with its exit code; return where the line runs here.

        Raises Exit then; UsageError for a line that cannot run there, SlipwayError when the machine is not there.
        """
        raise NotImplementedError


@functools.cache
def flags() -> tuple[Flag, ...]:
    """Return the flags that packs add to every command."""
    return tuple(one for record in _records() for one in flags_of(record))


def run_elsewhere(line: CommandLine) -> None:
    """Let each pack with such flags run the line: a flag counts for all commands of the line."""
    for record in _records():
        record(**{one.name: _typed(line.commands, one) for one in flags_of(record)}).run(line)


def _records() -> list[type[LineFlags]]:
    return [packs.load(where) for where in dict.fromkeys(packs.entries("line_flags").values())]


def _typed(commands: Sequence[Any], one: Flag) -> Any:
    """Return the value of a flag at the first command that it was typed for."""
    name = one.spelled.replace("-", "_")
    return next(filter(None, (each.args[name].value for each in commands if name in each.args)), one.default)
