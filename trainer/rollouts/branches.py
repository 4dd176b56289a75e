"""Rows branching from shared prompts: the keys and values of a prompt are stored, and read, only once.

The cache takes prefilled prompts and the next id of each row, and returns hidden states. On a CPU, memory reads
dominate the cost of attention, and most of these reads are prompts. All rows are the same number of tokens past their
prompts.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.decoder import Cache, Decoder, KvCache, Positions

FIRST = 8  # initial capacity in tokens; grows by half, at least by FIRST


@dataclass
class Branches(KvCache):
    """Cache of rows, each belonging to one of P prompts."""

    prompts: Cache  # cache of P rows with S positions
    lengths: Tensor  # (P,), lengths of the prompts
    beyond: Tensor  # bool (P, 1, 1, S), True after the end of a prompt
    keys: Tensor  # (L, B, KV, T, D), keys of the answers
    values: Tensor
    most_new: int  # maximum tokens of an answer
    length: int = 0  # length of the answers so far
    slots: Tensor = None  # type: ignore[assignment]  # (N,), slot of each row among P * most slots, grouped by prompt
    most: int = 0  # maximum rows of a prompt
    of: Tensor | None = None  # (N,), the `prompts` argument behind the current slots
    order: Tensor | None = None  # (N,), row in each of P * most slots, if no slot is empty

    @staticmethod
    def empty(prompts: Cache, lengths: Tensor, rows: int, new: int) -> "Branches":
        """Return a cache with capacity for `rows` rows of `new` tokens after the prompts."""
        layers, _, heads, _, size = prompts.keys.shape
        keys = prompts.keys.new_zeros((layers, rows, heads, min(new, FIRST), size))
        beyond = torch.arange(prompts.keys.shape[3]) >= lengths[:, None, None, None]
        return Branches(prompts, lengths, beyond, keys, torch.zeros_like(keys), new)

    def decode_step(self, model: Decoder, ids: Tensor, prompts: Tensor) -> Tensor:
        """Return hidden states (N, d) of the next ids (N,) of the first N rows; prompts (N,): prompt of each row."""
        if prompts is not self.of:
            self._find_slots(prompts)
        each = model.positions((self.lengths + self.length)[:, None])  # per prompt: all rows share a position
        at = replace(each, cos=each.cos[prompts], sin=each.sin[prompts])
        if self.length == self.keys.shape[3]:
            more = (0, 0, 0, min(max(FIRST, self.length // 2), self.most_new - self.length))
            self.keys, self.values = F.pad(self.keys, more), F.pad(self.values, more)
        return model.hidden(ids[:, None], self, at=at)[:, 0]

    def _find_slots(self, prompts: Tensor) -> None:
        count = prompts.bincount(minlength=len(self.lengths))
        order, first = prompts.argsort(stable=True), count.cumsum(0) - count
        self.of, self.most, self.slots = prompts, int(count.max()), torch.empty_like(prompts)
        ranks = torch.arange(len(prompts)) - first[prompts[order]]
        self.slots[order] = prompts[order] * self.most + ranks
        self.order = order if len(prompts) == len(count) * self.most else None

    def reorder(self, parents: Tensor) -> tuple[Tensor, Tensor]:
        """Rearrange the first N rows to hold the branches continuing from rows `parents` (N,), sorted.

        The first branch of a row stays in place if the row is among the first N; all other branches are copied to rows
        without a continuation. Returns the row of each branch, and the branch in each row.
        """
        stays = (parents < len(parents)) & (parents != F.pad(parents, (1, 0), value=-1)[:-1])
        is_free = torch.ones(len(parents), dtype=torch.bool)
        is_free[parents[stays]] = False
        place = parents.clone()
        place[~stays] = is_free.nonzero().squeeze(1)
        for one in (self.keys, self.values):
            one[:, place[~stays], :, : self.length] = one[:, parents[~stays], :, : self.length]
        return place, place.argsort()

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append k and v (N, KV, 1, D) of new tokens; return keys and values of all answer tokens, (N, KV, T, D).

        In 16 bits, the result includes positions still empty, because a matrix product would copy a non-contiguous
        slice.
        """
        rows, end = len(k), self.length + 1 if k.dtype == torch.float32 else self.keys.shape[3]
        self.keys[layer, :rows, :, self.length] = k[:, :, 0]
        self.values[layer, :rows, :, self.length] = v[:, :, 0]
        return self.keys[layer, :rows, :, :end], self.values[layer, :rows, :, :end]

    def advance(self, count: int) -> None:
        self.length += count

    def compute_attention(self, layer: int, q: Tensor, k: Tensor, v: Tensor, at: Positions) -> Tensor:
        """Return (N, H, 1, D), with one matrix product for all queries of a prompt's rows."""
        k, v = self.update(layer, k, v)
        rows, heads, _, size = k.shape
        own = q.reshape(rows, heads, -1, size)  # (N, KV, H / KV, D)
        theirs = (
            (self._group_by_prompt(own) @ self.prompts.keys[layer].mT).float().masked_fill_(self.beyond, float("-inf"))
        )
        scores = torch.cat((self._split_by_row(theirs, own.shape[2]), _met(own, k)), dim=-1).mul_(size**-0.5)
        scores[..., theirs.shape[-1] + self.length + 1 :] = float("-inf")
        weights = scores.softmax(dim=-1).to(v.dtype)
        shared, rest = weights.split((theirs.shape[-1], k.shape[2]), dim=-1)
        found = self._split_by_row(self._group_by_prompt(shared) @ self.prompts.values[layer], own.shape[2])
        return (found + rest @ v).view(q.shape)

    def _group_by_prompt(self, x: Tensor) -> Tensor:
        """Return (P, KV, most * G, X) for x (N, KV, G, X); slots without a row hold zeros."""
        _, heads, group, size = x.shape
        if self.order is None:
            padded = x.new_zeros((len(self.lengths) * self.most, heads, group, size))
            padded[self.slots] = x
        else:
            padded = x[self.order]
        return (
            padded.view(-1, self.most, heads, group, size).transpose(1, 2).reshape(-1, heads, self.most * group, size)
        )

    def _split_by_row(self, x: Tensor, group: int) -> Tensor:
        """Return (N, KV, G, X) for x (P, KV, most * G, X)."""
        _, heads, _, size = x.shape
        return x.view(-1, heads, self.most, group, size).transpose(1, 2).flatten(0, 1)[self.slots]


def _met(q: Tensor, k: Tensor) -> Tensor:
    """Return fp32 (N, KV, G, T), the products of q (N, KV, G, D) and k (N, KV, T, D).

    In float32, the product with the vectors on the right is faster: with the vectors on the left, the library takes a
    slow path on some processors.
    """
    return (k @ q.mT).mT if q.dtype == torch.float32 else (q @ k.mT).float()
