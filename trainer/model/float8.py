"""Float8 linear layers: e4m3 in the forward pass, e5m2 for gradients, one dynamic scale per tensor.

`linear` multiplies bf16 activations (N, K) with a weight (M, K) and returns bf16 (N, M). Source: Micikevicius et al.,
arXiv 2209.05433; dynamic tensorwise scaling as in torchao and nanochat.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

SINCE = (8, 9)  # minimum compute capability
DIVISOR = 16  # required divisor of every matrix dimension


def problem(device: torch.device) -> str:
    """Return the reason a device does not support float8, or "" for a supported device."""
    if device.type != "cuda":
        return "dtype float8 needs an NVIDIA GPU of the Ada or Hopper generation or later; this machine uses the CPU"
    found = torch.cuda.get_device_capability(device)
    if found < SINCE:
        return f"dtype float8 needs compute capability {SINCE[0]}.{SINCE[1]}; this GPU has {found[0]}.{found[1]}"
    return ""


def fits(*sides: int) -> bool:
    return all(side % DIVISOR == 0 for side in sides)


def quantised(x: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Quantize x to `dtype`; return the quantized tensor and the fp32 factor for dequantization."""
    most = x.abs().amax().float().clamp(min=1e-12)
    scale = torch.finfo(dtype).max / most
    return (x.float() * scale).to(dtype), scale.reciprocal()


def product(a: tuple[Tensor, Tensor], b: tuple[Tensor, Tensor], fast: bool) -> Tensor:
    """Return a @ b.T as bf16 (N, M), for quantized a (N, K) and b (M, K) with their scales."""
    return torch._scaled_mm(
        a[0].contiguous(),
        b[0].contiguous().t(),
        scale_a=a[1],
        scale_b=b[1],
        out_dtype=torch.bfloat16,
        use_fast_accum=fast,
    )


@dataclass(frozen=True)
class Weight:
    """An 8-bit weight (M, K) in the layouts of the forward and the backward product."""

    forward_layout: Tensor
    """(M, K), for the forward pass."""
    backward_layout: Tensor
    """(K, M), row-major, for the backward pass."""
    scale: Tensor

    @staticmethod
    def from_tensor(weight: Tensor) -> "Weight":
        there, scale = quantised(weight.detach(), torch.float8_e4m3fn)
        return Weight(there, there.t().contiguous(), scale)

    def update_from(self, weight: Tensor) -> None:
        """Quantize a new weight in place, so that compiled code keeps using the same memory."""
        new = Weight.from_tensor(weight)
        self.forward_layout.copy_(new.forward_layout)
        self.backward_layout.copy_(new.backward_layout)
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
    """Return x @ weight.T, (..., M), for x (..., K); the total number of rows of x must be a multiple of 16.

    held: the cached 8-bit weight; quantize `weight` if None.
    """
    held = held or Weight.from_tensor(weight)
    flat = Float8Linear.apply(x.flatten(0, -2), weight, held.forward_layout, held.backward_layout, held.scale)
    return flat.view(*x.shape[:-1], weight.shape[0])
