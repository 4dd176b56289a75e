"""The pack `imports`: checkpoint folders of other trainers as starting points of our phases."""

from store.packs import Pack

PACK = Pack(
    name="imports",
    about="Start from checkpoints of nanochat, with inv launch --init",
    model_formats={"nanochat": "packs.imports.records.nanochat:FORMAT"},
)
