"""The text of `inv COMMAND --help`: what the command does, an example, and its flags in groups.

A command with many flags shows at most a screen or two of them: first the groups of the phase and the provider that the
line names, then those of `FIRST`, then others as they fit. `--help-all` shows every flag.
"""

import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from infra.flags import Flag

OTHER = "Flags"
KINDS = {str: "TEXT", int: "N", float: "X"}
MOST_COLUMNS = 110
INDENT = 30  # columns before the help of a flag
MOST_LINES = 80  # of the help of a command, without --help-all
FIRST = (
    OTHER,
    "What is made",
    "Machine",
    "What ends it",
    "Run",
    "Output and questions",
)  # groups that a first day needs
# Groups of flags that count only at some providers: at the user's own machines, and at vendors.
OWN, RENTED = "Own machines", "Rented machines"
ROOM_FOR_THE_REST = 14  # lines of what a command does, its example, and the titles that are not shown
OF_PHASE = "Phase "  # begins the title of a group of flags of one phase


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


def lines(name: str, task: Any, typed: Mapping[str, Any] | None = None) -> Iterator[str]:
    """Yield the help of a command (`scripts.cli.command.Command`) line by line; of every flag where `typed` is None.

    typed: the values of the flags on this line, by the names of their fields.
    """
    width = min(shutil.get_terminal_size((80, 24)).columns, MOST_COLUMNS)
    word = next((one for one in task.flags if one.is_word), None)
    words = f" [{word.spelled.upper()}{'...' if word.is_many else ''}]" if word else ""
    yield f"Usage: ./inv {name}{words}{' [FLAGS]' if task.flags else ''} [ANOTHER COMMAND ...]"
    yield ""
    yield from (line.strip() for line in (task.__doc__ or "").strip().splitlines())
    if task.example:
        yield ""
        yield f"Example: ./{task.example}"
    groups = {title: [title, *(line for one in flags for line in _flag_lines(one, width))]
              for title, flags in grouped(task.flags).items()}  # fmt: skip
    shown = list(groups) if typed is None else fitting(groups, typed)
    for title in shown:
        yield ""
        yield from groups[title]
    if hidden := [title for title in groups if title not in shown]:
        said = f"More flags, with ./inv {name} --help-all: {', '.join(hidden)}"
        yield ""
        yield from textwrap.wrap(said, width, break_on_hyphens=False)


def fitting(groups: Mapping[str, Sequence[str]], typed: Mapping[str, Any]) -> list[str]:
    """Return the titles of the groups that are shown, in their order; all of them where there is room.

    groups: the lines of each group by its title.
    """
    from infra.settings import is_rented
    from store import packs

    room = MOST_LINES - ROOM_FOR_THE_REST
    if sum(len(one) + 1 for one in groups.values()) <= room:
        return list(groups)
    phases = str(typed.get("phase") or "").split("+")
    provider = str(typed.get("provider") or "")
    of_phases = [f"{OF_PHASE}{phase}" for phase in phases]
    of_provider = [RENTED if is_rented(provider) else OWN] if provider and provider not in packs.engines() else []
    named = [title for title in groups if title in (*of_phases, *of_provider)]
    others = [
        title for title in groups if title not in (*named, *FIRST, OWN, RENTED) and not title.startswith(OF_PHASE)
    ]
    shown = []
    for title in (*named, *(one for one in FIRST if one in groups), *others):
        if len(groups[title]) + 1 <= room:
            shown.append(title)
            room -= len(groups[title]) + 1
    return shown


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
