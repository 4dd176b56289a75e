"""Recipes of the 1.58-bit stages, which extend the full-precision phases of a profile."""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from packs.bits.records.bits_config import BitsConfig, BitsPhaseConfig
from trainer.config import OptimizerConfig, PhaseConfig, Profile, ScheduleConfig, as_phase
from trainer.records.model_config import ModelConfig, Ternary


def smoke_bits(profiles: Mapping[str, Callable[[], Profile]]) -> Profile:
    """Return the `smoke` profile in a shape that supports 1.58 bits down to a GGUF file, with all stages."""
    whole = profiles["smoke"]()
    model = replace(whole.phases["base"].model, intermediate_size=768, qk_norm=False)
    steps = {"base": 144, "mid": 180, "sft": 216}  # 1.58-bit models need more steps
    phases = {
        name: replace(phase, model=model, steps=steps.get(name, phase.steps)) for name, phase in whole.phases.items()
    }
    return replace(whole, name="smoke_bits", phases={**phases, **small_stages(phases["base"], phases["sft"])})


def small_stages(base: PhaseConfig, sft: PhaseConfig) -> dict[str, BitsPhaseConfig]:
    """Return the stages at the size of `smoke`, which train in minutes on two CPU cores."""
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
    """Return bits1 in the shape of `phase`, with no training steps."""
    return replace(phase, phase="bits1", steps=0, bits=None)


def published_stages(profile: Profile) -> dict[str, BitsPhaseConfig]:
    """Return the 1.58-bit stages of a profile with the published settings of their authors.

    bits3 follows BitDistill; the other stages follow WrinkleFree.
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
    """Return the largest common divisor of 32 and of the query and key/value widths of a token."""
    return math.gcd(32, model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim)
