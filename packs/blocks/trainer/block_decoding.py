"""Tokens out of a model that was trained in blocks: several at each forward pass, as many as it is sure of.

In: prompts as ids. Out: ids, as they become final: those before which nothing is open any more. A block begins as masks
and is filled piece by piece (sub-blocks), from left to right; at each pass the tokens of a piece that are probable
enough are taken, and always the likeliest one. Blocks before it lie in a cache: attention across blocks goes backwards
only, so that they never change. The pass that writes a finished block into the cache is the first one of the block
after it, whose first token it predicts from what is final: that one is always taken, too.
Source: Wu et al., Fast-dLLM v2, arXiv 2509.26328, section 3.3, which has a pass of its own for each finished block.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.choice import choose
from trainer.model.decoder import Decoder, Kept
from trainer.model.losses import capped
from trainer.records.blocks_config import BlocksConfig


class BlockCache(Kept):
    """Keys and values of every layer, each at the place of its token; `at` says where those of a pass belong."""

    def __init__(self, model: Decoder, rows: int, capacity: int) -> None:
        config = model.config
        shape = (config.num_hidden_layers, rows, config.num_key_value_heads, capacity, config.head_dim)
        self.keys = torch.zeros(shape, dtype=model.compute_dtype, device=model.head.device)
        self.values = torch.zeros_like(self.keys)
        self.at = torch.zeros((rows, 0), dtype=torch.int64)
        self.end = 0

    def put(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write k and v (B, KV, W, D) of a pass, and give all up to the last one that it may look at."""
        row = torch.arange(len(self.at), device=self.at.device)[:, None]
        self.keys[layer][row, :, self.at] = k.transpose(1, 2)
        self.values[layer][row, :, self.at] = v.transpose(1, 2)
        return self.keys[layer, :, :, : self.end], self.values[layer, :, :, : self.end]

    def advance(self, count: int) -> None:
        """Do nothing: the place of a pass is set before it."""

    def keep(self, rows: Tensor) -> None:
        """Forget the others."""
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]


@dataclass
class Row:
    """One answer on its way."""

    number: int
    start: int
    """Number of tokens of the prompt."""
    block: int
    """Index of the block that is being filled."""
    told: int
    """Number of final tokens that were given out, with those of the prompt."""
    written: int = 0
    """Number of blocks in the cache."""
    is_done: bool = False


