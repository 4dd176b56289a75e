"""Profiles with nanochat's shape and recipe of 2026. Light to import.

Sources: `nanochat/gpt.py`, `scripts/base_train.py` and `runs/speedrun.sh` of karpathy/nanochat, July 2026. Rates,
decay, batch and length follow the same scaling rules as `trainer.profiles.derived_phases.dial`.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import replace

from trainer.config import (
    CheckpointOptions,
    MuonConfig,
    OptimizerConfig,
    PhaseConfig,
    Profile,
    RecipeMachine,
    ScheduleConfig,
)
from trainer.profiles.derived_phases import scale_rates, street
from trainer.records.model_config import ModelConfig, NanochatParts

Profiles = Mapping[str, Callable[[], Profile]]

REFERENCE_TOKENS = 2**19  # tokens of a step of d12, for which the rates are tuned
# Text of nanochat's speedrun, in shuffled order, so the first documents are a sample. The number of tokens is assumed
# low, so that a training reads no document twice.
SOURCE, TOKENS_PER_DOCUMENT = "hf://karpathy/climbmix-400b-shuffle", 500
MUON = MuonConfig(
    momentum=0.97,
    first_momentum=0.85,
    last_momentum=0.9,
    momentum_steps=400,
    equal_rows=True,
    polar=True,
    full_norm=True,
    neurons=0.9,
    cautious=True,
    decay_to_zero=True,
)


def shape(depth: int, vocab_size: int = 32_768, positions: int = 2048) -> ModelConfig:
    """Return the shape at `depth`: width 64 per layer, rounded up to whole heads of 128."""
    heads = math.ceil(64 * depth / 128)
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=128 * heads,
        intermediate_size=4 * 128 * heads,
        num_hidden_layers=depth,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=128,
        max_position_embeddings=positions,
        rope_theta=100_000.0,
        rms_norm_eps=2.0**-23,
        qk_norm=True,
        tie_word_embeddings=False,
        logit_softcap=15.0,
        mlp="relu2",
        embed_norm=True,
        nanochat=NanochatParts(
            windows="SSSL",
            window=128 * math.ceil(positions / 512),
            value_channels=12,
            smear_channels=24,
            scales=True,
            backout=True,
        ),
    )


def optimizer(width: int, faster: float = 1.0, decay: float = 0.0) -> OptimizerConfig:
    """Return the rates at a width, times `faster`, and the weight decay of Muon."""
    narrow = (width / 768) ** -0.5
    return OptimizerConfig(
        lr=0.006 * faster * narrow,
        embed_lr=0.3 * faster * narrow,
        value_lr=0.15 * faster * narrow,
        head_lr=0.008 * faster * narrow,
        scale_lr=0.5 * faster,
        smear_lr=0.2,
        muon_lr=0.02 * faster,
        muon=MUON,
        betas=(0.8, 0.96),
        eps=1e-10,
        weight_decay=0.0,
        muon_decay=decay,
        grad_clip=0.0,
    )


def sized(name: str, depth: int, tokens_per_param: float, micro_rows: int) -> Profile:
    """Return the profile at `depth`, with a training length in tokens per parameter of the matrices."""
    model = shape(depth)
    length = model.num_matrix_params / shape(12).num_matrix_params  # relative to d12
    batch_tokens = 2 ** round(math.log2(REFERENCE_TOKENS * length**0.383))
    faster = (batch_tokens / REFERENCE_TOKENS) ** 0.5
    base = PhaseConfig(
        phase="base",
        model=model,
        optimizer=optimizer(model.hidden_size, faster, 0.28 * faster / length),
        schedule=ScheduleConfig(warmup_steps=40, decay=0.65, final=0.05),
        steps=math.ceil(tokens_per_param * model.num_matrix_params / batch_tokens),
        rows=batch_tokens // 2048,
        micro_rows=micro_rows,
        sequence_len=2048,
        packing="best-fit",
    )
    documents = math.ceil(base.steps * batch_tokens / TOKENS_PER_DOCUMENT / 10**6) * 10**6
    return Profile(
        name=name,
        vocab_size=model.vocab_size,
        phases=street(base),
        keeping=CheckpointOptions(save_every=250),
        source=f"{SOURCE}:train[:{documents}]",
    )


def speedrun(profiles: Profiles) -> Profile:
    """Return d24, GPT-2 grade: a step of a million tokens, 8 tokens per parameter, float8 in base, 8 H100."""
    whole = sized("speedrun", 24, 8, micro_rows=16)
    base = replace(whole.phases["base"], dtype="float8")
    return replace(whole, phases={**whole.phases, "base": base}, machine=RecipeMachine(gpu="H100", num_gpus=8))


def speedrun_d20(profiles: Profiles) -> Profile:
    """Return d20, with the 12 tokens per parameter that nanochat uses outside the speedrun."""
    return sized("speedrun_d20", 20, 12, micro_rows=16)


def speedrun_d12(profiles: Profiles) -> Profile:
    """Return d12, the reference of the scaling rules."""
    return sized("speedrun_d12", 12, 12, micro_rows=16)


def speedrun_d4(profiles: Profiles) -> Profile:
    """Return d4 in the phases of `smoke`, for two CPU cores.

    The rates are those of d12: scaled down for the small steps, the model learns more slowly.
    """
    whole = profiles["smoke"]()
    model = shape(4, vocab_size=4096, positions=1024)
    rates = optimizer(model.hidden_size)
    own = {"base": rates, "mid": scale_rates(rates, 0.6), "sft": scale_rates(rates, 0.2)}
    phases = {
        name: replace(phase, model=model, optimizer=own.get(name, phase.optimizer))
        for name, phase in whole.phases.items()
    }
    return replace(whole, name="speedrun_d4", phases=phases)
