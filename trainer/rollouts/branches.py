"""Rows that go on from prompts which many of them share: keys and values of a prompt are kept, and read, once.

In: prompts that were read, the id that each row goes on with. Out: hidden states. On a CPU what attention costs is what
it reads from memory, and most of that are prompts. All rows are equally far behind their prompts.
"""

from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.decoder import Cache, Decoder, Kept, Positions

FIRST = 8  # tokens for which there is room at first; then for half as many more, and so on


@dataclass
class Branches(Kept):
    """A cache of rows, each of which belongs to one of P prompts."""

    prompts: Cache  # cache of P rows of S places
    lengths: Tensor  # (P,), of the prompts
    beyond: Tensor  # bool (P, 1, 1, S), True behind the end of a prompt
    keys: Tensor  # (L, B, KV, T, D), of what follows
    values: Tensor
    most_new: int  # tokens that follow
    length: int = 0  # length of the answers so far
    slots: Tensor = None  # type: ignore[assignment]  # (N,), where each row stands among P * most: those of a prompt together
    most: int = 0  # rows of a prompt
    of: Tensor | None = None  # (N,), the prompts of the rows for which that was found
    order: Tensor | None = None  # (N,), which row stands at each of P * most, where all of these are taken

    @staticmethod
    def empty(prompts: Cache, lengths: Tensor, rows: int, new: int) -> "Branches":
        """Return room for `rows` rows of `new` tokens behind their prompts."""
        layers, _, heads, _, size = prompts.keys.shape
        keys = prompts.keys.new_zeros((layers, rows, heads, min(new, FIRST), size))
        beyond = torch.arange(prompts.keys.shape[3]) >= lengths[:, None, None, None]
        return Branches(prompts, lengths, beyond, keys, torch.zeros_like(keys), new)

    def read(self, model: Decoder, ids: Tensor, prompts: Tensor) -> Tensor:
        """Return hidden states (N, d) of the next ids (N,) of the first N rows; prompts (N,): to which each belongs."""
        if prompts is not self.of:
            self._find_slots(prompts)
        each = model.positions((self.lengths + self.length)[:, None])  # of a prompt: its rows are equally far
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

    def place(self, parents: Tensor) -> tuple[Tensor, Tensor]:
        """Have the first N rows hold the branches that go on from rows `parents` (N,), which are in order.

        The first branch of a row stays where that is, if it is one of the first N; all others are copied to rows from
        which nothing goes on. Returns the row of each branch, and the branch in each row.
        """
        stays = (parents < len(parents)) & (parents != F.pad(parents, (1, 0), value=-1)[:-1])
        is_free = torch.ones(len(parents), dtype=torch.bool)
        is_free[parents[stays]] = False
        place = parents.clone()
        place[~stays] = is_free.nonzero().squeeze(1)
        for one in (self.keys, self.values):
            one[:, place[~stays], :, : self.length] = one[:, parents[~stays], :, : self.length]
        return place, place.argsort()

    def put(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Add k and v (N, KV, 1, D) of new tokens; return those of all that follow their prompts, (N, KV, T, D).

        Some places that are still empty may be among them: in 16 bits, products of matrices copy what does not lie in
        one piece.
        """
        rows, end = len(k), self.length + 1 if k.dtype == torch.float32 else self.keys.shape[3]
        self.keys[layer, :rows, :, self.length] = k[:, :, 0]
        self.values[layer, :rows, :, self.length] = v[:, :, 0]
        return self.keys[layer, :rows, :, :end], self.values[layer, :rows, :, :end]

    def advance(self, count: int) -> None:
        self.length += count

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor, at: Positions) -> Tensor:
        """Return (N, H, 1, D): the queries of a prompt's rows meet its keys in one product of matrices."""
        k, v = self.put(layer, k, v)
        rows, heads, _, size = k.shape
        own = q.reshape(rows, heads, -1, size)  # (N, KV, H / KV, D)
        theirs = (self._together(own) @ self.prompts.keys[layer].mT).float().masked_fill_(self.beyond, float("-inf"))
        scores = torch.cat((self._apart(theirs, own.shape[2]), _met(own, k)), dim=-1).mul_(size**-0.5)
        scores[..., theirs.shape[-1] + self.length + 1 :] = float("-inf")
        weights = scores.softmax(dim=-1).to(v.dtype)
        shared, rest = weights.split((theirs.shape[-1], k.shape[2]), dim=-1)
        found = self._apart(self._together(shared) @ self.prompts.values[layer], own.shape[2])
        return (found + rest @ v).view(q.shape)

    def _together(self, x: Tensor) -> Tensor:
        """Return (P, KV, most * G, X) for x (N, KV, G, X); where a prompt has fewer rows, nothing that counts."""
        _, heads, group, size = x.shape
        if self.order is None:
            padded = x.new_zeros((len(self.lengths) * self.most, heads, group, size))
            padded[self.slots] = x
        else:
            padded = x[self.order]
        return (
            padded.view(-1, self.most, heads, group, size).transpose(1, 2).reshape(-1, heads, self.most * group, size)
        )

    def _apart(self, x: Tensor, group: int) -> Tensor:
        """Return (N, KV, G, X) for x (P, KV, most * G, X)."""
        _, heads, _, size = x.shape
        return x.view(-1, heads, self.most, group, size).transpose(1, 2).flatten(0, 1)[self.slots]


def _met(q: Tensor, k: Tensor) -> Tensor:
    """Return fp32 (N, KV, G, T), the products of q (N, KV, G, D) and k (N, KV, T, D).

    Vectors of float32 are quicker from the right: from the left, the library has a slow way on some processors.
    """
    return (k @ q.mT).mT if q.dtype == torch.float32 else (q @ k.mT).float()
