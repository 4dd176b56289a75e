"""The text of `inv COMMAND --help`: what the command does, an example, and its flags in groups."""

import shutil
import textwrap
from collections.abc import Iterator
from typing import Any

from infra.flags import Flag

OTHER = "Flags"
KINDS = {str: "TEXT", int: "N", float: "X"}
MOST_COLUMNS = 110
INDENT = 30  # columns before the help of a flag


def written(one: Flag) -> str:
    """Return the spelling of a flag: `-y, --yes`, `--num-gpus N`, `--watch [TEXT]`, `--no-yes`."""
    unit = one.unit or KINDS.get(one.kind, "TEXT")
    name = f"-{one.spelled}" if len(one.spelled) == 1 else f"--{one.spelled}"
    if one.kind is bool and not one.is_many:
        names = [f"--no-{one.spelled}" if one.default is True else name]
    else:
        names = [f"{name} [{unit}]" if one.is_bare else f"{name} {unit}"]
    names += [f"--{name}" for name in one.also if len(name) > 1]
    return ", ".join([*(f"-{name}" for name in one.also if len(name) == 1), *names])


def grouped(flags: tuple[Flag, ...]) -> dict[str, list[Flag]]:
    """Return flags by the title of their group, in the order in which they are declared."""
    found: dict[str, list[Flag]] = {}
    for one in sorted(flags, key=lambda flag: flag.group != ""):  # flags of the command itself come first
        found.setdefault(one.group or OTHER, []).append(one)
    return found


def default_of(one: Flag) -> str:
    """Return the default of a flag, "" where there is none."""
    return "" if one.default in (None, "", False, True, 0, ()) or one.is_many else str(one.default)


def lines(name: str, task: Any) -> Iterator[str]:
    """Yield the help of a command (`scripts.cli.command.Command`) line by line."""
    width = min(shutil.get_terminal_size((80, 24)).columns, MOST_COLUMNS)
    word = next((one for one in task.flags if one.is_word), None)
    words = f" [{word.spelled.upper()}{'...' if word.is_many else ''}]" if word else ""
    yield f"Usage: ./inv {name}{words}{' [FLAGS]' if task.flags else ''} [ANOTHER COMMAND ...]"
    yield ""
    yield from (line.strip() for line in (task.__doc__ or "").strip().splitlines())
    if task.example:
        yield ""
        yield f"Example: ./{task.example}"
    for title, flags in grouped(task.flags).items():
        yield ""
        yield title
        for one in flags:
            yield from _flag_lines(one, width)


def _flag_lines(one: Flag, width: int) -> Iterator[str]:
    default = f" (default: {default_of(one)})" if default_of(one) else ""
    word = "; also as a bare word" if one.is_word else ""
    about = textwrap.wrap(f"{one.about}{word}{default}", max(20, width - INDENT), break_on_hyphens=False)
    left = f"  {written(one)}"
    if len(left) > INDENT - 2:
        yield left
        left = ""
    for number, line in enumerate(about):
        yield f"{left if number == 0 else '':{INDENT}}{line}"
