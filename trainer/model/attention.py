"""Attention over whole rows, over the documents of packed rows, and over a cache.

In: queries, keys, values, and who may see whom. Out: what attention gives. On a GPU documents go through the kernel for
rows of any length, one after the other (`DocumentBounds`), or, in float32, through flex attention with a compiled block
mask; both skip what nobody may see. On a CPU they go through a mask: the same sums. Where a CPU trains, rows that are
not too long go through plain products of matrices (`InParts`): PyTorch's own kernel for CPUs takes 1.2 times as long as
they do when each is run by itself, and 3 times as long once a compiler has joined what lies between them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.memory import SQUARES

PARTS = 4  # parts of a row's queries: the last sees all keys, the first a quarter, so that 5 of 8 products are made
SHORT = 256  # tokens of a row that is not worth cutting
VARLEN_SINCE = (8, 0)  # compute capability of flash attention
MOST_HEAD_DIM = 256


@dataclass(frozen=True)
class DocumentBounds:
    """Documents one after the other: each token sees its own up to itself."""

    bounds: Tensor
    """int32 (N + 1,): where each begins in the flattened rows, then the end; empty ones may follow."""
    longest: int
    """No document has more tokens."""


class OwnAttention:
    """A mask with attention of its own, which a pack has for its objective."""

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return (B, H, S, D) for q (B, H, S, D), k and v (B, KV, S, D)."""
        raise NotImplementedError


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any, is_causal: bool = True) -> Tensor:
    """Return (B, H, T, D) for q (B, H, T, D), k and v (B, KV, S, D).

    mask: None = all that `is_causal` allows; bool (B, 1, T, S), True where a query may look; or what `documents_mask`
    gave, or an `OwnAttention`. is_causal: no query looks at a later key, and S = T; a mask says nothing else then.
    """
    if isinstance(mask, DocumentBounds):
        return one_after_another(q, k, v, mask)
    if isinstance(mask, OwnAttention):
        return mask.attend(q, k, v)
    grouped = q.shape[1] != k.shape[1]
    if q.shape[2] == 1 and isinstance(mask, Tensor) and not q.is_cuda and not q.requires_grad:
        return of_one(q, k, v, mask)
    if is_causal and not q.is_cuda and q.requires_grad and q.shape[0] * q.shape[1] * q.shape[2] ** 2 <= SQUARES:
        shared = q.shape[1] // k.shape[1]
        return InParts.apply(q, shared_by(k, shared), shared_by(v, shared), mask)
    if mask is None or isinstance(mask, Tensor):
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal and mask is None, enable_gqa=grouped)
    return flex(q.is_cuda)(q, k, v, block_mask=mask, enable_gqa=grouped)


def one_after_another(q: Tensor, k: Tensor, v: Tensor, documents: DocumentBounds) -> Tensor:
    """Return the same (B, H, T, D) for rows of documents, S = T; bfloat16 or float16 on a GPU."""
    from torch.nn.attention.varlen import varlen_attn

    rows, heads, length, size = q.shape
    q, k, v = (one.transpose(1, 2).reshape(rows * length, one.shape[1], size) for one in (q, k, v))
    found = varlen_attn(
        q, k, v, documents.bounds, documents.bounds, documents.longest, documents.longest, window_size=(-1, 0),
        enable_gqa=heads != k.shape[1],
    )  # fmt: skip
    assert isinstance(found, Tensor)  # not with the norms of the scores, which are not asked for
    return found.view(rows, length, heads, size).transpose(1, 2)