@dataclass
class Decoding:
    """Many prompts side by side, each answered as it would be alone. `passes` counts the forward passes of each."""

    model: Decoder
    prompts: Sequence[Sequence[int]]
    stop: Collection[int]
    max_new: int = 128
    temperature: float = 0.0
    top_k: int = 0
    generator: torch.Generator | None = None
    threshold: float | None = None
    """Replaces the model's threshold."""
    passes: list[int] = field(init=False)

    def __post_init__(self) -> None:
        assert self.model.config.blocks is not None, "this model does not decode in blocks"
        self.blocks: BlocksConfig = self.model.config.blocks
        self.passes = [0] * len(self.prompts)

    def __iter__(self) -> Iterator[list[list[int]]]:
        """Yield after each pass the new final ids of each prompt; one of `stop` is the last of its answer."""
        size, device = self.blocks.block_size, self.model.head.device
        room = self.model.config.max_position_embeddings // size * size
        rows = [Row(n, len(one), len(one) // size, len(one)) for n, one in enumerate(self.prompts) if len(one) < room]
        if not rows or self.max_new < 1:
            return
        capacity = min(room, max(-(-(row.start + self.max_new) // size) * size for row in rows))
        open_ids = torch.full((len(rows), capacity), self.blocks.mask_id)
        for place, row in enumerate(rows):
            open_ids[place, : row.start] = torch.tensor(self.prompts[row.number])
        ids, cache = open_ids.to(device), BlockCache(self.model, len(rows), capacity)
        while rows:
            with torch.inference_mode():
                self._fill(ids, rows, self._states(ids, rows, cache))
            found: list[list[int]] = [[] for _ in self.prompts]
            for row, line in zip(rows, ids.tolist(), strict=True):
                if not row.is_done:
                    self.passes[row.number] += 1
                    found[row.number] = self._advance(row, line)
            yield found
            going = [place for place, row in enumerate(rows) if not row.is_done]
            if len(going) <= 0.75 * len(rows):  # finished rows are computed along, until it is worth leaving them out
                kept = torch.tensor(going, dtype=torch.int64, device=device)
                ids, rows = ids[kept], [rows[place] for place in going]
                cache.keep(kept)

    def _states(self, ids: Tensor, rows: Sequence[Row], cache: BlockCache) -> Tensor:
        """Return (B, size, d): for each place of each row's block, the hidden state that predicts its token.

        Read are the blocks that are not in the cache, up to the one that is being filled.
        """
        size, device = self.blocks.block_size, ids.device
        width = size * max(row.block + 1 - row.written for row in rows)
        starts = [min(row.written * size, ids.shape[1] - width) for row in rows]
        places = torch.tensor(starts, device=device)[:, None] + torch.arange(width, device=device)  # (B, W)
        cache.at, cache.end = places, max(starts) + width
        seen = torch.arange(cache.end, device=device)
        mask = seen[None, None, :] // size <= places[:, :, None] // size
        hidden = self.model.hidden(ids.gather(1, places), cache, at=self.model.positions(places, mask[:, None]))
        first = torch.tensor([row.block * size - start for row, start in zip(rows, starts, strict=True)], device=device)
        before = (first[:, None] + torch.arange(size, device=device) - 1).clamp(min=0)  # a first place that is final
        for row in rows:
            row.written = row.block
        return hidden.gather(1, before[:, :, None].expand(-1, -1, hidden.shape[-1]))

    def _fill(self, ids: Tensor, rows: Sequence[Row], states: Tensor) -> None:
        """Write the tokens that are sure enough into `ids`."""
        size, device, mask_id = self.blocks.block_size, ids.device, self.blocks.mask_id
        inside = torch.arange(size, device=device)
        places = torch.tensor([row.block * size for row in rows], device=device)[:, None] + inside
        starts = torch.tensor([row.start for row in rows], device=device)[:, None]
        block = ids.gather(1, places)
        ends = torch.isin(block, torch.tensor(sorted(self.stop), dtype=block.dtype, device=device)) & (places >= starts)
        is_open = (block == mask_id) & (ends.cumsum(dim=1) == 0)  # nothing after the end is filled
        is_open &= torch.tensor([not row.is_done for row in rows], device=device)[:, None]
        piece = inside // self.blocks.sub_block_size
        first = is_open.int().argmax(dim=1, keepdim=True)
        asked = is_open & (piece == first // self.blocks.sub_block_size)
        at = asked.nonzero()
        if not len(at):
            return
        logits = F.linear(states[at[:, 0], at[:, 1]], self.model.head.to(self.model.compute_dtype)).float()
        logits = capped(logits, self.model.shape.softcap)
        logits[:, mask_id:] = float("-inf")  # no text has these ids
        tokens, sure = self._choose(logits)
        surety = torch.full(block.shape, -1.0, device=device)
        surety[at[:, 0], at[:, 1]] = sure
        best = surety.argmax(dim=1, keepdim=True)
        threshold = self.blocks.threshold if self.threshold is None else self.threshold
        taken = asked & ((surety > threshold) | (inside == best) | (inside == 0))
        chosen = block.clone()
        chosen[at[:, 0], at[:, 1]] = tokens
        ids.scatter_(1, places, torch.where(taken, chosen, block))

    def _choose(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """Return ids (N,) for fp32 logits (N, V), and how probable the model holds them, however they were drawn."""
        tokens = choose(logits, self.temperature, self.top_k, self.generator)
        return tokens, (logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(dim=-1)).exp()

    def _advance(self, row: Row, line: Sequence[int]) -> list[int]:
        """Record what has become final; return the new ids."""
        size, before = self.blocks.block_size, row.told
        while row.told < min(len(line), row.start + self.max_new) and line[row.told] != self.blocks.mask_id:
            row.told += 1
            if line[row.told - 1] in self.stop:
                row.is_done = True
                break
        row.is_done |= row.told >= min(len(line), row.start + self.max_new)
        if row.told == (row.block + 1) * size and not row.is_done:
            row.block += 1
        return list(line[before : row.told])
