"""Settings of LoRA adapters, as frozen records. Light to import: no torch.

Source: Hu et al., arXiv 2106.09685 (LoRA); Kalajdzievski, arXiv 2312.03732 (rsLoRA).
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import PurePath
from typing import Any, TypeVar

from data.errors import ConfigError
from trainer.config import OptimizerConfig, PhaseConfig, as_phase, with_setting
from trainer.records.fields import check_bounds, newer
from trainer.records.model_config import ModelConfig
from trainer.records.phase_options import of_phase
from trainer.records.phase_registry import listed

KINDS = ("lora", "qlora")
FIXED = ("rank", "alpha", "rslora", "targets")  # settings that a phase takes from the adapter that the phase continues
ENVIRONMENT = "bitsandbytes"  # with the package for matrices in 4 bits
BLOCK, SCALES_BLOCK = 64, 256  # weights with a common scale, and scales with a common scale
NF4_BYTES = 0.5 + (1 + 4 / SCALES_BLOCK) / BLOCK  # of a weight in 4 bits, with the scales
RANK = 32  # unless a matrix is smaller
PHASES = ("mid", "sft", "dpo", "rl", "opd")
MATRICES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")
RATE = 1e-3  # of AdamW at rank 32 and alpha 64; ten times the rate of whole models, and 3e-3 diverges
RATE_SHARE_ADOPTED = 10.0  # rate of rl with an adapter, by the rate that suits an imported model
MOST_IN_VLLM = 512  # rank that vLLM 0.32 serves
M = TypeVar("M")


@dataclass(frozen=True, kw_only=True)
class AdapterConfig:
    """A LoRA adapter: a matrix W becomes W + scaling * B A, where only A and B learn."""

    kind: str = "lora"
    """`lora`: the frozen model has the dtype of activations. `qlora`: the matrices inside the blocks have 4 bits."""
    rank: int = RANK
    """Rows of A and columns of B."""
    alpha: float = 64.0
    """Numerator of `scaling`."""
    dropout: float = 0.0
    """Share of the inputs of A that are set to 0 in training."""
    targets: tuple[str, ...] = MATRICES
    """Names of the adapted matrices inside the blocks."""
    rslora: bool = False
    """True to divide alpha by sqrt(rank) in place of rank (rsLoRA)."""

    def __post_init__(self) -> None:
        check_bounds(self, "rank", 1)
        check_bounds(self, "alpha", 0, above=True)
        check_bounds(self, "dropout", 0)
        if self.kind not in KINDS:
            raise ConfigError(f"adapter is {self.kind!r}; known: {', '.join(KINDS)}")
        if self.dropout >= 1:
            raise ConfigError(f"dropout is {self.dropout}; it must be below 1")
        if odd := sorted({*self.targets} - {*MATRICES}):
            raise ConfigError(f"targets: {', '.join(odd)} cannot be adapted; known: {', '.join(MATRICES)}")
        if not self.targets or len({*self.targets}) < len(self.targets):
            raise ConfigError("targets must name at least one matrix, and each matrix once")

    @property
    def scaling(self) -> float:
        """Return the factor of B A."""
        return float(self.alpha / (self.rank**0.5 if self.rslora else self.rank))

    @property
    def fixed(self) -> tuple[int, float, frozenset[str]]:
        """Return the properties that a training of existing A and B cannot change."""
        return self.rank, self.scaling, frozenset(self.targets)


def sides(model: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return the numbers of inputs and outputs of each matrix inside a block, by name."""
    d, f = model.hidden_size, model.intermediate_size
    q, kv = model.num_attention_heads * model.head_dim, model.num_key_value_heads * model.head_dim
    found = {"q_proj": (d, q), "k_proj": (d, kv), "v_proj": (d, kv), "o_proj": (q, d)}
    return found | ({"gate_proj": (d, f)} if model.has_gate else {}) | {"up_proj": (d, f), "down_proj": (f, d)}


