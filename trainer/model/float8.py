"""Matrices multiplied in 8 bits: forward in e4m3, gradients in e5m2, each tensor with one scale of its own.

In: bf16 activations (N, K), a weight (M, K). Out: bf16 (N, M). Source: Micikevicius et al., arXiv 2209.05433; dynamic
tensorwise scaling as in torchao and nanochat.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

SINCE = (8, 9)  # compute capability that has the units
DIVISOR = 16  # every side of a matrix must be a multiple of this


def problem(device: torch.device) -> str:
    """Return why a device cannot do it; "" when it can."""
    if device.type != "cuda":
        return "dtype float8 needs an NVIDIA GPU of the Ada or Hopper kind or later; this machine computes on its CPU"
    found = torch.cuda.get_device_capability(device)
    if found < SINCE:
        return f"dtype float8 needs compute capability {SINCE[0]}.{SINCE[1]}; this GPU has {found[0]}.{found[1]}"
    return ""


def fits(*sides: int) -> bool:
    return all(side % DIVISOR == 0 for side in sides)


def quantised(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Return x in `dtype`, and the fp32 scale that gives it back."""
    most = x.abs().amax().float().clamp(min=1e-12)
    scale = torch.finfo(dtype).max / most
    return (x.float() * scale).to(dtype), scale.reciprocal()


def product(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], fast: bool) -> Tensor:
    """Return a (N, K) times the transpose of b (M, K), both quantised: bf16 (N, M)."""
    return torch._scaled_mm(
        a[0].contiguous(), b[0].contiguous().t(), scale_a=a[1], scale_b=b[1], out_dtype=torch.bfloat16,
        use_fast_accum=fast,
    )  # fmt: skip


@dataclass(frozen=True)
class Weight:
    """A weight (M, K) in 8 bits, as the ways there and back multiply it."""

    there: Tensor
    """(M, K)"""
    back: Tensor
    """(K, M), in the order of its own rows."""
    scale: Tensor

    @staticmethod
    def of(weight: Tensor) -> "Weight":
        there, scale = quantised(weight.detach(), torch.float8_e4m3fn)
        return Weight(there, there.t().contiguous(), scale)

    def take(self, weight: Tensor) -> None:
        """Hold another weight from now on, in the same memory: compiled code goes on with it."""
        new = Weight.of(weight)
        self.there.copy_(new.there)
        self.back.copy_(new.back)
        self.scale.copy_(new.scale)


class Float8Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, there: Tensor, back: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(x, back, scale)
        ctx.dtype = weight.dtype
        return product(quantised(x, torch.float8_e4m3fn), (there, scale), fast=True)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor, None, None, None]:
        x, back, scale = ctx.saved_tensors
        g, g_scale = quantised(grad, torch.float8_e5m2)
        a, a_scale = quantised(x, torch.float8_e4m3fn)
        x_grad = product((g, g_scale), (back, scale), fast=False)
        weight_grad = product((g.t(), g_scale), (a.t(), a_scale), fast=False)
        return x_grad, weight_grad.to(ctx.dtype), None, None, None


def linear(x: Tensor, weight: Tensor, held: Weight | None = None) -> Tensor:
    """Return (..., M) for x (..., K); the rows of x all together must be a multiple of 16.

    held: the weight in 8 bits, where somebody has made it already.
    """
    held = held or Weight.of(weight)
    flat = Float8Linear.apply(x.flatten(0, -2), weight, held.there, held.back, held.scale)
    return flat.view(*x.shape[:-1], weight.shape[0])
