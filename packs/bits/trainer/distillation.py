"""Distillation losses on inner states: distances of layer outputs, divergence of relations in one layer.

Inputs are the states of student and teacher for the same tokens, and the tokens that count. The losses are sums over
counted tokens, as float32 scalars with gradients for the student. Sources: Wang et al., arXiv 2012.15828 (relations of
queries, keys and values); Wu et al., arXiv 2510.13998 (BitDistill, use of both losses); the WrinkleFree recipes
(distances of normalised layer outputs).
"""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

WEIGHTS = ("progressive", "uniform", "exponential")


def layer_weights(kind: str, count: int) -> list[float]:
    """Return weights of `count` layers that sum to 1: `progressive` (i + 1), `exponential` (2**i) or `uniform`."""
    raw = {"progressive": range(1, count + 1), "uniform": [1] * count, "exponential": [2**i for i in range(count)]}
    return [one / sum(raw[kind]) for one in raw[kind]]


def layer_distance(
    student: Sequence[Tensor], teacher: Sequence[Tensor], weights: Sequence[float], counted: Tensor
) -> Tensor:
    """Return the weighted distance of unit-length layer outputs (N, d), summed over the tokens in `counted`.

    counted: (M,), indices of the counted tokens. Indices avoid the device synchronization that a boolean mask needs.

    The distance of a token in a layer is the mean squared difference over d, at most 4 / d.
    """
    total = student[0].new_zeros((), dtype=torch.float32)
    for ours, theirs, weight in zip(student, teacher, weights, strict=True):
        a, b = (F.normalize(one.index_select(0, counted).float(), dim=-1) for one in (ours, theirs))
        total = total + weight * (a - b).square().mean(dim=-1).sum()
    return total


def relation_divergence(student: Tensor, teacher: Tensor, heads: int, unseen: Tensor, counted: Tensor) -> Tensor:
    """Return KL(teacher || student) of the similarities between each token and the visible tokens, summed over tokens.

    The sum covers the tokens in `counted`. The result is the mean over relation heads, divided by the number of heads
    once more, as in the released code of BitDistill.

    student, teacher: (B, H, T, D), queries, keys or values; all heads of a token are joined and split into `heads`.
    unseen: bool, (T, T) or (B, T, T), True where a token (row) cannot attend to the column token. counted: (B, T) bool.
    """
    return _RelationKL.apply(_unit(student, heads), _unit(teacher.detach(), heads), unseen, counted)


def _unit(x: Tensor, heads: int) -> Tensor:
    """Return (B, heads, T, H * D / heads) in float32, with every vector scaled to length 1."""
    rows, _, length, _ = x.shape
    joined = x.transpose(1, 2).reshape(rows, length, heads, -1).transpose(1, 2)
    return F.normalize(joined.float(), dim=-1)


class _RelationKL(torch.autograd.Function):
    """Compute the relation loss and the gradient row by row, so that T x T matrices exist for one batch row only."""

    @staticmethod
    def forward(ctx, student: Tensor, teacher: Tensor, unseen: Tensor, counted: Tensor) -> Tensor:
        total = student.new_zeros(())
        grad = torch.empty_like(student)
        heads = student.shape[1]
        for row, (ours, theirs) in enumerate(zip(student, teacher, strict=True)):  # (heads, T, size)
            hidden = unseen if unseen.dim() == 2 else unseen[row]
            a = (ours @ ours.mT).masked_fill_(hidden, float("-inf")).log_softmax(dim=-1)  # (heads, T, T)
            b = (theirs @ theirs.mT).masked_fill_(hidden, float("-inf")).log_softmax(dim=-1)
            wanted = b.exp()
            share = counted[row].float() / heads**2  # (T,)
            total += ((wanted * (b - a).masked_fill_(hidden, 0.0)).sum(dim=-1) * share).sum()
            slope = a.exp_().sub_(wanted).mul_(share[:, None])
            grad[row] = slope @ ours + slope.mT @ ours
        ctx.save_for_backward(grad)
        return total

    @staticmethod
    def backward(ctx, slope: Tensor) -> tuple[Tensor, None, None, None]:
        (grad,) = ctx.saved_tensors
        return grad * slope, None, None, None
