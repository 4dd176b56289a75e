"""Phases from extensions, registered next to the built-in phases.

An extension with a function `phase(run)` and a constant PHASE becomes a `Phase`, known to this process by name. Light:
the extension is parsed here, and executed only by the training process.
"""

import difflib
from dataclasses import dataclass

from data.config import ConfigError, load
from store.extensions import Extension, ExtensionError, require, use
from trainer.records import phase_registry
from trainer.records.phase_registry import PHASES, Phase

CONSTANT = "PHASE"
LIKE = ("base", "mid", "sft")  # the other phases have settings that are useless under a different name
MODULE = "trainer.phases.extension"
WORD = "own"  # name of the training step for all such phases: `python -m trainer own`


@dataclass(frozen=True, kw_only=True)
class ExtensionPhase:
    """Declaration of a phase in an extension: the constant PHASE."""

    like: str
    """Built-in phase that provides the settings (before `--set`) and the kind of data."""
    follows: tuple[str, ...] = ()
    """Phases from whose model this phase can start, nearest first; () = the same as for `like`."""


def register_phase(extension: Extension) -> Phase:
    """Register the phase of an extension in this process and return the phase.

    Raises ConfigError for an invalid extension.
    """
    try:
        require(extension, "phase")
        said, line = extension.literal(CONSTANT)
    except ExtensionError as error:
        raise ConfigError(str(error)) from None
    where = f"{extension.where}:{line}: {CONSTANT}" if line else extension.where
    if not isinstance(said, dict):
        raise ConfigError(
            f"{where} must define {CONSTANT} = {{'like': 'sft'}}, to name the phase that the extension resembles"
        )
    own = load(ExtensionPhase, {key: list(one) if isinstance(one, tuple) else one for key, one in said.items()}, where)
    if own.like not in LIKE:
        raise ConfigError(f"{where}: like is {own.like!r}; known: {', '.join(LIKE)}")
    ours = [name for name, one in PHASES.items() if not one.extension]
    if unknown := [one for one in own.follows if one not in ours]:
        near = difflib.get_close_matches(unknown[0], ours, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ConfigError(f"{where}: follows {unknown[0]!r}; {hint}known: {', '.join(ours)}")
    before = PHASES[own.like]
    name = extension.name
    PHASES.pop(name, None)  # move the phase to the end
    PHASES[name] = found = Phase(
        name=name,
        folder=f"{name}_checkpoints",
        module=MODULE,
        follows=own.follows or before.follows,
        reads=before.reads,
        takes_init=before.takes_init,
        optional=True,
        like=own.like,
        extension=use(extension).label,
    )
    return found


def taken() -> tuple[str, ...]:
    """Return the names that phases of extensions must not have."""
    ours = [one for one in PHASES.values() if not one.extension]
    kinds = (*phase_registry.KINDS, *filter(None, phase_registry.KINDS.values()))
    steps = (
        "all",
        "text",
        "tokenizer",
        "tokens",
        phase_registry.INIT,
        phase_registry.TEACHER,
        phase_registry.CHANGE,
        "import",
        "model",
    )
    return (*(one.name for one in ours), *(one.alias for one in ours if one.alias), *kinds, *steps)
