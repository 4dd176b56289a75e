"""The pack `speedrun`: the model parts of nanochat's speedrun, beside the blocks of Llama and Qwen3."""

from store.packs import Pack

PACK = Pack(
    name="speedrun",
    about="Train, chat with and serve models of nanochat's speedrun",
    model_features={"paths": "packs.speedrun.records.feature:PathsFeature"},
    served_models={"paths": "packs.speedrun.serve.engines:PATHS"},
)
