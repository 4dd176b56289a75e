"""Configuration records of training: phases, optimizer, schedule, profiles, imports, evaluations. No torch import."""

import hashlib
import json
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from functools import cache
from typing import Any, ClassVar, TypeVar

from data.config import ConfigError, load
from store import packs
from trainer.records.fields import check_bounds, fingerprint_fields, newer, rounding
from trainer.records.model_config import KIND, ModelConfig, feature
from trainer.records.phase_registry import PHASES, PROMPTS, TALK, TEXT, listed, phases_reading
from trainer.records.rl_config import RlConfig

PARALLEL = ("auto", "ddp", "fsdp", "hybrid")
DTYPES = ("auto", "float32", "bfloat16", "float8")
# Compilation takes 30 s on a CPU and longer on a GPU, and saves a quarter (CPU) or over a third (GPU) of each step.
PAYS_AFTER_S = {"cpu": 600.0, "cuda": 240.0}
FLOPS_PER_S = {"cpu": 5e10, "cuda": 2e14}  # assumed speed per CPU thread or GPU: measuring would make the decision vary
M = TypeVar("M")


@dataclass(frozen=True, kw_only=True)
class MuonConfig:
    """Variants of Muon; the defaults are Muon of 2024."""

    momentum: float = 0.95
    first_momentum: float = 0.95
    """Momentum of the first step; rises to `momentum` over `momentum_steps` steps."""
    last_momentum: float = 0.95
    """Momentum at a rate of 0: the momentum falls with the rate."""
    momentum_steps: int = 0
    equal_rows: bool = False
    """Rescale each row to the mean norm of the rows before the orthogonalization (arXiv 2603.28254)."""
    polar: bool = False
    """Orthogonalize with the coefficients of Polar Express (arXiv 2505.16932)."""
    full_norm: bool = False
    """Rescale each update to the norm of an orthogonal matrix (arXiv 2602.21545)."""
    neurons: float = 0.0
    """NorMuon: decay rate of the mean square of each row, by which the row is divided (arXiv 2510.05491); 0 = off."""
    cautious: bool = False
    """Decay only the weights that the update also makes smaller (arXiv 2510.12402)."""
    decay_to_zero: bool = newer(False)
    """The weight decay falls to 0 over the steps as a cosine, times sqrt(rows / columns) for tall matrices
    (nanochat)."""

    def __post_init__(self) -> None:
        check_bounds(self, "momentum_steps", 0)
        for name in ("momentum", "first_momentum", "last_momentum", "neurons"):
            if not 0 <= getattr(self, name) < 1:
                raise ConfigError(f"muon.{name} is {getattr(self, name)}; it must lie in [0, 1)")


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
    """Maximum gradient norm; larger gradients are scaled down. 0 = no clipping."""
    muon_lr: float = 0.0
    """Learning rate of Muon; 0 = AdamW for everything."""
    muon_decay: float | None = None
    """Weight decay of the matrices that Muon updates; None = `weight_decay`."""
    muon: MuonConfig | None = newer(None)
    """Variants of Muon; None = Muon of 2024."""
    value_lr: float | None = newer(None)
    """Learning rate of value embeddings (`model.nanochat`); None = `lr`."""
    scale_lr: float | None = newer(None)
    """Learning rate of `embed_scales` (`model.nanochat.scales`); `residual_scales` have a hundredth of this rate.
    None = `lr`."""
    smear_lr: float | None = newer(None)
    """Learning rate of smear and backout (`model.nanochat`); None = two fifths of `scale_lr`, or else `lr`."""
    z_loss: float = 0.0
    """Coefficient of the z-loss: z_loss * ln(sum of exp(logits))**2 per token, excluded from the reported loss."""

    def __post_init__(self) -> None:
        check_bounds(self, "lr embed_lr head_lr muon_lr value_lr scale_lr smear_lr", 0)
        check_bounds(self, "weight_decay muon_decay grad_clip z_loss", 0)
        check_bounds(self, "eps", 0, above=True)
        if not all(0 <= one < 1 for one in self.betas):
            raise ConfigError(f"betas are {self.betas}; each must lie in [0, 1)")