def has_varlen(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Return whether `DocumentBounds` can be attended to there."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return False
    return head_dim % 8 == 0 and head_dim <= MOST_HEAD_DIM and torch.cuda.get_device_capability(device) >= VARLEN_SINCE


def of_one(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Return the same for one query (B, H, 1, D), mask (B, 1, 1, S).

    Products of matrices, one for each row and head of keys, take a third to a half of the time of PyTorch's own kernel
    for CPUs.
    """
    shape, heads = q.shape, k.shape[1]
    scores = (q.view(shape[0], heads, -1, shape[3]) @ k.mT).float().mul_(shape[3] ** -0.5)  # (B, KV, H / KV, S)
    weights = scores.masked_fill_(~mask, float("-inf")).softmax(dim=-1).to(v.dtype)
    return (weights @ v).view(shape)


class InParts(torch.autograd.Function):
    """Attention for training on a CPU, some queries at a time: those of a part meet the keys up to its last.

    Kept for the way back: what came in, the answer, one number per query; scores are made again. They are in the dtype
    of q, as products of matrices come, and their softmax in fp32. Source of the way back: Dao et al., arXiv 2205.14135,
    appendix B.
    """

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Return (B, H, T, D), the heads of a token side by side in memory: as the next product takes them.

        q, k, v (B, H, T, D); mask bool (B, 1, T, T), of which nothing above the diagonal is True, None = all of the
        rest.
        """
        rows, heads, length, size = q.shape
        q, k, v = (one.reshape(-1, length, size) for one in (q, k, v))  # (B * H, T, D), once for all parts
        answers, norms = [], []
        for start, end in parts_of(length):
            scores = (q[:, start:end] @ k[:, :end].mT).float().mul_(size**-0.5)  # (B * H, end - start, end)
            scores.masked_fill_(unseen(mask, heads, start, end), float("-inf"))
            norm = scores.logsumexp(dim=-1, keepdim=True)
            answers.append((scores.sub_(norm).exp_().to(q.dtype) @ v[:, :end]).view(rows, heads, -1, size))
            norms.append(norm)
        answer = torch.cat([one.transpose(1, 2) for one in answers], dim=1).transpose(1, 2)
        ctx.save_for_backward(q, k, v, mask, answer, torch.cat(norms, dim=1))
        return answer

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        """Return the gradients of q, k and v.

        Scores are transposed on purpose: else a compiler takes them for those of the forward pass (common
        subexpressions) and keeps them for each layer. The products that need them transposed are quicker, too.
        """
        q, k, v, mask, answer, norm = ctx.saved_tensors
        shape, (_, length, size) = answer.shape, q.shape
        shared = (grad.float() * answer.float()).sum(dim=-1).view(-1, 1, length)
        grad, norm = grad.reshape(-1, length, size), norm.mT  # (B * H, T, D), (B * H, 1, T)
        q_grads = []
        k_grad, v_grad = (torch.zeros(one.shape, dtype=torch.float32) for one in (k, v))
        for start, end in parts_of(length):
            part = slice(start, end)
            scores = (k[:, :end] @ q[:, part].mT).float().mul_(size**-0.5)
            weights = scores.sub_(norm[..., part]).exp_()
            weights.masked_fill_(unseen(mask, shape[1], start, end).mT, 0.0)
            slope = (v[:, :end] @ grad[:, part].mT).float().sub_(shared[..., part])
            slope = slope.mul_(weights).mul_(size**-0.5).to(q.dtype)
            q_grads.append(slope.mT @ k[:, :end])
            k_grad[:, :end] += slope @ q[:, part]
            v_grad[:, :end] += weights.to(q.dtype) @ grad[:, part]
        grads = (torch.cat(q_grads, dim=1), k_grad.to(k.dtype), v_grad.to(v.dtype))
        return grads[0].view(shape), grads[1].view(shape), grads[2].view(shape), None


def parts_of(length: int) -> Iterator[tuple[int, int]]:
    """Yield first and last of the queries that are worked on together.

    How many parts does not hang on the length but for one bound, so that a compiler needs no code for each.
    """
    count = PARTS if length >= SHORT else 1
    return ((length * number // count, length * (number + 1) // count) for number in range(count))


def unseen(mask: Tensor | None, heads: int, start: int, end: int) -> Tensor:
    """Return bool (end - start, end) or (B * H, end - start, end), True where a query of that part may not look."""
    if mask is None:
        return torch.ones((end - start, end), dtype=torch.bool).triu(start + 1)
    return ~mask[:, :, start:end, :end].expand(-1, heads, -1, -1).flatten(0, 1)


def shared_by(x: Tensor, heads: int) -> Tensor:
    """Return (B, KV * heads, S, D) for x (B, KV, S, D): each head that came `heads` times in a row."""
    return x if heads == 1 else x.repeat_interleave(heads, dim=1)


@cache
def block_masks(compiled: bool) -> Any:
    """Return what makes a block mask, compiled: without that it makes the whole square, several times over."""
    from torch.nn.attention.flex_attention import create_block_mask

    return torch.compile(create_block_mask) if compiled else create_block_mask


@cache
def flex(compiled: bool) -> Any:
    """Return flex attention, compiled: without that it makes the whole square, which is for tests."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention) if compiled else flex_attention


def documents_mask(documents: Tensor, flex: bool, bounds: Tensor | None = None) -> Any:
    """Return a mask by which each token sees its own document up to itself; for `attend`.

    documents: (B, T), a number that changes where a document begins. flex: for flex attention, else a plain mask.
    bounds: int32 (N + 1,), where each begins in the flattened rows, then their end; for the kernel that takes that.
    """
    rows, length = documents.shape
    if bounds is not None:
        return DocumentBounds(bounds, length)
    if flex:
        create_block_mask = block_masks(documents.is_cuda)

        def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (query >= key) & (documents[row, query] == documents[row, key])

        return create_block_mask(sees, rows, None, length, length, device=documents.device)
    same = documents[:, :, None] == documents[:, None, :]
    return same.tril()[:, None]  # (B, 1, T, T)


def positions_in(documents: Tensor) -> Tensor:
    """Return (B, T): how many tokens of the same document stand before each; documents as above."""
    index = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return index - torch.where(begins, index, 0).cummax(dim=1).values
