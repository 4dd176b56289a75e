"""The record of a phase of training. Light to import: no torch here.

The core declares its phases in `phase_registry`, and a pack its own under `phases`: each is one such record.
"""

from dataclasses import dataclass

TEXT, TALK, PROMPTS = "text", "talk", "prompts"


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
    config: str = "trainer.config:PhaseConfig"
    """The record of its configuration as "module:attribute": `PhaseConfig`, or what a pack extends it by."""
    feature: str = ""
    """The field of `ModelConfig` that its model has and that of the phases before has not, such as `ternary`."""
    needs: str = ""
    """Class that extends `trainer.plan.phase_needs.PhaseNeeds`, as "module:attribute"; "" = it needs only memory."""
    family: str = ""
    """Phrase for messages: the phases with an `alias` that belong together."""
    sizes: tuple[str, ...] = ()
    """Sizes of flags and settings that it takes, such as `block_size`: see `PhaseConfig.sized`."""
    toy: str = ""
    """The file of the profile, below the checkout, that a rehearsal trains a toy with; "" = that of all phases."""
    toy_options: tuple[str, ...] = ()
    """Parts of the names of options that a toy keeps, beside those of all phases."""