@dataclass(frozen=True, kw_only=True)
class ScheduleConfig:
    """Linear warmup, constant rate, then decay to the fraction `final` of the peak over the last `decay` of all steps.

    `decay=1.0` with `kind="cosine"` gives the usual cosine schedule, decaying from the end of the warmup.
    """

    warmup_steps: int = 0
    decay: float = 0.5
    """Fraction of all steps spent decaying."""
    final: float = 0.0
    kind: str = "linear"
    """`linear` or `cosine`."""
    end: str = newer("")
    """Word of a pack that may change the number of steps during training; "" = the number is fixed."""

    def __post_init__(self) -> None:
        if self.kind not in ("linear", "cosine"):
            raise ConfigError(f"schedule kind is {self.kind!r}; known: linear, cosine")
        if not 0 <= self.decay <= 1:
            raise ConfigError(f"decay is {self.decay}; it must lie in [0, 1]")
        if self.end and self.end not in packs.entries("schedule_ends"):
            missing = packs.missing_pack_message("schedule_ends", self.end)
            raise ConfigError(missing or f"no pack has the end of a schedule {self.end!r}")
        check_bounds(self, "warmup_steps final", 0)


@dataclass(frozen=True, kw_only=True)
class PhaseConfig:
    """One phase of training. Fields made by `rounding` only affect rounding and are not part of the fingerprint."""

    WARM_UPS: ClassVar[tuple[str, ...]] = ("schedule",)
    """Schedule fields rescaled with the number of steps, unless set by the user."""
    RATE_SHARE: ClassVar[float] = 1.0
    """Factor of the learning rates of imported models and of adapters, relative to sft."""
    phase: str
    """Name in the registry of phases, such as `base` or `sft`."""
    model: ModelConfig
    optimizer: OptimizerConfig
    schedule: ScheduleConfig
    steps: int
    rows: int
    """Sequences per optimizer step, over all ranks and micro-batches. In chat phases the number of conversations, where
    up to `turns` generated conversations share a sequence."""
    micro_rows: int = field(metadata={"rounding": True})
    """Sequences per forward pass (micro-batch); must divide `rows`. On a GPU, see `fit`."""
    sequence_len: int
    """Tokens of context per row."""
    seed: int = 1337
    packing: str = "windows"
    """Packing of tokens into rows in the phase base. `windows`: consecutive windows, regardless of document boundaries;
    `best-fit`: each row begins with a document and holds whole documents as far as possible."""
    dtype: str = "auto"
    """Dtype of activations: `float32`, `bfloat16`, or `auto` (bfloat16 with hardware support, else float32). `float8`:
    bfloat16 with the matrices inside the blocks multiplied in 8 bits, on Hopper GPUs and later. Parameters, gradients
    and the loss are always float32."""
    document_masks: bool = False
    """Phase base: restrict attention to the current document and restart positions at each document."""
    adopted: bool = False
    """The model was imported: take the shape from the checkpoint of the previous phase."""
    fit: bool = rounding(True)
    """Choose the largest `micro_rows` fitting the GPU by estimate at the start of a run and keep the choice. A user-set
    `micro_rows` takes precedence."""
    recompute: bool = rounding(False)
    """Activation recomputation: save only the input of each block. Less memory, a third slower."""
    keep_products: bool = rounding(False)
    """Save the outputs of matrix products and attention too under `recompute`, and recompute only cheap operations."""
    deterministic: bool = rounding(False)
    """Bitwise reproducible results on a GPU, with slower kernels; an operation without a deterministic kernel ends the
    run. CPU results are always reproducible."""
    compile: str = rounding("auto")
    """torch.compile of the blocks: `never`, `always`, or `auto` (when the saved time exceeds the compile time)."""
    packed: str = rounding("auto")
    """Sequence packing in chat phases: conversations share rows of `sequence_len` without attending to each other,
    which avoids padding. `always`, `never`, or `auto` (on GPUs; a CPU computes the full attention matrix of a row)."""
    parallel: str = rounding("auto")
    """Layout over several processes. `ddp`: the whole model and a shard of the optimizer state per process; `fsdp`: a
    shard of both per process; `hybrid`: FSDP within each node, replicas across nodes; `auto`: the first of ddp, hybrid
    and fsdp fitting into GPU memory."""
    mixture: dict[str, float] | None = None
    """Sampling weights by kind of conversation in chat phases: `identity`, `pydocs`, `other`, and user data, named by
    path or hf:// address in a profile and by artifact in a plan."""
    rl: RlConfig | None = newer(None)
    """Settings of the phase rl, with tasks as `mixture`."""
    turns: int = newer(1)
    """Maximum number of generated question-answer pairs concatenated into one sequence of a chat phase, limited by
    `sequence_len` and `rows`. A user conversation always has a sequence of its own."""
    extension: str = newer("")
    """Extension phase: file and content digest, set by the plan."""

    def __post_init__(self) -> None:
        check_bounds(self, "rows micro_rows sequence_len turns", 1)
        check_bounds(self, "steps", 1 if self.trains else 0)
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
            raise ConfigError(f"phase {self.phase}: rows of this phase cannot be packed; packed must be auto or never")
        if self.parallel not in PARALLEL:
            raise ConfigError(f"parallel is {self.parallel!r}; known: {', '.join(PARALLEL)}")
        if self.mixture and self.reads_text:
            raise ConfigError(
                f"mixture applies to {listed(phases_reading(TALK, PROMPTS))}; phase {self.phase} reads text"
            )
        if self.document_masks and not self.reads_text:
            whose = listed(phases_reading(TEXT))
            raise ConfigError(
                f"document_masks applies to {whose}; a row of phase {self.phase} is a single conversation"
            )
        if (self.rl is not None) != (self.phase in phases_reading(PROMPTS)):
            raise ConfigError(f"phase {self.phase}: the field `rl` applies to {listed(phases_reading(PROMPTS))} only")
        if self.rl is not None and self.rows % self.rl.group:
            raise ConfigError(f"rows is {self.rows}; it must be a multiple of group, {self.rl.group} answers")
        if self.rl is not None and self.rl.max_new >= self.sequence_len:
            raise ConfigError(
                f"sequence_len {self.sequence_len} must exceed rl.max_new {self.rl.max_new}, to leave room for a prompt"
            )
        if self.sequence_len > self.model.max_position_embeddings:
            longest = self.model.max_position_embeddings
            raise ConfigError(f"sequence_len is {self.sequence_len}; the model has {longest} positions")
        if not 0 <= self.seed < 1 << 63:
            raise ConfigError(f"seed is {self.seed}; it must lie between 0 and 2**63 - 1")
        if odd := sorted(kind for kind, weight in (self.mixture or {}).items() if not 0 < weight < math.inf):
            raise ConfigError(
                f"mixture: {', '.join(odd)}: a weight must be above 0; to exclude a kind, remove the entry"
            )

    def _check_kind(self) -> None:
        if not isinstance(self, config_of(self.phase)):
            raise ConfigError(f"phase {self.phase} needs a configuration of the class {PHASES[self.phase].config}")
        if not self.trains and self.steps:
            raise ConfigError(f"steps is {self.steps}; the phase {self.phase} does not train, so steps must be 0")
        if self.dtype == "float8":
            for problem in filter(None, (one.float8_problem for one in self.model.features)):
                raise ConfigError(f"dtype is float8; {problem}")

    def digest(self) -> str:
        """Return the sha256 over the fields that affect the result, as stored in checkpoints."""
        return hashlib.sha256(json.dumps(fingerprint_fields(self), sort_keys=True).encode()).hexdigest()

    def with_steps(self, steps: int) -> "PhaseConfig":
        """Return a copy with `steps` steps and proportionally scaled warmup; the decay is relative already."""
        if not self.trains:
            return self
        warmup = self.schedule.warmup_steps
        scaled = max(1, round(warmup * steps / self.steps)) if warmup else 0
        return replace(self, steps=steps, schedule=replace(self.schedule, warmup_steps=scaled))

    @property
    def trains(self) -> bool:
        """Return whether the phase trains; other phases only convert and save the model."""
        return self.phase not in PHASES or PHASES[self.phase].trains

    @property
    def reads_text(self) -> bool:
        """Return whether rows are cut from text; other phases use whole conversations."""
        return self.phase in phases_reading(TEXT)

    @property
    def can_pack(self) -> bool:
        """Return whether conversations may share rows; False for objectives comparing all tokens of a row."""
        return self.phase in phases_reading(TALK)

    def is_packed(self, device: str) -> bool:
        """Return whether conversations share rows on `device` (`cuda` or `cpu`)."""
        return self.packed == "always" or self.packed == "auto" and device == "cuda" and self.can_pack

    @property
    def change(self) -> str:
        """Return the subclass of `trainer.model.changes.ModelChange` to train; "" = the model itself is trained."""
        return ""

    @property
    def imported_change(self) -> Any:
        """Return the record of an external change from which the phase starts, or None; see `trainer.plan.nodes`."""
        return None

    def as_written(self, values: Mapping[str, Any]) -> "PhaseConfig":
        """Return the configuration with own defaults for all fields but `values`, which a profile file sets."""
        return self

    def continuing(self, before: "PhaseConfig", options: Mapping[str, str]) -> "PhaseConfig":
        """Return the configuration that continues the change of `before`. Raises ConfigError for contrary options."""
        return self

    @property
    def environments(self) -> tuple[str, ...]:
        """Return the environments of packages that the training loads besides the training environment."""
        return ()

    @property
    def num_learning(self) -> int:
        """Return the number of parameters that learn."""
        return self.model.num_params

    def adapt_memory(self, found: M, device: str, parts: int, sharers: int) -> M:
        """Return the memory of a step, from the `trainer.memory.Memory` of a step that trains the whole model."""
        return found

    @property
    def layouts(self) -> tuple[str, ...]:
        """Return the values of `parallel`, besides `auto`, that the phase can have."""
        return PARALLEL[1:]

    @property
    def views(self) -> int:
        """Return the number of forward passes per token of a row."""
        return 1

    @property
    def has_own_mask(self) -> bool:
        """Return whether the objective uses an `OwnAttention`: always compiled on a GPU, slow to compile on a CPU."""
        return False

    def fitting(self, sequence_len: int) -> int:
        """Return the longest supported row length of at most `sequence_len` tokens."""
        return sequence_len

    def with_vocabulary(self, known: int) -> "PhaseConfig":
        """Return the configuration for a tokenizer of `known` ids; the model may have more embedding rows."""
        return self

    def with_sizes(self, sizes: Mapping[str, int]) -> "PhaseConfig":
        """Return a copy with the given sizes from flags and settings; 0 keeps a size. See `Phase.sizes`.

        Raises ConfigError.
        """
        return self

    @property
    def row_len(self) -> float:
        """Return the tokens per full row. For rl: the answer plus the prompt tokens divided by the group size."""
        if self.rl is None:
            return self.sequence_len
        return self.rl.max_new + max(0, self.sequence_len - self.rl.max_new) / self.rl.group

    @property
    def flops(self) -> float:
        """Return the FLOPs of the whole phase, assuming full sequences in chat phases."""
        return self.steps * math.ceil(self.rows / self.turns) * self.row_len * self.flops_per_token(self.sequence_len)

    def should_compile(self, device: str, threads: int = 1) -> bool:
        """Return whether the configuration asks for compiled blocks: `always`, or `auto` with a long enough phase.

        device: `cpu` or `cuda`; threads: number of CPU threads.
        """
        took_s = self.flops / (FLOPS_PER_S[device] * threads)
        return self.compile == "always" or self.compile == "auto" and took_s > PAYS_AFTER_S[device]

    @property
    def num_frozen(self) -> int:
        """Return the number of frozen models (teacher, reference), assumed as large as the trained model."""
        has_reference = self.rl is not None and self.rl.beta > 0
        return int(self.phase in PHASES and bool(PHASES[self.phase].teacher) or has_reference)

    def flops_per_token(self, sequence_len: int) -> float:
        """Return the FLOPs per trained token: `views` times the model, plus a third per frozen model, forward only."""
        return self.model.flops_per_token(sequence_len) * (self.views + self.num_frozen / 3)


