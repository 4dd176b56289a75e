"""Recipes of the stages of 1.58 bits: what a profile has beside its phases in full precision."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from packs.bits.records.bits_config import BitsConfig, BitsPhaseConfig
from trainer.config import OptimizerConfig, PhaseConfig, Profile, ScheduleConfig, as_phase
from trainer.records.model_config import ModelConfig, Ternary


def smoke_bits(profiles: Mapping[str, Callable[[], Profile]]) -> Profile:
    """Return smoke's size in a shape that stays whole in 1.58 bits, down to a GGUF file, and the stages up to it."""
    whole = profiles["smoke"]()
    model = replace(whole.phases["base"].model, intermediate_size=768, qk_norm=False)
    steps = {"base": 144, "mid": 180, "sft": 216}  # a model in 1.58 bits needs more of them
    phases = {
        name: replace(phase, model=model, steps=steps.get(name, phase.steps)) for name, phase in whole.phases.items()
    }
    return replace(whole, name="smoke_bits", phases={**phases, **small_stages(phases["base"], phases["sft"])})


def small_stages(base: PhaseConfig, sft: PhaseConfig) -> dict[str, BitsPhaseConfig]:
    """Return the stages at the size of `smoke`: minutes on two cores."""
    ternary = replace(base.model, sub_norm=True, ternary=Ternary())
    layerwise = as_phase(
        BitsPhaseConfig,
        base,
        phase="bits1.9",
        model=ternary,
        schedule=ScheduleConfig(warmup_steps=4, decay=0.5, final=0.5),
        steps=48,
        bits=BitsConfig(nats=0.5, divergence=0.5, temperature=2.0, layers=0.5),
    )
    reading = as_phase(
        BitsPhaseConfig,
        base,
        phase="bits2",
        model=ternary,
        schedule=ScheduleConfig(warmup_steps=4, decay=0.7),
        steps=96,
        bits=BitsConfig(warmup_steps=8),
    )
    talking = as_phase(
        BitsPhaseConfig,
        sft,
        phase="bits3",
        model=ternary,
        optimizer=replace(sft.optimizer, lr=0.002, muon_lr=0.008),
        sequence_len=512,
        turns=8,
        bits=BitsConfig(divergence=1.0, squared=False, relations=100.0, relation_heads=8),
    )
    return {"bits1": converted(reading), **{one.phase: one for one in (layerwise, reading, talking)}}


def converted(phase: BitsPhaseConfig) -> BitsPhaseConfig:
    """Return bits1, of the shape of another stage: nothing is trained."""
    return replace(phase, phase="bits1", steps=0, bits=None)


def published_stages(profile: Profile) -> dict[str, BitsPhaseConfig]:
    """Return the stages of 1.58 bits of a profile, as their authors ran them.

    The last one is BitDistill's, the others are WrinkleFree's.
    """
    base = replace(profile.phases["base"], sequence_len=512, document_masks=False)
    ternary = replace(base.model, sub_norm=True, ternary=Ternary())
    layerwise = as_phase(
        BitsPhaseConfig,
        base,
        phase="bits1.9",
        model=ternary,
        optimizer=OptimizerConfig(lr=1.5e-3, muon_lr=1.5e-3, weight_decay=0.024),
        schedule=ScheduleConfig(warmup_steps=50, decay=1.0, final=0.1, kind="cosine"),
        steps=1000,
        rows=128,
        micro_rows=min(16, 4 * base.micro_rows),
        bits=BitsConfig(nats=0.5, divergence=0.5, temperature=2.0, layers=0.5),
    )
    reading = replace(
        layerwise,
        phase="bits2",
        optimizer=OptimizerConfig(lr=1e-4, weight_decay=0.01),
        schedule=ScheduleConfig(warmup_steps=500, decay=0.2),
        steps=math.ceil(10e9 / (128 * 512)),
        bits=BitsConfig(warmup_steps=1000),
    )
    talking = as_phase(
        BitsPhaseConfig,
        profile.phases["sft"],
        phase="bits3",
        model=ternary,
        optimizer=OptimizerConfig(lr=2e-5, weight_decay=0.01),
        schedule=ScheduleConfig(warmup_steps=50, decay=1.0, kind="cosine"),
        steps=1000,
        sequence_len=512,
        bits=BitsConfig(divergence=10.0, relations=1e5, relation_heads=relation_heads(ternary)),
    )
    return {"bits1": converted(reading), **{one.phase: one for one in (layerwise, reading, talking)}}


def relation_heads(model: ModelConfig) -> int:
    """Return 32, or the largest number below that divides what queries, keys and values have for a token."""
    return math.gcd(32, model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim)
