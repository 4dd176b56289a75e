"""The pack `speedrun`: the model parts of nanochat's speedrun, beside the blocks of Llama and Qwen3."""

from store.packs import Pack

PACK = Pack(
    name="speedrun",
    about="Train, chat with and serve models of nanochat's speedrun",
    profiles={
        "speedrun": "packs.speedrun.records.recipes:speedrun",
        "speedrun_d20": "packs.speedrun.records.recipes:speedrun_d20",
        "speedrun_d12": "packs.speedrun.records.recipes:speedrun_d12",
        "speedrun_d4": "packs.speedrun.records.recipes:speedrun_d4",
    },
    model_features={"nanochat": "packs.speedrun.records.feature:NanochatFeature"},
    served_models={"nanochat": "packs.speedrun.serve.engines:NANOCHAT"},
)
