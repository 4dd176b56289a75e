"""A decoder-only transformer covering Llama, Qwen2 and Qwen3, in plain PyTorch with Hugging Face parameter names.

`Decoder` maps token ids to hidden states, logits or a summed loss. Weights stay fp32 and are cast to `compute_dtype` at
use, so gradients and gradient accumulation are fp32 too.
Source: LlamaForCausalLM, Qwen2ForCausalLM and Qwen3ForCausalLM in transformers; GPT in nanochat.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import CheckpointPolicy, checkpoint, create_selective_checkpoint_contexts

from trainer.model import float8, hooks
from trainer.model.attention import attend, documents_mask, positions_in
from trainer.model.losses import Shape, SummedCrossEntropy, capped
from trainer.model.rope import rotations
from trainer.records.model_config import ModelConfig

IGNORED = -1


@dataclass(frozen=True)
class Positions:
    """Rotary embeddings and mask for attention."""

    cos: Tensor  # (B or 1, 1, T, D)
    sin: Tensor
    mask: Any = None  # mask for `attend`
    is_causal: bool = True  # True if no token attends to later tokens


class KvCache(Protocol):
    """A KV cache: keys and values of earlier passes."""

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]: ...

    def advance(self, count: int) -> None: ...

    def compute_attention(self, layer: int, q: Tensor, k: Tensor, v: Tensor, at: Positions) -> Tensor:
        """Append k and v (B, KV, T, D) of new tokens; return the attention of q (B, H, T, D) over all tokens."""
        return attend(q, *self.update(layer, k, v), at.mask, at.is_causal)


@dataclass
class Cache(KvCache):
    """A dense KV cache of all layers. Prompts are padded on the left, so a row may start at an index above 0."""

    keys: Tensor  # (L, B, KV, S, D)
    values: Tensor  # (L, B, KV, S, D)
    starts: Tensor  # (B,) index of the first real token of each row
    length: int = 0

    @staticmethod
    def empty(config: ModelConfig, starts: Tensor, capacity: int, dtype: torch.dtype = torch.float32) -> "Cache":
        layers = config.num_hidden_layers + sum(one.cached_layers(config) for one in hooks.feature_hooks(config))
        shape = (layers, len(starts), config.num_key_value_heads, capacity, config.head_dim)
        zeros = torch.zeros(shape, dtype=dtype, device=starts.device)
        return Cache(zeros, torch.zeros_like(zeros), starts)

    def update(self, layer: int, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor]:
        """Append k and v (B, KV, T, D) of new tokens; return keys and values (B, KV, S, D) of all tokens."""
        end = self.length + k.shape[2]
        self.keys[layer, :, :, self.length : end] = k
        self.values[layer, :, :, self.length : end] = v
        return self.keys[layer, :, :, :end], self.values[layer, :, :, :end]

    def advance(self, count: int) -> None:
        """Advance the length by `count` tokens, after all layers have written them."""
        self.length += count


class Linear(nn.Linear):
    """A linear layer computing in the dtype of the input, or in 8 bits; the bias is added in the dtype of the input."""

    in_float8 = False
    float8_weight: float8.Weight | None = None  # cached 8-bit weight for all passes of a step
    laid_out: Tensor | None = None  # weight in oneDNN's blocked layout; valid while the weight stays unchanged

    def __init__(self, inputs: int, outputs: int, bias: bool = False) -> None:
        super().__init__(inputs, outputs, bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        bias = None if self.bias is None else self.bias.to(x.dtype)
        if self.laid_out is not None:
            return torch.ops.mkldnn._linear_pointwise(x, self.laid_out, bias, "none", [], "")
        if self.in_float8 and x.requires_grad and float8.fits(x.numel() // x.shape[-1]):
            product = float8.linear(x, self.weight, self.float8_weight)
            return product if bias is None else product + bias
        return F.linear(x, self.weight.to(x.dtype), bias)


def matrix(config: ModelConfig, inputs: int, outputs: int, bias: bool = False) -> nn.Linear:
    """Return a linear layer for a block: the pack's layer for a feature of the config, else `Linear`."""
    made = (one.make_linear(config, inputs, outputs) for one in hooks.feature_hooks(config))
    return next((one for one in made if one is not None), None) or Linear(inputs, outputs, bias)


