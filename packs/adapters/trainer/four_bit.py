"""Matrices in 4 bits: NF4 in blocks of 64, with the scales of the blocks in 8 bits (double quantization).

`QuantizedLinear` holds a frozen matrix in the form of bitsandbytes, and computes with the rounded values; each product
unpacks the matrix again, so no pass keeps an unpacked copy. bitsandbytes has an environment of its own, which is built
on first use, and is loaded from there into this process.
Source: Dettmers et al., arXiv 2305.14314 (QLoRA); `bitsandbytes.functional.quantize_4bit` of bitsandbytes 0.50.
"""

import functools
import logging
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data.events import emit
from packs.adapters.records.lora_config import BLOCK, ENVIRONMENT, SCALES_BLOCK
from trainer.errors import Refused
from trainer.model.decoder import Linear, SkipInitialization

ROOT = Path(__file__).resolve().parents[3]
KIND = "nf4"
WITHOUT = "To train without bitsandbytes: --adapter lora"
FOLDER_PROGRAM = "packs.adapters.trainer.packages_folder"


@functools.cache
def library() -> ModuleType:
    """Return `bitsandbytes.functional`, from an environment that is built first if missing. Raises Refused."""
    said = ""
    words = [sys.executable, "-m", "infra.agent.own_environment", ENVIRONMENT, FOLDER_PROGRAM]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        for line in process.stdout or ():
            if said:
                emit("note", text=said)
            said = line.strip()
    if process.returncode:
        raise Refused(f"matrices in 4 bits need bitsandbytes: {said}. {WITHOUT}")
    sys.path.append(said)
    before = logging.root.manager.disable
    logging.disable(logging.WARNING)  # bitsandbytes recommends a package that downloads kernels
    try:
        import bitsandbytes.functional as found
    except (ImportError, OSError, RuntimeError) as error:
        raise Refused(f"bitsandbytes in {said} does not load: {error}. {WITHOUT}") from None
    finally:
        logging.disable(before)
    return found


class QuantizedLinear(Linear):
    """A frozen linear layer with a matrix in 4 bits, made from the matrix of another layer."""

    def __init__(self, base: nn.Linear, device: torch.device) -> None:
        with torch.device("meta"), SkipInitialization():
            super().__init__(base.in_features, base.out_features, base.bias is not None)
        self.weight, self.bias = None, base.bias  # type: ignore[assignment]
        for name, one in quantize(base.weight.data, device).items():
            self.register_buffer(name, one)

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        found: Tensor = FrozenProduct.apply(x, bias, *weight_tensors(self))
        return found


class FrozenProduct(torch.autograd.Function):
    """W x + bias with a frozen matrix; for a matrix in 4 bits, the backward pass unpacks the matrix again."""

    @staticmethod
    def forward(ctx, x: Tensor, bias: Tensor | None, *parts: Tensor) -> Tensor:
        ctx.save_for_backward(*parts)
        ctx.inputs = x.shape[-1]
        return F.linear(x, dequantize(parts, x.shape[-1], x.dtype), bias)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        parts = ctx.saved_tensors
        return (grad @ dequantize(parts, ctx.inputs, grad.dtype), *[None] * (1 + len(parts)))


def quantize(weight: Tensor, device: torch.device) -> dict[str, Tensor]:
    """Return a matrix in 4 bits on `device`, as named tensors; without values for a matrix on the meta device."""
    if weight.is_meta:
        blocks = -(-weight.numel() // BLOCK)
        sizes = {"packed": weight.numel() // 2, "absmax": blocks, "scales": -(-blocks // SCALES_BLOCK)}
        empty = {
            name: torch.empty(size, dtype=torch.float32 if name == "scales" else torch.uint8, device="meta")
            for name, size in sizes.items()
        }
        return {**empty, "offset": torch.empty((), device="meta"), "levels": torch.empty(256, device="meta")}
    packed, state = library().quantize_4bit(
        weight.to(device), blocksize=BLOCK, compress_statistics=True, quant_type=KIND
    )
    scales = {"absmax": state.absmax, "scales": state.state2.absmax}
    return {"packed": packed.flatten(), **scales, "offset": state.offset, "levels": state.state2.code}


def weight_tensors(layer: nn.Linear) -> tuple[Tensor, ...]:
    """Return the tensors of the matrix of a layer, as `dequantize` takes them: alone or in 4 bits."""
    if layer.weight is not None:
        return (layer.weight,)
    return tuple(layer.get_buffer(name) for name in ("packed", "absmax", "scales", "offset", "levels"))


def dequantize(parts: Sequence[Tensor], inputs: int, dtype: torch.dtype) -> Tensor:
    """Return the matrix (outputs, inputs) of a layer in `dtype`. parts: see `weight_tensors`."""
    if len(parts) == 1:
        return parts[0].to(dtype)
    packed, absmax, scales, offset, levels = parts
    ops = torch.ops.bitsandbytes
    of_blocks = ops.dequantize_blockwise(absmax, scales, levels, SCALES_BLOCK, torch.float32) + offset
    shape = (2 * packed.numel() // inputs, inputs)
    found: Tensor = ops.dequantize_4bit(packed.view(-1, 1), of_blocks, BLOCK, KIND, shape, dtype)
    return found


def round_to_4_bits(weight: Tensor, dtype: torch.dtype) -> Tensor:
    """Return the values of a matrix after rounding to `dtype` and to 4 bits, as a phase computes with them."""
    parts = quantize(weight.to(dtype), weight.device)
    return dequantize(tuple(parts.values()), weight.shape[1], dtype)
