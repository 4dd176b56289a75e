"""The configuration of training, as frozen records. Light to import: no torch here."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, TypeVar

from data.config import ConfigError, load
from store import packs
from trainer.records.fields import in_bounds, newer, rounding, what_counts
from trainer.records.model_config import KIND, ModelConfig, feature
from trainer.records.phase import PROMPTS, TALK, TEXT
from trainer.records.phase_registry import PHASES, listed, phases_reading
from trainer.records.rl_config import RlConfig

PARALLEL = ("auto", "ddp", "fsdp", "hybrid")
DTYPES = ("auto", "float32", "bfloat16", "float8")
# Compiling takes half a minute on a CPU and more on a GPU, and saves a quarter and more than a third of each step.
PAYS_AFTER_S = {"cpu": 600.0, "cuda": 240.0}
FLOPS_PER_S = {"cpu": 5e10, "cuda": 2e14}  # useful work of a thread, or of a GPU: the decision must not hang on a clock


@dataclass(frozen=True, kw_only=True)
class OptimizerConfig:
    """AdamW, and optionally Muon for the matrices inside the blocks."""

    lr: float
    """Learning rate of AdamW."""
    embed_lr: float | None = None
    """Learning rate of the embedding; None = `lr`."""
    head_lr: float | None = None
    """Learning rate of an untied head; None = `lr`."""
    betas: tuple[float, float] = (0.9, 0.95)
    eps: float = 1e-8
    weight_decay: float = 0.1
    grad_clip: float = 1.0
    """The gradient is scaled down to this norm where it is longer; 0 = no clipping."""
    muon_lr: float = 0.0
    """Learning rate of Muon; 0 = AdamW for everything."""
    muon_decay: float | None = None
    """Weight decay of the matrices that Muon updates; None = `weight_decay`."""
    z_loss: float = 0.0
    """Adds z_loss * ln(sum of exp(logits))**2 per token to the minimised loss; the reported loss is without it."""

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

    WARM_UPS: ClassVar[tuple[str, ...]] = ("schedule",)
    """Fields whose lengths follow the number of steps, unless the user sets them."""
    phase: str
    """Name in the registry of phases, such as `base` or `sft`."""
    model: ModelConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    steps: int
    rows: int
    """Sequences per optimizer step, over all ranks and micro-batches; in chat phases conversations, of which `turns` of
    ours share a sequence."""
    micro_rows: int = field(metadata={"rounding": True})
    """Sequences per forward pass; divides `rows`. On a GPU see `fit`."""
    sequence_len: int
    """Tokens of context per row."""
    seed: int = 1337
    packing: str = "windows"
    """Cutting of base's tokens into rows. `windows`: wherever documents end; `best-fit`: every row begins with a
    document and holds whole ones as far as they fit."""
    dtype: str = "auto"
    """Dtype of the activations: `float32`, `bfloat16`, or `auto`: bfloat16 where the machine has units for it.
    `float8`: bfloat16, and the matrices inside the blocks multiplied in 8 bits, on GPUs of the Hopper kind and later.
    Parameters, their gradients and the loss are float32 always."""
    document_masks: bool = False
    """base: a token attends to its own document only, and positions restart with each."""
    adopted: bool = False
    """The model began as somebody else's: its shape is that of the checkpoint that this phase goes on from."""
    fit: bool = rounding(True)
    """Take as many `micro_rows` on a GPU as fit by estimate when the run begins, and keep to them; where you set
    `micro_rows`, yours are taken."""
    recompute: bool = rounding(False)
    """Keep only the input of each block and recompute the rest in the backward pass: less memory, a third slower."""
    keep_products: bool = rounding(False)
    """Keep the outputs of matrix products and attention under `recompute`, and recompute only what lies between."""
    deterministic: bool = rounding(False)
    """Bitwise the same results each time on a GPU, by slower kernels; a step without such a kernel ends the run. A CPU
    gives the same bits in any case."""
    compile: str = rounding("auto")
    """`never`, `always`, or `auto`: where it saves more time than it takes."""
    packed: str = rounding("auto")
    """Share rows of `sequence_len` between conversations in chat phases, each attending to itself only, so that nothing
    is computed for padding: `always`, `never`, or `auto`: on GPUs. A CPU computes the whole square of a row."""
    parallel: str = rounding("auto")
    """Layout over several processes. `ddp`: each has the whole model, and its part of the optimizer's state; `fsdp`:
    each has a part of both; `hybrid`: those of a node share it; `auto`: the first of ddp, hybrid and fsdp that fits
    into the GPUs' memory."""
    mixture: dict[str, float] | None = None
    """Weights of the kinds of conversation in chat phases: `identity`, `pydocs`, `other`, and any of yours, in a
    profile by a path or hf:// address, in a plan by the name of its artifact."""
    rl: RlConfig | None = newer(None)
    """Settings of the phase rl, whose `mixture` are tasks."""
    turns: int = newer(1)
    """Number of our own questions and answers that follow one another in a sequence of a chat phase, as far as they fit
    into `sequence_len`, and no more than `rows`. A conversation of yours has one to itself."""
    extension: str = newer("")
    """A phase of your own: its file and the digest of its content; filled in by the plan."""

    def __post_init__(self) -> None:
        in_bounds(self, "rows micro_rows sequence_len turns", 1)
        in_bounds(self, "steps", 1 if self.trains else 0)
        self._check_kind()
        if self.rows % self.micro_rows:
            raise ConfigError(f"micro_rows {self.micro_rows} does not divide rows {self.rows}")
        if self.packing not in ("windows", "best-fit"):
            raise ConfigError(f"packing is {self.packing!r}; known: windows, best-fit")
        if self.dtype not in DTYPES:
            raise ConfigError(f"dtype is {self.dtype!r}; known: {', '.join(DTYPES)}")
        if self.compile not in ("auto", "always", "never"):
            raise ConfigError(f"compile is {self.compile!r}; known: auto, always, never")
        if self.packed not in ("auto", "always", "never"):
            raise ConfigError(f"packed is {self.packed!r}; known: auto, always, never")
        if self.packed == "always" and not self.can_pack:
            raise ConfigError(f"phase {self.phase}: its rows cannot be packed; packed is auto or never there")
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
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError(f"seed is {self.seed}; it must lie between 0 and 2**63 - 1")
        if odd := sorted(kind for kind, weight in (self.mixture or {}).items() if not 0 < weight < math.inf):
            raise ConfigError(f"mixture: {', '.join(odd)}: a weight must be above 0; leave out what is not wanted")

    def _check_kind(self) -> None:
        if not isinstance(self, config_of(self.phase)):
            raise ConfigError(f"phase {self.phase} has a configuration of its own: {PHASES[self.phase].config}")
        if not self.trains and self.steps:
            raise ConfigError(f"steps is {self.steps}; {self.phase} changes a model without training it: steps is 0")
        if self.dtype == "float8":
            for problem in filter(None, (one.float8_problem for one in self.model.features)):
                raise ConfigError(f"dtype is float8; {problem}")

    def digest(self) -> str:
        """Return the sha256 over what counts; a checkpoint carries it."""
        return hashlib.sha256(json.dumps(what_counts(self), sort_keys=True).encode()).hexdigest()

    def in_steps(self, steps: int) -> "PhaseConfig":
        """Return the same in another number of steps.

        The warm-ups are rescaled with them; the decay is a share anyway.
        """
        if not self.trains:
            return self
        warmup = self.schedule.warmup_steps
        scaled = max(1, round(warmup * steps / self.steps)) if warmup else 0
        return replace(self, steps=steps, schedule=replace(self.schedule, warmup_steps=scaled))

    @property
    def trains(self) -> bool:
        """Return whether the phase trains; otherwise it converts the model and saves it."""
        return self.phase not in PHASES or PHASES[self.phase].trains

    @property
    def reads_text(self) -> bool:
        """Return whether its rows are cut from text; otherwise they are whole conversations."""
        return self.phase in phases_reading(TEXT)

    @property
    def can_pack(self) -> bool:
        """Return whether conversations may share its rows: not where a loss compares all tokens of a row."""
        return self.phase in phases_reading(TALK)

    def is_packed(self, device: str) -> bool:
        """Return whether conversations share rows on such a device: `cuda` or `cpu`."""
        return self.packed == "always" or self.packed == "auto" and device == "cuda" and self.can_pack

    @property
    def views(self) -> int:
        """Return the number of times each token of a row goes through the model."""
        return 1

    @property
    def has_own_mask(self) -> bool:
        """Return whether its attention is an `OwnAttention`: compiled always on a GPU, slow to compile on a CPU."""
        return False

    def fitting(self, sequence_len: int) -> int:
        """Return the longest length of a row that is no longer."""
        return sequence_len

    def with_vocabulary(self, known: int) -> "PhaseConfig":
        """Return the same for a tokenizer of `known` ids, whose model may have room for more."""
        return self

    def sized(self, sizes: Mapping[str, int]) -> "PhaseConfig":
        """Return the same with the sizes of flags and settings; 0 = as it is. See `Phase.sizes`. Raises ConfigError."""
        return self

    @property
    def row_len(self) -> float:
        """Return the tokens of a full row; of rl those of an answer, and its share of the prompt of its group."""
        if self.rl is None:
            return self.sequence_len
        return self.rl.max_new + max(0, self.sequence_len - self.rl.max_new) / self.rl.group

    @property
    def flops(self) -> float:
        """Return the FLOPs of the whole phase, the sequences of a chat phase taken as full."""
        return self.steps * math.ceil(self.rows / self.turns) * self.row_len * self.flops_per_token(self.sequence_len)

    def pays_to_compile(self, device: str, threads: int = 1) -> bool:
        """Return whether blocks are compiled as far as the phase decides that; device: cpu or cuda."""
        took_s = self.flops / (FLOPS_PER_S[device] * threads)
        return self.compile == "always" or self.compile == "auto" and took_s > PAYS_AFTER_S[device]

    @property
    def num_frozen(self) -> int:
        """Return the number of frozen models beside it, counted as large as it is."""
        has_reference = self.rl is not None and self.rl.beta > 0
        return int(self.phase in PHASES and bool(PHASES[self.phase].teacher) or has_reference)

    def flops_per_token(self, sequence_len: int) -> float:
        """Return the FLOPs of a token, in training.

        They are the model's, as often as a token goes through it, and a third of those of frozen ones beside it.
        """
        return self.model.flops_per_token(sequence_len) * (self.views + self.num_frozen / 3)


