"""Losses per token of the logits of a slice, so that those of a batch never exist whole: see `losses`."""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.losses import ROWS_CPU, ROWS_GPU, capped


@dataclass(frozen=True)
class Teacher:
    """What a frozen model makes of the same tokens."""

    hidden: Tensor  # (N, d of the teacher)
    head: Tensor  # (V, d of the teacher)
    softcap: float = 0.0


def sliced_kl(
    hidden: Tensor, head: Tensor, targets: Tensor, teacher: Teacher, weights: Tensor, temperature: float,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Return `weights[0] * nats + weights[1] * divergence`, then both alone, detached: fp32 scalars, sums over tokens.

    hidden: (N, d); head: (V, d); targets: (N,), all of which count. The nats are those of the cross entropy, the
    divergence is KL(teacher || student) of softmax(logits / temperature), times temperature**2 when the weight says so.
    weights: (2,), on the device of hidden. Gradients go to hidden and head.
    Source: Hinton et al., arXiv 1503.02531.
    """
    total, nats, divergence = _CrossEntropyAndKL.apply(hidden, head, targets, teacher, weights, temperature, softcap)
    return total, nats, divergence


class _CrossEntropyAndKL(torch.autograd.Function):
    """Both from the same logits; gradients are made while the logits of a slice are at hand."""

    @staticmethod
    def forward(
        ctx, hidden: Tensor, head: Tensor, targets: Tensor, teacher: Teacher, weights: Tensor, temperature: float,
        softcap: float,
    ) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
        weight, other = head.to(hidden.dtype), teacher.head.to(teacher.hidden.dtype)
        nats, divergence = hidden.new_zeros((2,), dtype=torch.float32).unbind()
        grad = ctx.needs_input_grad[0] or ctx.needs_input_grad[1]
        hidden_grad = torch.empty_like(hidden) if grad else None
        head_grad = torch.zeros_like(head) if grad else None
        rows = ROWS_GPU if hidden.is_cuda else ROWS_CPU
        for start in range(0, len(hidden), rows):
            part = slice(start, start + rows)
            index = targets[part].unsqueeze(1)
            logits = capped(F.linear(hidden[part], weight).float(), softcap)  # (t, V)
            norm = logits.logsumexp(dim=1, keepdim=True)
            nats += (norm - logits.gather(1, index)).sum()
            theirs = capped(F.linear(teacher.hidden[part], other).float(), teacher.softcap).div_(temperature)
            theirs = theirs.log_softmax(dim=1)
            ours = (logits / temperature).log_softmax(dim=1)
            wanted = theirs.exp()
            divergence += (wanted * (theirs - ours)).sum()
            if grad:
                slope = (logits - norm).exp_()
                slope.scatter_add_(1, index, torch.full_like(index, -1, dtype=slope.dtype))
                slope.mul_(weights[0]).add_(ours.exp_().sub_(wanted).mul_(weights[1] / temperature))
                if softcap:
                    slope.mul_(1 - (logits / softcap).square())
                slope = slope.to(hidden.dtype)
                hidden_grad[part] = slope @ weight
                head_grad += slope.t() @ hidden[part]
        ctx.save_for_backward(*((hidden_grad, head_grad) if grad else ()))
        total = weights[0] * nats + weights[1] * divergence
        ctx.mark_non_differentiable(nats, divergence)
        return total, nats, divergence

    @staticmethod
    def backward(ctx, slope: Tensor, _nats: Tensor, _divergence: Tensor):
        hidden_grad, head_grad = ctx.saved_tensors
        return hidden_grad * slope, head_grad.mul_(slope), None, None, None, None, None
