"""Matrices of 1.58 bits: weights are -1, 0 or 1 times a scale, what they multiply is rounded to 8 bits.

In: activations, float32 master weights. Out: the product of what both are rounded to; gradients pass the rounding as
if it were not there. Scales are computed in float32, whatever the activations are. Sources: Ma et al., arXiv
2402.17764 (BitNet b1.58: absmean weights, absmax activations); the Haar bands are a definition of our own.
"""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from packs.bits.records.bitnet_layouts import PER_BYTE
from trainer.records.model_config import Ternary

LEAST = 1e-5  # smallest scale: a matrix or a token of zeros is divided by it


def ternary(weight: Tensor, per_row: bool = False) -> tuple[Tensor, Tensor]:
    """Return the symbols -1, 0, 1 of a matrix (M, K), in float32, and its scales, (1, 1) or (M, 1).

    The scale is the mean of the absolute values; what is at most half of it becomes 0, as rounding is half to even.
    """
    wide = weight.float()
    scale = wide.abs().mean(dim=(1,) if per_row else (0, 1), keepdim=True).clamp_(min=LEAST)
    return (wide / scale).round_().clamp_(-1, 1), scale


def pack(symbols: Tensor) -> Tensor:
    """Return uint8 (M / 4, K) of symbols -1, 0, 1 (M, K): a byte has those of four rows that are M / 4 apart."""
    quarters = (symbols + 1).to(torch.uint8).chunk(PER_BYTE)
    packed = quarters[0].clone()
    for place, rows in enumerate(quarters[1:], 1):
        packed |= rows << (2 * place)
    return packed


def unpack(packed: Tensor) -> Tensor:
    """Return symbols (M, K), float32, of uint8 (M / 4, K): the reverse of `pack`."""
    return torch.cat([((packed >> (2 * place)) & 3) for place in range(PER_BYTE)]).float() - 1


def masters(symbols: Tensor, scale: float) -> Tensor:
    """Return a matrix (M, K), float32, that `ternary` rounds to these symbols and this scale.

    With a share p of symbols that are not 0, the mean of absolute values is the scale where they are scale / p; none
    of those is below the scale, so that each rounds to its symbol. The masters that the model was trained with are
    gone. Raises ValueError where the numbers are no symbols, or the scale is none.
    """
    if not (symbols.abs().eq(1) | symbols.eq(0)).all():
        raise ValueError("its numbers are not all -1, 0 or 1")
    if not 0 < scale < math.inf:
        raise ValueError(f"its scale is {scale}")
    share = symbols.count_nonzero().item() / symbols.numel()
    return symbols.float() * (scale / share) if share else symbols.float()


def haar(x: Tensor) -> Tensor:
    """Return the sums, then the differences, of neighbours along the last dimension, which is even, over sqrt(2).

    The transform is orthonormal: lengths and products of vectors stay.
    """
    even, odd = x[..., 0::2], x[..., 1::2]
    return torch.cat((even + odd, even - odd), dim=-1) * 0.5**0.5


def inverse_haar(x: Tensor) -> Tensor:
    """Undo `haar`."""
    low, high = x.chunk(2, dim=-1)
    return torch.stack((low + high, low - high), dim=-1).flatten(-2) * 0.5**0.5


def rounded_weight(weight: Tensor, how: Ternary) -> Tensor:
    """Return a matrix (M, K) rounded, float32: symbols times scales, each Haar band by itself if asked."""
    if not how.haar:
        symbols, scale = ternary(weight, how.per_row)
        return symbols * scale
    low, high = (ternary(band, how.per_row) for band in haar(weight.float()).chunk(2, dim=-1))
    return inverse_haar(torch.cat((low[0] * low[1], high[0] * high[1]), dim=-1))


class RoundedActivations(torch.autograd.Function):
    """Rounding to 8 bits with one scale for each token; its gradient is that of doing nothing."""

    @staticmethod
    def forward(ctx, x: Tensor, share: Tensor | None) -> Tensor:
        """Return x (..., K), rounded; share: () how much of the way to the rounded values, None = all of it."""
        wide = x.float()
        gain = 127.0 / wide.abs().amax(dim=-1, keepdim=True).clamp_(min=LEAST)
        near = (wide * gain).round_().clamp_(-128, 127).div_(gain)
        return (near if share is None else torch.lerp(wide, near, share)).to(x.dtype)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None]:
        return grad, None


class RoundedWeight(torch.autograd.Function):
    """A matrix on its way to what `rounded_weight` makes of it; its gradient is that of doing nothing."""

    @staticmethod
    def forward(
        ctx, weight: Tensor, how: Ternary, share: Tensor | None, exact: Tensor | None, dtype: torch.dtype
    ) -> Tensor:
        """Return the weight, rounded; exact: (K,) bool, columns that stay as they are."""
        near = rounded_weight(weight, how)
        if exact is not None:
            near = torch.where(exact, weight.float(), near)
        return (near if share is None else torch.lerp(weight.float(), near, share)).to(dtype)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, None, None, None, None]:
        return grad.float(), None, None, None, None


class TernaryLinear(nn.Linear):
    """A matrix without bias whose float32 weights are the masters of ternary ones.

    While gradients are made, `share` and `exact` may hold back some of the rounding; without them, and wherever no
    gradients are made, everything is rounded. In `eval` the rounded matrix is made once and kept.
    """

    share: Tensor | None = None  # () from 0, nothing is rounded, to 1: the same for all layers, set before a step
    exact: Tensor | None = None  # (K,) bool: columns that are not rounded

    def __init__(self, inputs: int, outputs: int, how: Ternary) -> None:
        super().__init__(inputs, outputs, bias=False)
        self.how = how
        self.kept: tuple[int, Tensor] | None = None  # version of the weight, and its rounded values

    def forward(self, x: Tensor) -> Tensor:
        if torch.is_grad_enabled():
            weight = RoundedWeight.apply(self.weight, self.how, self.share, self.exact, x.dtype)
            return F.linear(RoundedActivations.apply(x, self.share), weight)
        return F.linear(RoundedActivations.apply(x, None), self.rounded().to(x.dtype))

    def rounded(self) -> Tensor:
        """Return the rounded weight, float32."""
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
    """Return the ternary matrices of a model by the names of their modules."""
    return {name: one for name, one in model.named_modules() if isinstance(one, TernaryLinear)}


def relative_error(weight: Tensor, how: Ternary) -> float:
    """Return the squared length of what rounding changes in a matrix over that of the matrix."""
    wide = weight.float()
    return float((rounded_weight(weight, how) - wide).square().sum() / wide.square().sum().clamp(min=1e-30))
