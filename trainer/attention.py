"""Attention over whole rows, over the documents of packed rows, and over a cache.

In: queries, keys, values, and who may see whom. Out: what attention gives. On a GPU documents go through flex
attention, which skips what nobody may see; on a CPU through PyTorch's own kernel with a mask: the same sums.
"""

from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor


def attend(q: Tensor, k: Tensor, v: Tensor, mask: Any) -> Tensor:
    """(B, H, T, D) for q (B, H, T, D), k and v (B, KV, S, D).

    mask: None = causal, S = T; bool (B, 1, T, S), True where a query may look; or what `documents_mask` gave.
    """
    grouped = q.shape[1] != k.shape[1]
    if mask is None or isinstance(mask, Tensor):
        return F.scaled_dot_product_attention(q, k, v, mask, is_causal=mask is None, enable_gqa=grouped)
    return _flex(q.is_cuda)(q, k, v, block_mask=mask, enable_gqa=grouped)


def documents_mask(documents: Tensor, flex: bool) -> Any:
    """Who sees whom when each token sees its own document up to itself; for `attend`.

    documents: (B, T), a number that changes where a document begins. flex: for flex attention, else a plain mask.
    """
    rows, length = documents.shape
    if flex:
        from torch.nn.attention.flex_attention import create_block_mask

        def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
            return (query >= key) & (documents[row, query] == documents[row, key])

        return create_block_mask(sees, rows, None, length, length, device=documents.device)
    same = documents[:, :, None] == documents[:, None, :]
    return same.tril()[:, None]  # (B, 1, T, T)


def positions_in(documents: Tensor) -> Tensor:
    """(B, T): how many tokens of the same document stand before each; documents as above."""
    index = torch.arange(documents.shape[1], device=documents.device).expand_as(documents)
    begins = torch.ones_like(documents, dtype=torch.bool)
    begins[:, 1:] = documents[:, 1:] != documents[:, :-1]
    return index - torch.where(begins, index, 0).cummax(dim=1).values


@cache
def _flex(compiled: bool) -> Any:
    """Uncompiled, flex attention makes the whole square; that is for tests."""
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention) if compiled else flex_attention
