"""The block diffusion loss: predict each target token once, from a copy of the block in which the token is masked.

Inputs are rows of ids, the usual targets, and the mask of the first of two complementary views. The output is a sum of
nats. A row becomes [clean | first view | second view]. Both views share the clean tokens, which takes three times the
tokens instead of four, and only blocks with targets are copied. As in next-token training, the preceding position
predicts a token. The preceding clean token predicts the first token of a block, as in decoding. Source: Wu et al.,
Fast-dLLM v2, arXiv 2509.26328, section 3; the code of the paper also predicts the first token of a block from the
copies.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from packs.blocks.trainer.block_attention import views
from trainer.model.decoder import IGNORED, Decoder
from trainer.model.losses import SummedCrossEntropy
from trainer.objectives import Batch
from trainer.objectives.passes import target_indices
from trainer.records.model_config import BlocksConfig

LEAST = 1e-3  # minimum masked share of a block in the first view; the second view masks the rest


def with_masks(
    ids: np.ndarray, targets: np.ndarray, block_size: int, chance: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return a batch for `BlockDiffusion`.

    The batch holds `ids` and `targets` (rows, T), `masked` (rows, T) uint8, the mask of the first view, and `live`
    (rows, N) int64, the indices of blocks with targets, padded with -1.

    Each block draws a mask probability, uniform between 0.001 and 1.
    """
    rows, length = ids.shape
    assert length % block_size == 0, f"{length} tokens are not whole blocks of {block_size}"
    share = chance.random((rows, length // block_size)) * (1 - LEAST) + LEAST
    masked = chance.random(ids.shape) < share.repeat(block_size, axis=1)
    learnt = np.zeros(ids.shape, bool)
    learnt[:, 1:] = targets[:, :-1] != IGNORED
    blocks = np.asarray(learnt.reshape(rows, -1, block_size).any(axis=2))  # (rows, blocks)
    width = max(1, int(blocks.sum(axis=1).max(initial=0)))
    live = np.full((rows, width), -1, np.int64)
    for row, some in enumerate(blocks):
        found = np.flatnonzero(some)
        live[row, : len(found)] = found
    return {"ids": ids, "targets": targets, "masked": masked.astype(np.uint8), "live": live}


@dataclass(frozen=True)
class Sequence:
    """The model input built from a batch, with the target of each position."""

    ids: Tensor
    """(B, S): clean tokens, then the copies of the first view, then the copies of the second view."""
    targets: Tensor
    """(B, S): the id predicted by the hidden state of each position; -1 = no target."""
    index: Tensor
    """(B, S): the position of each token in its row."""
    numbers: Tensor
    """(B, S / block_size): the clean block behind each block of the sequence."""


def sequence(batch: Mapping[str, Tensor], config: BlocksConfig) -> Sequence:
    """Build the sequence of a batch from `with_masks`."""
    ids, targets, live, size = batch["ids"], batch["targets"], batch["live"], config.block_size
    rows, length = ids.shape
    known = torch.full_like(ids, IGNORED)
    known[:, 1:] = targets[:, :-1]  # target of each token itself: the id, or -1
    at = live.clamp(min=0)
    none = (live < 0)[:, :, None]

    def copies(x: Tensor) -> Tensor:
        """Gather the live blocks of x (B, T) as (B, N, size)."""
        return x.view(rows, -1, size).gather(1, at[:, :, None].expand(-1, -1, size))

    here, wanted, first = copies(ids), copies(known).masked_fill(none, IGNORED), copies(batch["masked"]).bool()
    parts, aims = [ids], [targets.masked_fill((torch.arange(length, device=ids.device) + 1) % size != 0, IGNORED)]
    for masked in (first, ~first):
        hidden = masked & (wanted != IGNORED)
        aim = torch.full_like(here, IGNORED)
        aim[:, :, :-1] = wanted.masked_fill(~hidden, IGNORED)[:, :, 1:]
        parts.append(here.masked_fill(hidden, config.mask_id).flatten(1))
        aims.append(aim.flatten(1))
    clean = torch.arange(length, device=ids.device).expand(rows, -1)
    places = (at[:, :, None] * size + torch.arange(size, device=ids.device)).flatten(1)
    numbers = torch.cat((clean[:, ::size] // size, live, live), dim=1)
    return Sequence(torch.cat(parts, 1), torch.cat(aims, 1), torch.cat((clean, places, places), 1), numbers)


class BlockDiffusion:
    """The objective of block diffusion; the module docstring defines the loss."""

    def __init__(self, config: BlocksConfig) -> None:
        assert config.mask_id >= 0, "the model has no mask token yet"
        self.config = config

    def loss_divisor(self, batch: Batch) -> float:
        """Return the number of target tokens."""
        return float((batch["targets"] != IGNORED).sum())

    def loss(self, model: Decoder, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return the summed loss in nats as a float32 scalar, and no figures."""
        one, size = sequence(batch, self.config), self.config.block_size
        mask = views(one.numbers, size, batch["ids"].shape[1])
        hidden = model.hidden(one.ids, at=model.positions(one.index, mask)).flatten(0, 1)
        targets = one.targets.flatten()
        # Each target of the batch occurs exactly once in the sequence. The number of targets is therefore known without
        # a device synchronization.
        counted = (targets == IGNORED).byte().argsort(stable=True)[: len(target_indices(batch))]
        hidden, targets = hidden.index_select(0, counted), targets[counted]
        return SummedCrossEntropy.apply(hidden, model.head, targets, model.shape), {}

    def set_step(self, step: int, steps: int) -> None:
        """Ignore the step; the loss does not depend on the step."""