P = TypeVar("P", bound=PhaseConfig)


def config_of(phase: str) -> type[PhaseConfig]:
    """Return the configuration class of a phase: `PhaseConfig`, or the subclass from a pack."""
    found: type[PhaseConfig] = packs.load(PHASES[phase].config) if phase in PHASES else PhaseConfig
    return found


def load_phase(raw: Mapping[str, Any], where: str) -> PhaseConfig:
    """Parse the configuration of a phase; `raw["phase"]` selects the class. Raises ConfigError."""
    phase = str(raw.get("phase"))
    words = [("phases", phase), *(("phase_settings", name) for name in raw)]
    if said := next(filter(None, (packs.missing_pack_message(*one) for one in words)), ""):
        raise ConfigError(f"{where}: {said}")
    added = [one for name, one in packs.entries("phase_settings").items() if raw.get(name) is not None]
    return load(with_setting(packs.load(added[0]), phase) if added else config_of(phase), raw, where)


@cache
def with_setting(setting: type[PhaseConfig], phase: str) -> type[PhaseConfig]:
    """Return the class of the configuration of a phase with the field that a class of `phase_settings` adds."""
    own = config_of(phase)
    if own is PhaseConfig:
        return setting
    return dataclass(frozen=True, kw_only=True)(type(f"{setting.__name__}Of{own.__name__}", (setting, own), {}))


