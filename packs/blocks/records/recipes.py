"""The dlm recipe of every profile. Light to import."""

from collections.abc import Mapping
from dataclasses import replace

from packs.blocks.records.dlm_config import DlmConfig
from trainer.config import OptimizerConfig, PhaseConfig, Profile, ScheduleConfig, as_phase
from trainer.profiles.derived_phases import TALK
from trainer.records.model_config import BlocksConfig

SMALL = ("smoke", "smoke_bits", "tiny")


def phases(profile: Profile) -> Mapping[str, PhaseConfig]:
    """Return the phase dlm on the conversations of sft, with reduced steps and blocks for small profiles."""
    sft = profile.phases["sft"]
    if profile.name not in SMALL:
        schedule = ScheduleConfig(warmup_steps=10, decay=0.2)
        blocks = BlocksConfig(block_size=32)
        return {"dlm": as_phase(DlmConfig, sft, phase="dlm", schedule=schedule, steps=600, blocks=blocks)}
    small = as_phase(
        DlmConfig,
        sft,
        phase="dlm",
        optimizer=OptimizerConfig(lr=0.002, muon_lr=0.008, weight_decay=0.0),
        schedule=ScheduleConfig(warmup_steps=10, decay=0.7),
        steps=200,
        sequence_len=min(512, sft.sequence_len),
        turns=min(8, sft.turns),
        mixture=TALK,
        blocks=BlocksConfig(block_size=8, sub_block_size=8),
    )
    return {"dlm": replace(small, steps=12) if profile.name == "tiny" else small}
