"""The record of the phase dpo. No torch."""

from trainer.records.phase_registry import Phase

DPO = Phase(
    name="dpo",
    folder="dpo_checkpoints",
    module="packs.preferences.trainer.phase",
    config="packs.preferences.records.dpo_config:DpoConfig",
    follows=("sft", "mid", "base"),
    reads="pairs",
)
