"""Every phase of training, in the order in which they run. Light to import: no torch here.

Whoever names phases asks here: the plan, the program, the recipes, fingerprints, the commands and their help. A new
phase is one entry, one module with `run(config, making, keeping, ranks)`, and its configuration in the recipes. Those
of packs follow those of the core.
"""

from collections.abc import Collection, Sequence

from data.config import TASKS
from store import packs
from trainer.records.phase import PROMPTS, TALK, TEXT, Phase

KIND = "phases"
INIT, TEACHER = "init", "teacher"  # roles of inputs: somebody else's model to begin from; a second, frozen model


_ALL = (
    Phase(
        name="base",
        folder="base_checkpoints",
        module="trainer.phases.base",
        reads=TEXT,
        in_all=True,
        takes_init=False,
    ),
    Phase(
        name="mid",
        folder="mid_checkpoints",
        module="trainer.phases.mid",
        follows=("base",),
        reads=TALK,
        in_all=True,
    ),
    Phase(
        name="sft",
        folder="chatsft_checkpoints",
        module="trainer.phases.sft",
        follows=("mid", "base"),
        reads=TALK,
        in_all=True,
    ),
    Phase(
        name="rl",
        folder="chatrl_checkpoints",
        module="trainer.phases.rl",
        follows=("sft", "mid", "base"),
        reads=PROMPTS,
        in_all=True,
        needs="trainer.plan.rollout_needs:RolloutNeeds",
    ),
)
PHASES: dict[str, Phase] = {one.name: one for one in (*_ALL, *map(packs.load, packs.entries(KIND).values()))}
USUAL = "sft"  # the default phase of a launch, and the default model of a talk

KINDS = {"identity": "identity", "pydocs": "questions", "other": "questions"}
KINDS |= {task: task for task in TASKS}
"""Role of the artifact that holds each of our kinds of conversations and prompts; "" = no artifact holds it."""


def phase_names() -> str:
    """Return the phases in words: `base, mid, sft`."""
    return ", ".join(PHASES)


def listed(some: Sequence[str]) -> str:
    """Return them as a sentence has them: `mid, sft and rl`."""
    return " and ".join(filter(None, (", ".join(some[:-1]), *some[-1:])))


def all_phases() -> tuple[str, ...]:
    """Return the phases of `--phase all`."""
    return tuple(name for name, one in PHASES.items() if one.in_all)


def phases_reading(*kinds: str) -> tuple[str, ...]:
    """Return the phases that read one of these."""
    return tuple(name for name, one in PHASES.items() if one.reads in kinds)


def phases_sized() -> dict[str, str]:
    """Return the sizes that phases take from flags and settings, each with the phase that it is for."""
    return {size: name for name, one in PHASES.items() for size in one.sizes}


def checkpoint_folders() -> set[str]:
    """Return the folders of the store that hold what phases make."""
    return {one.folder for one in PHASES.values()}


def model_roles() -> set[str]:
    """Return the roles under which a phase reads a model: the first process alone reads it."""
    return {*PHASES, INIT, TEACHER}


def starts_from(phase: str, roles: Collection[str]) -> str:
    """Return the role of the model that a phase with such inputs goes on from; "" where it begins from nothing."""
    one = PHASES[phase]
    found = next((before for before in (INIT, *one.follows) if before in roles), "")
    return found or (one.follows[0] if one.follows else "")  # a missing one is reported by the code that opens it


def chain(known: Collection[str], asked: Sequence[str], has_init: bool) -> dict[str, str]:
    """Return the phases that lead to those asked for -> what each goes on from: a phase, `init`, or "" for nothing.

    known: those of the profile. With somebody else's model only what is asked for is in it, and what that needs.
    """
    unasked = {name for name, one in PHASES.items() if has_init or one.optional and {*one.follows} & {*asked}}
    inside = {name for name in PHASES if name in asked or name not in unasked}
    for name in reversed(PHASES):
        one = PHASES[name]
        if has_init and name in inside and not one.takes_init and not inside & {*one.follows}:
            inside.update(one.follows[:1])
    found: dict[str, str] = {}
    for name in (one for one in PHASES if one in inside and one in known):
        before = nearest(PHASES[name].follows, found, has_init)
        if before or not (PHASES[name].follows or has_init):
            found[name] = before
    return found


def nearest(candidates: Sequence[str], found: Collection[str], has_init: bool) -> str:
    """Return the first candidate that is there, else `init` where there is one, else ""."""
    return next((one for one in candidates if one in found), INIT if has_init and candidates else "")