def adapted(adapter: AdapterConfig, model: ModelConfig) -> dict[str, tuple[int, int]]:
    """Return the sides of the adapted matrices of a block, by name, in a fixed order. Raises ConfigError."""
    known = sides(model)
    if odd := [name for name in adapter.targets if name not in known]:
        raise ConfigError(f"targets: the model has no {', '.join(odd)}; the matrices are {', '.join(known)}")
    found = {name: one for name, one in known.items() if name in adapter.targets}
    name, least = min(((name, min(one)) for name, one in found.items()), key=lambda one: one[1])
    if adapter.rank > least:
        raise ConfigError(f"rank is {adapter.rank}; the matrix {name} has rank {least} at most")
    return found


@dataclass(frozen=True, kw_only=True)
class ImportedAdapter:
    """An adapter of another training, described by its files: the place, the settings and the shape of the model."""

    marker: str
    """File that marks the kind of change: see `Pack.model_changes`."""
    source: str
    """Folder, `hf://user/repo`, or `store://NAME` for an artifact of the store."""
    revision: str = ""
    """Commit of the hub, or fingerprint of the artifact."""
    content: str = ""
    """Digest of the files of a folder."""
    base: str = ""
    """Name of the adapted model in the files."""
    adapter: AdapterConfig
    layers: int
    """Number of blocks."""
    sides: dict[str, list[int]]
    """Numbers of inputs and outputs of each adapted matrix of a block, by name."""

    @property
    def artifact(self) -> str:
        """Return the name of the artifact."""
        stem = re.sub(r"[^A-Za-z0-9._-]", "-", PurePath(self.source).name).strip(".-")[:100]
        return f"adapter_checkpoints/{stem or 'adapter'}"

    def check(self, adapter: AdapterConfig, model: ModelConfig) -> None:
        """Raise ConfigError unless a phase with these settings can continue the adapter on this model."""
        where = f"--adapter-from {self.source.removeprefix('store://')}"
        if self.layers != model.num_hidden_layers:
            raise ConfigError(
                f"{where}: the adapter changes {self.layers} blocks, and the model has {model.num_hidden_layers}; "
                f"the adapter belongs to another model{f', {self.base}' if self.base else ''}"
            )
        for name, own in adapted(self.adapter, model).items():
            if tuple(self.sides[name]) != own:
                raise ConfigError(
                    f"{where}: the adapter changes {name} of {self.sides[name][0]} inputs and {self.sides[name][1]} "
                    f"outputs, and the model has {own[0]} and {own[1]}; the adapter belongs to another model"
                    f"{f', {self.base}' if self.base else ''}"
                )
        mine, given = ((one.rank, one.scaling, one.targets) for one in (self.adapter, adapter))
        if mine != given:
            raise ConfigError(
                f"{where}: the adapter has rank {mine[0]}, scaling {mine[1]:g} and targets {','.join(mine[2])}, and "
                f"the options say rank {given[0]}, scaling {given[1]:g} and {','.join(given[2])}; leave the options "
                "adapter.rank, alpha, rslora and targets out"
            )


