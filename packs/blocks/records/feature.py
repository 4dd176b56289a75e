"""Torch-free part of block-decoding models."""

from trainer.records.model_config import ModelConfig, ModelFeature


class BlocksFeature(ModelFeature):
    """The model feature `blocks`; see `ModelConfig.blocks`."""

    about = "decodes in blocks"
    engine = "torch"
    hooks = "packs.blocks.trainer.hooks:BlocksHooks"
    is_left_to_right = False

    def gguf_problem(self, config: ModelConfig, kind: str) -> str:
        return "the model decodes in blocks, which llama.cpp does not support"
