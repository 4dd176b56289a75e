"""Sampling of an id per row of logits from a uniform number, many times faster than `torch.multinomial`.

`draw` takes logits and uniform numbers, and returns ids with log-probabilities. Equal numbers give equal ids,
independent of the other rows in the batch.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from data.config import ConfigError

PART = 64  # ids per part: probabilities are summed per part before searching within a part
BELOW_ONE = 1 - 2**-20


@dataclass(frozen=True, kw_only=True)
class Sampling:
    """Settings of sampling."""

    max_new: int
    """Maximum ids of an answer."""
    temperature: float = 1.0
    """0 = greedy."""
    top_k: int = 0
    """Sample only from this many of the likeliest ids; 0 = all."""
    top_p: float = 1.0
    """Sample only from the likeliest ids with this total probability."""
    num_ids: int = 0
    """Sample only from the ids below this number, those of the tokenizer; 0 = all ids of the model."""

    def __post_init__(self) -> None:
        if self.max_new < 1 or self.temperature < 0 or self.top_k < 0 or not 0 < self.top_p <= 1:
            raise ConfigError(
                f"sampling with max_new {self.max_new}, temperature {self.temperature}, top_k {self.top_k} and top_p "
                f"{self.top_p}; max_new must be at least 1, temperature and top_k at least 0, top_p in (0, 1]"
            )


def draw(logits: Tensor, uniform: Tensor, how: Sampling, rows: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Return ids (N,) and their ln p (N,) at the temperature, before top_k, top_p and num_ids.

    logits: fp32 (B, V), overwritten; uniform: (N,) in [0, 1); rows: int64 (N,), row of logits for each draw, None = the
    draw's own row. Temperature 0 selects the likeliest id, with ln p at temperature 1.
    """
    rows = torch.arange(len(logits), device=logits.device) if rows is None else rows
    if how.temperature == 0:
        best = logits[:, : how.num_ids or None].max(dim=1)
        return best.indices[rows], (best.values - logits.logsumexp(dim=1))[rows]
    if how.temperature != 1:
        logits.div_(how.temperature)
    chances = logits.softmax(dim=1)
    known = chances[:, : how.num_ids or None]
    ids = _inverse(_likeliest(known, how) if how.top_k or how.top_p < 1 else known, uniform, rows)
    return ids, chances[rows, ids].log()


def _likeliest(chances: Tensor, how: Sampling) -> Tensor:
    ordered, order = chances.sort(dim=1, descending=True)
    before = ordered.cumsum(dim=1) - ordered
    ordered = ordered.masked_fill(before >= how.top_p * ordered.sum(dim=1, keepdim=True), 0.0)
    if how.top_k:
        ordered[:, how.top_k :] = 0.0
    return torch.zeros_like(chances).scatter_(1, order, ordered)


def _inverse(chances: Tensor, uniform: Tensor, rows: Tensor) -> Tensor:
    """Return the position where the running sum of each row exceeds the number: first by part, then within the part.

    Summing parts first keeps the sequential running sum short.
    """
    missing = -chances.shape[1] % PART
    parts = (F.pad(chances, (0, missing)) if missing else chances).view(len(chances), -1, PART)
    sums = parts.sum(dim=2)[rows]
    place, left = _passed(sums, uniform[:, None].float() * sums.sum(dim=1, keepdim=True))
    inside = parts[rows, place.squeeze(1)]
    return (place * PART + _passed(inside, left)[0]).squeeze(1)


def _passed(sums: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
    """Return the first position (B, 1) with a running sum above `wanted` (B, 1), and the offset of `wanted` within."""
    running = sums.cumsum(dim=1)
    wanted = torch.minimum(wanted, running[:, -1:] * BELOW_ONE)  # rounding may exceed the total
    place = torch.searchsorted(running, wanted, right=True)
    return place, (wanted - running.gather(1, place) + sums.gather(1, place)).clamp_(min=0)
