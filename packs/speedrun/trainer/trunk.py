"""A decoder trunk with the parts of nanochat's speedrun: windows, value embeddings, smear, residual scales, backout.

    ids -> embedding -> smear -> for each layer: scale, block (window, value embedding) -> backout -> norm

Layers `S` of the pattern read `window` earlier tokens, all other layers as many as the model has positions.
A token never smears or attends across documents. The trunk derives the previous token and the window from the mask, so
padded rows, packed documents, trees of answers and KV caches need no code of their own.
Source: `nanochat/gpt.py` of karpathy/nanochat, July 2026. Value embeddings: Zhou et al., arXiv 2410.17897.
"""

from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from packs.speedrun.records.feature import has_values, is_windowed, parts_of
from trainer.model.attention import DocumentBounds, block_masks, has_varlen, positions_in
from trainer.model.decoder import Attention, Block, KvCache, Linear, Positions, Trunk
from trainer.records.model_config import ModelConfig

GATE = 3.0  # maximum weight of a value embedding


@dataclass(frozen=True)
class NanochatPositions(Positions):
    """Positions of a layer, with the value embeddings of the tokens."""

    values: Tensor | None = None  # (B, T, KV, D)


@dataclass
class Pass:
    """State of a pass through the layers."""

    ids: Tensor  # (B, T)
    embedding: Tensor  # (B, T, d), input of the first layer
    near: Positions  # positions of the layers with the window of the pattern
    far: Positions  # positions of all other layers
    middle: Tensor | None = None  # (B, T, d), output of the middle layer


class NanochatAttention(Attention):
    """Attention with a gated embedding of the token added to the values."""

    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__(config)
        self.channels = parts_of(config).value_channels if has_values(config, layer) else 0
        if self.channels:
            self.value_gate = Linear(self.channels, self.kv_heads)

    def project_qkv(self, x: Tensor, at: Positions) -> tuple[Tensor, Tensor, Tensor]:
        q, k, v = super().project_qkv(x, at)
        if self.channels:
            assert isinstance(at, NanochatPositions) and at.values is not None
            gate = GATE * torch.sigmoid(self.value_gate(x[..., : self.channels]))  # (B, T, KV)
            v = v + (gate.unsqueeze(-1) * at.values).transpose(1, 2)
        return q, k, v


class NanochatBlock(Block):
    def __init__(self, config: ModelConfig, layer: int) -> None:
        super().__init__(config)
        self.self_attn = NanochatAttention(config, layer)


