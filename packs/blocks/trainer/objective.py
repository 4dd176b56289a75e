"""The loss of block diffusion: every learnt token is predicted once, out of a copy of its block in which it is masked.

In: rows of ids, the usual targets, which tokens are masked in the first of two complementary views. Out: summed nats. A
row becomes [clean | first view | second view]: the clean tokens are the same for both, so they are there once (three
times the tokens instead of four), and only blocks that hold something to learn have copies. As in next-token training a
token is predicted where the one before it stands; the first of a block where the clean one before it stands, which is
where decoding takes it from. Source: Wu et al., Fast-dLLM v2, arXiv 2509.26328, section 3; its code predicts the first
of a block, too, out of the copies.
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
from trainer.objectives.passes import counted_in
from trainer.records.blocks_config import BlocksConfig

LEAST = 1e-3  # share of a block's tokens that is masked in the first view; the rest is in the second


def with_masks(
    ids: np.ndarray, targets: np.ndarray, block_size: int, chance: np.random.Generator
) -> dict[str, np.ndarray]:
    """Return a batch for `BlockDiffusion`.

    It has `ids` and `targets` (rows, T), `masked` (rows, T) uint8: those of the first view, `live` (rows, N) int64: the
    numbers of the blocks with something to learn, -1 behind the last of a row.

    Each block is masked with a probability of its own, uniform between 0.001 and 1.
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
    """The model's input made of a batch, and the targets at each place."""

    ids: Tensor
    """(B, S): clean tokens, then the copies of the first view, then those of the second."""
    targets: Tensor
    """(B, S): the id that the hidden state there predicts; -1 = none."""
    index: Tensor
    """(B, S): the position of each token in its row."""
    numbers: Tensor
    """(B, S / block_size): the clean block that each block stands for."""


def sequence(batch: Mapping[str, Tensor], config: BlocksConfig) -> Sequence:
    """Lay a batch out. Its tensors are as `with_masks` says."""
    ids, targets, live, size = batch["ids"], batch["targets"], batch["live"], config.block_size
    rows, length = ids.shape
    known = torch.full_like(ids, IGNORED)
    known[:, 1:] = targets[:, :-1]  # at the token itself: -1, or its id
    at = live.clamp(min=0)
    none = (live < 0)[:, :, None]

    def copies(x: Tensor) -> Tensor:
        """Return (B, N, size) of x (B, T)."""
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
    """See the module."""

    def __init__(self, config: BlocksConfig) -> None:
        assert config.mask_id >= 0, "the model has no mask token yet"
        self.config = config

    def count(self, batch: Batch) -> float:
        """Return the number of tokens that are learnt."""
        return float((batch["targets"] != IGNORED).sum())

    def loss(self, model: Decoder, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return summed nats, fp32 scalar; no other figures."""
        one, size = sequence(batch, self.config), self.config.block_size
        mask = views(one.numbers, size, batch["ids"].shape[1])
        hidden = model.hidden(one.ids, at=model.positions(one.index, mask)).flatten(0, 1)
        targets = one.targets.flatten()
        # each target of the batch is one here too, so how many there are is known, and nobody has to ask the device
        counted = (targets == IGNORED).byte().argsort(stable=True)[: len(counted_in(batch))]
        hidden, targets = hidden.index_select(0, counted), targets[counted]
        return SummedCrossEntropy.apply(hidden, model.head, targets, model.shape), {}

    def at(self, step: int) -> None:
        """Do nothing: it does not hang on the step."""
