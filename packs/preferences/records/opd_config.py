"""Configuration of the phase opd, as frozen records. Light to import: no torch."""

import math
from dataclasses import dataclass

from data.errors import ConfigError
from trainer.config import PhaseConfig

LOSSES = ("dapo", "plain")
WITHOUT_EFFECT = ("beta", "dynamic_sampling", "overlong")  # settings of rl about rewards and about a second reference


@dataclass(frozen=True, kw_only=True)
class Teacher:
    """The model that judges the tokens."""

    source: str
    """`store://NAME` for an artifact of the store, `hf://user/repo`, or the address of a server, `http://HOST:PORT/v1`."""
    revision: str
    """Fingerprint of the artifact, or commit of the hub; "" for a server."""
    params: int
    """Number of parameters; 0 = unknown."""
    model: str = ""
    """Name of the model at the server; "" = the teacher computes beside the student."""


@dataclass(frozen=True, kw_only=True)
class OpdConfig(PhaseConfig):
    """Config of the phase opd; `rl` has the settings of the answers."""

    teacher: Teacher | None = None
    """Model with the same tokenizer; the plan refuses the phase without a teacher."""

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.rl is not None, "PhaseConfig refuses a phase of prompts without `rl`"
        if self.rl.loss not in LOSSES:
            raise ConfigError(f"{self.phase}.rl.loss is {self.rl.loss}; known: {', '.join(LOSSES)}")
        if named := [name for name in WITHOUT_EFFECT if getattr(self.rl, name)]:
            raise ConfigError(f"{self.phase}.rl.{named[0]}: no effect; the teacher judges the answers, not a reward")
        if self.is_served and self.rl.temperature != 1:
            raise ConfigError(
                f"{self.phase}.rl.temperature is {self.rl.temperature}; a teacher behind an address computes "
                "probabilities at temperature 1 only"
            )

    @property
    def is_served(self) -> bool:
        """Return whether a server computes the teacher."""
        return self.teacher is not None and bool(self.teacher.model)

    @property
    def num_frozen(self) -> int:
        """Return the size of the teacher beside the student, in models of the trained size, rounded up."""
        if self.is_served:
            return 0
        size = self.teacher.params if self.teacher is not None else 0
        return max(1, math.ceil(size / self.model.num_params))
