"""LoRA adapters in PyTorch: the layers, and the folder format of PEFT.

`Lora.attach` replaces matrices of a frozen decoder by `AdaptedLinear`; only the two thin matrices of each layer learn.
`Lora.write` and `Lora.apply` write and read `adapter_config.json` and `adapter_model.safetensors` as `peft` does.
Source: LoraConfig and the LoRA layers of peft 0.21.
"""

import copy
import json
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from data.errors import ConfigError
from packs.adapters.records.lora_config import MATRICES, AdapterConfig, AdapterPhaseConfig, adapted
from packs.adapters.records.peft_format import CONFIG, PREFIX, WEIGHTS, listed, read_adapter, to_peft
from packs.adapters.trainer.four_bit import (
    FrozenProduct,
    QuantizedLinear,
    dequantize,
    library,
    round_to_4_bits,
    weight_tensors,
)
from store.artifacts import model_files
from store.artifacts.model_files import CHANGED
from store.untrusted_input import UnusableDocument, printable
from trainer import tensor_file
from trainer.errors import Refused
from trainer.model import changes
from trainer.model.changes import ChangedModel, ModelChange
from trainer.model.decoder import Decoder, Linear, SkipInitialization, uninitialized_decoder

DTYPES = ("bfloat16", "float32")


class AdaptedLinear(Linear):
    """A frozen linear layer plus scaling * B A x; A and B are float32, and are cast to the dtype of the input."""

    keeps_product = False  # recomputation saves W x; see `PhaseConfig.keep_products`

    def __init__(self, base: nn.Linear, adapter: AdapterConfig) -> None:
        with torch.device("meta"), SkipInitialization():
            super().__init__(base.in_features, base.out_features, base.bias is not None)
        self.weight, self.bias = base.weight, base.bias
        for name, one in base.named_buffers():  # of a matrix in 4 bits
            self.register_buffer(name, one)
        self.scaling, self.dropout = adapter.scaling, adapter.dropout
        device = weight_tensors(base)[0].device
        with SkipInitialization():
            self.lora_A = nn.Linear(base.in_features, adapter.rank, bias=False, device=device)
            self.lora_B = nn.Linear(adapter.rank, base.out_features, bias=False, device=device)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.lora_A.weight, self.lora_B.weight
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if self.dropout and torch.is_grad_enabled():
            thin = F.linear(F.dropout(x, self.dropout), a.to(x.dtype))
            plain: Tensor = FrozenProduct.apply(x, bias, *weight_tensors(self))
            return plain + self.scaling * F.linear(thin, b.to(x.dtype))
        found: Tensor = AdaptedProduct.apply(x, bias, a, b, self.scaling, self.keeps_product, *weight_tensors(self))
        return found


class AdaptedProduct(torch.autograd.Function):
    """W x + bias + scaling * B A x with gradients of x, A and B; in-place sums save copies of the products."""

    @staticmethod
    def forward(
        ctx, x: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scaling: float, keeps_product: bool, *parts: Tensor
    ) -> Tensor:
        """Return the product (..., outputs) for x (..., inputs), a and b in float32. parts: W, see `weight_tensors`."""
        a, b = a.to(x.dtype), b.to(x.dtype)
        found = F.linear(x, dequantize(parts, x.shape[-1], x.dtype), bias)
        if keeps_product:  # a sum in place would change the saved product, and the recomputation would add B A x again
            found = found.clone()
        thin = F.linear(x, a).flatten(0, -2)  # (tokens, rank)
        found.view(-1, found.shape[-1]).addmm_(thin, b.t(), alpha=scaling)
        ctx.save_for_backward(x, a, b, thin, *parts)
        ctx.scaling = scaling
        return found

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, a, b, thin, *parts = ctx.saved_tensors
        rows = grad.flatten(0, -2)
        of_thin = (rows @ b).mul_(ctx.scaling)  # (tokens, rank)
        x_grad = None
        if ctx.needs_input_grad[0]:
            x_grad = (rows @ dequantize(parts, x.shape[-1], x.dtype)).addmm_(of_thin, a).view_as(x)
        a_grad, b_grad = of_thin.t() @ x.flatten(0, -2), rows.t() @ thin
        return (x_grad, None, a_grad.float(), b_grad.float().mul_(ctx.scaling), None, None, *[None] * len(parts))