class NanochatTrunk(Trunk):
    """The trunk of models with the feature `nanochat`; see `ModelConfig.nanochat`."""

    is_own_attention = True

    def __init__(self, config: ModelConfig) -> None:
        super().__init__(config)
        self.config, self.parts = config, parts_of(config)
        values = config.num_key_value_heads * config.head_dim
        layers = [layer for layer in range(config.num_hidden_layers) if has_values(config, layer)]
        if self.parts.smear_channels:
            self.smear_gate = Linear(self.parts.smear_channels, 1)
            self.smear_scale = nn.Parameter(torch.zeros(1))
        if self.parts.scales:
            self.residual_scales = nn.Parameter(torch.ones(config.num_hidden_layers))
            self.embed_scales = nn.Parameter(torch.zeros(config.num_hidden_layers))
        if self.parts.backout:
            self.backout_scale = nn.Parameter(torch.zeros(1))
        if layers:
            self.value_embeds = nn.ModuleDict({str(layer): nn.Embedding(config.vocab_size, values) for layer in layers})

    def make_block(self, config: ModelConfig, layer: int) -> Block:
        return NanochatBlock(config, layer)

    def begin(
        self, ids: Tensor, at: Positions, cache: KvCache | None, documents: Tensor | None, dtype: torch.dtype
    ) -> tuple[Tensor, Any]:
        x, _ = super().begin(ids, at, cache, documents, dtype)
        if channels := self.parts.smear_channels:
            gate = self.smear_scale.to(dtype) * torch.sigmoid(self.smear_gate(x[..., :channels]))
            x = x + gate * self._previous(x, at, cache, documents)
        near, far, positions = at, at, self.config.max_position_embeddings
        if "S" in self.parts.windows:
            near = replace(at, mask=window_mask(x, at.mask, documents, self.parts.window, self.config))
        if cache is None and ids.shape[1] > positions + 1:  # a scored row; no cache holds more tokens than positions
            far = replace(at, mask=window_mask(x, at.mask, documents, positions, self.config))
        return x, Pass(ids, x, near, far)

    def enter(self, layer: int, x: Tensor, at: Positions, state: Pass) -> tuple[Tensor, Positions]:
        if layer == self.config.num_hidden_layers // 2 + 1:
            state.middle = x
        if self.parts.scales:
            x = self.residual_scales[layer] * x + self.embed_scales[layer] * state.embedding
        here = state.near if is_windowed(self.config, layer) else state.far
        if not has_values(self.config, layer):
            return x, here
        size = (*state.ids.shape, self.config.num_key_value_heads, self.config.head_dim)
        values = self.value_embeds[str(layer)](state.ids).to(x.dtype).view(size)
        return x, NanochatPositions(here.cos, here.sin, here.mask, here.is_causal, values)

    def finish(self, x: Tensor, state: Pass) -> Tensor:
        if self.parts.backout:
            x = x - self.backout_scale.to(x.dtype) * (x if state.middle is None else state.middle)
        return super().finish(x, state)

    def _previous(self, x: Tensor, at: Positions, cache: KvCache | None, documents: Tensor | None) -> Tensor:
        """Return the embedding (B, T, d) of the token before each token; 0 for the first token of a document."""
        if documents is not None:
            return shifted(x) * (positions_in(documents) > 0).unsqueeze(-1)
        if at.mask is None:
            return shifted(x)
        index = previous_index(at.mask)[..., None]  # (B, T, 1)
        if cache is None:
            before = x.gather(1, index.clamp(min=0).expand_as(x))
        else:
            before = self._cached(x, cache, index.clamp(min=0))
        return before * (index >= 0)

    def _cached(self, x: Tensor, cache: KvCache, index: Tensor) -> Tensor:
        """Store x (B, T, d) in the cache; return the embeddings (B, T, d) at index (B, T, 1) of all cached tokens.

        Keys and values of additional layers hold the embeddings, so that every cache copies and reorders them.
        """
        rows, length, width = x.shape
        heads, size = self.config.num_key_value_heads, self.config.head_dim
        count = cached_layers(self.config)
        parts = F.pad(x, (0, 2 * count * heads * size - width)).view(rows, length, 2 * count, heads, size)
        parts = parts.permute(2, 0, 3, 1, 4)  # (2 * count, B, KV, T, D)
        place = index.unsqueeze(1).expand(-1, heads, -1, size)  # (B, KV, T, D)
        found = list[Tensor]()
        for number in range(count):
            keys, values = cache.update(
                self.config.num_hidden_layers + number, parts[2 * number], parts[2 * number + 1]
            )
            found += [keys.gather(2, place), values.gather(2, place)]
        return torch.stack(found).permute(1, 3, 0, 2, 4).reshape(rows, length, -1)[..., :width]


def cached_layers(config: ModelConfig) -> int:
    """Return the number of layers of a KV cache whose keys and values hold an embedding; 0 without smear."""
    each = 2 * config.num_key_value_heads * config.head_dim
    return -(-config.hidden_size // each) if parts_of(config).smear_channels else 0


def shifted(x: Tensor) -> Tensor:
    """Return x (B, T, d) one token later, with zeros for the first token."""
    return F.pad(x[:, :-1], (0, 0, 1, 0))


def previous_index(mask: Tensor) -> Tensor:
    """Return the index (B, T) of the last token that each token attends to beside itself, or -1 without such a token.

    mask: bool (B, 1, T, S), True for allowed pairs; the last allowed token is the token itself.
    """
    index = torch.arange(mask.shape[-1], device=mask.device)
    seen = torch.where(mask[:, 0], index, -1)  # (B, T, S)
    own = seen.amax(dim=-1, keepdim=True)
    return torch.where(seen == own, -1, seen).amax(dim=-1)


def window_mask(x: Tensor, mask: Any, documents: Tensor | None, window: int, config: ModelConfig) -> Any:
    """Return a mask for `attend`, in which a token attends to itself and the `window` tokens before, if `mask` allows.

    x: (B, T, d); mask: a mask for `attend` that allows no later tokens; documents: see `Decoder.hidden`.
    """
    rows, length = x.shape[:2]
    if isinstance(mask, DocumentBounds):
        return replace(mask, window=window)
    if isinstance(mask, Tensor) and documents is None:
        # Allowed tokens from a key up to the query: the distance also in padded rows and in trees of answers.
        return mask & (mask.flip(-1).cumsum(-1, dtype=torch.int32).flip(-1) <= window + 1)
    if length <= window + 1:
        return mask
    if mask is None and has_varlen(x.device, x.dtype, config.head_dim):
        bounds = torch.arange(0, rows * length + 1, length, dtype=torch.int32, device=x.device)
        return DocumentBounds(bounds, length, window)
    index = torch.arange(length, device=x.device)
    near = index[:, None] - index <= window  # (T, T)
    if mask is None:
        return near.tril().expand(rows, 1, -1, -1)
    if isinstance(mask, Tensor):
        return mask & near
    whole = mask.mask_mod

    def sees(row: Tensor, head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return whole(row, head, query, key) & (query - key <= window)

    return block_masks(x.is_cuda)(sees, rows, None, length, length, device=x.device)
