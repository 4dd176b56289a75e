"""Block-wise decoding: each forward pass finalises every token above a probability threshold.

Decoding maps prompts (ids) to answer ids, which are yielded as soon as no masked position precedes them. A block starts
as masks and is filled sub-block by sub-block, from left to right. Each pass takes the tokens of the sub-block above the
threshold, and always the most probable token. Earlier blocks stay in a key-value cache, valid because attention across
blocks is causal. The pass that writes a finished block into the cache is also the first pass of the next block. The
finished block predicts the first token of the next block, so the first token is always taken. Source: Wu et al.,
Fast-dLLM v2, arXiv 2509.26328, section 3.3, which spends a separate pass on each finished block.
"""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.decoder import Decoder, KvCache
from trainer.model.losses import capped
from trainer.model.token_sampling import sample_token
from trainer.records.model_config import BlocksConfig


class BlockCache(KvCache):
    """Key-value cache of all layers, indexed by token position; `at` holds the positions of the current pass."""

    def __init__(self, model: Decoder, rows: int, capacity: int) -> None:
        config = model.config
        shape = (config.num_hidden_layers, rows, config.num_key_value_heads, capacity, config.head_dim)
        self.keys = torch.zeros(shape, dtype=model.compute_dtype, device=model.head.device)
        self.values = torch.zeros_like(self.keys)
        self.at = torch.zeros((rows, 0), dtype=torch.int64)
        self.end = 0

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Write k and v (B, KV, W, D) of a pass; return the keys and values of all positions before `end`."""
        row = torch.arange(len(self.at), device=self.at.device)[:, None]
        self.keys[layer][row, :, self.at] = k.transpose(1, 2)
        self.values[layer][row, :, self.at] = v.transpose(1, 2)
        return self.keys[layer, :, :, : self.end], self.values[layer, :, :, : self.end]

    def advance(self, count: int) -> None:
        """Ignore the count; `Decoding` sets the positions before each pass."""

    def keep_rows(self, rows: Tensor) -> None:
        """Keep only the given rows of the cache."""
        self.keys, self.values = self.keys[:, rows], self.values[:, rows]


@dataclass
class Row:
    """Decoding state of one answer."""

    number: int
    start: int
    """Number of prompt tokens."""
    block: int
    """Index of the block in progress."""
    num_yielded: int
    """Number of final tokens yielded so far, including the prompt."""
    num_cached_blocks: int = 0
    """Number of blocks in the cache."""
    is_done: bool = False


@dataclass
class Decoding:
    """Batched decoding of prompts, independent of each other; `passes` counts the forward passes per prompt."""

    model: Decoder
    prompts: Sequence[Sequence[int]]
    stop: Collection[int]
    max_new: int = 128
    temperature: float = 0.0
    top_k: int = 0
    generator: torch.Generator | None = None
    threshold: float | None = None
    """Override of the model's probability threshold; None = the threshold of the model."""
    passes: list[int] = field(init=False)

    def __post_init__(self) -> None:
        assert self.model.config.blocks is not None, "this model does not decode in blocks"
        self.blocks: BlocksConfig = self.model.config.blocks
        self.passes = [0] * len(self.prompts)

    def __iter__(self) -> Iterator[list[list[int]]]:
        """Yield the new final ids of each prompt after each pass; an answer ends with an id of `stop`.

        Prompts that fill the whole context get no ids. An answer also ends after `max_new` ids or at the end of the
        context.
        """
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
            if len(going) <= 0.75 * len(rows):  # drop finished rows once a quarter is done
                kept = torch.tensor(going, dtype=torch.int64, device=device)
                ids, rows = ids[kept], [rows[place] for place in going]
                cache.keep_rows(kept)

    def _states(self, ids: Tensor, rows: Sequence[Row], cache: BlockCache) -> Tensor:
        """Return the hidden states (B, size, d) that predict each position of the current block of each row.

        The pass reads the blocks that are missing in the cache, up to the current block.
        """
        size, device = self.blocks.block_size, ids.device
        width = size * max(row.block + 1 - row.num_cached_blocks for row in rows)
        starts = [min(row.num_cached_blocks * size, ids.shape[1] - width) for row in rows]
        places = torch.tensor(starts, device=device)[:, None] + torch.arange(width, device=device)  # (B, W)
        cache.at, cache.end = places, max(starts) + width
        seen = torch.arange(cache.end, device=device)
        mask = seen[None, None, :] // size <= places[:, :, None] // size
        hidden = self.model.hidden(ids.gather(1, places), cache, at=self.model.positions(places, mask[:, None]))
        first = torch.tensor([row.block * size - start for row, start in zip(rows, starts, strict=True)], device=device)
        before = (first[:, None] + torch.arange(size, device=device) - 1).clamp(min=0)  # first position 0 is final
        for row in rows:
            row.num_cached_blocks = row.block
        return hidden.gather(1, before[:, :, None].expand(-1, -1, hidden.shape[-1]))

    def _fill(self, ids: Tensor, rows: Sequence[Row], states: Tensor) -> None:
        """Write the tokens above the threshold, and the most probable token of each row, into `ids`."""
        size, device, mask_id = self.blocks.block_size, ids.device, self.blocks.mask_id
        inside = torch.arange(size, device=device)
        places = torch.tensor([row.block * size for row in rows], device=device)[:, None] + inside
        starts = torch.tensor([row.start for row in rows], device=device)[:, None]
        block = ids.gather(1, places)
        ends = torch.isin(block, torch.tensor(sorted(self.stop), dtype=block.dtype, device=device)) & (places >= starts)
        is_open = (block == mask_id) & (ends.cumsum(dim=1) == 0)  # positions after a stop id stay masked
        is_open &= torch.tensor([not row.is_done for row in rows], device=device)[:, None]
        piece = inside // self.blocks.sub_block_size
        first = is_open.int().argmax(dim=1, keepdim=True)
        asked = is_open & (piece == first // self.blocks.sub_block_size)
        at = asked.nonzero()
        if not len(at):
            return
        logits = F.linear(states[at[:, 0], at[:, 1]], self.model.head.to(self.model.compute_dtype)).float()
        logits = capped(logits, self.model.shape.softcap)
        logits[:, mask_id:] = float("-inf")  # the mask and unused ids never occur in text
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
        """Choose ids (N,) from float32 logits (N, V); return ids and model probabilities.

        The probabilities come from the unmodified logits, independent of temperature and top-k.
        """
        tokens = sample_token(logits, self.temperature, self.top_k, self.generator)
        return tokens, (logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(dim=-1)).exp()

    def _advance(self, row: Row, line: Sequence[int]) -> list[int]:
        """Advance the state of a row over the newly final tokens; return the new ids."""
        size, before = self.blocks.block_size, row.num_yielded
        while (
            row.num_yielded < min(len(line), row.start + self.max_new) and line[row.num_yielded] != self.blocks.mask_id
        ):
            row.num_yielded += 1
            if line[row.num_yielded - 1] in self.stop:
                row.is_done = True
                break
        row.is_done |= row.num_yielded >= min(len(line), row.start + self.max_new)
        if row.num_yielded == (row.block + 1) * size and not row.is_done:
            row.block += 1
        return list(line[before : row.num_yielded])
