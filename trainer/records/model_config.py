"""Shape of a model, as frozen records. Light to import: no torch here.

Each field in FEATURES names a feature that a pack implements. Without the pack, reading the shape of such a model
raises an error with the name of the pack.
"""

import functools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from data.config import ConfigError
from store import packs
from store.artifacts.model_files import TensorHeader
from trainer.records.fields import check_bounds, newer

KIND = "model_features"
FEATURES = ("ternary", "blocks", "nanochat")  # fields of `ModelConfig`
MLPS = {"swiglu": 3, "gated_relu2": 3, "relu2": 2}  # number of matrices


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Scaling of RoPE for positions beyond the original training length, in the terms of `transformers`."""

    kind: str
    """`linear`, `llama3` or `yarn`."""
    factor: float
    original_max_position_embeddings: int = 0
    """llama3 and yarn: maximum positions before scaling."""
    low_freq_factor: float = 1.0
    """llama3 only."""
    high_freq_factor: float = 4.0
    """llama3 only."""
    beta_fast: float = 32.0
    """yarn only."""
    beta_slow: float = 1.0
    """yarn only."""
    attention_factor: float | None = None
    """yarn only: factor for cos and sin; None = 0.1 ln(factor) + 1."""
    truncate: bool = True
    """yarn only: True rounds the range of blended dimensions to whole dimensions."""

    def __post_init__(self) -> None:
        if self.kind not in ("linear", "llama3", "yarn"):
            raise ConfigError(f"RoPE scaling is {self.kind!r}; known: linear, llama3, yarn")
        check_bounds(self, "factor", 0, above=True)
        if self.kind != "linear" and self.original_max_position_embeddings < 1:
            raise ConfigError(f"RoPE scaling {self.kind} needs original_max_position_embeddings")


@dataclass(frozen=True, kw_only=True)
class Ternary:
    """Rounding of the matrices inside the blocks to -1, 0 and 1 times a scale."""

    per_row: bool = False
    """True for a scale per output instead of a scale per matrix."""
    haar: bool = False
    """True to round sums and differences of neighboring weights, with separate scales for sums and differences. Only
    the project's own engine computes with such a matrix in 1.58 bits."""


@dataclass(frozen=True, kw_only=True)
class BlocksConfig:
    """Block diffusion: the tokens of a block are predicted together, block after block.

    Source: Wu et al., Fast-dLLM v2, arXiv 2509.26328; Arriola et al., Block Diffusion, arXiv 2503.09573.
    """

    block_size: int = 16
    """Tokens per block; attention is bidirectional within a block and causal across blocks."""
    sub_block_size: int = 8
    """Decoding: tokens per sub-block; a block is filled from left to right in sub-blocks. Divides `block_size`."""
    threshold: float = 0.9
    """Decoding: tokens above this probability are accepted together; 1 = a single token per forward pass."""
    mask_id: int = -1
    """Id of the mask token; -1 = the first id after the tokenizer's ids."""

    def __post_init__(self) -> None:
        if self.block_size < 2:
            raise ConfigError(f"block_size is {self.block_size}; it must be at least 2 tokens")
        if self.sub_block_size < 1 or self.block_size % self.sub_block_size:
            raise ConfigError(f"sub_block_size is {self.sub_block_size}; it must divide block_size {self.block_size}")
        if not 0 < self.threshold <= 1:
            raise ConfigError(f"threshold is {self.threshold}; it must be above 0 and at most 1")
        if self.mask_id < -1:
            raise ConfigError(f"mask_id is {self.mask_id}; it must be a token id, or -1")


