"""Every phase of training, in the order in which they run. Light to import: no torch here.

Whoever names phases asks here: the plan, the program, the recipes, fingerprints, the commands and their help. A new
phase is one entry, one module with `run(config, making, keeping, ranks)`, and its configuration in the recipes.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from data.config import TASKS

TEXT, TALK, PROMPTS = "text", "talk", "prompts"
INIT, TEACHER = "init", "teacher"  # roles of inputs: somebody else's model to begin from; a second, frozen model


@dataclass(frozen=True, kw_only=True)
class Phase:
    """The properties of a phase that the rest of the project needs."""

    name: str
    folder: str
    """Folder in the store: its artifacts are `<folder>/<tag>`."""
    module: str
    """Module with `run(config, making, keeping, ranks)`; phases may share one."""
    follows: tuple[str, ...] = ()
    """The phases whose model it can go on from, nearest first; () = it begins from nothing."""
    reads: str = ""
    """`text`: the artifacts text and tokens. `talk`: the conversations of its mixture, which --mixture replaces.
    `prompts`: the same, of its own mixture always. "": nothing but the tokenizer."""
    teacher: tuple[str, ...] = ()
    """The phases whose model can be its frozen teacher, nearest first: its input `teacher`. () = it has none."""
    version: int = 1
    """Raised by whoever changes what comes out of it for the same settings and inputs; see trainer/fingerprints.py."""
    in_all: bool = False
    """True if `--phase all` includes it, and commands take its model by default."""
    optional: bool = False
    """True if a sum leaves it out unless it is named, where a named phase could go on from it: bits1+bits2."""
    takes_init: bool = True
    """True if an imported model may replace the phases before it."""
    trains: bool = True
    """True if it trains in steps; otherwise it converts the model that it is given, and saves it."""
    alias: str = ""
    """Another word for it in `--phase`."""
    like: str = ""
    """The phase of ours whose settings a phase of an extension has; see trainer/records/own_phase.py."""
    extension: str = ""
    """The file and the digest of the extension that it is; "" = it is ours."""


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
    ),
    Phase(
        name="bits1",
        folder="bits1_checkpoints",
        module="trainer.phases.bits",
        follows=("base",),
        reads=TEXT,
        version=2,
        trains=False,
        alias="1",
    ),
    Phase(
        name="bits1.9",
        folder="bits1.9_checkpoints",
        module="trainer.phases.bits",
        follows=("bits1",),
        reads=TEXT,
        version=2,
        teacher=("base",),
        optional=True,
        takes_init=False,
        alias="1.9",
    ),
    Phase(
        name="bits2",
        folder="bits2_checkpoints",
        module="trainer.phases.bits",
        follows=("bits1.9", "bits1"),
        reads=TEXT,
        version=2,
        takes_init=False,
        alias="2",
    ),
    Phase(
        name="bits3",
        folder="bits3_checkpoints",
        module="trainer.phases.bits",
        follows=("bits2", "bits1.9", "bits1"),
        reads=TALK,
        version=2,
        teacher=("sft", "mid", "base"),
        takes_init=False,
        alias="3",
    ),
    Phase(
        name="dlm",
        folder="dlm_checkpoints",
        module="trainer.phases.dlm",
        follows=("sft", "mid", "base"),
        reads=TALK,
    ),
)
PHASES: dict[str, Phase] = {one.name: one for one in _ALL}
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


def ternary_phases() -> tuple[str, ...]:
    """Return the phases whose model is one of 1.58 bits that was trained, the last one first."""
    return tuple(name for name, one in reversed(PHASES.items()) if one.module == PHASES["bits1"].module and one.trains)


def phases_reading(*kinds: str) -> tuple[str, ...]:
    """Return the phases that read one of these."""
    return tuple(name for name, one in PHASES.items() if one.reads in kinds)


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