class RMSNorm(nn.Module):
    """RMSNorm: x / rms(x) computed in fp32, times a learned gain."""

    def __init__(self, size: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        if x.is_cuda or not x.requires_grad:
            return F.rms_norm(x, self.weight.shape, self.weight.to(x.dtype), self.eps)
        return _RMSNorm.apply(x, self.weight, self.eps)


class _RMSNorm(torch.autograd.Function):
    """RMSNorm saving only input and scale for backward; PyTorch's CPU version also saves two fp32 copies."""

    @staticmethod
    def forward(ctx, x: Tensor, weight: Tensor, eps: float) -> Tensor:
        wide = x.float()
        scale = wide.square().mean(dim=-1, keepdim=True).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, scale)
        return (wide * scale).mul_(weight).to(x.dtype)

    @staticmethod
    def backward(ctx, grad: Tensor) -> tuple[Tensor, Tensor | None, None]:
        x, weight, scale = ctx.saved_tensors
        normed = x.float().mul(scale)
        product = grad.float().mul(normed)
        weight_grad = product.flatten(0, -2).sum(dim=0) if ctx.needs_input_grad[1] else None
        shared = product.mul_(weight).mean(dim=-1, keepdim=True)
        x_grad = grad.float().mul(weight).sub_(normed.mul_(shared)).mul_(scale)
        return x_grad.to(x.dtype), weight_grad, None


def rotate(x: Tensor, at: Positions) -> Tensor:
    """Apply RoPE to x (B, H, T, D) in half-split form: x * cos + (-x2, x1) * sin."""
    first, second = x.chunk(2, dim=-1)
    return x * at.cos + torch.cat((-second, first), dim=-1) * at.sin


