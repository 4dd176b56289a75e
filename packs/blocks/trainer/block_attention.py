"""Attention for block training: clean tokens followed by noisy copies of some blocks, in one sequence.

Inputs are queries, keys and values of [clean | copies], and the clean block behind each block of the sequence. A query
attends to all tokens of the same block, and to the clean blocks before the clean counterpart of the block. GPUs use
flex attention; CPUs use matrix products that skip invisible keys; `dense` expresses the same rule as a plain mask.
Source of the rule: Wu et al., arXiv 2509.26328, section 3; here both views share the clean half.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.memory import SQUARES
from trainer.model.attention import OwnAttention, block_masks, flex

PARTS = 4  # parts of the clean queries; part i of 4 meets at most i quarters of the clean keys


@dataclass(frozen=True)
class Views(OwnAttention):
    """Attention over a sequence of clean tokens followed by copies of blocks."""

    numbers: Tensor
    """(B, M) int64: the clean block behind each block of the sequence. The clean blocks come first as 0, 1, ...; -1
    marks a padding block, which attends only within itself."""
    block_size: int
    num_clean: int
    """Number of clean tokens; the rest of the sequence is copies."""
    flex: Any = None
    """The same mask as a block mask of flex attention, built once for all layers; None = not on a GPU."""

    def compute_attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return attend(q, k, v, self)


def views(numbers: Tensor, block_size: int, num_clean: int) -> Views:
    """Return the mask of a sequence for `attend`; on a GPU, also build the flex block mask."""
    return Views(
        numbers, block_size, num_clean, _block_mask(numbers, block_size, num_clean) if numbers.is_cuda else None
    )


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Views) -> Tensor:
    """Return attention outputs (B, H, S, D) for q (B, H, S, D), k and v (B, KV, S, D)."""
    shared = q.shape[1] // k.shape[1]
    if mask.flex is not None:
        return flex(True)(q, k, v, block_mask=mask.flex, enable_gqa=shared > 1)
    copies = q.shape[2] - mask.num_clean
    if q.shape[0] * q.shape[1] * max(mask.num_clean, copies) * mask.num_clean > SQUARES:
        return F.scaled_dot_product_attention(q, k, v, dense(mask), enable_gqa=shared > 1)
    k, v = (one if shared == 1 else one.repeat_interleave(shared, dim=1) for one in (k, v))
    return BlockedAttention.apply(q, k, v, mask.numbers, mask.block_size, mask.num_clean)


def dense(mask: Views) -> Tensor:
    """Return bool (B, 1, S, S), True where a query (row) attends to a key (column)."""
    size, numbers = mask.block_size, mask.numbers
    at = torch.arange(numbers.shape[1] * size, device=numbers.device)
    itself = at[:, None] // size == at[None, :] // size
    before = (at < mask.num_clean) & (at // size < numbers.repeat_interleave(size, dim=1)[:, :, None])
    return (itself | before)[:, None]


def _block_mask(numbers: Tensor, size: int, num_clean: int) -> Any:
    create_block_mask = block_masks(numbers.is_cuda)

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        before = (key < num_clean) & (key // size < numbers[row, query // size])
        return (query // size == key // size) | before

    length = numbers.shape[1] * size
    return create_block_mask(sees, len(numbers), None, length, length, device=numbers.device)


class BlockedAttention(torch.autograd.Function):
    """Memory-saving attention on a CPU, computed part by part.

    A query meets the `size` keys of the same block, and the clean keys up to the last key visible in the part.

    The backward pass keeps the inputs, the output and a log-sum-exp per query, and recomputes the scores, as in
    `trainer.model.attention.PartwiseAttention`.
    """

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, numbers: Tensor, size: int, num_clean: int) -> Tensor:
        """Return (B, H, S, D), stored with the heads of a token adjacent in memory.

        q, k, v (B, H, S, D); numbers (B, M).
        """
        rows, heads, length, width = q.shape
        q, k, v = (one.reshape(-1, length, width) for one in (q, k, v))  # (B * H, S, D)
        answers, norms = [], []
        for start, end, seen in parts_of(length, num_clean, size):
            scores = scores_of(q, k, start, end, seen, size).float().mul_(width**-0.5)
            hide(scores, numbers, heads, start, end, seen, size, float("-inf"))
            norm = scores.logsumexp(dim=-1, keepdim=True)
            weights = scores.sub_(norm).exp_().to(q.dtype)  # (B * H, end - start, seen + size)
            found = in_block(weights[..., seen:], v[:, start:end], size)
            if seen:
                found = found.baddbmm(weights[..., :seen], v[:, :seen])
            answers.append(found.view(rows, heads, -1, width))
            norms.append(norm)
        answer = torch.cat([one.transpose(1, 2) for one in answers], dim=1).transpose(1, 2)
        ctx.save_for_backward(q, k, v, numbers, answer, torch.cat(norms, dim=1))
        ctx.size, ctx.num_clean = size, num_clean
        return answer

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        q, k, v, numbers, answer, norm = ctx.saved_tensors
        (_, heads, length, width), size = answer.shape, ctx.size
        shared = (grad.float() * answer.float()).sum(dim=-1).view(-1, length, 1)
        grad = grad.reshape(-1, length, width)
        q_grad = torch.empty_like(q)
        k_grad, v_grad = (torch.zeros(one.shape, dtype=torch.float32) for one in (k, v))
        for start, end, seen in parts_of(length, ctx.num_clean, size):
            part = slice(start, end)
            weights = scores_of(q, k, start, end, seen, size).float().mul_(width**-0.5).sub_(norm[:, part]).exp_()
            hide(weights, numbers, heads, start, end, seen, size, 0.0)
            slope = scores_of(grad, v, start, end, seen, size).float().sub_(shared[:, part])
            slope = slope.mul_(weights).mul_(width**-0.5).to(q.dtype)
            weights = weights.to(q.dtype)
            q_grad[:, part] = in_block(slope[..., seen:], k[:, part], size)
            k_grad[:, part] += in_block(slope[..., seen:], q[:, part], size, turned=True)
            v_grad[:, part] += in_block(weights[..., seen:], grad[:, part], size, turned=True)
            if seen:
                q_grad[:, part] += slope[..., :seen] @ k[:, :seen]
                k_grad[:, :seen] += slope[..., :seen].mT @ q[:, part]
                v_grad[:, :seen] += weights[..., :seen].mT @ grad[:, part]
        grads = (one.view(answer.shape) for one in (q_grad, k_grad.to(k.dtype), v_grad.to(v.dtype)))
        return *grads, None, None, None


def parts_of(length: int, num_clean: int, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield (start, end, seen): the query range of each part, and the number of clean keys in reach.

    All three are multiples of `size`.
    """
    blocks = num_clean // size
    for number in range(PARTS):
        start, end = blocks * number // PARTS, blocks * (number + 1) // PARTS
        if end > start:
            yield start * size, end * size, (end - 1) * size
    if length > num_clean:
        yield num_clean, length, num_clean


