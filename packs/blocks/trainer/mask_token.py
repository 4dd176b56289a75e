"""A model that knows one token more: the mask, which stands for what is not known yet.

In: the weights of a model that decodes from left to right. Out: the same, and a row for the mask: the mean of those
that text has, so that it means nothing in particular. The shape is that of `DlmConfig.with_vocabulary`.
"""

from collections.abc import Callable
from dataclasses import replace

import torch

from trainer.model.decoder import Decoder, unfilled


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
