"""Fused linear head and cross entropy, computed in slices so that the full logits never exist.

The forward pass returns summed nats and already computes the gradients of hidden states and head from each slice of
logits. Peak memory is one slice x V instead of several times tokens x V.
Source of the z-loss: Chowdhery et al., arXiv 2204.02311, section 5; of the soft-cap: Gemma 2, arXiv 2408.00118.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

ROWS_CPU = 512  # tokens per slice: as fast as 1024 with half the memory; 256 is 4 % slower
ROWS_GPU = 4096


@dataclass(frozen=True)
class Shape:
    """Options of the loss: soft-cap of the logits, z-loss coefficient, compilation."""

    softcap: float = 0.0  # logits become c * tanh(logits / c); 0 = off
    z_loss: float = 0.0
    compiled: bool = False


def capped(logits: Tensor, softcap: float) -> Tensor:
    return softcap * torch.tanh(logits / softcap) if softcap else logits


def of_slice(
    raw: Tensor, index: Tensor, softcap: float, z_loss: float, is_learning: bool
) -> tuple[Tensor, Tensor | None]:
    """Return the summed nats (fp32) and the gradient of nats plus z-loss with respect to raw logits (t, V).

    The gradient has the dtype of `raw` and is None unless `is_learning`. index: (t, 1) int64 targets. May overwrite
    `raw`.
    """
    logits = capped(raw.float(), softcap)
    norm = logits.logsumexp(dim=1, keepdim=True)
    nats = (norm - logits.gather(1, index)).sum()
    if not is_learning:
        return nats, None
    slope = (logits - norm if softcap else logits.sub_(norm)).exp_()
    if z_loss:
        slope.mul_(1 + 2 * z_loss * norm)
    slope.scatter_add_(1, index, torch.full_like(index, -1, dtype=slope.dtype))
    if softcap:
        slope.mul_(1 - (logits / softcap).square())
    return nats, slope.to(raw.dtype)


@cache
def of_slice_compiled() -> Callable[..., tuple[Tensor, Tensor | None]]:
    return torch.compile(of_slice, dynamic=True)


class SummedCrossEntropy(torch.autograd.Function):
    """Summed cross entropy of a linear head. The gradient includes the z-loss, the value does not."""

    @staticmethod
    def forward(ctx, hidden: Tensor, head: Tensor, targets: Tensor, shape: Shape) -> Tensor:
        """Return an fp32 scalar for hidden (N, d), head (V, d) and targets (N,), all counted."""
        weight = head.to(hidden.dtype)
        total = hidden.new_zeros((), dtype=torch.float32)
        grad, head_learns = any(ctx.needs_input_grad[:2]), ctx.needs_input_grad[1]
        hidden_grad = torch.empty_like(hidden if grad else hidden[:0])
        head_grad = torch.zeros_like(head if head_learns else head[:0], dtype=torch.float32)  # summed over slices
        part_of, rows = (of_slice_compiled() if shape.compiled else of_slice), ROWS_GPU if hidden.is_cuda else ROWS_CPU
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            raw, index = F.linear(hidden[part], weight), targets[part].unsqueeze(1)
            nats, slope = part_of(raw, index, shape.softcap, shape.z_loss, grad)
            total += nats
            if slope is not None:
                hidden_grad[part] = slope @ weight
                if head_learns:
                    head_grad += slope.t() @ hidden[part]
        ctx.save_for_backward(*((hidden_grad, head_grad) if grad else ()))
        return total

    @staticmethod
    def backward(ctx, slope: Tensor) -> tuple[Tensor, Tensor | None, None, None]:
        hidden_grad, head_grad = ctx.saved_tensors
        return hidden_grad * slope, head_grad.mul_(slope) if ctx.needs_input_grad[1] else None, None, None