class Lora(ModelChange):
    """LoRA adapters as a change of a model."""

    def compress(self, model: Decoder, config: AdapterPhaseConfig, device: torch.device) -> None:
        assert config.adapter is not None, "a configuration of the class has an adapter"
        if config.adapter.kind == "qlora":
            library()  # also for a model on the meta device, which other processes fill
            for name, layer in [*matrices(model)]:
                parent, _, last = name.rpartition(".")
                setattr(model.get_submodule(parent), last, QuantizedLinear(layer, device))

    def rounding(self, config: AdapterPhaseConfig, dtype: torch.dtype) -> str:
        assert config.adapter is not None, "a configuration of the class has an adapter"
        return str(dtype).removeprefix("torch.") if config.adapter.kind == "qlora" else ""

    def attach(self, model: Decoder, config: AdapterPhaseConfig) -> None:
        """Replace the target matrices by `AdaptedLinear`."""
        assert config.adapter is not None, "a configuration of the class has an adapter"
        for block in model.blocks:
            block.draws = bool(config.adapter.dropout)
        for part, name in targets(model, config):
            layer = AdaptedLinear(getattr(part, name), config.adapter)
            layer.keeps_product = config.recompute and config.keep_products
            setattr(part, name, layer)

    def initialize(self, model: Decoder, config: AdapterPhaseConfig) -> None:
        """Draw A uniformly from +-1/sqrt(inputs) by the seed, and set B to zero."""
        generator = torch.Generator().manual_seed(config.seed)
        for part, name in targets(model, config):
            layer = getattr(part, name)
            start = torch.empty(layer.lora_A.weight.shape)
            nn.init.uniform_(start, -(layer.in_features**-0.5), layer.in_features**-0.5, generator=generator)
            layer.lora_A.weight.data.copy_(start)
            layer.lora_B.weight.data.zero_()

    def restore(self, model: Decoder, folder: Path) -> None:
        adapter, tensors = read(folder)
        mine = {name: one for name, one in model.named_parameters() if one.requires_grad}
        if shapes(mine) != shapes(tensors):
            raise Refused(
                f"{folder}: the adapter has rank {adapter.rank} or targets other than this phase; set the same"
            )
        layer = next(one for one in model.modules() if isinstance(one, AdaptedLinear))
        if layer.scaling != adapter.scaling:
            raise Refused(f"{folder}: the adapter is scaled by {adapter.scaling}, this phase by {layer.scaling}")
        for name, one in mine.items():
            one.data.copy_(tensors[name])

    def write(self, folder: Path, model: Decoder, config: AdapterPhaseConfig, changed: ChangedModel) -> None:
        assert config.adapter is not None, "a configuration of the class has an adapter"
        weights = {f"{PREFIX}{name}": one for name, one in model.learning_state().items()}
        tensor_file.write(folder / WEIGHTS, weights)
        write_config(folder, config.adapter, changed)

    def apply(self, model: Decoder, folder: Path) -> None:
        """Add scaling * B A of each matrix to the weight, computed in float32.

        If the adapter was trained beside matrices in 4 bits, the sum has the rounded matrices.
        """
        adapter, tensors = read(folder)
        if dtype := rounding_in(folder):
            for _, layer in matrices(model):
                layer.weight.data.copy_(round_to_4_bits(layer.weight.data, dtype))
        for _, layer, a, b in pairs(model, folder, adapter, tensors):
            merged = layer.weight.float() + adapter.scaling * (b @ a).to(layer.weight.device)
            layer.weight.data.copy_(merged)

    def variant_of(self, model: Decoder, folder: Path) -> Decoder:
        adapter, tensors = read(folder)
        shared = {id(one): one for one in (*model.parameters(), *model.buffers())}
        found = copy.deepcopy(model, shared)
        for name, layer, a, b in [*pairs(found, folder, adapter, tensors)]:
            adapted_layer = AdaptedLinear(layer, adapter)
            adapted_layer.lora_A.weight.data.copy_(a)
            adapted_layer.lora_B.weight.data.copy_(b)
            parent, _, last = name.rpartition(".")
            setattr(found.get_submodule(parent), last, adapted_layer)
        return found.eval().requires_grad_(False)

    def merged(self, model: Decoder, earlier: Decoder | None = None) -> Decoder:
        """Return a decoder with W + scaling * B A in place of each adapted matrix, computed in float32."""
        layers = {name: one for name, one in model.named_modules() if isinstance(one, (AdaptedLinear, QuantizedLinear))}
        found = earlier or plain_decoder(model, layers)
        for name, layer in layers.items():
            weight = dequantize(weight_tensors(layer), layer.in_features, model.compute_dtype).detach()
            if isinstance(layer, AdaptedLinear):
                change = (layer.lora_B.weight.detach() @ layer.lora_A.weight.detach()).mul_(layer.scaling)
                weight = change.add_(weight)
            found.get_parameter(f"{name}.weight").data.copy_(weight)
        return found

    def vllm_rank(self, config: AdapterPhaseConfig) -> int:
        assert config.adapter is not None, "a configuration of the class has an adapter"
        return config.adapter.rank


def targets(model: Decoder, config: AdapterPhaseConfig) -> Iterator[tuple[nn.Module, str]]:
    """Yield the parent and the name of each target matrix, in a fixed order."""
    assert config.adapter is not None, "a configuration of the class has an adapter"
    wanted = adapted(config.adapter, config.model)
    for block in model.blocks:
        for part in (block.self_attn, block.mlp):
            yield from ((part, name) for name in wanted if hasattr(part, name))


