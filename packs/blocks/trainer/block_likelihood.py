"""Token likelihood under a block-decoding model, token by token from left to right, as for causal models.

`block_nats` maps ids and targets to nats. A token is predicted as in decoding with all earlier tokens final: from a
copy of the block with masks from the token onwards. So each of the `block_size` positions takes a separate forward pass
over the blocks with a target at the position.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from packs.blocks.trainer.block_attention import views
from trainer.model.decoder import IGNORED, Decoder
from trainer.model.losses import capped


@torch.inference_mode()
def block_nats(model: Decoder, ids: Tensor, targets: Tensor) -> Tensor:
    """Return the nats of each target, float32 (B, T), 0 for a target of -1; ids and targets are (B, T)."""
    blocks = model.config.blocks
    assert blocks is not None, "this model does not decode in blocks"
    size, (rows, length) = blocks.block_size, ids.shape
    ids = F.pad(ids, (0, -length % size))
    clean = torch.arange(ids.shape[1], device=ids.device).expand(rows, -1)
    place = torch.arange(1, length + 1, device=ids.device)  # position predicted by each target
    found, weight = torch.zeros(targets.shape, device=ids.device), model.head.to(model.compute_dtype)
    for offset in range(size):
        row, at = ((targets != IGNORED) & (place % size == offset)).nonzero().unbind(1)
        if not len(row):
            continue
        if offset == 0:  # the clean token before a block predicts the first token
            numbers = clean[:, ::size] // size
            hidden = model.hidden(ids, at=model.positions(clean, views(numbers, size, ids.shape[1])))[row, at]
        else:
            hidden = _out_of_copies(model, ids, row, (at + 1) // size, offset)
        logits = capped(F.linear(hidden, weight).float(), model.shape.softcap)
        found[row, at] = logits.logsumexp(dim=1) - logits.gather(1, targets[row, at][:, None])[:, 0]
    return found


def _out_of_copies(model: Decoder, ids: Tensor, row: Tensor, block: Tensor, offset: int) -> Tensor:
    """Return states (N, d) that predict the token at `offset` of block `block` (N,) in row `row` (N,).

    The values of `row` are ascending; ids (B, T) are whole blocks.
    """
    blocks = model.config.blocks
    assert blocks is not None
    size, (rows, length) = blocks.block_size, ids.shape
    order = torch.arange(len(row), device=row.device) - torch.searchsorted(row, row)  # index within the row
    live = torch.full((rows, int(order.max()) + 1), -1, device=ids.device)
    live[row, order] = block
    known = live.clamp(min=0)[:, :, None].expand(-1, -1, size)
    copies = ids.view(rows, -1, size).gather(1, known).clone()
    copies[:, :, offset:] = blocks.mask_id
    inside = torch.arange(size, device=ids.device)
    clean = torch.arange(length, device=ids.device).expand(rows, -1)
    index = torch.cat((clean, (known * size + inside).flatten(1)), dim=1)
    mask = views(torch.cat((clean[:, ::size] // size, live), dim=1), size, length)
    hidden = model.hidden(torch.cat((ids, copies.flatten(1)), dim=1), at=model.positions(index, mask))
    return hidden[row, length + order * size + offset - 1]
