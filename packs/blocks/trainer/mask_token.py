"""Initialization of the mask token in a model that was trained without a mask token.

The embedding row of the mask, and of all unused ids behind it, is the mean of the rows in use, and so has no particular
meaning. `DlmConfig.with_vocabulary` defines the shape of the model.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from trainer.model.decoder import Decoder, uninitialized_decoder


def fill_smaller(model: Decoder, rows: int, fill: Callable[[Decoder], None]) -> None:
    """Fill `model`, which has a mask, with the weights of a model without a mask and with `rows` ids.

    `fill` loads the smaller model. Rows from the mask id on become the mean of the rows before the mask id.
    """
    assert model.config.blocks is not None
    ends = ["model.embed_tokens.weight", *([] if model.config.tie_word_embeddings else ["lm_head.weight"])]
    mine, width = model.state_dict(), model.config.hidden_size
    smaller = uninitialized_decoder(replace(model.config, vocab_size=rows, blocks=None), model.compute_dtype)
    shared = {name: one for name, one in mine.items() if name not in ends}  # filled in place
    smaller.load_state_dict({**shared, **{name: torch.empty(rows, width) for name in ends}}, assign=True)
    fill(smaller)
    theirs = smaller.state_dict()
    with torch.no_grad():
        for name in ends:
            known = min(rows, model.config.blocks.mask_id)
            mine[name][:rows] = theirs[name]
            mine[name][known:] = theirs[name][:known].mean(dim=0)