def phases_for(engine: str) -> tuple[str, ...]:
    """Return the phases training models with a feature for this engine, latest phase first."""
    meant = {name for name in packs.entries(KIND) if feature(name).engine == engine}
    return tuple(name for name, one in reversed(PHASES.items()) if one.feature in meant and one.trains)


def as_phase(kind: type[P], before: PhaseConfig, **changes: Any) -> P:
    """Return a configuration of class `kind` with the fields of `before` that `kind` has, and the given changes."""
    same = {one.name: getattr(before, one.name) for one in fields(kind) if hasattr(before, one.name)}
    return kind(**{**same, **changes})


@dataclass(frozen=True, kw_only=True)
class CheckpointOptions:
    """Checkpoint and reporting settings of a run; they do not change the result."""

    save_every: int = 50
    """Steps between checkpoints."""
    keep: int = 5
    """Number of newest checkpoints kept during training."""
    reserve_bytes: int = 1 << 30
    """Free disk bytes required after a save."""
    prefix: str = ""
    """Prefix of the checkpoint folder name; for a 1.58-bit stage also the first part of the second name in the store
    (default `checkpoint`)."""
    samples: int = 6
    """Number of times per phase to generate sample answers for the report; 0 = never."""

    def __post_init__(self) -> None:
        check_bounds(self, "samples reserve_bytes", 0)
        if self.save_every < 1 or self.keep < 1:
            raise ConfigError(f"save_every is {self.save_every}, keep is {self.keep}; both must be at least 1")
        if self.prefix and not re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,63}", self.prefix):
            raise ConfigError(f"prefix is {self.prefix!r}; allowed: at most 64 letters, digits, '.', '_' and '-'")


