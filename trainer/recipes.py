"""Whole runs as functions: what `--profile NAME` means. Light to import.

The numbers behind each choice stand in dev/LOG.md.
"""

from dataclasses import replace

from trainer.config import Keeping, ModelConfig, OptimizerConfig, PhaseConfig, Profile, ScheduleConfig


def smoke() -> Profile:
    """A 4M-parameter Qwen3 shape that is trained and chats after minutes on two cores."""
    model = ModelConfig(
        vocab_size=4096,
        hidden_size=256,
        intermediate_size=704,
        num_hidden_layers=4,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=128,
        max_position_embeddings=1024,
        qk_norm=True,
    )
    base = PhaseConfig(
        phase="base",
        model=model,
        optimizer=OptimizerConfig(lr=0.006, muon_lr=0.02, weight_decay=0.0),
        schedule=ScheduleConfig(warmup_steps=10, decay=0.7),
        steps=144,
        rows=16,
        micro_rows=16,
        sequence_len=256,
    )
    mid = PhaseConfig(
        phase="mid",
        model=model,
        optimizer=OptimizerConfig(lr=0.004, muon_lr=0.012, weight_decay=0.0),
        schedule=ScheduleConfig(decay=0.3, final=0.3),
        steps=180,
        rows=32,
        micro_rows=32,
        sequence_len=256,
        mixture={"identity": 0.3, "pydocs": 0.45, "other": 0.25},
    )
    sft = PhaseConfig(
        phase="sft",
        model=model,
        optimizer=OptimizerConfig(lr=0.001, muon_lr=0.004, weight_decay=0.0),
        schedule=ScheduleConfig(decay=1.0),
        steps=108,
        rows=32,
        micro_rows=32,
        sequence_len=256,
        mixture={"identity": 0.25, "pydocs": 0.4, "other": 0.35},
    )
    phases = {"base": base, "mid": mid, "sft": sft}
    return Profile(name="smoke", vocab_size=4096, phases=phases, keeping=Keeping(save_every=40))


def tiny() -> Profile:
    """Everything that smoke does, in seconds and without a use: for tests and rehearsals."""
    whole = smoke()
    model = ModelConfig(
        vocab_size=1024,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=2,
        head_dim=32,
        max_position_embeddings=256,
        qk_norm=True,
    )
    phases = {
        name: replace(phase, model=model, steps=12, rows=8, micro_rows=8, sequence_len=64)
        for name, phase in whole.phases.items()
    }
    return Profile(name="tiny", vocab_size=1024, phases=phases, keeping=Keeping(save_every=4))


PROFILES = {"smoke": smoke, "tiny": tiny}
