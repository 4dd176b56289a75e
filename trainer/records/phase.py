"""Record of a training phase. Light to import: no torch here.

The core declares phases in `phase_registry`, and a pack under `phases`; each phase is a `Phase` record.
"""

from dataclasses import dataclass

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
    """Built-in phase with the settings for a phase of an extension; see trainer/records/own_phase.py."""
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
    """Sizes set by flags and settings of the pack, with these names: see `PhaseConfig.sized`. The size `tokens`, the
    number of training tokens, is also set by `inv cost --tokens`."""
    toy: str = ""
    """Profile file of a rehearsal's toy model, relative to the checkout; "" = the default for all phases."""
    toy_options: tuple[str, ...] = ()
    """Parts of option names to keep in a toy, in addition to the default parts."""
