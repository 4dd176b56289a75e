"""The record of the phase polish: sft once more, in few steps."""

from trainer.records.phase_registry import TALK, Phase

POLISH = Phase(
    name="polish",
    folder="polish_checkpoints",
    module="trainer.phases.sft",
    config="packs.desk.records.polish_config:PolishConfig",
    follows=("sft",),
    reads=TALK,
    sizes=("polish_steps",),
)