@dataclass(frozen=True, kw_only=True)
class NanochatParts:
    """Parts of nanochat's decoder (2026) beside the blocks. The defaults are a decoder without these parts."""

    windows: str = "L"
    """Attention of the layers, repeated over the depth: `S` reads `window` earlier tokens, `L` as many as the model has
    positions. The last layer is always `L`."""
    window: int = 0
    """Number of earlier tokens that a layer `S` reads."""
    value_channels: int = 0
    """Embeddings added to the values of every second layer: number of input channels of the gate; 0 = none."""
    smear_channels: int = 0
    """Share of the previous token's embedding in each token: number of input channels of the gate; 0 = none."""
    scales: bool = False
    """A learned scale of the hidden states, and a learned share of the embedding, before each layer."""
    backout: bool = False
    """A learned share of the hidden states after the middle layer, subtracted after the last layer."""


class ModelFeature:
    """Properties of models with a feature in FEATURES, for code without torch. A pack subclasses this class."""

    about = ""
    """Phrase after the name of a model, for messages."""
    fields: tuple[str, ...] = ()
    """Fields of the shape that only phases with this feature accept in `--set model.FIELD`."""
    engine = ""
    """Preferred engine of services and chats for such a model; "" = the same as for other models."""
    gguf_type = ""
    """Preferred type of matrices in GGUF files for such a model; "" = the same as for other models."""
    gguf_matrix = ""
    """Function `(matrix, config) -> matrix` as "module:attribute": returns the matrix for a GGUF file, in numpy."""
    hooks = ""
    """Subclass of `trainer.model.hooks.ModelHooks`, as "module:attribute": the code with torch."""
    float8_problem = ""
    """Phrase for messages: why such a model is not multiplied in float8; "" = float8 is supported."""
    is_left_to_right = True
    """True if the model continues a text token by token."""
    has_masters = False
    """True if the last bits of the float32 parameters affect the model; such parameters are sent and saved in full."""

    def check(self, config: "ModelConfig") -> None:
        """Raise ConfigError for a shape that the feature does not support."""

    def copy_feature(self, config: "ModelConfig", other: "ModelConfig") -> "ModelConfig":
        """Return the shape with this feature set as in `other`."""
        return config

    def unsupported_parts(self, config: "ModelConfig") -> tuple[str, ...]:
        """Return the parts of a shape that no class of transformers supports, in words."""
        return ()

    def config_json_entries(self, config: "ModelConfig", is_ours: bool) -> Mapping[str, Any]:
        """Return the entries for config.json; is_ours: no class of transformers supports the shape."""
        return {}

    def gguf_problem(self, config: "ModelConfig", kind: str) -> str:
        """Return why llama.cpp cannot compute such a model with matrices of type `kind`; "" = supported."""
        return ""

    def added_shapes(self, config: "ModelConfig") -> Iterator[tuple[str, tuple[int, ...]]]:
        """Yield name and shape of each parameter that the feature adds to the decoder."""
        return iter(())

    def plan_notes(self, phases: Sequence[Any], init: Any) -> tuple[str, ...]:
        """Return lines for a plan. phases: configurations of the due phases; init: the `ImportSpec`, or None."""
        return ()

    def attended(self, config: "ModelConfig", layer: int, length: int) -> int:
        """Return the number of tokens that a token of a row of this length reads in a layer."""
        return length

    def saved_values_per_token(self, config: "ModelConfig") -> int:
        """Return the number of additional values per token that a block keeps for the backward pass."""
        return 0

    def decoder_name(self, name: str) -> str:
        """Return the name in the project's decoder for a stored tensor."""
        return name

    def to_decoder_layout(self, header: Mapping[str, TensorHeader]) -> Mapping[str, TensorHeader]:
        """Return the tensors of a file in the layout of the project's decoder."""
        return header

    def has_coded_weights(self, raw: Mapping[str, Any]) -> bool:
        """Return True if the parameters are decoded from stored symbols, so the files' dtypes say nothing."""
        return False


