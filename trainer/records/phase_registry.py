"""Record of a training phase, and registry of all phases in the order of execution. Light to import: no torch here.

The plan, the trainer, the recipes, the fingerprints and the commands with their help read the phases here. A new phase
needs an entry, a module with `run(config, making, keeping, ranks)`, and a configuration in the recipes. Phases of packs
follow the phases of the core.
"""

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from data.config import TASKS
from store import packs

TEXT, TALK, PROMPTS = "text", "talk", "prompts"


@dataclass(frozen=True, kw_only=True)
class Phase:
    """Properties of a phase that the rest of the project needs."""

    name: str
    folder: str
    """Folder in the store for the artifacts `<folder>/<tag>`."""
    module: str
    """Module with `run(config, making, keeping, ranks)`; phases may share a module."""
    follows: tuple[str, ...] = ()
    """Phases from whose model this phase can start, nearest first; () = the phase starts from scratch."""
    reads: str = ""
    """`text`: the artifacts text and tokens. `talk`: the conversations of the mixture, replaceable with --mixture.
    `prompts`: the prompts of the phase's own mixture, unaffected by --mixture. "": only the tokenizer."""
    teacher: tuple[str, ...] = ()
    """Phases whose model can be the frozen teacher (input `teacher`), nearest first; () = no teacher."""
    version: int = 1
    """Increase this number with any change of the result for the same settings and inputs; see
    trainer/fingerprints.py."""
    in_all: bool = False
    """True if `--phase all` includes the phase, and commands use the phase's model by default."""
    optional: bool = False
    """True if the phase is left out unless named, when the phase can follow a named phase, as in bits1+bits2."""
    takes_init: bool = True
    """True if an imported model may replace the earlier phases."""
    trains: bool = True
    """True if the phase trains in steps; otherwise the phase converts and saves the input model."""
    alias: str = ""
    """Alternative name in `--phase`."""
    like: str = ""
    """Built-in phase with the settings for a phase of an extension; see trainer/records/extension_phase.py."""
    extension: str = ""
    """File and digest of the extension behind the phase; "" = a built-in phase."""
    config: str = "trainer.config:PhaseConfig"
    """Configuration record as "module:attribute": `PhaseConfig`, or a subclass in a pack."""
    feature: str = ""
    """Field of `ModelConfig` set for this phase's model but not for earlier phases, such as `ternary`."""
    needs: str = ""
    """Subclass of `trainer.plan.phase_needs.PhaseNeeds`, as "module:attribute"; "" = only memory."""
    family: str = ""
    """Phrase for messages: the group of phases with an `alias`."""
    sizes: tuple[str, ...] = ()
    """Sizes set by flags and settings of the pack, with these names: see `PhaseConfig.with_sizes`. The size `tokens`,
    the number of training tokens, is also set by `inv cost --tokens`."""
    toy: str = ""
    """Profile file of a rehearsal's toy model, relative to the checkout; "" = the default for all phases."""
    toy_options: tuple[str, ...] = ()
    """Parts of option names to keep in a toy, in addition to the default parts."""


KIND = "phases"
INIT, TEACHER = "init", "teacher"  # roles of inputs: an imported start model; a second, frozen model
CHANGE = "change"  # role of an imported change of the start model (`trainer.model.changes`)


_ALL = (
    Phase(
        name="base", folder="base_checkpoints", module="trainer.phases.base", reads=TEXT, in_all=True, takes_init=False
    ),
    Phase(
        name="mid", folder="mid_checkpoints", module="trainer.phases.mid", follows=("base",), reads=TALK, in_all=True
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
USUAL = "sft"  # default phase of a launch, and default model of a chat

KINDS = {"identity": "identity", "pydocs": "questions", "other": "questions"}
KINDS |= {task: task for task in TASKS}
"""Role of the artifact for each built-in kind of conversations and prompts; "" = no artifact."""


def phase_names() -> str:
    """Return the names of all phases: `base, mid, sft`."""
    return ", ".join(PHASES)


def listed(some: Sequence[str]) -> str:
    """Return the words joined for a sentence: `mid, sft and rl`."""
    return " and ".join(filter(None, (", ".join(some[:-1]), *some[-1:])))


def all_phases() -> tuple[str, ...]:
    """Return the phases of `--phase all`."""
    return tuple(name for name, one in PHASES.items() if one.in_all)


def phases_reading(*kinds: str) -> tuple[str, ...]:
    """Return the phases that read one of these kinds of data."""
    return tuple(name for name, one in PHASES.items() if one.reads in kinds)


def phases_sized() -> dict[str, str]:
    """Return the sizes accepted from flags and settings, each with the name of the phase."""
    return {size: name for name, one in PHASES.items() for size in one.sizes}


def checkpoint_folders() -> set[str]:
    """Return the store folders for the results of phases."""
    return {one.folder for one in PHASES.values()}


def model_roles() -> set[str]:
    """Return the input roles of models: only the first process reads such an input."""
    return {*PHASES, INIT, TEACHER, CHANGE}


def with_earlier(phases: Collection[str]) -> set[str]:
    """Return the phases, and all phases from which they can start, directly and indirectly, or take settings."""
    todo, found = [*phases], set[str]()
    while todo:
        name = todo.pop()
        if name in PHASES and name not in found:
            found.add(name)
            todo += filter(None, (*PHASES[name].follows, *PHASES[name].teacher, PHASES[name].like))
    return found


def starts_from(phase: str, roles: Collection[str]) -> str:
    """Return the role of the model from which a phase with these input roles starts; "" = from scratch."""
    one = PHASES[phase]
    found = next((before for before in (CHANGE, *one.follows, INIT) if before in roles), "")
    return found or (one.follows[0] if one.follows else "")  # the code that opens a missing model reports the error


def chain(known: Collection[str], asked: Sequence[str], has_init: bool) -> dict[str, str]:
    """Return the phases up to the requested phases -> the start of each: a phase, `init`, or "" for none.

    known: phases of the profile. With an imported model (`has_init`), the result contains only the requested phases and
    their required predecessors.
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
    """Return the first candidate in `found`, else `init` with an imported model and candidates, else ""."""
    return next((one for one in candidates if one in found), INIT if has_init and candidates else "")
