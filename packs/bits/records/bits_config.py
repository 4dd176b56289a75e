"""The settings of the stages that make a model of 1.58 bits, as frozen records. Light: no torch."""

from dataclasses import dataclass, replace
from typing import ClassVar

from data.errors import ConfigError
from trainer.config import PhaseConfig
from trainer.records.fields import in_bounds, newer

LAYER_WEIGHTS = ("progressive", "uniform", "exponential")
SHAPES = ("linear", "cosine")


@dataclass(frozen=True, kw_only=True)
class BitsConfig:
    """The training of a ternary model: how fast its weights are rounded, and its losses against the teacher.

    The loss of a step is `layers` * distance of layers + (1 - `layers`) * (`nats` * cross entropy + `divergence` *
    KL(teacher || student)) + `relations` * divergence of relations, each the mean over tokens that count.
    """

    warmup_steps: int = 0
    """Steps over which rounding grows from none to all; 0 = all from the first step on."""
    warmup: str = "linear"
    """Form of the growth: `linear` or `cosine`."""
    nats: float = 1.0
    """Weight of the cross entropy."""
    divergence: float = 0.0
    """Weight of the divergence of the logits; 0 = without it."""
    temperature: float = 5.0
    """Logits are divided by it in the divergence."""
    squared: bool = True
    """The divergence is multiplied by temperature**2, so that its gradient does not shrink: BitDistill's released code
    has it, the formula in its paper does not."""
    layers: float = 0.0
    """Share of the distance of layers' outputs at the first step; it falls to 0 along a cosine. 0 = without it."""
    layer_weights: str = "progressive"
    """`progressive`: the layer i of L counts i / (1 + ... + L); `uniform`; `exponential`: 2**i."""
    relations: float = 0.0
    """Weight of the divergence of relations among queries, among keys and among values; 0 = without it. BitDistill's
    code has 1e5; WrinkleFree's recipes have 1e-5, which switches it off."""
    relation_layer: int | None = None
    """The layer they are taken from, counted from 0; None = four fifths of the way up."""
    relation_heads: int = 32
    """Number of vectors into which the joined heads of a token are split."""
    saliency: float = 0.0
    """Share of each matrix's columns, those with the largest weights, that are not rounded at first; 0 = none."""
    saliency_warmup: int = 100
    """Steps for which that share stays, before it falls to 0 along a cosine."""

    def __post_init__(self) -> None:
        in_bounds(self, "warmup_steps nats divergence layers relations saliency saliency_warmup", 0)
        in_bounds(self, "temperature", 0, above=True)
        in_bounds(self, "relation_heads", 1)
        if self.warmup not in SHAPES:
            raise ConfigError(f"warmup is {self.warmup!r}; known: {', '.join(SHAPES)}")
        if self.layer_weights not in LAYER_WEIGHTS:
            raise ConfigError(f"layer_weights is {self.layer_weights!r}; known: {', '.join(LAYER_WEIGHTS)}")
        for name in ("layers", "saliency"):
            if getattr(self, name) > 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; a share is at most 1")

    @property
    def has_teacher(self) -> bool:
        """Return whether a frozen model beside it is asked."""
        return bool(self.divergence or self.layers or self.relations)

    def in_steps(self, share: float) -> "BitsConfig":
        """Return the same for a phase of so many times the steps."""

        def of(steps: int) -> int:
            return max(1, round(steps * share)) if steps else 0

        return replace(self, warmup_steps=of(self.warmup_steps), saliency_warmup=of(self.saliency_warmup))

    def layer_of(self, count: int) -> int:
        """Return the layer whose relations count, of `count`."""
        return count * 4 // 5 if self.relation_layer is None else self.relation_layer

    def problem(self, heads: int, kv_heads: int, head_dim: int, count: int) -> str:
        """Return why a model of such a shape cannot be trained so; "" when it can."""
        if not self.relations:
            return ""
        if not 0 <= self.layer_of(count) < count:
            return f"relation_layer is {self.relation_layer}; the model has the layers 0 to {count - 1}"
        sizes = (heads * head_dim, kv_heads * head_dim)
        if odd := [size for size in sizes if size % self.relation_heads]:
            near = next(one for one in range(self.relation_heads, 0, -1) if not any(size % one for size in sizes))
            what = f"relation_heads is {self.relation_heads}, which does not divide the {odd[0]} numbers of all heads"
            return f"{what}; {near} divides {' and '.join(map(str, dict.fromkeys(sizes)))}"
        return ""


@dataclass(frozen=True, kw_only=True)
class BitsPhaseConfig(PhaseConfig):
    """One stage: its rounding and its losses beside what every phase has."""

    WARM_UPS: ClassVar[tuple[str, ...]] = ("schedule", "bits")
    bits: BitsConfig | None = newer(None)
    """Rounding of a ternary model, and what the model learns from its teacher; None = with every default."""

    def __post_init__(self) -> None:
        super().__post_init__()
        model, bits = self.model, self.bits
        if bits is None:
            return
        if bits.saliency and not model.ternary:
            raise ConfigError(f"{self.phase}: saliency is {bits.saliency}, and its model says no `ternary`")
        if bits.has_teacher and not self.num_frozen:
            parts = "divergence, layers and relations"
            raise ConfigError(f"{self.phase} has no teacher; {parts} of its bits are 0")
        heads = (model.num_attention_heads, model.num_key_value_heads, model.head_dim, model.num_hidden_layers)
        if problem := bits.problem(*heads):
            raise ConfigError(f"{self.phase}: {problem}")

    def in_steps(self, steps: int) -> PhaseConfig:
        """Return the same in another number of steps, its warm-ups of rounding and saliency rescaled with them."""
        found = super().in_steps(steps)
        if self.bits is None or not isinstance(found, BitsPhaseConfig) or not self.trains:
            return found
        return replace(found, bits=self.bits.in_steps(steps / self.steps))

    @property
    def can_pack(self) -> bool:
        """Return whether conversations may share its rows: not where a loss compares all tokens of a row."""
        return super().can_pack and not (self.bits and self.bits.relations)
