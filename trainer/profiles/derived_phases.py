"""Profiles from a few numbers: the shape of a model, and all phases derived from the base phase. Light to import.

The functions take the numbers of a shape, the base phase or training settings, and return shapes, phases and profiles.
Sources stand next to the numbers.
"""

import math
from dataclasses import replace

from trainer.config import CheckpointOptions, OptimizerConfig, PhaseConfig, Profile, ScheduleConfig
from trainer.records.model_config import ModelConfig
from trainer.records.rl_config import RlConfig

TALK = {"identity": 0.25, "pydocs": 0.4, "other": 0.35}


def llama(vocab_size: int, width: int, layers: int, heads: int, inner: int) -> ModelConfig:
    """Return a Llama shape with tied embeddings, head dimension 64 and a key/value head per attention head."""
    return ModelConfig(
        vocab_size=vocab_size,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=64,
    )


def qwen3(width: int, layers: int, heads: int, inner: int) -> ModelConfig:
    """Return the shape of the small Qwen3 models: tied embeddings, eight key/value heads, head dimension 128."""
    return ModelConfig(
        vocab_size=151_936,
        hidden_size=width,
        intermediate_size=inner,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=40_960,
        rope_theta=1e6,
        rms_norm_eps=1e-6,
        qk_norm=True,
    )


def dial_shape(depth: int) -> ModelConfig:
    """Return the shape of nanochat's dial at `depth`: width 64 per layer, head dimension 128."""
    width = 64 * depth
    heads = math.ceil(width / 128)
    return ModelConfig(
        vocab_size=65_536,
        hidden_size=width,
        intermediate_size=64 * round(8 * width / 3 / 64),
        num_hidden_layers=depth,
        num_attention_heads=heads,
        num_key_value_heads=heads,
        head_dim=128,
        qk_norm=True,
        tie_word_embeddings=False,
    )


