"""Attention over whole rows, over documents in packed rows, and over a KV cache.

`attend` selects the kernel. On a GPU, packed documents use the variable-length kernel (`DocumentBounds`) or, in
float32, flex attention with a compiled block mask; both skip masked blocks. On a CPU, packed documents use a dense mask
with the same result. CPU training on rows of moderate length uses plain matrix products (`PartwiseAttention`):
PyTorch's CPU kernel takes 1.2 times as long eagerly, and 3 times as long compared with compiled products.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.memory import SQUARES

PARTS = 4  # query parts per row: the first needs 1/4 of the keys, the last all, so 5/8 of the products remain
SHORT = 256  # rows below this many tokens stay in one part
VARLEN_SINCE = (8, 0)  # minimum compute capability of flash attention
MOST_HEAD_DIM = 256


@dataclass(frozen=True)
class DocumentBounds:
    """A causal mask over concatenated documents: a token attends to earlier tokens of the same document and itself."""

    bounds: Tensor
    """int32 (N + 1,): start offsets of the documents in the flattened rows, then the end; may be padded with empty
    ones."""
    longest: int
    """Upper bound of the document length in tokens."""
    window: int = -1
    """Number of earlier tokens that a token attends to; -1 = all."""


class OwnAttention:
    """A mask with a custom attention function, defined by a pack for the pack's objective."""

    def compute_attention(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Return the attention output (B, H, S, D) for q (B, H, S, D), k and v (B, KV, S, D)."""
        raise NotImplementedError


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any, is_causal: bool = True) -> Tensor:
    """Return the attention output (B, H, T, D) for q (B, H, T, D), k and v (B, KV, S, D).

    mask: None for no mask beyond `is_causal`; bool (B, 1, T, S), True for allowed pairs; the result of
    `documents_mask`; or an `OwnAttention`. is_causal: requires S = T and a mask that already excludes later keys.
    """
    if isinstance(mask, DocumentBounds):
        return attend_packed_documents(q, k, v, mask)
    if isinstance(mask, OwnAttention):
        return mask.compute_attention(q, k, v)
    grouped = q.shape[1] != k.shape[1]
    if q.shape[2] == 1 and isinstance(mask, Tensor) and not q.is_cuda and not q.requires_grad:
        return of_one(q, k, v, mask)
    if is_causal and not q.is_cuda and q.requires_grad and q.shape[0] * q.shape[1] * q.shape[2] ** 2 <= SQUARES:
        shared = q.shape[1] // k.shape[1]
        return PartwiseAttention.apply(q, shared_by(k, shared), shared_by(v, shared), mask)
    if mask is None or isinstance(mask, Tensor):
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=is_causal and mask is None, enable_gqa=grouped)
    return flex(q.is_cuda)(q, k, v, block_mask=mask, enable_gqa=grouped)


def attend_packed_documents(q: Tensor, k: Tensor, v: Tensor, documents: DocumentBounds) -> Tensor:
    """Return the attention output (B, H, T, D) of concatenated documents, S = T, in bfloat16 or float16 on a GPU."""
    from torch.nn.attention.varlen import varlen_attn

    rows, heads, length, size = q.shape
    q, k, v = (one.transpose(1, 2).reshape(rows * length, one.shape[1], size) for one in (q, k, v))
    found = varlen_attn(
        q,
        k,
        v,
        documents.bounds,
        documents.bounds,
        documents.longest,
        documents.longest,
        window_size=(documents.window, 0),
        enable_gqa=heads != k.shape[1],
    )
    assert isinstance(found, Tensor)  # the log-sum-exp is returned only on request
    return found.view(rows, length, heads, size).transpose(1, 2)


def has_varlen(device: torch.device, dtype: torch.dtype, head_dim: int) -> bool:
    """Return whether the variable-length kernel supports the device, dtype and head dimension."""
    if device.type != "cuda" or dtype not in (torch.bfloat16, torch.float16):
        return False
    return head_dim % 8 == 0 and head_dim <= MOST_HEAD_DIM and torch.cuda.get_device_capability(device) >= VARLEN_SINCE


def of_one(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Return the attention output for a single query per row, q (B, H, 1, D) and mask (B, 1, 1, S), on a CPU.

    One matrix product per row and key head takes a third to a half of the time of PyTorch's CPU kernel.
    """
    shape, heads = q.shape, k.shape[1]
    scores = (q.view(shape[0], heads, -1, shape[3]) @ k.mT).float().mul_(shape[3] ** -0.5)  # (B, KV, H / KV, S)
    weights = scores.masked_fill_(~mask, float("-inf")).softmax(dim=-1).to(v.dtype)
    return (weights @ v).view(shape)


class PartwiseAttention(torch.autograd.Function):
    """Causal attention for CPU training, computed in parts of queries with the keys up to the end of each part.

    Save inputs, output and a log-sum-exp per query for backward, and recompute the scores. Scores have the dtype of q
    and the softmax is fp32. Source of the backward formulas: Dao et al., arXiv 2205.14135, appendix B.
    """

    @staticmethod
    def forward(ctx, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """Return the output (B, H, T, D), stored with the heads of a token adjacent, as the next product reads them.

        q, k, v: (B, H, T, D). mask: bool (B, 1, T, T), False above the diagonal; None for plain causal attention.
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

        Compute the scores transposed on purpose: otherwise the compiler recognizes the forward scores (common
        subexpression elimination) and saves them for each layer. Products with transposed scores are also faster.
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
    """Yield the (start, end) query range of each part.

    The number of parts is 1 below SHORT tokens, else PARTS, so the compiler needs only two code versions.
    """
    count = PARTS if length >= SHORT else 1
    return ((length * number // count, length * (number + 1) // count) for number in range(count))


def unseen(mask: Tensor | None, heads: int, start: int, end: int) -> Tensor:
    """Return the inverted mask of the queries start to end, True for forbidden pairs.

    The shape is (end - start, end) without a mask, else (B * H, end - start, end).
    """
    if mask is None:
        return torch.ones((end - start, end), dtype=torch.bool).triu(start + 1)
    return ~mask[:, :, start:end, :end].expand(-1, heads, -1, -1).flatten(0, 1)


def shared_by(x: Tensor, heads: int) -> Tensor:
    """Repeat each head of x (B, KV, S, D) `heads` times consecutively; return (B, KV * heads, S, D)."""
    return x if heads == 1 else x.repeat_interleave(heads, dim=1)


@cache
def block_masks(compiled: bool) -> Any:
    """Return `create_block_mask`, compiled if `compiled`; the eager version builds the full mask several times."""
    from torch.nn.attention.flex_attention import create_block_mask

    return torch.compile(create_block_mask) if compiled else create_block_mask


@cache
def flex(compiled: bool) -> Any:
    """Return `flex_attention`, compiled if `compiled`; the eager version materializes all scores and is for tests."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention) if compiled else flex_attention


def documents_mask(documents: Tensor, flex: bool, bounds: Tensor | None = None) -> Any:
    """Return the causal within-document mask for `attend`.

    documents: (B, T), a number changing at the start of each document. bounds: if given, int32 (N + 1,) start offsets
    in the flattened rows plus the end, returned as `DocumentBounds`. flex: return a block mask for flex attention;
    otherwise a bool mask (B, 1, T, T).
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
    """Return the position (B, T) of each token within its document; documents as in `documents_mask`."""
    index = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return index - torch.where(begins, index, 0).cummax(dim=1).values