@functools.cache
def feature(name: str) -> ModelFeature:
    """Return a feature of an installed pack. Raises ConfigError with the name of a missing pack."""
    where = packs.entries(KIND).get(name)
    if where is None:
        raise ConfigError(packs.missing_pack_message(KIND, name) or f"no pack has the model feature {name!r}")
    found: ModelFeature = packs.load(where)()
    return found


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """Decoder with the architecture of Llama, Qwen2, Qwen3 and similar models, in Hugging Face terms."""

    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int = 2048
    rope_theta: float = 10_000.0
    rms_norm_eps: float = 1e-5
    qk_norm: bool = False
    """Qwen3: RMSNorm over head_dim on q and k before RoPE."""
    tie_word_embeddings: bool = True
    rope_scaling: RopeScaling | None = None
    logit_softcap: float = 0.0
    """Logits become c * tanh(logits / c), in training and in the project's own sampling; 0 = unchanged. Llama and Qwen3
    in other engines ignore the cap: the likeliest token stays the same, the probabilities change."""
    sub_norm: bool = newer(False)
    """RMSNorms before `o_proj` and `down_proj`, as in BitNet (SubLN)."""
    ternary: Ternary | None = newer(None)
    """Matrices of 1.58 bits inside the blocks, activations of 8 bits; None = both in full precision."""
    blocks: BlocksConfig | None = newer(None)
    """Settings of a model trained for block-wise decoding; None = left to right."""
    nanochat: NanochatParts | None = newer(None)
    """Windows, value embeddings and further parts of nanochat (2026); None = a decoder without these parts."""
    attention_bias: bool = newer(False)
    """Qwen2: `q_proj`, `k_proj` and `v_proj` add a bias."""
    mlp: str = newer("swiglu")
    """`swiglu`: down(silu(gate(x)) * up(x)); `gated_relu2` (BitNet b1.58 2B4T): down(relu(gate(x))**2 * up(x)); `relu2`
    (nanochat): down(relu(up(x))**2)."""
    embed_norm: bool = newer(False)
    """nanochat: an RMSNorm between the embedding and the first block."""

    def __post_init__(self) -> None:
        check_bounds(self, "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads", 1)
        check_bounds(self, "num_key_value_heads head_dim max_position_embeddings", 1)
        check_bounds(self, "rms_norm_eps logit_softcap", 0)
        check_bounds(self, "rope_theta", 0, above=True)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"{self.num_attention_heads} heads cannot share {self.num_key_value_heads} key/value heads"
            )
        if self.mlp not in MLPS:
            raise ConfigError(f"mlp is {self.mlp!r}; known: {', '.join(MLPS)}")
        if self.head_dim % 2:
            raise ConfigError(f"head_dim is {self.head_dim}; RoPE needs an even number")
        for one in self.features:
            one.check(self)

    @property
    def features(self) -> tuple[ModelFeature, ...]:
        """Return the features of the model. Raises ConfigError with the name of a missing pack."""
        return tuple(feature(name) for name in FEATURES if getattr(self, name) is not None)

    @property
    def has_masters(self) -> bool:
        """Return True if the last bits of the float32 parameters affect the model."""
        return any(one.has_masters for one in self.features)

    @property
    def has_gate(self) -> bool:
        """Return True if the MLPs have a gate matrix."""
        return MLPS[self.mlp] == 3

    def with_features_of(self, other: "ModelConfig") -> "ModelConfig":
        """Return the same shape with the features of `other`."""
        return functools.reduce(lambda found, one: one.copy_feature(found, other), other.features, self)

    @property
    def gguf_type(self) -> str:
        """Return the default type of the matrices in the model's GGUF file."""
        return next((one.gguf_type for one in self.features if one.gguf_type), "f16")

    def gguf_problem(self, kind: str = "tq2_0") -> str:
        """Return why llama.cpp cannot compute a model of this shape; "" = supported.

        kind: the GGUF type of the matrices. Source: llama.cpp's graphs of `llama`, `qwen3` and `bitnet`.
        """
        square = self.num_attention_heads * self.head_dim
        if said := next(filter(None, (one.gguf_problem(self, kind) for one in self.features)), ""):
            return said
        if kind == "tq2_0" and self.gguf_type != kind:
            return "the matrices are not ternary; use f16, bf16 or q8_0"
        if self.sub_norm and (self.qk_norm or square != self.hidden_size or not self.tie_word_embeddings):
            near = (
                ""
                if replace(self, sub_norm=False).gguf_problem(kind)
                else "; a model without SubLN (model.sub_norm=false) is supported"
            )
            return (
                "with SubLN, llama.cpp supports only models with tied embeddings, without norms on queries and keys, "
                f"and with heads that add up to the model's width{near}"
            )
        if self.rope_scaling or self.logit_softcap:
            return "GGUF files with RoPE scaling or capped logits are not supported"
        if self.attention_bias or self.mlp != "swiglu" or self.embed_norm:
            return "GGUF files with biases, MLPs of relu(x)**2 or a norm after the embedding are not supported"
        least = {"tq2_0": 256, "q8_0": 32}.get(kind, 1)
        sides = {"hidden_size": self.hidden_size, "intermediate_size": self.intermediate_size, "all heads": square}
        if odd := {name: -(-size // least) * least for name, size in sides.items() if size % least}:
            near = ", ".join(f"{name} {sides[name]} (nearest: {size})" for name, size in odd.items())
            return f"rows must be multiples of {least} numbers: {near}"
        return ""

    @property
    def unsupported_parts(self) -> str:
        """Return a comma-separated description of the parts of the shape missing in transformers; "" = none."""
        parts = {
            "an MLP of relu(x)**2": self.mlp != "swiglu",
            "a norm behind the embedding": self.embed_norm,
            "biases beside norms on queries and keys": self.attention_bias and self.qk_norm,
            **{said: True for one in self.features for said in one.unsupported_parts(self)},
            "SubLN": self.sub_norm,
        }
        return ", ".join(name for name, has in parts.items() if has)

    @property
    def longest_row(self) -> int:
        """Return the maximum length in tokens of a row that is only scored: nanochat allows ten times the positions."""
        return (10 if self.embed_norm else 1) * self.max_position_embeddings

    @property
    def num_params(self) -> int:
        d, f, hd = self.hidden_size, self.intermediate_size, self.head_dim
        attention = 2 * d * hd * (self.num_attention_heads + self.num_key_value_heads)
        block = attention + MLPS[self.mlp] * d * f + 2 * d + (2 * hd if self.qk_norm else 0)
        block += hd * self.num_attention_heads + f if self.sub_norm else 0
        block += hd * (self.num_attention_heads + 2 * self.num_key_value_heads) if self.attention_bias else 0
        embeddings = self.vocab_size * d * (1 if self.tie_word_embeddings else 2) + (d if self.embed_norm else 0)
        added = sum(math.prod(shape) for one in self.features for _, shape in one.added_shapes(self))
        return self.num_hidden_layers * block + d + embeddings + added

    @property
    def num_matrix_params(self) -> int:
        """Return the number of parameters multiplied with every token: the matrices of the blocks, and the head."""
        d, f, hd = self.hidden_size, self.intermediate_size, self.head_dim
        attention = 2 * d * hd * (self.num_attention_heads + self.num_key_value_heads)
        return self.num_hidden_layers * (attention + MLPS[self.mlp] * d * f) + self.vocab_size * d

    def flops_per_token(self, sequence_len: int) -> float:
        """Return the FLOPs of forward and backward per token.

        The FLOPs are 6 per matrix parameter, plus attention with no discount for the causal half.
        """
        features, read = self.features, self.num_hidden_layers * sequence_len
        if features:
            layers = range(self.num_hidden_layers)
            read = sum(min(one.attended(self, layer, sequence_len) for one in features) for layer in layers)
        return 6.0 * self.num_matrix_params + 12 * self.num_attention_heads * self.head_dim * read
