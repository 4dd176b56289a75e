"""The run of a training phase: verified inputs from the store, a locked run folder, a published artifact.

During training, checkpoints go to `<work>/checkpoints/<phase>-<spec>-<inputs>/` and `metrics.jsonl` to
`<work>/runs/<phase>/`. The published artifact holds `step-<9 digits>/`, `hf/`, `metrics.jsonl` and `samples.jsonl`.

`StepContext` and `PhaseConfig` -> `phase_run` -> `PhaseRun.train` -> `PhaseRun.publish` -> artifact in the store
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch

from data.config import StepContext
from data.events import emit, enter_part
from data.tokens import tokenizer as tokenizers
from store import packs
from store.artifacts import vocabulary
from store.artifacts.artifacts import Store
from trainer.checkpoints.checkpoint import Checkpoint, Checkpoints, open_final, remove
from trainer.checkpoints.start_date import run_start_date
from trainer.config import CheckpointOptions, PhaseConfig
from trainer.device import Machine, prepare
from trainer.errors import Refused
from trainer.kernels import KernelWork, RunKernels
from trainer.loop import Training
from trainer.model import changes, export
from trainer.model.changes import TrainedChange
from trainer.model.decoder import Decoder, initialize
from trainer.objectives import CrossEntropy, Objective
from trainer.objectives.source import Source
from trainer.parallel.fsdp import WHOLE, FsdpSharding
from trainer.parallel.models import ModelPlacement
from trainer.parallel.placement import choose_layout, explain_out_of_memory, with_fitting_micro_batch
from trainer.parallel.process_group import Ranks
from trainer.records.phase_registry import CHANGE, model_roles, starts_from
from trainer.reporting import tokens_in_loss
from trainer.reporting.peak_flops import of_machine
from trainer.reporting.samples import Sampler
from trainer.speed import training_setup
from trainer.stop_signals import finish_after_sigterm

PUBLISHED = ("metrics.jsonl", "samples.jsonl")  # run files published beside the checkpoint


@dataclass
class PhaseRun:
    """A running phase. `phase_run` creates the instance and holds the lock of the run folder."""

    config: PhaseConfig
    making: StepContext
    machine: Machine
    checkpoints: Checkpoints
    tokenizer_folder: Path
    tokenizer: tokenizers.Tokenizer
    ranks: Ranks
    parallel: str  # `ddp`, `fsdp` or `hybrid`
    before: str = ""  # input role of the initial model; "" = initialize from the seed
    sharding: FsdpSharding = WHOLE  # sharding of the learning parameters, or of the optimizer state alone
    frozen_models: list[Decoder] = field(default_factory=list)
    folders: dict[str, Path] = field(default_factory=dict)  # further inputs by role: Hugging Face folders
    metrics: Path = field(init=False)
    until_published: ExitStack = field(default_factory=ExitStack)  # contexts from the last step to the end of the phase

    def __post_init__(self) -> None:
        self.metrics = work_folder() / "runs" / self.config.phase
        self.placement = ModelPlacement(self.config, self.machine, self.ranks, self.parallel)
        self.kernels = RunKernels(KernelWork(self.config, self.machine, self.parallel, self.ranks, self.making.store))

    def input(self, role: str) -> Path:
        return self.folders.get(role) or open_input(self.making, role)

    def initial_model(self, fill: Callable[[Decoder], None] | None = None) -> Decoder:
        """Return the model with the initial weights of this phase.

        The weights come from `fill` if given, else from the model of the previous phase, else from the seed. Raises
        Refused when the previous model was trained with a different vocabulary.
        """
        config = self.config
        if config.change:
            return self._model_with_change()
        first = (
            (lambda model: self.load_weights(model, self.before))
            if self.before
            else (lambda model: initialize(model, config.seed))
        )
        model, self.sharding = self.placement.trained(config.model, fill or first)
        return model

    def _model_with_change(self) -> Decoder:
        """Return the frozen model that this phase changes, in the dtype of activations, with the learning parameters.

        Continue the change of the previous phase if the artifact of the previous phase is a change.
        """
        assert self.change is not None, "the caller asks for a change"
        kind = self.change.kind
        load = partial(self.load_weights, role=self.changed, is_published=True)
        model = self.placement.frozen(self.config.model, load, kind, kind)
        kind.initialize(model, self.config)
        if self.ranks.is_first and self.changed != self.before:  # other processes receive the values at the start
            hf = export.folder_of_model(self.input(self.before))
            changes.check_base(hf, export.folder_of_model(self.input(self.changed)))
            if said := changes.rounding_difference(hf, kind.rounding(self.config, model.compute_dtype)):
                emit("note", text=f"{self.config.phase}: {said}", alarm=True)
            kind.restore(model, hf)
        self.sharding = self.placement.learning(model)
        return model

    @cached_property
    def change(self) -> TrainedChange | None:
        """Return the change that this phase trains, or None if the phase trains the model itself."""
        if not self.config.change:
            return None
        kind = packs.load(self.config.change)()
        return TrainedChange(kind, self.config, self.making.inputs[self.changed], self.input(self.changed))

    @property
    def changed(self) -> str:
        """Return the input role of the whole model that the initial model consists of, or changes."""
        return self._whole_below(self.before)

    def _whole_below(self, role: str) -> str:
        """Return the input role of the whole model below the change in `role`, or `role` for a whole model."""
        while changes.change_in(export.folder_of_model(self.input(role))):  # a change may continue an earlier change
            of = self.config.phase if role == CHANGE else role
            role = starts_from(of, self.making.inputs.keys() - {CHANGE})
        return role

    def load_frozen_model(self, role: str) -> Decoder:
        """Return a frozen second model, such as a teacher or a reference, loaded from the input `role`.

        The config of the input gives the shape. Parameters have the dtype of activations and need no gradients. FSDP
        shards the frozen model like the trained model; call `hidden` before reading `head`. Raises Refused when the
        model was trained with a different vocabulary.
        """
        shape = export.read_config(export.folder_of_model(self.input(role)))
        compressed = self.change.kind if self.change and role == self.changed else None
        model = self.placement.frozen(shape, lambda model: self.load_weights(model, role), compressed)
        self.frozen_models.append(model)
        return model

    def load_weights(self, model: Decoder, role: str, is_published: bool = False) -> None:
        """Load the weights of the input `role` into a model. Raises Refused when the vocabularies differ.

        is_published: take the rounded weights of the Hugging Face folder, which other programs load.
        """
        folder = self.input(role)
        if role == CHANGE:  # an imported change has no checkpoint
            self._load_with_change(model, role)
            return
        if (folder / "config.json").is_file():  # an imported Hugging Face folder
            export.load(model, folder)
            return
        before = open_final(folder)
        ours = {"tokenizer_sha256": self.tokenizer.sha256, "vocab": self.tokenizer.vocab_size}
        theirs = {name: before.manifest.get(name) for name in ours}
        start = f"{self.config.phase} cannot continue from {self.making.inputs[role].name}"
        if theirs != ours:
            raise Refused(f"{start}: the model has {theirs}, this run has {ours}")
        hf = export.folder_of_model(folder)
        if changes.change_in(hf):
            self._load_with_change(model, role)
            return
        if is_published:
            export.load(model, hf)
            return
        try:
            model.load_state_dict(before.tensors("model"))
        except RuntimeError as error:
            raise Refused(f"{start}: {error}") from None

    def _load_with_change(self, model: Decoder, role: str) -> None:
        """Load the whole model below the change in `role` into a model, and apply the change. Raises Refused."""
        of, hf = self._whole_below(role), export.folder_of_model(self.input(role))
        change, base = changes.change_in(hf), export.folder_of_model(self.input(of))
        assert change is not None, "the caller has found a change"
        export.load_changed(model, change, hf, base, lambda: self.load_weights(model, of, is_published=True))

    def train(
        self,
        model: Decoder,
        source: Source,
        objective: Objective | None = None,
        sample: Callable[[], list[dict[str, str]]] | None = None,
    ) -> tuple[Decoder, Checkpoint] | None:
        """Train and return the whole model with its last checkpoint, or None on every process but the first.

        objective: default cross entropy. sample: callable returning the sample answers for the report, default a
        `Sampler`. `Training.run` lists the errors.
        """
        objective = objective or CrossEntropy()
        peak = of_machine(self.machine) if self.ranks.is_first else None
        # A sharded model generates only when all processes call it.
        if not self.ranks.is_first or not self.placement.is_whole:
            sample = None
        elif sample is None:
            sample = Sampler(model, self.tokenizer, is_talk=not self.config.reads_text)
        one = Training(
            model,
            self.config,
            source,
            self.checkpoints,
            self._facts(),
            self.metrics,
            self.ranks,
            self.sharding,
            objective,
            peak,
            sample,
            self.kernels.keep,
            lambda: self.until_published.enter_context(finish_after_sigterm()),
            self.placement.frozen_groups,
        )
        setup = training_setup(model, self.config, self.machine, self.frozen_models)
        cache = self.kernels.cache(self.checkpoints.folder, work_folder())
        with cache, setup, self.kernels.restored(model.shape.compiled):
            final = one.run()
        if final is None:
            return None
        tokens_in_loss.check(self.metrics / "metrics.jsonl", self.config.phase)
        if self.placement.is_whole or self.change:  # the learning parameters of a change are whole
            return model, final
        # The other shards were in processes that have exited.
        weights = final.tensors("model")
        return self.placement.alone().trained(self.config.model, lambda one: one.load_state_dict(weights))[0], final

    def save_untrained(self, model: Decoder) -> Checkpoint:
        """Save a checkpoint of step 0 for a phase that converts the model without training; write empty metrics."""
        facts = {
            **self._facts(),
            "config": asdict(self.config),
            "config_hash": self.config.digest(),
            "data_cursor": {"step": 0},
            "metrics": {},
            "model_type": "Decoder",
        }
        for name in PUBLISHED:
            self.metrics.mkdir(parents=True, exist_ok=True)
            (self.metrics / name).write_text("")
        return self.checkpoints.save(0, {"model": model.state_dict()}, facts)

    def _facts(self) -> dict[str, Any]:
        """Return the manifest entries common to every checkpoint of this run."""
        return {
            "run": run_id(),
            "phase": self.config.phase,
            "tokenizer_sha256": self.tokenizer.sha256,
            "vocab": self.tokenizer.vocab_size,
            "inputs_hash": inputs_digest(self.making),
        }

    def _context(self) -> dict[str, Any]:
        """Return the evaluation settings for held-out text, from this phase and the model before this phase.

        `context` is the longest row length in tokens; `document_masks` is True when attention stays within documents.
        """
        config = self.config
        before = vocabulary.about_of(self.input(self.before)) if self.before else {}
        longest = max(config.sequence_len, int(before.get("context", 0)))
        masked = config.document_masks if config.reads_text else bool(before.get("document_masks"))
        return {"context": longest, **({"document_masks": True} if masked else {})}

    def publish(self, model: Decoder, final: Checkpoint, about: dict[str, Any]) -> dict[str, Any]:
        """Publish the artifact to the store, remove the run's checkpoints and return the facts about the artifact.

        Raises Refused when the exported folder and the tokenizer do not match.
        """
        enter_part("upload")
        about = {
            **about,
            **(tokens_in_loss.about(self.metrics / "metrics.jsonl") if self.config.trains else {}),
            "phase": self.config.phase,
            "steps": final.step,
            **({"planned_steps": self.config.steps} if final.step != self.config.steps else {}),
            "params": self.config.model.num_params,
            "tokenizer_sha256": self.tokenizer.sha256,
            "vocab": self.tokenizer.vocab_size,
            "machine": self.machine.about,
            **self._context(),
        }
        draft = self.checkpoints.folder / ".draft"
        shutil.rmtree(draft, ignore_errors=True)
        final.link_to(draft / final.folder.name, ("model", "source"))  # no later phase reads the optimizer state
        for name in PUBLISHED:
            shutil.copyfile(self.metrics / name, draft / name)
        about |= self._write_model(draft / "hf", model)
        if wrong := vocabulary.problem(lambda name: (draft / "hf" / name).read_bytes(), about):
            raise Refused(f"the trainer did not publish {self.making.name}: {wrong}")
        whole = {**about, **self.making.provenance}
        Store(self.making.store).publish(draft, self.making.name, self.making.fingerprint, whole)
        remove(self.checkpoints.folder)  # the store has verified its copy
        return about

    def _write_model(self, folder: Path, model: Decoder) -> dict[str, Any]:
        """Write the Hugging Face folder of the artifact, and return further facts about the artifact."""
        config, dtype = self.config, served_dtype(self.config)
        if self.change is None:
            export.write(folder, config.model, model.state_dict(), self.tokenizer_folder, dtype)
            return {}
        of = replace(self.change.changed, rounding=self.change.kind.rounding(config, model.compute_dtype))
        export.write_without_weights(folder, config.model, self.tokenizer_folder, dtype, {"model_change": True})
        changes.write_changed(folder, of)
        self.change.write(folder, model)
        return {"changes": {"name": of.name, "fingerprint": of.fingerprint}, "params_learning": config.num_learning}


@contextmanager
def phase_run(config: PhaseConfig, making: StepContext, keeping: CheckpointOptions, ranks: Ranks) -> Iterator[PhaseRun]:
    """Yield a `PhaseRun` with the run folder locked and the inputs checked.

    Compare the vocabulary of the tokenizer with the model, and the data digests with the other nodes. Raises Refused,
    StoreError, DataError, PeerLost, and OutOfMemory for a full GPU inside the block.
    """
    machine, before = prepare(config.deterministic), starts_from(config.phase, making.inputs)
    if config.adopted:
        found = export.read_config(export.folder_of_model(open_input(making, before)))
        if not config.trains:
            found = found.with_features_of(config.model)
        config = replace(config, model=found)
    folder = open_input(making, "tokenizer")
    tokenizer = tokenizers.load(folder)
    ids, known = config.model.vocab_size, tokenizer.vocab_size
    if known > ids or known < ids and not config.adopted:  # many published models have spare rows
        raise Refused(
            f"{config.phase}: the model has {ids} ids, but the tokenizer {making.inputs['tokenizer'].name} has {known}"
        )
    config = config.with_vocabulary(known)
    acknowledged = work_folder().parent / "state" / "acknowledged.json"  # exists only on a pod
    checkpoints = Checkpoints(checkpoint_folder(config.phase, making, keeping), keeping, acknowledged)
    config = with_fitting_micro_batch(config, ranks, machine, checkpoints.last_config() if ranks.is_first else {})
    parallel = choose_layout(config, ranks, machine)
    ours = {"PyTorch": torch.__version__, "activations": str(machine.dtype(config)), "parallel": parallel}
    ranks.check_equal({**ours, **data_digests(making)})
    with checkpoints.locked() if ranks.is_first else nullcontext():
        for leftover in checkpoints.folder.parent.glob(".trash-*"):
            shutil.rmtree(leftover, ignore_errors=True)  # another phase may be removing the same folder
        if tokenizer.chat is not None and tokenizer.chat.is_dated:
            tokenizer.chat.fix_date(run_start_date(checkpoints.folder, ranks))
        one = PhaseRun(config, making, machine, checkpoints, folder, tokenizer, ranks, parallel, before)
        with explain_out_of_memory(config, machine, parallel, ranks), one.until_published:
            yield one


def checkpoint_folder(phase: str, making: StepContext, keeping: CheckpointOptions) -> Path:
    """Return the checkpoint folder of a run, `[<prefix>-]<phase>-<spec>-<inputs>` from the fingerprint.

    A different configuration or different inputs give a different folder. The code version is not part of the name, so
    a fixed program resumes the same run.
    """
    spec, _, rest = making.fingerprint.partition("-")
    version, _, inputs = rest.rpartition("-")
    remade = version.partition(".")[2]  # a remade artifact must not resume checkpoints of other code
    parts = (keeping.prefix, phase, spec[:12], inputs[:12], remade)
    return work_folder() / "checkpoints" / "-".join(filter(None, parts))


def served_dtype(config: PhaseConfig) -> torch.dtype:
    """Return the dtype of the published Hugging Face folder, float32 or bfloat16.

    A phase with dtype float32 and a model with masters, which the loader rounds, publish float32. The checkpoint beside
    the folder always holds float32 parameters.
    """
    return torch.float32 if config.dtype == "float32" or config.model.has_masters else torch.bfloat16


def open_input(making: StepContext, role: str) -> Path:
    """Return the verified folder of an input. Raises Refused for an unknown role, StoreError."""
    if role not in making.inputs:
        raise Refused(f"{making.name} needs an input {role!r}; given: {', '.join(sorted(making.inputs)) or 'none'}")
    one = making.inputs[role]
    return Store(making.store).path(one.name, one.fingerprint)


def data_digests(making: StepContext) -> dict[str, str]:
    """Return a 12-digit digest by artifact name for the data inputs, which every node prepares locally.

    Models of earlier phases are excluded: only the first process reads them.
    """
    store = Store(making.store)
    inputs = [one for role, one in making.inputs.items() if role not in model_roles()]
    manifests = {one.name: store.manifest_of(one.name, one.fingerprint) for one in inputs}
    files = {name: [(file.path, file.sha256) for file in one.files] for name, one in manifests.items()}
    return {name: hashlib.sha256(repr(sorted(entries)).encode()).hexdigest()[:12] for name, entries in files.items()}


def inputs_digest(making: StepContext) -> str:
    """Return the sha256 over all inputs of a phase: data by content, models by fingerprint."""
    prints = {role: one.fingerprint for role, one in making.inputs.items()}
    return hashlib.sha256(repr(sorted({**prints, **data_digests(making)}.items())).encode()).hexdigest()


def run_id() -> str:
    """Return the run id from SLIPWAY_RUN_ID, stable across recoveries, or "" outside a run."""
    return os.environ.get("SLIPWAY_RUN_ID", "")


def work_folder() -> Path:
    return Path(os.environ.get("SLIPWAY_WORK") or "var/work")
