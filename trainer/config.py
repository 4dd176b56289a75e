"""What the trainer trains, as frozen records. Light to import: no torch here."""

import hashlib
import json
import re
from dataclasses import asdict, dataclass

from data.config import ConfigError


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A Llama- or Qwen3-shaped decoder, in Hugging Face terms."""

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

    def __post_init__(self) -> None:
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"{self.num_attention_heads} heads cannot share {self.num_key_value_heads} key/value heads"
            )
        if self.head_dim % 2:
            raise ConfigError(f"head_dim is {self.head_dim}; RoPE needs an even one")

    @property
    def num_params(self) -> int:
        d, f, hd = self.hidden_size, self.intermediate_size, self.head_dim
        attention = 2 * d * hd * (self.num_attention_heads + self.num_key_value_heads)
        block = attention + 3 * d * f + 2 * d + (2 * hd if self.qk_norm else 0)
        embeddings = self.vocab_size * d * (1 if self.tie_word_embeddings else 2)
        return self.num_hidden_layers * block + d + embeddings


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW, and optionally Muon for the matrices inside the blocks."""

    lr: float
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    grad_clip: float = 1.0
    muon_lr: float = 0.0
    """0 = AdamW for everything."""


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Linear warm-up, constant, then decay to `final` of the peak over the last `decay` of the steps."""

    warmup_steps: int = 0
    decay: float = 0.5
    """Share of all steps spent decaying."""
    final: float = 0.0
    kind: str = "linear"
    """`linear` or `cosine`."""

    def __post_init__(self) -> None:
        if self.kind not in ("linear", "cosine"):
            raise ConfigError(f"schedule kind is {self.kind!r}; known: linear, cosine")
        if not 0 <= self.decay <= 1:
            raise ConfigError(f"decay is {self.decay}; it must lie in [0, 1]")


@dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """One phase of training. Everything here changes the result, so all of it is in the fingerprint."""

    phase: str
    """`base`, `mid` or `sft`."""
    model: ModelConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    steps: int
    rows: int
    """Sequences per optimizer step, over all ranks and micro-batches."""
    micro_rows: int
    """Sequences per forward pass; divides `rows`."""
    sequence_len: int
    """Tokens of context per row."""
    seed: int = 1337
    packing: str = "windows"
    """base: how tokens are cut into rows. `windows`: wherever documents end; `best-fit`: every row begins with a
    document and holds whole ones as far as they fit."""
    dtype: str = "auto"
    """What activations are computed in: `float32`, `bfloat16`, or `auto`: bfloat16 where the machine has units for it.
    Parameters, their gradients and the loss are float32 always."""
    mixture: dict[str, float] | None = None
    """Chat phases: how often each kind of conversation is drawn (`identity`, `pydocs`, `other`)."""

    def __post_init__(self) -> None:
        if self.rows % self.micro_rows:
            raise ConfigError(f"micro_rows {self.micro_rows} does not divide rows {self.rows}")
        if self.dtype not in ("auto", "float32", "bfloat16"):
            raise ConfigError(f"dtype is {self.dtype!r}; known: auto, float32, bfloat16")
        if self.packing not in ("windows", "best-fit"):
            raise ConfigError(f"packing is {self.packing!r}; known: windows, best-fit")
        if self.sequence_len > self.model.max_position_embeddings:
            longest = self.model.max_position_embeddings
            raise ConfigError(f"sequence_len is {self.sequence_len}; the model holds {longest} positions")
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError(f"seed is {self.seed}; it must lie between 0 and 2**63 - 1")
        if self.steps < 1:
            raise ConfigError(f"steps is {self.steps}; it must be at least 1")

    def digest(self) -> str:
        """sha256 over all of it; a checkpoint carries it."""
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """How a run is kept safe. None of it changes the result."""

    save_every: int = 50
    """Steps between checkpoints."""
    keep: int = 5
    """Newest checkpoints kept while training."""
    reserve_bytes: int = 1 << 30
    """Free space that a save must leave on the disk."""
    prefix: str = ""
    """In front of the name of the folder that holds a run's checkpoints."""

    def __post_init__(self) -> None:
        if self.save_every < 1 or self.keep < 1:
            raise ConfigError(f"save_every is {self.save_every}, keep {self.keep}; each must be at least 1")
        if self.prefix and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", self.prefix):
            raise ConfigError(f"prefix is {self.prefix!r}; letters, digits, '.', '_' and '-', at most 64")


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A whole recipe: one tokenizer, one model, its phases."""

    name: str
    vocab_size: int
    phases: dict[str, PhaseConfig]
    keeping: Keeping = Keeping()


@dataclass(frozen=True, kw_only=True)
class EvalSpec:
    """A model and what it is measured on; "" leaves that measure out. All but `name` are folders."""

    model: str
    """A published phase or a Hugging Face folder."""
    text: str = ""
    """Bits per byte on its `val/` shards, beside gzip and xz."""
    identity: str = ""
    """Holds identity_conversations.heldout.jsonl."""
    questions: str = ""
    """Holds pydocs.heldout.jsonl and other.heldout.jsonl."""
    name: str = ""
    """Of the persona; needed for `identity` and for leaks of it in `questions`."""
