"""Help text of `inv COMMAND --help`: a description, an example, and the flags by group.

For a command with many flags the help is limited to a screen or two: the groups of the typed phase and provider come
first, then the groups in `FIRST`, then other groups as far as they fit. `--help-all` shows every flag.
"""

import re
import shutil
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from infra.flags import Flag

OTHER = "Flags"
KINDS = {str: "TEXT", int: "N", float: "X"}
MOST_COLUMNS = 110
INDENT = 30  # columns before the help text of a flag
MOST_LINES = 80  # line limit for the help of a command without --help-all
# Flag groups for a first-time user.
FIRST = (
    OTHER,
    "Work",
    "Machine",
    "What ends it",
    "Run",
    "Output and questions",
)
# Groups of flags for some providers only: for the user's own machines, and for vendors.
OWN, RENTED = "Own machines", "Rented machines"
ROOM_FOR_THE_REST = 14  # lines reserved for the description, the example and the list of hidden groups
OF_PHASE = "Phase "  # title prefix for the flag group of a phase


def spelling(one: Flag) -> str:
    """Return the spelling of a flag: `-y, --yes`, `--num-gpus N`, `--watch [TEXT]`, `--no-yes`."""
    unit = one.unit or KINDS.get(one.kind, "TEXT")
    name = f"-{one.spelling}" if len(one.spelling) == 1 else f"--{one.spelling}"
    if one.kind is bool and not one.is_many:
        names = [f"--no-{one.spelling}" if one.default is True else name]
    else:
        names = [f"{name} [{unit}]" if one.is_bare else f"{name} {unit}"]
    names += [f"--{name}" for name in one.aliases if len(name) > 1]
    return ", ".join([*(f"-{name}" for name in one.aliases if len(name) == 1), *names])


def grouped(flags: tuple[Flag, ...]) -> dict[str, list[Flag]]:
    """Return the flags by group title, in declaration order."""
    found: dict[str, list[Flag]] = {}
    for one in sorted(flags, key=lambda flag: flag.group != ""):  # the command's own flags come first
        found.setdefault(one.group or OTHER, []).append(one)
    return found


def default_of(one: Flag) -> str:
    """Return the default of a flag as text, or "" for an empty default or a repeatable flag."""
    return "" if one.default in (None, "", False, True, 0, ()) or one.is_many else str(one.default)


def lines(name: str, task: Any, typed: Mapping[str, Any] | None = None) -> Iterator[str]:
    """Yield the help of a command (`scripts.cli.command.Command`) line by line.

    typed: the values of the flags on this line by field name; None shows every flag.
    """
    width = min(shutil.get_terminal_size((80, 24)).columns, MOST_COLUMNS)
    word = next((one for one in task.flags if one.is_word), None)
    words = f" [{word.spelling.upper()}{'...' if word.is_many else ''}]" if word else ""
    further = "" if task.takes_rest else " [NEXT COMMAND ...]"
    yield f"Usage: ./inv {name}{words}{' [FLAGS]' if task.flags else ''}{further}"
    yield ""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", (task.__doc__ or "").strip())):
        yield from [""] * (number > 0)
        yield from textwrap.wrap(" ".join(paragraph.split()), width, break_on_hyphens=False)
    if task.example:
        yield ""
        yield f"Example: ./{task.example}"
    groups = {
        title: [title, *(line for one in flags for line in _flag_lines(one, width))]
        for title, flags in grouped(task.flags).items()
    }
    shown = list(groups) if typed is None else fitting(groups, typed)
    for title in shown:
        yield ""
        yield from groups[title]
    if hidden := [title for title in groups if title not in shown]:
        said = f"More flags, with ./inv {name} --help-all: {', '.join(hidden)}"
        yield ""
        yield from textwrap.wrap(said, width, break_on_hyphens=False)


def fitting(groups: Mapping[str, Sequence[str]], typed: Mapping[str, Any]) -> list[str]:
    """Return the titles of the groups to show; all groups if they fit.

    groups: the lines of each group by title. If not all groups fit, titles come by priority: the typed phases and
    provider, then `FIRST`, then the rest.
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
    left = f"  {spelling(one)}"
    if len(left) > INDENT - 2:
        yield left
        left = ""
    for number, line in enumerate(about):
        yield f"{left if number == 0 else '':{INDENT}}{line}"