class Attention(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        d, self.head_dim = config.hidden_size, config.head_dim
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.q_proj = matrix(config, d, self.heads * self.head_dim, config.attention_bias)
        self.k_proj = matrix(config, d, self.kv_heads * self.head_dim, config.attention_bias)
        self.v_proj = matrix(config, d, self.kv_heads * self.head_dim, config.attention_bias)
        self.o_proj = matrix(config, self.heads * self.head_dim, d)
        self.q_norm = RMSNorm(self.head_dim, config.rms_norm_eps) if config.qk_norm else nn.Identity()
        self.k_norm = RMSNorm(self.head_dim, config.rms_norm_eps) if config.qk_norm else nn.Identity()
        if config.sub_norm:
            self.attn_sub_norm = RMSNorm(self.heads * self.head_dim, config.rms_norm_eps)
        self.has_sub_norm = config.sub_norm

    def project_qkv(self, x: Tensor, at: Positions) -> tuple[Tensor, Tensor, Tensor]:
        """Return rotated queries (B, H, T, D), rotated keys and values (both (B, KV, T, D)) of normed x (B, T, d)."""
        rows, length, _ = x.shape
        q = self.q_norm(self.q_proj(x).view(rows, length, self.heads, self.head_dim)).transpose(1, 2)
        k = self.k_norm(self.k_proj(x).view(rows, length, self.kv_heads, self.head_dim)).transpose(1, 2)
        v = self.v_proj(x).view(rows, length, self.kv_heads, self.head_dim).transpose(1, 2)
        return rotate(q, at), rotate(k, at), v

    def forward(self, x: Tensor, at: Positions, cache: KvCache | None, layer: int) -> Tensor:
        rows, length, _ = x.shape
        q, k, v = self.project_qkv(x, at)
        # (B, H, T, D)
        y = attend(q, k, v, at.mask, at.is_causal) if cache is None else cache.compute_attention(layer, q, k, v, at)
        y = y.transpose(1, 2).reshape(rows, length, -1)
        return self.o_proj(self.attn_sub_norm(y) if self.has_sub_norm else y)


class MLP(nn.Module):
    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        if config.has_gate:
            self.gate_proj = matrix(config, config.hidden_size, config.intermediate_size)
        self.kind = config.mlp
        self.up_proj = matrix(config, config.hidden_size, config.intermediate_size)
        self.down_proj = matrix(config, config.intermediate_size, config.hidden_size)
        if config.sub_norm:
            self.ffn_sub_norm = RMSNorm(config.intermediate_size, config.rms_norm_eps)
        self.has_sub_norm = config.sub_norm

    def forward(self, x: Tensor) -> Tensor:
        if self.kind == "swiglu":
            y = F.silu(self.gate_proj(x)) * self.up_proj(x)
        elif self.kind == "gated_relu2":
            y = F.relu(self.gate_proj(x)).square() * self.up_proj(x)
        else:
            y = F.relu(self.up_proj(x)).square()
        return self.down_proj(self.ffn_sub_norm(y) if self.has_sub_norm else y)


PRODUCTS = (
    "aten.mm.default",
    "aten.addmm.default",
    "aten._scaled_mm.default",
    "torch_attn._varlen_attn.default",
    "aten._scaled_dot_product_flash_attention.default",
    "aten._scaled_dot_product_cudnn_attention.default",
    "aten._scaled_dot_product_efficient_attention.default",
    "aten._scaled_dot_product_flash_attention_for_cpu.default",
)


def selective_checkpoint_policy(about: Any, operator: Any, *given: Any, **named: Any) -> CheckpointPolicy:
    """Return the checkpoint policy: save outputs of matrix products and attention, recompute cheap operations."""
    return CheckpointPolicy.MUST_SAVE if str(operator) in PRODUCTS else CheckpointPolicy.PREFER_RECOMPUTE


class Block(nn.Module):
    keeps_products = False  # save only products for backward; see `PhaseConfig.keep_products`
    draws = False  # the block draws random numbers in training

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.mlp = MLP(config)

    def project_qkv(self, x: Tensor, at: Positions) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of unnormed x (B, T, d); see `Attention.project_qkv`."""
        return self.self_attn.project_qkv(self.input_layernorm(x), at)

    def forward(self, x: Tensor, at: Positions, cache: KvCache | None, layer: int) -> Tensor:
        if self.keeps_products and torch.is_grad_enabled():  # inside the block, visible to the compiler
            contexts = partial(create_selective_checkpoint_contexts, selective_checkpoint_policy)
            given = (x, at, cache, layer)
            return checkpoint(
                self.run_layers, *given, use_reentrant=False, preserve_rng_state=self.draws, context_fn=contexts
            )
        return self.run_layers(x, at, cache, layer)

    def run_layers(self, x: Tensor, at: Positions, cache: KvCache | None, layer: int) -> Tensor:
        x = x + self.self_attn(self.input_layernorm(x), at, cache, layer)
        return x + self.mlp(self.post_attention_layernorm(x))


class Trunk(nn.Module):
    """Embedding, blocks and final norm. A pack may extend the class; see `ModelHooks.make_trunk`."""

    is_own_attention = False  # blocks change `Positions.mask`, so only caches that read the mask are supported

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocab_size, config.hidden_size)
        if config.embed_norm:
            self.embed_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.layers = nn.ModuleList(self.make_block(config, layer) for layer in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.has_embed_norm = config.embed_norm

    def make_block(self, config: ModelConfig, layer: int) -> Block:
        return Block(config)

    def begin(
        self, ids: Tensor, at: Positions, cache: KvCache | None, documents: Tensor | None, dtype: torch.dtype
    ) -> tuple[Tensor, Any]:
        """Return the input (B, T, d) of the first layer, and the state of this pass for `enter` and `finish`."""
        x = self.embed_tokens(ids).to(dtype)
        return self.embed_norm(x) if self.has_embed_norm else x, None

    def enter(self, layer: int, x: Tensor, at: Positions, state: Any) -> tuple[Tensor, Positions]:
        """Return the input and the positions of a block, for the output x of the layer before."""
        return x, at

    def finish(self, x: Tensor, state: Any) -> Tensor:
        """Return the hidden states for the head, for the output x of the last layer."""
        return self.norm(x)


class Decoder(nn.Module):
    """The complete language model, with fp32 parameters and activations in `compute_dtype`."""

    recompute = False  # recompute the activations inside each block during backward
    held: Sequence[Any] = ()  # layers with a `Linear.float8_weight` refreshed once per step

    def __init__(self, config: ModelConfig, compute_dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.config = config
        self.compute_dtype = compute_dtype
        made = (one.make_trunk(config) for one in hooks.feature_hooks(config))
        self.model = cast(Trunk, next((one for one in made if one is not None), None) or Trunk(config))
        if not config.tie_word_embeddings:
            self.lm_head = Linear(config.hidden_size, config.vocab_size)
        self.shape = Shape(softcap=config.logit_softcap)

    @property
    def blocks(self) -> list[Block]:
        """Return the layers in order."""
        return cast(list[Block], list(self.model.layers))

    @property
    def head(self) -> Tensor:
        """Return the output matrix (V, d) mapping hidden states to logits."""
        return self.model.embed_tokens.weight if self.config.tie_word_embeddings else self.lm_head.weight

    def hidden(
        self,
        ids: Tensor,
        cache: KvCache | None = None,
        documents: Tensor | None = None,
        bounds: Tensor | None = None,
        *,
        at: Positions | None = None,
        capture: Sequence[int] = (),
    ) -> Any:
        """Return hidden states (B, T, d) in `compute_dtype` for ids (B, T), after the final norm.

        cache: the ids continue the cached tokens, and their keys and values are appended. documents: (B, T), a number
        changing at the start of each document; tokens attend within their document only. bounds: see `documents_mask`.
        at: explicit positions and mask from `positions`, replacing the default ones. capture: layer indices from 0;
        with `capture` return a pair of the hidden states and a list with the input (B, T, d) of each layer. The index
        `num_hidden_layers` stands for the output of the last layer before the norm.
        """
        if at is None:
            assert cache is None or isinstance(cache, Cache)  # for other cache kinds the caller passes `at`
            at = self._positions(ids, cache, documents, bounds)
        x, state = self.model.begin(ids, at, cache, documents, self.compute_dtype)
        seen = dict[int, Tensor]()
        for layer, block in enumerate(self.model.layers):
            if layer in capture:
                seen[layer] = x
            x, here = self.model.enter(layer, x, at, state)
            if self.recompute and torch.is_grad_enabled():
                x = checkpoint(block, x, here, None, layer, use_reentrant=False, preserve_rng_state=block.draws)
            else:
                x = block(x, here, cache, layer)
        if cache is not None:
            cache.advance(ids.shape[1])
        last = self.model.finish(x, state)
        return (last, [seen.get(layer, x) for layer in capture]) if capture else last

    def learning_state(self) -> dict[str, Tensor]:
        """Return the parameters that learn, by name, detached: the part of the model in checkpoints."""
        learning = {name for name, one in self.named_parameters() if one.requires_grad}
        return {name: one for name, one in self.state_dict().items() if name in learning}

    def begin_step(self) -> None:
        """Refresh the cached 8-bit weights once per step; call before the first pass."""
        for one in self.held:
            one.float8_weight.update_from(one.weight)

    def positions(self, index: Tensor, mask: Any = None, is_causal: bool = False) -> Positions:
        """Return the argument `at` of `hidden` for tokens at positions `index` (B or 1, T).

        mask: as in `attend`. is_causal: True if no token attends to later tokens of the row.
        """
        return Positions(*rotations(index, self.config, self.compute_dtype), mask, is_causal)

    def forward(self, ids: Tensor, cache: Cache | None = None, last_only: bool = False) -> Tensor:
        """Return fp32 logits (B, T, V) for ids (B, T), or (B, 1, V) of the last position with `last_only`."""
        hidden = self.hidden(ids, cache)
        logits = F.linear(hidden[:, -1:] if last_only else hidden, self.head.to(self.compute_dtype)).float()
        return capped(logits, self.shape.softcap)

    def loss(
        self,
        ids: Tensor,
        targets: Tensor,
        documents: Tensor | None = None,
        bounds: Tensor | None = None,
        counted: Tensor | None = None,
    ) -> Tensor:
        """Return the summed cross entropy in nats as an fp32 scalar, ignoring targets (B, T) of -1.

        documents, bounds: see `hidden`. counted: (N,), indices of the counted targets in the flattened rows; computing
        them here, if None, synchronizes with the GPU.
        """
        hidden, targets = self.hidden(ids, None, documents, bounds).flatten(0, 1), targets.flatten()
        if counted is None:
            counted = (targets != IGNORED).nonzero().squeeze(1)
        if len(counted) < len(targets):  # compute logits of counted tokens only; chat rows have few
            hidden, targets = hidden.index_select(0, counted), targets[counted]
        # An autograd function sees `requires_grad` of a parameter even under `no_grad`, so detach the head explicitly.
        head = self.head if torch.is_grad_enabled() else self.head.detach()
        return SummedCrossEntropy.apply(hidden, head, targets, self.shape)

    def compute_objective(self, objective: Any, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        """Return `objective.loss` of this model.

        Training must call the objective through this method: FSDP hooks the method to gather the parameters outside the
        blocks before the call and to reduce gradients after the backward pass.
        """
        return objective.loss(self, batch)

    def _positions(
        self, ids: Tensor, cache: Cache | None, documents: Tensor | None, bounds: Tensor | None
    ) -> Positions:
        length, past = ids.shape[1], cache.length if cache is not None else 0
        longest = self.config.longest_row if cache is None else self.config.max_position_embeddings
        # Positions begin again in each document, so rows of several documents may be longer.
        if documents is None and past + length > longest:
            raise ValueError(f"{past + length} tokens; the model has {longest} positions")
        index = torch.arange(past, past + length, device=ids.device)[None, :]  # (1, T)
        mask = None
        if documents is not None:
            index, mask = positions_in(documents), documents_mask(documents, ids.is_cuda, bounds)
        elif cache is not None:
            seen = torch.arange(past + length, device=ids.device)  # (S,)
            real = seen[None, None, :] >= cache.starts[:, None, None]
            causal = seen[None, None, :] <= index[:, :, None]
            itself = seen[None, None, :] == index[:, :, None]  # padding attends to itself, else softmax has no entry
            mask = ((real & causal) | itself)[:, None]  # (B, 1, T, S)
            index = (index - cache.starts[:, None]).clamp(min=0)
        return self.positions(index, mask, is_causal=cache is None)


DRAWS = (nn.init.normal_, nn.init.uniform_, nn.init.kaiming_uniform_)  # initializers called by PyTorch modules


class SkipInitialization(TorchFunctionMode):
    """A mode in which new modules skip random initialization and keep uninitialized parameters."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in DRAWS:
            return kwargs["tensor"]
        return func(*args, **(kwargs or {}))


def uninitialized_decoder(
    config: ModelConfig, compute_dtype: torch.dtype = torch.float32, device: torch.device | str = "meta"
) -> Decoder:
    """Return a decoder with uninitialized parameters for the caller to fill; on `meta`, call `to_empty` first.

    Skipping PyTorch's random initialization saves a minute on one core for a few billion parameters. On `meta`, random
    initialization would import PyTorch's compiler, and `to_empty` would import sympy: 1.5 s per process.
    """
    with torch.device(device), SkipInitialization():
        return Decoder(config, compute_dtype)


def initialize(model: Decoder, seed: int) -> None:
    """Initialize the parameters from `seed`.

    Biases and matrices writing to the residual stream (o_proj, down_proj) are zero, gains one, embeddings normal with
    std 0.02, other matrices normal with std 1/sqrt(inputs).
    """
    generator = torch.Generator().manual_seed(seed)
    for name, parameter in model.named_parameters():
        if name.endswith(".bias"):
            nn.init.zeros_(parameter)
        elif parameter.dim() < 2:
            nn.init.ones_(parameter)
        elif name.endswith(("o_proj.weight", "down_proj.weight")):
            nn.init.zeros_(parameter)
        elif name.endswith("embed_tokens.weight"):
            nn.init.normal_(parameter, std=0.02, generator=generator)
        else:
            nn.init.normal_(parameter, std=parameter.shape[1] ** -0.5, generator=generator)
    for one in hooks.feature_hooks(model.config):
        one.initialize(model, generator)