def plain_decoder(model: Decoder, layers: Collection[str]) -> Decoder:
    """Return a decoder without adapters that shares all weights of `model` but the matrices of `layers`, not filled."""
    found = uninitialized_decoder(model.config, model.compute_dtype).to(model.compute_dtype)
    weights, device = model.state_dict(), model.head.device
    own = {f"{name}.weight" for name in layers}
    shared = {
        name: torch.empty_like(one, device=device) if name in own else weights[name]
        for name, one in found.state_dict().items()
    }
    found.load_state_dict(shared, assign=True)
    return found.eval().requires_grad_(False)


def pairs(
    model: Decoder, folder: Path, adapter: AdapterConfig, tensors: Mapping[str, Tensor]
) -> Iterator[tuple[str, nn.Linear, Tensor, Tensor]]:
    """Yield the name, the layer, A and B in float32 of each adapted matrix of a model. Raises Refused for a misfit."""
    layers = dict(matrices(model))
    problems = [one for one in tensors if layer_of(one) not in layers]
    if problems:
        raise Refused(f"{folder}: the adapter changes {listed(problems)}, which the model does not have")
    for name, layer in layers.items():
        names = [f"{name}.lora_{one}.weight" for one in "AB"]
        if not any(one in tensors for one in names):
            continue
        if lacking := [one for one in names if one not in tensors]:
            raise Refused(f"{folder}: {lacking[0]} is missing")
        a, b = (tensors[one].float() for one in names)
        wanted = ((adapter.rank, layer.in_features), (layer.out_features, adapter.rank))
        if (tuple(a.shape), tuple(b.shape)) != wanted:
            found = f"{tuple(a.shape)} and {tuple(b.shape)} instead of {wanted[0]} and {wanted[1]}"
            raise Refused(f"{folder}: the matrices of {name} are {found}; the adapter belongs to another model")
        if adapter.rank > min(layer.in_features, layer.out_features):
            raise Refused(f"{folder}: rank {adapter.rank} is above the rank of the matrix {name}")
        yield name, layer, a, b


def write_config(folder: Path, adapter: AdapterConfig, changed: ChangedModel) -> None:
    """Write adapter_config.json, which names the adapted model: a model of the hub only with the same weights."""
    is_hub = changed.source.startswith("hf://") and not changed.altered
    base = changed.source.removeprefix("hf://") if is_hub else changed.name
    said = to_peft(adapter, base, changed.revision if is_hub else "")
    (folder / CONFIG).write_text(json.dumps(said, indent=1) + "\n", encoding="utf-8")


def read(folder: Path) -> tuple[AdapterConfig, Mapping[str, Tensor]]:
    """Return the settings and the tensors of an adapter, under our names. Raises Refused."""
    from safetensors import SafetensorError

    try:
        adapter = read_adapter(model_files.load(folder, CONFIG))
        file = model_files.held(folder, WEIGHTS)
        tensors = tensor_file.read(file)
    except FileNotFoundError as error:
        raise Refused(
            f"{folder} is not a whole adapter: {Path(str(error.filename or WEIGHTS)).name} is missing"
        ) from None
    except (ConfigError, UnusableDocument) as error:
        raise Refused(f"{folder}: {error}") from None
    except (SafetensorError, OSError) as error:
        raise Refused(f"{folder / WEIGHTS} is damaged or not a safetensors file: {error}") from None
    if odd := [name for name in tensors if not name.startswith(PREFIX) or part_of(name) not in MATRICES]:
        raise Refused(f"{folder}: the adapter changes {listed(odd)}; known: the matrices {', '.join(MATRICES)}")
    if odd := [name for name, one in tensors.items() if not one.isfinite().all()]:
        raise Refused(f"{folder}: {listed(odd)} has numbers that are not finite")
    if not tensors:
        raise Refused(f"{folder / WEIGHTS} has no tensors")
    return adapter, {name.removeprefix(PREFIX): one for name, one in tensors.items()}


def rounding_in(folder: Path) -> torch.dtype | None:
    """Return the dtype from which the adapted model was rounded to 4 bits in the training of an adapter; None = never.

    Raises Refused.
    """
    said = changes.read_changed(folder).rounding if (folder / CHANGED).is_file() else ""
    if said not in ("", *DTYPES):
        raise Refused(f"{folder}: {CHANGED}: rounding is {printable(said)}; known: {', '.join(DTYPES)}")
    return getattr(torch, said) if said else None


def matrices(model: Decoder) -> Iterator[tuple[str, nn.Linear]]:
    """Yield the matrices inside the blocks by name."""
    for name, one in model.named_modules():
        if name.rpartition(".")[2] in MATRICES and isinstance(one, nn.Linear):
            yield name, one


def layer_of(name: str) -> str:
    """Return the layer of a tensor `<layer>.lora_A.weight` or `<layer>.lora_B.weight`, "" for other names."""
    for end in (".lora_A.weight", ".lora_B.weight"):
        if name.endswith(end):
            return name.removesuffix(end)
    return ""


def part_of(name: str) -> str:
    """Return the last part of the layer of a tensor: `q_proj`."""
    return layer_of(name).rpartition(".")[2]


def shapes(tensors: Mapping[str, Any]) -> dict[str, tuple[int, ...]]:
    return {name: tuple(one.shape) for name, one in tensors.items()}
