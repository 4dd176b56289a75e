"""The flags that commands of several folders share: what is printed and asked, and which world a line deals with."""

from dataclasses import dataclass

from infra.flags import flag
from store import packs

TALK = "Output and questions"
WORLD = "World and environment"
LAST_RUN = "name of the run, or its beginning (default: the last run)"
# Providers of packs that list machines, each after a comma.
LISTED = "".join(f", {name}" for name, traits in packs.provider_traits().items() if traits["inventory"])


@dataclass(frozen=True, kw_only=True)
class Output:
    """A command that can answer a program."""

    json: bool = flag(False, "one JSON document on stdout", group=TALK)


@dataclass(frozen=True, kw_only=True)
class OneRunFlags(Output):
    """A command about one run that has nothing else to say."""

    run: str = flag("", LAST_RUN, word=True)


@dataclass(frozen=True, kw_only=True)
class Questions:
    """A command that asks before it spends or ends anything."""

    yes: bool = flag(False, "ask nothing", group=TALK, also=("y",))


@dataclass(frozen=True, kw_only=True)
class Rehearse:
    """A command that deals with pods, and so can deal with those of the rehearsal."""

    rehearse: bool = flag(
        False, "use the rehearsal, where nothing costs money, for this and all later commands of the line", group=WORLD
    )


@dataclass(frozen=True, kw_only=True)
class Apart:
    """A command that reads the journal."""

    state_file: str = flag(
        "",
        "journal to use on this command line; its pods are separate from those of any other journal",
        group=WORLD,
        unit="FILE",
    )


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A command that runs something."""

    env: tuple[str, ...] = flag(
        (), "set a setting, or an environment variable of the work: KEY=VALUE, or KEY to take the shell's value; "
        "repeatable",
        group=WORLD, unit="KEY[=VALUE]", also=("e",),
    )  # fmt: skip
    env_file: str = flag(
        "", "file of such variables, one KEY=VALUE per line; --env overrides it", group=WORLD, unit="FILE"
    )
