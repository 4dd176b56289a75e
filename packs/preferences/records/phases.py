"""The records of the phases dpo and opd. No torch."""

from trainer.records.phase_registry import PROMPTS, Phase

DPO = Phase(
    name="dpo",
    folder="dpo_checkpoints",
    module="packs.preferences.trainer.phase",
    config="packs.preferences.records.dpo_config:DpoConfig",
    follows=("sft", "mid", "base"),
    reads="pairs",
    version=2,
)
OPD = Phase(
    name="opd",
    folder="opd_checkpoints",
    module="packs.preferences.trainer.distillation",
    config="packs.preferences.records.opd_config:OpdConfig",
    follows=("sft", "mid", "base"),
    reads=PROMPTS,
    needs="packs.preferences.control.needs:OpdNeeds",
)
