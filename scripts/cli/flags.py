"""The flags that commands of several rooms share: what is printed, what is asked, and which world a line deals with."""

from dataclasses import dataclass

from infra.flags import flag

TALK = "Output and questions"
WORLD = "World and environment"


@dataclass(frozen=True, kw_only=True)
class Output:
    """A command that can answer a program."""

    json: bool = flag(False, "one JSON document on stdout", group=TALK)


@dataclass(frozen=True, kw_only=True)
class Questions:
    """A command that asks before it spends or ends anything."""

    yes: bool = flag(False, "ask nothing", group=TALK, also=("y",))


@dataclass(frozen=True, kw_only=True)
class Rehearse:
    """A command that deals with pods, and so can deal with those of the rehearsal."""

    rehearse: bool = flag(
        False, "deal with the rehearsal, where nothing costs money; so does the rest of the line", group=WORLD
    )


@dataclass(frozen=True, kw_only=True)
class Apart:
    """A command that reads the journal."""

    state_file: str = flag(
        "", "the journal of this line: a world of its own, whose pods no other one sees", group=WORLD, unit="FILE"
    )


@dataclass(frozen=True, kw_only=True)
class ThroughHost:
    """A command that a control host can do."""

    control: str = flag(
        "", "run on that machine, reached by SSH, as the whole line does; here: on this one", group=WORLD, unit="HOST"
    )


@dataclass(frozen=True, kw_only=True)
class Environment:
    """A command that runs something."""

    env: tuple[str, ...] = flag(
        (), "a setting, or a variable of what is run: KEY=VALUE, or KEY with the shell's value; repeatable",
        group=WORLD, unit="KEY[=VALUE]", also=("e",),
    )  # fmt: skip
    env_file: str = flag(
        "", "a file of such variables, KEY=VALUE on each line; --env outweighs it", group=WORLD, unit="FILE"
    )
