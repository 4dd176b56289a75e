"""Per-token log-probabilities and distillation losses, computed in slices so that the full logits never exist.

`logprobs_and_entropy` returns one log-probability and one entropy per token. The backward pass recomputes the logits of
each slice, because the per-token gradients are unknown in the forward pass; for few tokens on a CPU the probabilities
are saved instead. `sliced_kl` returns summed cross entropy and divergence from a teacher, with gradients computed in
the forward pass.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from trainer.model.losses import ROWS_CPU, ROWS_GPU, Shape, capped

KEPT_BYTES = 64 << 20  # maximum bytes of probabilities saved for backward on a CPU


def token_logprobs(hidden: Tensor, head: Tensor, targets: Tensor, shape: Shape, temperature: float = 1.0) -> Tensor:
    """Return ln p of each target, fp32 (N,), for hidden (N, d), head (V, d) and targets (N,)."""
    return logprobs_and_entropy(hidden, head, targets, shape, temperature)[0]


def logprobs_and_entropy(
    hidden: Tensor, head: Tensor, targets: Tensor, shape: Shape, temperature: float = 1.0
) -> tuple[Tensor, Tensor]:
    """Return ln p of each target and the entropy of the distribution in nats, both fp32 (N,).

    The entropy has no gradient. temperature: divisor of the logits, as in sampling.
    """
    found: tuple[Tensor, Tensor] = _TokenLogprobs.apply(hidden, head, targets, shape.softcap, temperature)
    return found


class _TokenLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx, hidden: Tensor, head: Tensor, targets: Tensor, softcap: float, temperature: float
    ) -> tuple[Tensor, Tensor]:
        weight = head.to(hidden.dtype)
        found, entropy, norms = (torch.empty(len(hidden), device=hidden.device) for _ in range(3))
        is_kept = ctx.needs_input_grad[0] and not (
            softcap or hidden.is_cuda or 4 * len(hidden) * len(head) > KEPT_BYTES
        )
        chances = []
        for part in slices(hidden):
            logits = capped(F.linear(hidden[part], weight).float(), softcap).div_(temperature)
            norm = logits.logsumexp(dim=1, keepdim=True)
            logits.sub_(norm)
            found[part] = logits.gather(1, targets[part].unsqueeze(1)).squeeze(1)
            chance = logits.exp()
            entropy[part] = -logits.mul_(chance).sum(dim=1)
            norms[part] = norm.squeeze(1)
            if is_kept:
                chances.append(chance)
        ctx.save_for_backward(hidden, head, targets, norms, *chances)
        ctx.softcap, ctx.temperature = softcap, temperature
        ctx.mark_non_differentiable(entropy)
        return found, entropy

    @staticmethod
    def backward(ctx, grad: Tensor, _: Tensor) -> tuple[Tensor, Tensor | None, None, None, None]:
        """Return the gradient: d ln p_t / d logits = onehot_t - p."""
        hidden, head, targets, norms, *chances = ctx.saved_tensors
        weight, head_learns = head.to(hidden.dtype), ctx.needs_input_grad[1]
        hidden_grad = torch.empty_like(hidden)
        head_grad = torch.zeros_like(head, dtype=torch.float32) if head_learns else None
        for number, part in enumerate(slices(hidden)):
            scale = grad[part].unsqueeze(1) / ctx.temperature
            if chances:
                slope = chances[number] * -scale
            else:
                logits = capped(F.linear(hidden[part], weight).float(), ctx.softcap)
                slope = (logits / ctx.temperature - norms[part].unsqueeze(1)).exp_().mul_(-scale)
            slope.scatter_add_(1, targets[part].unsqueeze(1), scale)
            if ctx.softcap:
                slope.mul_(1 - (logits / ctx.softcap).square())
            slope = slope.to(hidden.dtype)
            hidden_grad[part] = slope @ weight
            if head_grad is not None:
                head_grad += slope.t() @ hidden[part]
        return hidden_grad, head_grad, None, None, None


def slices(hidden: Tensor) -> list[slice]:
    """Return consecutive row slices of ROWS_GPU or ROWS_CPU tokens."""
    rows = ROWS_GPU if hidden.is_cuda else ROWS_CPU
    return [slice(start, start + rows) for start in range(0, len(hidden), rows)]


@dataclass(frozen=True)
class Teacher:
    """The outputs of a frozen model for the same tokens."""

    hidden: Tensor  # (N, d of the teacher)
    head: Tensor  # (V, d of the teacher)
    softcap: float = 0.0


def sliced_kl(
    hidden: Tensor,
    head: Tensor,
    targets: Tensor,
    teacher: Teacher,
    weights: Tensor,
    temperature: float,
    softcap: float = 0.0,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (`weights[0] * nats + weights[1] * divergence`, nats, divergence), fp32 scalars summed over tokens.

    nats: cross entropy, detached. divergence: KL(teacher || student) of softmax(logits / temperature), detached; the
    caller includes a factor temperature**2 in the weight if wanted. hidden: (N, d); head: (V, d); targets: (N,), all
    counted; weights: (2,), on the device of hidden. Gradients go to hidden and head.
    Source: Hinton et al., arXiv 1503.02531.
    """
    total, nats, divergence = _CrossEntropyAndKL.apply(hidden, head, targets, teacher, weights, temperature, softcap)
    return total, nats, divergence


class _CrossEntropyAndKL(torch.autograd.Function):
    """Cross entropy and KL divergence from shared logits, with gradients computed per slice in the forward pass."""

    @staticmethod
    def forward(
        ctx,
        hidden: Tensor,
        head: Tensor,
        targets: Tensor,
        teacher: Teacher,
        weights: Tensor,
        temperature: float,
        softcap: float,
    ) -> tuple[Tensor, Tensor, Tensor]:
        weight, other = head.to(hidden.dtype), teacher.head.to(teacher.hidden.dtype)
        nats, divergence = hidden.new_zeros((2,), dtype=torch.float32).unbind()
        grad, head_learns = any(ctx.needs_input_grad[:2]), ctx.needs_input_grad[1]
        hidden_grad = torch.empty_like(hidden if grad else hidden[:0])
        head_grad = torch.zeros_like(head if head_learns else head[:0], dtype=torch.float32)
        for part in slices(hidden):
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
                if head_learns:
                    head_grad += slope.t() @ hidden[part]
        ctx.save_for_backward(*((hidden_grad, head_grad) if grad else ()))
        total = weights[0] * nats + weights[1] * divergence
        ctx.mark_non_differentiable(nats, divergence)
        return total, nats, divergence

    @staticmethod
    def backward(ctx, slope: Tensor, _nats: Tensor, _divergence: Tensor):
        hidden_grad, head_grad = ctx.saved_tensors
        of_head = head_grad.mul_(slope) if ctx.needs_input_grad[1] else None
        return hidden_grad * slope, of_head, None, None, None, None, None