@dataclass(frozen=True, kw_only=True)
class AdapterPhaseConfig(PhaseConfig):
    """Config of a phase that trains an adapter; the model of the previous phase stays frozen."""

    adapter: AdapterConfig | None = None
    """Settings of the adapter."""
    imported_adapter: ImportedAdapter | None = newer(None)
    """Adapter from which the training starts; None = an adapter without effect, or the adapter of the previous
    phase."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.imported_adapter is not None:
            self.imported_adapter.check(self._adapter, self.model)
        adapted(self._adapter, self.model)
        if self.phase not in PHASES:
            raise ConfigError(f"adapter: for {listed(PHASES)} only; the phase {self.phase} trains a whole model")
        if self.model.features:
            raise ConfigError(f"adapter: a model that {self.model.features[0].about} cannot be adapted")
        if self.dtype == "float8":
            raise ConfigError("dtype is float8; adapters are trained in bfloat16 or float32 only")
        if self.parallel not in ("auto", "ddp") and (why := self._why_whole):
            raise ConfigError(f"parallel is {self.parallel}; {why}, so set parallel=ddp")
        if self.rl and self.rl.engine == "vllm" and self._adapter.rank > MOST_IN_VLLM:
            raise ConfigError(f"rank is {self._adapter.rank}; vLLM serves ranks of at most {MOST_IN_VLLM}")
        if self.rl and self.rl.engine == "vllm" and self._is_rounded:
            raise ConfigError("adapter is qlora; vLLM answers with unrounded matrices. Set --engine embedded")

    @property
    def _adapter(self) -> AdapterConfig:
        if self.adapter is None:
            raise ConfigError(f"phase {self.phase} needs an adapter")
        return self.adapter

    @property
    def _is_rounded(self) -> bool:
        return self._adapter.kind == "qlora"

    @property
    def _why_whole(self) -> str:
        """Return the reason why each process needs the whole frozen model, or ""."""
        if self._is_rounded:
            return "matrices in 4 bits are not sharded"
        return f"the phase {self.phase} needs the whole model on each GPU" if self.rl is not None else ""

    @property
    def layouts(self) -> tuple[str, ...]:
        return ("ddp",) if self._why_whole else super().layouts

    @property
    def environments(self) -> tuple[str, ...]:
        return (ENVIRONMENT,) if self._is_rounded else ()

    def as_written(self, values: Mapping[str, Any]) -> PhaseConfig:
        """Return the configuration with the rates of adapters, except the rates that a profile file has."""
        written = {name: getattr(self.optimizer, name) for name in values.get("optimizer") or ()}
        return replace(self, optimizer=replace(optimizer_of(self), **written))

    def continuing(self, before: PhaseConfig, options: Mapping[str, str]) -> PhaseConfig:
        """Return the configuration with rank, scaling and targets of the adapter that the phase `before` trains.

        Raises ConfigError for other values in `options` or in a profile file.
        """
        if not isinstance(before, AdapterPhaseConfig) or before._adapter.fixed == self._adapter.fixed:
            return self
        mine, theirs, usual = self._adapter, before._adapter, usual_adapter(self.model)
        typed = dict(of_phase(self.phase, options))
        for name in FIXED:
            value, wanted = getattr(mine, name), getattr(theirs, name)
            if value != wanted and (f"adapter.{name}" in typed or value != getattr(usual, name)):
                raise ConfigError(
                    f"{self.phase}.adapter.{name} is {text_of(value)}; the phase {self.phase} continues the adapter "
                    f"of the phase {before.phase}, with {text_of(wanted)}. Leave {self.phase}.adapter.{name} out, or "
                    f"set {before.phase}.adapter.{name}"
                )
        return replace(self, adapter=replace(mine, **{name: getattr(theirs, name) for name in FIXED}))

    @property
    def change(self) -> str:
        return "packs.adapters.trainer.lora:Lora"

    @property
    def imported_change(self) -> ImportedAdapter | None:
        return self.imported_adapter

    @property
    def num_learning(self) -> int:
        each = sum(self._adapter.rank * sum(one) for one in adapted(self._adapter, self.model).values())
        return self.model.num_hidden_layers * each

    def _merged_bytes(self, width: int) -> int:
        """Return the bytes of the merged matrices with which the embedded engine of rl answers."""
        merged = sides(self.model) if self._is_rounded else adapted(self._adapter, self.model)
        each = sum(inputs * outputs for inputs, outputs in merged.values())
        return width * self.model.num_hidden_layers * each if self.rl and self.rl.engine == "embedded" else 0

    def _saved_bytes(self, width: int) -> int:
        """Return the bytes that matrices in 4 bits save, without the largest matrix, which a product unpacks."""
        if not self._is_rounded:
            return 0
        matrices = [inputs * outputs for inputs, outputs in sides(self.model).values()]
        return int((width - NF4_BYTES) * self.model.num_hidden_layers * sum(matrices) - width * max(matrices))

    def flops_per_token(self, sequence_len: int) -> float:
        """Return the FLOPs per token: no gradients of the matrices, and forward and backward of the adapter."""
        whole = super().flops_per_token(sequence_len)
        return whole - 2.0 * self.model.num_matrix_params + 6.0 * self.num_learning

    def adapt_memory(self, found: M, device: str, parts: int, sharers: int) -> M:
        """Return the memory of a step that trains the adapter beside a frozen model in the dtype of activations."""
        memory: Any = super().adapt_memory(found, device, parts, sharers)
        model, width, learning = self.model, 4 if self.dtype == "float32" else 2, self.num_learning
        head, tokens = model.vocab_size * model.hidden_size, self.micro_rows * self.sequence_len
        of_head = 4 * head * (2 if model.tie_word_embeddings else 1) + (width * head if width == 2 else 0)
        thin = 0 if self.recompute else len(self._adapter.targets) * self._adapter.rank * model.num_hidden_layers
        dropped = sum(one[0] for one in adapted(self._adapter, model).values()) if self._adapter.dropout else 0
        base = width * model.num_params // parts
        if parts > 1:  # FSDP gathers a block and prefetches the next; parameters outside the blocks stay gathered
            in_blocks = model.num_matrix_params - head
            base += width * (model.num_params - in_blocks + 2 * in_blocks // model.num_hidden_layers)
        changed: M = replace(
            memory,
            weights=learning * (4 + (width if width == 2 else 0)),
            frozen=memory.frozen + base + self._merged_bytes(width) - self._saved_bytes(width),
            gradients=4 * learning,
            optimizer=8 * learning // max(parts, sharers),
            logits=memory.logits - of_head,
            activations=memory.activations + tokens * width * (thin + 2 * dropped * model.num_hidden_layers),
            update=0,
        )
        return changed


def with_adapter(flags: Any, config: PhaseConfig) -> PhaseConfig:
    """Return the configuration of a phase with the adapter that the flags select. Raises ConfigError.

    Matrices of adapters need AdamW and a higher rate than the weights of models, so the rates of the profile do not
    apply. A phase that reads text, such as base, trains the model before the adapter, and stays unchanged.
    """
    if config.phase not in PHASES and config.reads_text:
        return config
    imported: ImportedAdapter | None = getattr(flags, "imported_adapter", None)
    written = config.adapter if isinstance(config, AdapterPhaseConfig) else None  # in a profile file
    adapter = written or (imported.adapter if imported is not None else usual_adapter(config.model))
    if flags.adapter:
        adapter = replace(adapter, kind=flags.adapter)
    return as_phase(
        with_setting(AdapterPhaseConfig, config.phase),
        config,
        adapter=adapter,
        imported_adapter=imported,
        # `as_written` has set the rates of a profile file with an adapter.
        optimizer=config.optimizer if written else optimizer_of(config),
    )


def optimizer_of(config: PhaseConfig) -> OptimizerConfig:
    """Return AdamW for an adapter, from the optimizer for the whole model of a phase."""
    is_adopted = config.rl is not None and config.adopted
    return replace(
        config.optimizer,
        lr=RATE_SHARE_ADOPTED * config.optimizer.lr if is_adopted else RATE * config.RATE_SHARE,
        embed_lr=None,
        head_lr=None,
        muon_lr=0.0,
        muon_decay=None,
        weight_decay=0.0,
    )


def usual_adapter(model: ModelConfig) -> AdapterConfig:
    """Return the adapter of a phase without options: of rank 32, or of the rank of the smallest matrix of a model."""
    rank = min(RANK, *(min(one) for one in sides(model).values()))
    return AdapterConfig(rank=rank, alpha=2.0 * rank)


def text_of(value: Any) -> str:
    if isinstance(value, tuple):
        return ",".join(value)
    return f"{value:g}" if isinstance(value, float) else str(value).lower()
