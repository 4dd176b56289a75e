"""A model that knows one token more: the mask, which stands for what is not known yet.

In: the shape of a model that decodes from left to right, its weights. Out: the shape of one that decodes in blocks, the
same weights, and a row for the mask: the mean of those that text has, so that it means nothing in particular.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from trainer.model.decoder import Decoder, unfilled
from trainer.records.blocks_config import BlocksConfig
from trainer.records.model_config import ModelConfig

ROWS = 64  # a whole number of times: matrices of other heights are multiplied slowly


def with_mask(config: ModelConfig, blocks: BlocksConfig, known: int) -> ModelConfig:
    """Return the shape with room for the mask, which is the first id behind the `known` ones of the tokenizer.

    Where a model has rows to spare, they do; else it gets some.
    """
    if known < config.vocab_size:
        rows = config.vocab_size
    else:
        rows = known + 1
        rows += -rows % ROWS
    return replace(config, vocab_size=rows, blocks=replace(blocks, mask_id=known))


def fill_smaller(model: Decoder, rows: int, fill: Callable[[Decoder], None]) -> None:
    """Fill a model that has a mask with the weights of one that has none, and `rows` ids. `fill` fills the latter."""
    assert model.config.blocks is not None
    ends = ["model.embed_tokens.weight", *([] if model.config.tie_word_embeddings else ["lm_head.weight"])]
    mine, width = model.state_dict(), model.config.hidden_size
    smaller = unfilled(replace(model.config, vocab_size=rows, blocks=None), model.compute_dtype)
    shared = {name: one for name, one in mine.items() if name not in ends}  # filled where they are
    smaller.load_state_dict({**shared, **{name: torch.empty(rows, width) for name in ends}}, assign=True)
    fill(smaller)
    theirs = smaller.state_dict()
    with torch.no_grad():
        for name in ends:
            known = min(rows, model.config.blocks.mask_id)
            mine[name][:rows] = theirs[name]
            mine[name][known:] = theirs[name][:known].mean(dim=0)