@dataclass(frozen=True, kw_only=True)
class RecipeMachine:
    """The machine to rent for a recipe; the plan fills unset fields from its requirements."""

    gpu: str = ""
    """GPU kind, as in `--gpu`; "" = any kind the plan fits on."""
    num_gpus: int = 0
    """GPUs per machine; 0 = the count of the cheapest machine the plan fits on."""

    def __post_init__(self) -> None:
        if self.num_gpus < 0:
            raise ConfigError(f"machine: num_gpus is {self.num_gpus}; it must be a whole number from 0")


@dataclass(frozen=True, kw_only=True)
class Profile:
    """A complete recipe: one tokenizer, one model, and the phases of training."""

    name: str
    vocab_size: int
    phases: dict[str, PhaseConfig]
    keeping: CheckpointOptions = CheckpointOptions()
    machine: RecipeMachine = RecipeMachine()
    source: str = ""
    """Text for a user who names no source; "" = the default of the settings."""


@dataclass(frozen=True, kw_only=True)
class ImportSpec:
    """An external model to import as an artifact, usable as the start of mid and sft."""

    source: str
    """Local folder (Hugging Face format or `format`), or `hf://user/repo` with the commit in `revision`."""
    model: ModelConfig
    """Shape from the model's config.json; the import may add embedding rows for chat tokens."""
    has_tokenizer: bool
    """True if the model includes a tokenizer; otherwise the plan trains a new tokenizer."""
    revision: str = ""
    content: str = ""
    """Content digest of a local folder at planning time."""
    own_chat: bool = newer(False)
    """True if the model has a chat template: keep template, stop tokens and ids; otherwise add Slipway's chat
    tokens."""
    has_pieces: bool = newer(False)
    """True for a SentencePiece tokenizer: characters with byte fallback."""
    format: str = newer("")
    """Folder format, read by a pack; "" = Hugging Face."""
    file: str = newer("")
    """Weights file in a folder of `format`; "" = a Hugging Face folder."""


@dataclass(frozen=True, kw_only=True)
class EvalSpec:
    """A model and the evaluations to run; "" skips an evaluation. `text`, `identity` and `questions` are folders."""

    model: str
    """Published phase or Hugging Face folder."""
    text: str = ""
    """Folder with `val/` shards: measure bits per byte, compared with gzip and xz."""
    identity: str = ""
    """Folder with identity_conversations.heldout.jsonl."""
    questions: str = ""
    """Folder with pydocs.heldout.jsonl and other.heldout.jsonl."""
    name: str = ""
    """Persona name; required for `identity` and for detecting persona leaks in `questions`."""
    tasks: tuple[str, ...] = ()
    """Question files, .jsonl: multiple choice or exact answers."""
    problems: dict[str, str] = field(default_factory=dict)
    """Reinforcement learning tasks, mapped to the folders of their problems."""
    unsafe_rewards: bool = False
    """Run the code of mbpp answers even without a sandbox on this machine."""
    as_text: bool = False
    """Format task questions as text to continue, for base models; default: as a conversation."""
    shots: int = 0
    """Few-shot examples per question, from the same file."""
    core: str = ""
    """Folder of the CORE tasks in nanochat's layout."""
    core_most: int = 0
    """Maximum number of questions per CORE task; 0 = all."""

    def __post_init__(self) -> None:
        check_bounds(self, "shots core_most", 0)