P = TypeVar("P", bound=PhaseConfig)


def config_of(phase: str) -> type[PhaseConfig]:
    """Return the record of a phase's configuration: `PhaseConfig`, or what a pack extends it by."""
    found: type[PhaseConfig] = packs.load(PHASES[phase].config) if phase in PHASES else PhaseConfig
    return found


def load_phase(raw: Mapping[str, Any], where: str) -> PhaseConfig:
    """Return the configuration of a phase from plain values, by its `phase`. Raises ConfigError."""
    phase = str(raw.get("phase"))
    if said := packs.lacking("phases", phase):
        raise ConfigError(f"{where}: {said}")
    return load(config_of(phase), raw, where)


def phases_for(engine: str) -> tuple[str, ...]:
    """Return the phases that train models which this engine is meant for, the last one first."""
    meant = {name for name in packs.entries(KIND) if feature(name).engine == engine}
    return tuple(name for name, one in reversed(PHASES.items()) if one.feature in meant and one.trains)


def as_phase(kind: type[P], before: PhaseConfig, **changes: Any) -> P:
    """Return a configuration of another kind, with what it shares with `before` but for the changes."""
    return kind(**{**{one.name: getattr(before, one.name) for one in fields(PhaseConfig)}, **changes})


@dataclass(frozen=True, kw_only=True)
class Keeping:
    """The saving and reporting of a run. Nothing here changes the result."""

    save_every: int = 50
    """Steps between checkpoints."""
    keep: int = 5
    """Newest checkpoints kept while training."""
    reserve_bytes: int = 1 << 30
    """Free space that a save must leave on the disk."""
    prefix: str = ""
    """Prefix of the name of the folder that holds a run's checkpoints; for a stage of 1.58 bits also the first part of
    its second name in the store, else `checkpoint`."""
    samples: int = 6
    """Number of times during a phase that the model answers a few questions for the report; 0 = never."""

    def __post_init__(self) -> None:
        in_bounds(self, "samples reserve_bytes", 0)
        if self.save_every < 1 or self.keep < 1:
            raise ConfigError(f"save_every is {self.save_every}, keep {self.keep}; each must be at least 1")
        if self.prefix and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", self.prefix):
            raise ConfigError(f"prefix is {self.prefix!r}; letters, digits, '.', '_' and '-', at most 64")


