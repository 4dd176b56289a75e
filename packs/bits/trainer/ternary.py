"""Ternary linear layers: weights round to -1, 0 or 1 times a scale, and activations round to 8 bits.

A layer maps activations and float32 master weights to the product of both rounded operands. Gradients pass the rounding
unchanged (straight-through). Scales are computed in float32 for activations of every dtype. Sources: Ma et al., arXiv
2402.17764 (BitNet b1.58: absmean weights, absmax activations); the Haar bands are a definition of this project.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from packs.bits.records.bitnet_layouts import PER_BYTE
from trainer.records.model_config import Ternary

LEAST = 1e-5  # lower bound of scales; avoids division by zero for an all-zero matrix or token


def ternary(weight: Tensor, per_row: bool = False) -> tuple[Tensor, Tensor]:
    """Return the symbols -1, 0, 1 of a matrix (M, K) as float32, and the scales, (1, 1) or (M, 1).

    The scale is the mean absolute value of the matrix, or of each row with `per_row`. Values of at most half the scale
    become 0, because rounding is half to even.
    """
    wide = weight.float()
    scale = wide.abs().mean(dim=(1,) if per_row else (0, 1), keepdim=True).clamp_(min=LEAST)
    return (wide / scale).round_().clamp_(-1, 1), scale


def pack(symbols: Tensor) -> Tensor:
    """Pack symbols -1, 0, 1 (M, K) into uint8 (M / 4, K); a byte holds four rows, M / 4 apart."""
    quarters = (symbols + 1).to(torch.uint8).chunk(PER_BYTE)
    packed = quarters[0].clone()
    for place, rows in enumerate(quarters[1:], 1):
        packed |= rows << (2 * place)
    return packed


def unpack(packed: Tensor) -> Tensor:
    """Unpack uint8 (M / 4, K) into float32 symbols (M, K), the inverse of `pack`."""
    return torch.cat([((packed >> (2 * place)) & 3) for place in range(PER_BYTE)]).float() - 1


def masters(symbols: Tensor, scale: float) -> Tensor:
    """Return a float32 matrix (M, K) that `ternary` rounds to the given symbols and scale.

    Let p be the share of non-zero symbols. Non-zero entries of size scale / p have the mean absolute value p * scale /
    p = scale over the whole matrix, and round to their symbols because scale / p >= scale. The masters from training
    cannot be recovered. Raises ValueError for numbers other than -1, 0, 1, and for a scale that is not positive and
    finite.
    """
    if not (symbols.abs().eq(1) | symbols.eq(0)).all():
        raise ValueError("some numbers are not -1, 0 or 1")
    if not 0 < scale < math.inf:
        raise ValueError(f"its scale is {scale}")
    share = symbols.count_nonzero().item() / symbols.numel()
    return symbols.float() * (scale / share) if share else symbols.float()


def haar(x: Tensor) -> Tensor:
    """Return the sums, then the differences, of neighbors along the last (even) dimension, divided by sqrt(2).

    The transform is orthonormal: lengths and dot products of vectors are preserved.
    """
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.cat((even + odd, even - odd), dim=-1) * 0.5**0.5


def inverse_haar(x: Tensor) -> Tensor:
    """Invert `haar`."""
    low, high = x.chunk(2, dim=-1)
    return torch.stack((low + high, low - high), dim=-1).flatten(-2) * 0.5**0.5


def rounded_weight(weight: Tensor, how: Ternary) -> Tensor:
    """Return a matrix (M, K) rounded to symbols times scales, in float32; with `haar`, round each band separately."""
    if not how.haar:
        symbols, scale = ternary(weight, how.per_row)
        return symbols * scale
    low, high = (ternary(band, how.per_row) for band in haar(weight.float()).chunk(2, dim=-1))
    return inverse_haar(torch.cat((low[0] * low[1], high[0] * high[1]), dim=-1))


class RoundedActivations(torch.autograd.Function):
    """Round activations to 8 bits with a scale per token; the gradient passes unchanged."""

    @staticmethod
    def forward(ctx, x: Tensor, share: Tensor | None) -> Tensor:
        """Return x (..., K) rounded.

        `share` is a scalar tensor: 0 keeps x, 1 rounds fully, values between interpolate; None rounds fully.
        """
        wide = x.float()
        gain = 127.0 / wide.abs().amax(dim=-1, keepdim=True).clamp_(min=LEAST)
        near = (wide * gain).round_().clamp_(-128, 127).div_(gain)
        return (near if share is None else torch.lerp(wide, near, share)).to(x.dtype)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class RoundedWeight(torch.autograd.Function):
    """Move a matrix toward the output of `rounded_weight`; the gradient passes unchanged."""

    @staticmethod
    def forward(
        ctx, weight: Tensor, how: Ternary, share: Tensor | None, exact: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        """Return the rounded weight in `dtype`; columns marked in `exact` (K,), bool, stay unrounded."""
        near = rounded_weight(weight, how)
        if exact is not None:
            near = torch.where(exact, weight.float(), near)
        return (near if share is None else torch.lerp(weight.float(), near, share)).to(dtype)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        return grad.float(), None, None, None, None


class TernaryLinear(nn.Linear):
    """A linear layer without bias that keeps float32 master weights and computes with ternary weights.

    With gradients enabled, `share` and `exact` can weaken the rounding; otherwise the layer rounds fully. In
    `eval` mode the layer rounds the matrix once and caches the result.
    """

    share: Tensor | None = None  # () from 0 (no rounding) to 1 (full); shared by all layers, set before each step
    exact: Tensor | None = None  # (K,) bool: columns left unrounded

    def __init__(self, inputs: int, outputs: int, how: Ternary) -> None:
        super().__init__(inputs, outputs, bias=False)
        self.how = how
        self.kept: tuple[int, Tensor] | None = None  # version of the weight, and the rounded weight

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            weight = RoundedWeight.apply(self.weight, self.how, self.share, self.exact, x.dtype)
            return F.linear(RoundedActivations.apply(x, self.share), weight)
        return F.linear(RoundedActivations.apply(x, None), self.rounded_weight().to(x.dtype))

    def rounded_weight(self) -> Tensor:
        """Return the rounded weight in float32; `eval` mode caches the result until the weight changes."""
        if self.training:
            return rounded_weight(self.weight.detach(), self.how)
        version = self.weight._version
        if self.kept is None or self.kept[0] != version:
            self.kept = version, rounded_weight(self.weight.detach(), self.how)
        return self.kept[1]

    def train(self, mode: bool = True) -> "TernaryLinear":
        self.kept = None
        super().train(mode)
        return self


def layers_of(model: nn.Module) -> dict[str, TernaryLinear]:
    """Return the ternary layers of a model by module name."""
    return {name: one for name, one in model.named_modules() if isinstance(one, TernaryLinear)}


def relative_error(weight: Tensor, how: Ternary) -> float:
    """Return the squared norm of the rounding error of a matrix divided by the squared norm of the matrix."""
    wide = weight.float()
    return float((rounded_weight(weight, how) - wide).square().sum() / wide.square().sum().clamp(min=1e-30))
