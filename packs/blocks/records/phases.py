"""The phase record of dlm: a left-to-right chat model is trained to answer in blocks. No torch."""

from trainer.records.phase_registry import TALK, Phase

DLM = Phase(
    name="dlm",
    folder="dlm_checkpoints",
    module="packs.blocks.trainer.phase",
    config="packs.blocks.records.dlm_config:DlmConfig",
    follows=("sft", "mid", "base"),
    reads=TALK,
    feature="blocks",
    sizes=("block_size", "batch_size", "grad_accum", "tokens"),
)
