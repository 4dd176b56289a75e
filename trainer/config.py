"""What the trainer trains, as frozen records. Light to import: no torch here."""

import hashlib
import json
import math
import re
from dataclasses import dataclass, field, replace

from data.config import ConfigError
from trainer.records.bits import BitsConfig
from trainer.records.blocks_config import BlocksConfig
from trainer.records.fields import in_bounds, newer, rounding, what_counts
from trainer.records.phase_registry import PHASES, PROMPTS, TALK, TEXT, listed, phases_reading
from trainer.records.rl_config import RlConfig

PARALLEL = ("auto", "ddp", "fsdp", "hybrid")
MLPS = {"swiglu": 3, "relu2": 2}  # how many matrices each has
DTYPES = ("auto", "float32", "bfloat16", "float8")


@dataclass(frozen=True, kw_only=True)
class RopeScaling:
    """Positions beyond those that a model was first trained on, as `transformers` spells them."""

    kind: str
    """`linear`, `llama3` or `yarn`."""
    factor: float
    original_max_position_embeddings: int = 0
    """llama3 and yarn: positions before the stretching."""
    low_freq_factor: float = 1.0
    """llama3 only."""
    high_freq_factor: float = 4.0
    """llama3 only."""
    beta_fast: float = 32.0
    """yarn only."""
    beta_slow: float = 1.0
    """yarn only."""
    attention_factor: float | None = None
    """yarn only: what cos and sin are multiplied by; None = 0.1 ln(factor) + 1."""
    truncate: bool = True
    """yarn only: the range of dimensions that is blended ends at whole ones."""

    def __post_init__(self) -> None:
        if self.kind not in ("linear", "llama3", "yarn"):
            raise ConfigError(f"RoPE scaling is {self.kind!r}; known: linear, llama3, yarn")
        in_bounds(self, "factor", 0, above=True)
        if self.kind != "linear" and self.original_max_position_embeddings < 1:
            raise ConfigError(f"RoPE scaling {self.kind} needs original_max_position_embeddings")


@dataclass(frozen=True, kw_only=True)
class Ternary:
    """How the matrices inside the blocks are rounded to -1, 0 and 1 times a scale."""

    per_row: bool = False
    """One scale for each output instead of one for the matrix."""
    haar: bool = False
    """Sums and differences of neighbouring weights are rounded, each kind with a scale of its own. No engine but ours
    computes with such a matrix in 1.58 bits."""


