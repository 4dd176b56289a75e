"""Settings of the 1.58-bit training stages, as frozen records. Light to import: no torch."""

from dataclasses import dataclass, replace
from typing import ClassVar

from data.errors import ConfigError
from trainer.config import PhaseConfig
from trainer.records.fields import check_bounds, newer

LAYER_WEIGHTS = ("progressive", "uniform", "exponential")
SHAPES = ("linear", "cosine")


@dataclass(frozen=True, kw_only=True)
class BitsConfig:
    """Training settings of a ternary model: the rounding schedule, and the losses against the teacher.

    The loss of a step is `layers` * layer distance + (1 - `layers`) * (`nats` * cross entropy + `divergence` *
    KL(teacher || student)) + `relations` * relation divergence. Each term is a mean over the counted tokens.
    """

    warmup_steps: int = 0
    """Steps over which rounding grows from none to full; 0 = full rounding from the first step."""
    warmup: str = "linear"
    """Shape of the growth: `linear` or `cosine`."""
    nats: float = 1.0
    """Weight of the cross entropy."""
    divergence: float = 0.0
    """Weight of the KL divergence of the logits; 0 = off."""
    temperature: float = 5.0
    """Temperature that divides the logits in the divergence."""
    squared: bool = True
    """Multiply the divergence by temperature**2, so that the gradient keeps its scale. The released code of BitDistill
    does; the formula in the BitDistill paper does not."""
    layers: float = 0.0
    """Initial share of the layer distance in the loss; decays to 0 along a cosine. 0 = off."""
    layer_weights: str = "progressive"
    """Weights of the layers: `progressive`: layer i of L has weight i / (1 + ... + L); `uniform`; `exponential`:
    2**i."""
    relations: float = 0.0
    """Weight of the divergence of relations among queries, among keys and among values; 0 = off. The code of BitDistill
    uses 1e5; the recipes of WrinkleFree use 1e-5, which disables the term."""
    relation_layer: int | None = None
    """Layer for the relations, counted from 0; None = four fifths of the depth."""
    relation_heads: int = 32
    """Number of vectors into which the joined heads of a token are split."""
    saliency: float = 0.0
    """Share of columns per matrix that start unrounded, largest weights first; 0 = none."""
    saliency_warmup: int = 100
    """Steps for which the saliency share stays constant before the decay to 0 along a cosine."""

    def __post_init__(self) -> None:
        check_bounds(self, "warmup_steps nats divergence layers relations saliency saliency_warmup", 0)
        check_bounds(self, "temperature", 0, above=True)
        check_bounds(self, "relation_heads", 1)
        if self.warmup not in SHAPES:
            raise ConfigError(f"warmup is {self.warmup!r}; known: {', '.join(SHAPES)}")
        if self.layer_weights not in LAYER_WEIGHTS:
            raise ConfigError(f"layer_weights is {self.layer_weights!r}; known: {', '.join(LAYER_WEIGHTS)}")
        for name in ("layers", "saliency"):
            if getattr(self, name) > 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; a share is at most 1")

    @property
    def has_teacher(self) -> bool:
        """Return whether the loss needs a frozen teacher model."""
        return bool(self.divergence or self.layers or self.relations)

    def with_steps(self, share: float) -> "BitsConfig":
        """Return a copy for a phase with `share` times the steps; a warm-up that is not 0 keeps at least one step."""

        def of(steps: int) -> int:
            return max(1, round(steps * share)) if steps else 0

        return replace(self, warmup_steps=of(self.warmup_steps), saliency_warmup=of(self.saliency_warmup))

    def layer_of(self, count: int) -> int:
        """Return the index of the relation layer in a model of `count` layers."""
        return count * 4 // 5 if self.relation_layer is None else self.relation_layer

    def problem(self, heads: int, kv_heads: int, head_dim: int, count: int) -> str:
        """Return the reason why a model of this shape cannot be trained with these settings; "" if supported."""
        if not self.relations:
            return ""
        if not 0 <= self.layer_of(count) < count:
            return f"relation_layer is {self.relation_layer}; the model has layers 0 to {count - 1}"
        sizes = (heads * head_dim, kv_heads * head_dim)
        if odd := [size for size in sizes if size % self.relation_heads]:
            near = next(one for one in range(self.relation_heads, 0, -1) if not any(size % one for size in sizes))
            what = f"relation_heads {self.relation_heads} does not divide {odd[0]}, the total width of the heads"
            return f"{what}; {near} divides {' and '.join(map(str, dict.fromkeys(sizes)))}"
        return ""


@dataclass(frozen=True, kw_only=True)
class BitsPhaseConfig(PhaseConfig):
    """Config of one 1.58-bit stage: the phase config with rounding and distillation settings."""

    WARM_UPS: ClassVar[tuple[str, ...]] = ("schedule", "bits")
    bits: BitsConfig | None = newer(None)
    """Rounding of a ternary model, and the losses against the teacher; None = the default of every field."""

    def __post_init__(self) -> None:
        super().__post_init__()
        model, bits = self.model, self.bits
        if bits is None:
            return
        if bits.saliency and not model.ternary:
            raise ConfigError(f"{self.phase}: saliency is {bits.saliency}, but the model has no `ternary` setting")
        if bits.has_teacher and not self.num_frozen:
            parts = "divergence, layers and relations"
            raise ConfigError(f"{self.phase} has no teacher, because {parts} in bits are 0")
        heads = (model.num_attention_heads, model.num_key_value_heads, model.head_dim, model.num_hidden_layers)
        if problem := bits.problem(*heads):
            raise ConfigError(f"{self.phase}: {problem}")

    def with_steps(self, steps: int) -> PhaseConfig:
        """Return a copy for `steps` steps, with the rounding and saliency warm-ups rescaled in proportion."""
        found = super().with_steps(steps)
        if self.bits is None or not isinstance(found, BitsPhaseConfig) or not self.trains:
            return found
        return replace(found, bits=self.bits.with_steps(steps / self.steps))

    @property
    def can_pack(self) -> bool:
        """Return whether conversations may share a row; the relations loss forbids sharing.

        The relations loss compares all tokens of a row.
        """
        return super().can_pack and not (self.bits and self.bits.relations)
