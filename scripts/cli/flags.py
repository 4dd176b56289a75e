"""Flags shared by commands of several folders: output format, confirmation, rehearsal, journal and environment.

Only the records of commands are compared and printed, so the bases here have no methods for either.
"""

from dataclasses import dataclass

from infra.flags import flag
from store import packs

TALK = "Output and questions"
WORLD = "World and environment"
LAST_RUN = "name of the run, or the first letters of the name (default: the last run)"
# Providers of packs with a machine inventory, each preceded by a comma.
LISTED = "".join(f", {name}" for name, traits in packs.provider_traits().items() if traits["inventory"])


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Output:
    """Output format flag, for commands with machine-readable output."""

    json: bool = flag(False, "print one JSON document on stdout", group=TALK)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class OneRunFlags(Output):
    """Flags of a command about a single run, without further options."""

    run: str = flag("", LAST_RUN, word=True)


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Questions:
    """Confirmation flag, for commands that ask before they spend money or end a run."""

    yes: bool = flag(False, "ask nothing", group=TALK, also=("y",))


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Rehearse:
    """Rehearsal flag, for commands on pods, real or rehearsed."""

    rehearse: bool = flag(
        False,
        "use the rehearsal, a simulated market free of charge, for this and all later commands of the line",
        group=WORLD,
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class JournalFlag:
    """Journal flag, for commands on the journal."""

    state_file: str = flag(
        "",
        "journal (a file) for this command line; other journals do not see the pods of this journal",
        group=WORLD,
        unit="FILE",
    )


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Environment:
    """Environment flags, for commands with user work."""

    env: tuple[str, ...] = flag(
        (),
        "set a setting, or an environment variable of the work: KEY=VALUE, or KEY to copy the value of "
        "your shell; repeatable",
        group=WORLD,
        unit="KEY[=VALUE]",
        also=("e",),
    )
    env_file: str = flag(
        "", "file of variables for --env, one KEY=VALUE per line; --env overrides the file", group=WORLD, unit="FILE"
    )
