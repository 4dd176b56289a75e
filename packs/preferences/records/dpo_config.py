"""Configuration of the phase dpo, as a frozen record. Light to import: no torch."""

from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

from data.errors import ConfigError
from trainer.config import PhaseConfig
from trainer.records.fields import check_bounds

LOSSES = ("dpo", "robust", "ipo", "kto")
SMOOTHED = ("dpo", "robust")
M = TypeVar("M")


@dataclass(frozen=True, kw_only=True)
class DpoConfig(PhaseConfig):
    """Config of the phase dpo. A row is a pair of answers; with the loss kto, a row is a single answer."""

    RATE_SHARE: ClassVar[float] = 0.02
    loss: str = "dpo"
    """`dpo` (sigmoid), `robust` (dpo for wrong labels), `ipo` (squared distance of the margin per token), or `kto`
    (answers judged one by one)."""
    beta: float = 0.1
    """Factor of the rewards: a reward is beta times the gain in ln p over the start of the phase."""
    label_smoothing: float = 0.0
    """Losses dpo and robust: probability that a pair is labelled the wrong way round."""
    desirable_weight: float = 1.0
    """Loss kto: weight of answers that are wanted."""
    undesirable_weight: float = 1.0
    """Loss kto: weight of answers that are not wanted."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.loss not in LOSSES:
            raise ConfigError(f"loss is {self.loss!r}; known: {', '.join(LOSSES)}")
        check_bounds(self, "beta", 0, above=True)
        check_bounds(self, "label_smoothing desirable_weight undesirable_weight", 0)
        if self.label_smoothing >= 0.5:
            raise ConfigError(f"label_smoothing is {self.label_smoothing}; it must be below 0.5")
        if self.label_smoothing and self.loss not in SMOOTHED:
            raise ConfigError(f"label_smoothing: for the losses {' and '.join(SMOOTHED)}; the loss is {self.loss}")
        if self.loss != "kto" and (self.desirable_weight, self.undesirable_weight) != (1.0, 1.0):
            raise ConfigError(
                f"desirable_weight and undesirable_weight: for the loss kto only; the loss is {self.loss}"
            )
        if self.turns > 1:
            raise ConfigError(f"turns is {self.turns}; a row of the phase {self.phase} is a single pair")

    @property
    def can_pack(self) -> bool:
        """Return False: a row holds the answers of a single pair."""
        return False

    def is_packed(self, device: str) -> bool:
        """Return True: both answers of a pair are in one row, and attend to their own tokens only."""
        return True

    @property
    def views(self) -> int:
        """Return the number of answers in a row that are trained, each of up to `sequence_len` tokens."""
        return 1 if self.loss == "kto" else 2

    @property
    def num_frozen(self) -> int:
        """Return the number of additional forward passes per row, each over one answer.

        The reference reads both answers of a row. For kto, the reference reads the judged answer, and the model in
        training reads the other answer.
        """
        return 2

    @property
    def flops(self) -> float:
        return self.views * super().flops

    def flops_per_token(self, sequence_len: int) -> float:
        """Return the FLOPs of a token in a row; the reference is computed once, before the first step."""
        return self.model.flops_per_token(sequence_len)

    def adapt_memory(self, found: M, device: str, parts: int, sharers: int) -> M:
        """Return the memory without a frozen model: the reference is the model itself, before the first step."""
        memory: Any = found
        changed: M = replace(memory, frozen=0)
        return changed
