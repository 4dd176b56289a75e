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
    """`store://NAME` for an artifact of the store, or `hf://user/repo`."""
    revision: str
    """Fingerprint of the artifact, or commit of the hub."""
    params: int
    """Number of parameters; 0 = unknown."""


@dataclass(frozen=True, kw_only=True)
class OpdConfig(PhaseConfig):
    """Config of the phase opd; `rl` has the settings of the answers."""

    teacher: Teacher | None = None
    """Model with the same tokenizer; the plan refuses the phase without a teacher."""

    def __post_init__(self) -> None:
        super().__post_init__()
        assert self.rl is not None, "the check of the phase has held that the phase has one"
        if self.rl.loss not in LOSSES:
            raise ConfigError(f"{self.phase}.rl.loss is {self.rl.loss}; known: {', '.join(LOSSES)}")
        if named := [name for name in WITHOUT_EFFECT if getattr(self.rl, name)]:
            raise ConfigError(f"{self.phase}.rl.{named[0]}: no effect; the teacher judges the answers, not a reward")

    @property
    def num_frozen(self) -> int:
        """Return the size of the teacher, in models of the trained size, rounded up."""
        size = self.teacher.params if self.teacher is not None else 0
        return max(1, math.ceil(size / self.model.num_params))