def cosine(
    name: str,
    model: ModelConfig,
    *,
    lr: float,
    rows: int,
    micro_rows: int,
    steps: int = 0,
    tokens_per_param: float = 0,
    sequence_len: int = 2048,
    recompute: bool = False,
) -> Profile:
    """Return a profile with AdamW and a cosine schedule to a tenth, as for GPT-3 and Llama; mid and sft follow.

    The rates of mid and sft fall further. The length is given in steps, or in tokens per parameter.
    """
    steps = steps or math.ceil(tokens_per_param * model.num_params / (rows * sequence_len))
    base = PhaseConfig(
        phase="base",
        model=model,
        optimizer=OptimizerConfig(lr=lr),
        schedule=ScheduleConfig(warmup_steps=min(500, steps // 20), decay=1.0, final=0.1, kind="cosine"),
        steps=steps,
        rows=rows,
        micro_rows=micro_rows,
        sequence_len=sequence_len,
        recompute=recompute,
    )
    return Profile(
        name=name, vocab_size=model.vocab_size, phases=street(base), keeping=CheckpointOptions(save_every=250)
    )


def street(base: PhaseConfig) -> dict[str, PhaseConfig]:
    """Return base and the phases after base.

    mid starts at 0.3 of base's rates, and sft at 0.1, about the final rate of base. Both decay to 0.
    """
    slow = scale_rates(base.optimizer, 0.3)
    rows = math.gcd(64, base.rows)
    mid = replace(
        base,
        phase="mid",
        optimizer=slow,
        schedule=ScheduleConfig(warmup_steps=10, decay=0.2),
        steps=400,
        rows=rows,
        micro_rows=math.gcd(rows, base.micro_rows),
        mixture={"identity": 0.3, "pydocs": 0.45, "other": 0.25},
        turns=8,
        document_masks=False,
    )
    sft = replace(
        mid,
        phase="sft",
        optimizer=scale_rates(base.optimizer, 0.1),
        schedule=ScheduleConfig(decay=1.0),
        steps=200,
        mixture=TALK,
    )
    return {"base": base, "mid": mid, "sft": sft, "rl": on_policy(sft, scale_rates(base.optimizer, 0.05))}


def on_policy(sft: PhaseConfig, optimizer: OptimizerConfig) -> PhaseConfig:
    """Return rl on word problems for a model of this size: 16 prompts x 16 answers per step.

    The phase makes one pass over the problems. The settings are nanochat's, at a twentieth of the rates of base.
    """
    return replace(
        sft,
        phase="rl",
        optimizer=optimizer,
        schedule=ScheduleConfig(warmup_steps=10, decay=1.0),
        steps=450,
        rows=256,
        micro_rows=sft.micro_rows,
        mixture={"gsm8k": 1.0},
        turns=1,
        rl=RlConfig(group=16, max_new=min(512, sft.sequence_len // 2), shown=0.15),
    )


def imported_chat_phase(phase: PhaseConfig, model: ModelConfig) -> PhaseConfig:
    """Return a chat phase for an imported model: AdamW only, at a rate low enough to preserve the pretraining.

    The rate is close to published recipes for instruction tuning at these sizes (1e-4 at a width of 1024). The model
    receives the features trained by the phase, such as a ternary shape.
    """
    sequence_len = phase.fitting(min(phase.sequence_len, model.max_position_embeddings))
    return replace(
        phase,
        model=model.with_features_of(phase.model),
        optimizer=OptimizerConfig(lr=phase.RATE_SHARE * 1e-4 * 1024 / max(model.hidden_size, 256), weight_decay=0.01),
        schedule=ScheduleConfig(warmup_steps=max(1, phase.steps // 30), decay=1.0),
        sequence_len=sequence_len,
        adopted=True,
    )


def learning_on_policy(phase: PhaseConfig, model: ModelConfig) -> PhaseConfig:
    """Return rl for an imported model: the rates of GRAIL, with at most twenty warm-up steps."""
    return replace(
        imported_chat_phase(phase, model),
        optimizer=OptimizerConfig(lr=3e-6, betas=(0.9, 0.999), weight_decay=0.0),
        schedule=ScheduleConfig(warmup_steps=min(20, phase.steps // 5), decay=0.0),
    )


def scale_rates(optimizer: OptimizerConfig, share: float) -> OptimizerConfig:
    """Return an optimizer with all rates multiplied by `share`."""
    names = "lr embed_lr head_lr muon_lr value_lr scale_lr smear_lr".split()
    rates = {name: getattr(optimizer, name) for name in names}
    return replace(optimizer, **{name: rate * share for name, rate in rates.items() if rate})


def dial(depth: int) -> Profile:
    """Return a profile from a single number: width 64 per layer, head dimension 128, and nanochat's scaling rules.

    The rules set length, batch, rates and decay. nanochat's MLP has two matrices of 4 d; this MLP has three of 8/3 d,
    as vLLM supports. nanochat's embedding is initialized with a standard deviation of 1, this embedding with 0.02, so
    the rate is smaller by the same factor. nanochat's decay skips about half of the entries, so this decay is half.
    Source: nanochat, scaling rules of 2026: 12 tokens per parameter of the matrices, batch ~ tokens^0.383, rates ~
    batch^0.5, decay ~ batch^0.5 / tokens.
    """
    model, reference = dial_shape(depth), dial_shape(12)
    length = model.num_matrix_params / reference.num_matrix_params  # training length relative to the reference
    batch_tokens = 2 ** round(math.log2(2**19 * length**0.383))
    faster = (batch_tokens / 2**19) ** 0.5
    narrow = (model.hidden_size / 768) ** -0.5
    rows = batch_tokens // 2048
    base = PhaseConfig(
        phase="base",
        model=model,
        optimizer=OptimizerConfig(
            lr=0.006 * faster * narrow,
            head_lr=0.008 * faster * narrow,
            muon_lr=0.02 * faster,
            betas=(0.8, 0.96),
            eps=1e-10,
            weight_decay=0.0,
            muon_decay=0.14 * faster / length,
            grad_clip=0.0,
        ),
        schedule=ScheduleConfig(warmup_steps=40, decay=0.65, final=0.05),
        steps=math.ceil(12 * model.num_matrix_params / batch_tokens),
        rows=rows,
        micro_rows=16 if depth <= 20 else 8 if depth <= 26 else 4,
        sequence_len=2048,
    )
    return Profile(
        name=f"d{depth}", vocab_size=model.vocab_size, phases=street(base), keeping=CheckpointOptions(save_every=250)
    )
