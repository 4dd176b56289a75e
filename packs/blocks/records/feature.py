"""Models that decode in blocks, for code without torch."""

from trainer.records.model_config import ModelConfig, ModelFeature


class BlocksFeature(ModelFeature):
    """See `ModelConfig.blocks`."""

    about = "decodes in blocks"
    engine = "torch"
    hooks = "packs.blocks.trainer.hooks:BlocksHooks"
    is_left_to_right = False

    def gguf_problem(self, config: ModelConfig, kind: str) -> str:
        return "it decodes in blocks, which llama.cpp does not"