def scores_of(q: Tensor, k: Tensor, start: int, end: int, seen: int, size: int) -> Tensor:
    """Return scores (N, end - start, seen + size) against the clean keys, then against the query's own block."""
    part = q[:, start:end]
    blocks = part.reshape(-1, size, q.shape[-1]) @ k[:, start:end].reshape(-1, size, q.shape[-1]).mT
    return torch.cat((part @ k[:, :seen].mT, blocks.view(len(q), end - start, size)), dim=-1)


def in_block(weights: Tensor, x: Tensor, size: int, turned: bool = False) -> Tensor:
    """Multiply weights (N, T, size), from each token to its block, with x (N, T, D); return (N, T, D).

    With `turned`, transpose the weights within each block.
    """
    squares = weights.reshape(-1, size, size)
    return ((squares.mT if turned else squares) @ x.reshape(-1, size, x.shape[-1])).view(x.shape)


def hide(scores: Tensor, numbers: Tensor, heads: int, start: int, end: int, seen: int, size: int, value: float) -> None:
    """Fill `value` into the scores of clean keys that a query may not attend to."""
    blocks = torch.arange(seen // size)
    hidden = blocks[None, None, :] >= numbers[:, start // size : end // size, None]  # (B, m, blocks)
    hidden = hidden.repeat_interleave(size, dim=1).repeat_interleave(size, dim=2)
    scores[..., :seen].masked_fill_(hidden[:, None].expand(-1, heads, -1, -1).flatten(0, 1), value)