@dataclass(frozen=True, kw_only=True)
class RecipeMachine:
    """The rented machine that a recipe names; a field that is left open follows from what the plan needs."""

    gpu: str = ""
    """Kind of GPU, as `--gpu` takes it; "" = any on which the plan fits."""
    num_gpus: int = 0
    """GPUs of each machine; 0 = as few as the cheapest machine on which the plan fits has."""

    def __post_init__(self) -> None:
        if self.num_gpus < 0:
            raise ConfigError(f"machine: num_gpus is {self.num_gpus}; it must be a whole number from 0")


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A whole recipe: one tokenizer, one model, its phases."""

    name: str
    vocab_size: int
    phases: dict[str, PhaseConfig]
    keeping: Keeping = Keeping()
    machine: RecipeMachine = RecipeMachine()


@dataclass(frozen=True, kw_only=True)
class ImportSpec:
    """An imported model, as an artifact that mid and sft can start from."""

    source: str
    """A folder on this machine, of Hugging Face or in `format`, or `hf://user/repo` with the commit in `revision`."""
    model: ModelConfig
    """The shape that its config.json describes; rows for the chat tokens may be added."""
    has_tokenizer: bool
    """True if a tokenizer comes with it; otherwise a new one is trained."""
    revision: str = ""
    content: str = ""
    """Digest of a local folder's content at the time of planning."""
    own_chat: bool = newer(False)
    """True if it has a chat template: its template, stop tokens and ids are kept; otherwise it gets our chat tokens."""
    has_pieces: bool = newer(False)
    """True if its tokenizer is SentencePiece's kind, on characters with byte fallback."""
    format: str = newer("")
    """Name of the format of the folder, which a pack reads; "" = a Hugging Face folder."""
    file: str = newer("")
    """The file of weights in a folder in `format`; "" = a Hugging Face folder."""


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
    """Name of the persona; needed for `identity` and for finding leaks of it in `questions`."""
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
    core: str = ""
    """Folder of the tasks of CORE, as nanochat unpacks them."""
    core_most: int = 0
    """Questions of each of these tasks at most; 0 = all."""

    def __post_init__(self) -> None:
        in_bounds(self, "shots core_most", 0)