@dataclass(frozen=True, kw_only=True)
class ModelConfig:
    """A decoder of the shapes of Llama, Qwen2, Qwen3 and their like, in Hugging Face terms."""

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
    """Logits become c * tanh(logits / c), here and in our own sampling; 0 = as they are. Llama and Qwen3 elsewhere know
    nothing of it: the likeliest word stays the same, the probabilities do not."""
    sub_norm: bool = newer(False)
    """RMSNorms in front of `o_proj` and `down_proj`, as BitNet has them (SubLN)."""
    ternary: Ternary | None = newer(None)
    """Matrices of 1.58 bits inside the blocks, activations of 8; None = both in full precision."""
    blocks: BlocksConfig | None = newer(None)
    """It decodes in blocks, and has learnt to see whole ones; None = from left to right."""
    attention_bias: bool = newer(False)
    """Qwen2: `q_proj`, `k_proj` and `v_proj` add a bias."""
    mlp: str = newer("swiglu")
    """`swiglu`: down(silu(gate(x)) * up(x)); `relu2`: down(relu(up(x))**2), as nanochat has it."""
    embed_norm: bool = newer(False)
    """nanochat: an RMSNorm between the embedding and the first block."""

    def __post_init__(self) -> None:
        in_bounds(self, "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads", 1)
        in_bounds(self, "num_key_value_heads head_dim max_position_embeddings", 1)
        in_bounds(self, "rms_norm_eps logit_softcap", 0)
        in_bounds(self, "rope_theta", 0, above=True)
        if self.num_attention_heads % self.num_key_value_heads:
            raise ConfigError(
                f"{self.num_attention_heads} heads cannot share {self.num_key_value_heads} key/value heads"
            )
        if self.mlp not in MLPS:
            raise ConfigError(f"mlp is {self.mlp!r}; known: {', '.join(MLPS)}")
        if self.ternary and (self.attention_bias or self.mlp != "swiglu" or self.embed_norm):
            raise ConfigError("a ternary model has no biases, no norm behind its embedding, and SwiGLU in its MLPs")
        if self.head_dim % 2:
            raise ConfigError(f"head_dim is {self.head_dim}; RoPE needs an even one")
        if self.ternary and self.ternary.haar and (self.hidden_size % 2 or self.intermediate_size % 2):
            sides = f"hidden_size {self.hidden_size} and intermediate_size {self.intermediate_size}"
            raise ConfigError(f"Haar bands join pairs of neighbours; {sides} must both be even")

    def rounded_like(self, other: "ModelConfig") -> "ModelConfig":
        """Return the same shape in 1.58 bits, as `other` is."""
        return replace(self, ternary=other.ternary, sub_norm=self.sub_norm or other.sub_norm)

    def gguf_problem(self, kind: str = "tq2_0") -> str:
        """Return why llama.cpp cannot compute with a model of this shape whose matrices are of such a GGUF type; ""
        when it can. Source: llama.cpp's graphs of `llama`, `qwen3` and `bitnet`."""
        square = self.num_attention_heads * self.head_dim
        if kind == "tq2_0" and self.ternary is None:
            return "its matrices are not ternary; take f16, bf16 or q8_0"
        if self.ternary and self.ternary.haar and kind == "tq2_0":
            return "Haar bands are ternary in another basis, which it does not know"
        if self.sub_norm and (self.qk_norm or square != self.hidden_size or not self.tie_word_embeddings):
            return (
                "with SubLN it knows tied models without norms on queries and keys, heads together as wide as the model"
            )
        if self.rope_scaling or self.logit_softcap:
            return "stretched positions and capped logits are not written"
        if self.attention_bias or self.mlp != "swiglu" or self.embed_norm:
            return "biases, MLPs without a gate and norms behind the embedding are not written"
        least = {"tq2_0": 256, "q8_0": 32}.get(kind, 1)
        sides = {"hidden_size": self.hidden_size, "intermediate_size": self.intermediate_size, "all heads": square}
        if odd := {name: -(-size // least) * least for name, size in sides.items() if size % least}:
            near = ", ".join(f"{name} {sides[name]} (nearest: {size})" for name, size in odd.items())
            return f"rows must be multiples of {least} numbers: {near}"
        return ""

    @property
    def num_params(self) -> int:
        d, f, hd = self.hidden_size, self.intermediate_size, self.head_dim
        attention = 2 * d * hd * (self.num_attention_heads + self.num_key_value_heads)
        block = attention + MLPS[self.mlp] * d * f + 2 * d + (2 * hd if self.qk_norm else 0)
        block += hd * self.num_attention_heads + f if self.sub_norm else 0
        block += hd * (self.num_attention_heads + 2 * self.num_key_value_heads) if self.attention_bias else 0
        embeddings = self.vocab_size * d * (1 if self.tie_word_embeddings else 2) + (d if self.embed_norm else 0)
        return self.num_hidden_layers * block + d + embeddings

    @property
    def num_matrix_params(self) -> int:
        """Those that every token is multiplied by: matrices of the blocks, and the head."""
        d, f, hd = self.hidden_size, self.intermediate_size, self.head_dim
        attention = 2 * d * hd * (self.num_attention_heads + self.num_key_value_heads)
        return self.num_hidden_layers * (attention + MLPS[self.mlp] * d * f) + self.vocab_size * d

    def flops_per_token(self, sequence_len: int) -> float:
        """Of forward and backward: 6 per matrix parameter, and attention, the causal half not discounted."""
        attention = 12 * self.num_hidden_layers * self.num_attention_heads * self.head_dim * sequence_len
        return 6.0 * self.num_matrix_params + attention


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW, and optionally Muon for the matrices inside the blocks."""

    lr: float
    """Of AdamW."""
    embed_lr: float | None = None
    """Of the embedding, None = `lr`."""
    head_lr: float | None = None
    """Of an untied head, None = `lr`."""
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    grad_clip: float = 1.0
    """Longest that the gradient may be; 0 = as long as it is."""
    muon_lr: float = 0.0
    """0 = AdamW for everything."""
    muon_decay: float | None = None
    """Weight decay of what Muon changes, None = `weight_decay`."""
    z_loss: float = 0.0
    """Adds z_loss * ln(sum of exp(logits))**2 per token to what is minimised; the loss that is told is without it."""

    def __post_init__(self) -> None:
        in_bounds(self, "lr embed_lr head_lr muon_lr weight_decay muon_decay grad_clip z_loss", 0)
        in_bounds(self, "eps", 0, above=True)
        if not all(0 <= one < 1 for one in self.betas):
            raise ConfigError(f"betas are {self.betas}; each must lie in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Linear warm-up, constant, then decay to `final` of the peak over the last `decay` of the steps.

    With `decay=1.0` and `kind="cosine"` it is the usual cosine: down from the end of the warm-up.
    """

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
        in_bounds(self, "warmup_steps final", 0)


@dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """One phase of training. What changes the result is in the fingerprint: all but the fields made by `rounding`."""

    phase: str
    """Its name in the registry, such as `base` or `sft`."""
    model: ModelConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    steps: int
    rows: int
    """Sequences per optimizer step, over all ranks and micro-batches; in chat phases conversations, of which `turns` of
    ours share a sequence."""
    micro_rows: int = field(metadata={"rounding": True})
    """Sequences per forward pass; divides `rows`."""
    sequence_len: int
    """Tokens of context per row."""
    seed: int = 1337
    packing: str = "windows"
    """base: how tokens are cut into rows. `windows`: wherever documents end; `best-fit`: every row begins with a
    document and holds whole ones as far as they fit."""
    dtype: str = "auto"
    """What activations are computed in: `float32`, `bfloat16`, or `auto`: bfloat16 where the machine has units for it.
    `float8`: bfloat16, and the matrices inside the blocks multiplied in 8 bits, on GPUs of the Hopper kind and later.
    Parameters, their gradients and the loss are float32 always."""
    document_masks: bool = False
    """base: a token sees its own document only, and positions begin anew with each."""
    adopted: bool = False
    """The model began as somebody else's: its shape is that of the checkpoint that this phase goes on from."""
    recompute: bool = rounding(False)
    """Keep of each block only what goes in, and compute the rest again on the way back: less memory, a third slower."""
    deterministic: bool = rounding(False)
    """On a GPU: the same bits each time, by slower kernels; a step without such a kernel ends the run. A CPU gives the
    same bits in any case."""
    compile: str = rounding("auto")
    """`never`, `always`, or `auto`: where it saves more time than it takes."""
    parallel: str = rounding("auto")
    """Over several processes: `ddp`: each has the whole model; `fsdp`: each has a part of it; `hybrid`: those of a node
    have it together; `auto`: the first of ddp, hybrid and fsdp that fits into the GPUs' memory."""
    mixture: dict[str, float] | None = None
    """Chat phases: how often each kind of conversation is drawn: `identity`, `pydocs`, `other`, and any of yours, in a
    profile by a path or hf:// address, in a plan by the name of its artifact."""
    rl: RlConfig | None = newer(None)
    """The phase rl: how it learns. Its `mixture` are tasks."""
    turns: int = newer(1)
    """Chat phases: so many of our own questions and answers follow one another in a sequence, as far as they fit into
    `sequence_len`, and no more than `rows`. A conversation of yours has one to itself."""
    bits: BitsConfig | None = newer(None)
    """The stages of 1.58 bits: how a ternary model is rounded, and what it learns from its teacher."""
    blocks: BlocksConfig | None = newer(None)
    """dlm: the blocks in which the model learns to decode."""

    def __post_init__(self) -> None:
        in_bounds(self, "rows micro_rows sequence_len turns", 1)
        in_bounds(self, "steps", 1 if self.trains else 0)
        self._check_bits()
        if self.rows % self.micro_rows:
            raise ConfigError(f"micro_rows {self.micro_rows} does not divide rows {self.rows}")
        if self.packing not in ("windows", "best-fit"):
            raise ConfigError(f"packing is {self.packing!r}; known: windows, best-fit")
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype is {self.dtype!r}; known: {', '.join(DTYPES)}")
        if self.compile not in ("auto", "always", "never"):
            raise ConfigError(f"compile is {self.compile!r}; known: auto, always, never")
        if self.parallel not in PARALLEL:
            raise ConfigError(f"parallel is {self.parallel!r}; known: {', '.join(PARALLEL)}")
        if self.mixture and self.reads_text:
            raise ConfigError(f"a mixture is for {listed(phases_reading(TALK, PROMPTS))}; {self.phase} reads text")
        if self.document_masks and not self.reads_text:
            whose = listed(phases_reading(TEXT))
            raise ConfigError(f"document_masks are for {whose}; a row of {self.phase} is one conversation")
        if (self.rl is not None) != (self.phase == "rl"):
            raise ConfigError(f"phase {self.phase}: `rl` says how the phase rl learns, and no other")
        if self.rl is not None and self.rows % self.rl.group:
            raise ConfigError(f"rows is {self.rows}; groups of {self.rl.group} answers do not come out even")
        if self.rl is not None and self.rl.max_new >= self.sequence_len:
            raise ConfigError(f"sequence_len {self.sequence_len} holds a prompt and an answer of {self.rl.max_new}")
        if self.sequence_len > self.model.max_position_embeddings:
            longest = self.model.max_position_embeddings
            raise ConfigError(f"sequence_len is {self.sequence_len}; the model holds {longest} positions")
        if (self.blocks is not None) != (self.phase == "dlm"):
            raise ConfigError(f"phase {self.phase} {'has no' if self.blocks else 'needs'} blocks; they are for dlm")
        if self.blocks is not None and self.sequence_len % self.blocks.block_size:
            size = self.blocks.block_size
            whole = self.sequence_len // size * size
            near = f"take a sequence_len of {whole}" if whole else "take smaller blocks"
            raise ConfigError(f"block_size {size} does not divide sequence_len {self.sequence_len}; {near}")
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError(f"seed is {self.seed}; it must lie between 0 and 2**63 - 1")
        if odd := sorted(kind for kind, weight in (self.mixture or {}).items() if not 0 < weight < math.inf):
            raise ConfigError(f"mixture: {', '.join(odd)}: a weight must be above 0; leave out what is not wanted")

    def _check_bits(self) -> None:
        model, bits = self.model, self.bits
        if not self.trains and self.steps:
            raise ConfigError(f"steps is {self.steps}; {self.phase} changes a model without training it: steps is 0")
        if self.dtype == "float8" and model.ternary:
            raise ConfigError("dtype is float8; matrices of 1.58 bits are multiplied in bfloat16 or float32")
        if (bits or not self.trains) and not model.ternary:
            raise ConfigError(f"{self.phase} is for a model of 1.58 bits; its model says no `ternary`")
        if bits is None:
            return
        if bits.has_teacher and not self.num_frozen:
            parts = "divergence, layers and relations"
            raise ConfigError(f"{self.phase} has no teacher; {parts} of its bits are 0")
        heads = (model.num_attention_heads, model.num_key_value_heads, model.head_dim, model.num_hidden_layers)
        if problem := bits.problem(*heads):
            raise ConfigError(f"{self.phase}: {problem}")

    def digest(self) -> str:
        """sha256 over what counts; a checkpoint carries it."""
        return hashlib.sha256(json.dumps(what_counts(self), sort_keys=True).encode()).hexdigest()

    def in_steps(self, steps: int) -> "PhaseConfig":
        """The same in another number of steps; the warm-ups are rescaled with them, the decay is a share anyway."""
        if not self.trains:
            return self
        warmup = self.schedule.warmup_steps
        scaled = max(1, round(warmup * steps / self.steps)) if warmup else 0
        bits = self.bits.in_steps(steps / self.steps) if self.bits else None
        return replace(self, steps=steps, schedule=replace(self.schedule, warmup_steps=scaled), bits=bits)

    @property
    def trains(self) -> bool:
        """Whether it is training; else the model is changed and saved."""
        return self.phase not in PHASES or PHASES[self.phase].trains

    @property
    def reads_text(self) -> bool:
        """Whether its rows are cut from text; else they are conversations, each as long as it is."""
        return self.phase in phases_reading(TEXT)

    @property
    def views(self) -> int:
        """How often each token of a row goes through the model: in blocks clean, and masked in two ways."""
        return 1 if self.blocks is None else 3

    @property
    def flops(self) -> float:
        """Of the whole phase, the sequences of a chat phase taken as full."""
        return (
            self.steps * math.ceil(self.rows / self.turns) * self.sequence_len * self.flops_per_token(self.sequence_len)
        )

    @property
    def num_frozen(self) -> int:
        """Models beside it that do not learn, taken as large as it is."""
        has_reference = self.rl is not None and self.rl.beta > 0
        return int(self.phase in PHASES and bool(PHASES[self.phase].teacher) or has_reference)

    def flops_per_token(self, sequence_len: int) -> float:
        """Of the model as often as a token goes through it, and of the way there, a third, of frozen ones beside it."""
        return self.model.flops_per_token(sequence_len) * (self.views + self.num_frozen / 3)


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
    samples: int = 6
    """How often in a phase the model is asked a few questions, for the report; 0 = never."""

    def __post_init__(self) -> None:
        in_bounds(self, "samples reserve_bytes", 0)
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
class ImportSpec:
    """Somebody else's model -> an artifact that mid and sft can begin from."""

    source: str
    """A Hugging Face folder or one of nanochat on this machine, or `hf://user/repo` with the commit in `revision`."""
    model: ModelConfig
    """As its config.json has it; rows for the chat tokens may come on top."""
    has_tokenizer: bool
    """Whether a tokenizer comes with it; else a new one is trained."""
    revision: str = ""
    content: str = ""
    """Of a folder: what was in it when this was planned."""
    own_chat: bool = newer(False)
    """Whether it has a chat template: it keeps that, its stop tokens and its ids; else it gets our chat tokens."""
    nanochat: str = newer("")
    """The file of weights in a checkpoint folder of nanochat, such as `model_000650.pt`; "" = a Hugging Face folder."""


@dataclass(frozen=True, kw_only=True)
class EvalSpec:
    """A model and what it is measured on; "" leaves that measure out. `text` to `questions` are folders."""

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
    tasks: tuple[str, ...] = ()
    """Files of questions, .jsonl: multiple choice or exact answers."""
    problems: dict[str, str] = field(default_factory=dict)
    """Tasks of reinforcement learning, and the folders of their problems."""
    unsafe_rewards: bool = False
    """Run the code of mbpp's answers although no jail can be had here."""
    as_text: bool = False
    """Put the questions of tasks as text to go on with, as a base model needs it; else as talk."""
    shots: int = 0
    """Questions of the same file that are shown with their answers before each."""

    def __post_init__(self) -> None:
        in_bounds(self, "shots", 0)
