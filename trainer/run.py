"""What every phase does around its training: inputs out of the store, one locked run folder, one published artifact.

In: a `Making` and the records of a phase. Out: `<work>/checkpoints/<phase>-<12>/` while it trains (`metrics.jsonl` in
`<work>/runs/<phase>/`), then the artifact: `step-<9 digits>/`, `hf/`, `metrics.jsonl`, `samples.jsonl`.
"""

import hashlib
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from data import tokenizer as tokenizers
from data.config import Making
from data.report import emit
from store import Store
from trainer import export
from trainer.checkpoint import Checkpoint, Checkpoints, open_final, remove
from trainer.config import Keeping, PhaseConfig
from trainer.errors import Refused
from trainer.loop import Batch, Data, Training
from trainer.machine import Machine, prepare
from trainer.metrics import last_loss
from trainer.model import Decoder, initialise
from trainer.peak import of_machine
from trainer.ranks import Ranks
from trainer.samples import Sampler
from trainer.speed import equipped


@dataclass
class PhaseRun:
    """One phase at work. Made by `phase_run`, which holds the lock."""

    config: PhaseConfig
    making: Making
    machine: Machine
    checkpoints: Checkpoints
    tokenizer_folder: Path
    tokenizer: tokenizers.Tokenizer
    ranks: Ranks
    metrics: Path = field(init=False)

    def __post_init__(self) -> None:
        self.metrics = work_folder() / "runs" / self.config.phase

    def input(self, role: str) -> Path:
        return open_input(self.making, role)

    def new_model(self) -> Decoder:
        """With first weights from the seed."""
        model = Decoder(self.config.model, self.machine.dtype(self.config))
        initialise(model, self.config.seed)
        return model.to(self.machine.device)

    def model_from(self, role: str) -> Decoder:
        """With the weights at the end of the phase before. Raises Refused when it learned another vocabulary."""
        model = Decoder(self.config.model, self.machine.dtype(self.config))
        if not self.ranks.is_first:  # it hears the weights before the first step
            return model.to(self.machine.device)
        if role == "init":
            export.load(model, self.input(role))
            return model.to(self.machine.device)
        before = open_final(self.input(role))
        ours = {"tokenizer_sha256": self.tokenizer.sha256, "vocab": self.tokenizer.vocab_size}
        theirs = {name: before.manifest.get(name) for name in ours}
        if theirs != ours:
            name = self.making.inputs[role].name
            raise Refused(f"{self.config.phase} cannot go on from {name}: it has {theirs}, this run has {ours}")
        try:
            model.load_state_dict(before.tensors("model"))
        except RuntimeError as error:
            raise Refused(f"{self.config.phase} cannot go on from {self.making.inputs[role].name}: {error}") from None
        return model.to(self.machine.device)

    def train(self, model: Decoder, batch: Batch, data: Data | None = None) -> Checkpoint | None:
        """See `Training.run`."""
        facts = {
            "run": run_id(),
            "phase": self.config.phase,
            "tokenizer_sha256": self.tokenizer.sha256,
            "vocab": self.tokenizer.vocab_size,
        }
        peak, sample = None, None
        if self.ranks.is_first:
            peak = of_machine(self.machine)
            sample = Sampler(model, self.tokenizer, is_talk=self.config.mixture is not None)
        with equipped(model, self.config, self.machine):
            return Training(
                model, self.config, batch, self.checkpoints, facts, self.metrics, self.ranks, data, peak, sample
            ).run()

    def publish(self, model: Decoder, final: Checkpoint, about: dict[str, Any]) -> dict[str, Any]:
        """Put the artifact into the store, then drop this run's checkpoints; all that is known of it."""
        about = {
            **about,
            "train_loss": last_loss(self.metrics / "metrics.jsonl"),
            "phase": self.config.phase,
            "steps": self.config.steps,
            "params": self.config.model.num_params,
            "tokenizer_sha256": self.tokenizer.sha256,
            "vocab": self.tokenizer.vocab_size,
        }
        draft = self.checkpoints.folder / ".draft"
        shutil.rmtree(draft, ignore_errors=True)
        shutil.copytree(final.folder, draft / final.folder.name, copy_function=os.link)
        for name in ("metrics.jsonl", "samples.jsonl"):
            shutil.copyfile(self.metrics / name, draft / name)
        export.write(draft / "hf", self.config.model, model.state_dict(), self.tokenizer_folder)
        Store(self.making.store).publish(draft, self.making.name, self.making.fingerprint, about)
        remove(self.checkpoints.folder)  # the store has read its copy back
        return about


@contextmanager
def phase_run(
    config: PhaseConfig, making: Making, keeping: Keeping, ranks: Ranks, before: str = ""
) -> Iterator[PhaseRun]:
    """The run folder locked, the tokenizer read and compared with the model, the data with that of the other nodes.

    before: the role of the model that this phase goes on from. Raises Refused, StoreError, DataError, PeerLost.
    """
    machine = prepare()
    if config.adopted:
        config = replace(config, model=export.read_config(export.folder_of_model(open_input(making, before))))
    folder = open_input(making, "tokenizer")
    tokenizer = tokenizers.load(folder)
    ours, theirs = config.model.vocab_size, tokenizer.vocab_size
    if theirs > ours or theirs < ours and not config.adopted:  # many published models have rows to spare
        raise Refused(
            f"{config.phase}: the model has {ours} ids, the tokenizer {making.inputs['tokenizer'].name} {theirs}"
        )
    ranks.compare({"PyTorch": torch.__version__, "activations": str(machine.dtype(config)), **data_digests(making)})
    name = "-".join(filter(None, (keeping.prefix, config.phase, making.fingerprint[:12])))
    acknowledged = work_folder().parent / "state" / "acknowledged.json"  # of a pod; else there is none
    checkpoints = Checkpoints(work_folder() / "checkpoints" / name, keeping, acknowledged)
    with checkpoints.locked() if ranks.is_first else nullcontext():
        for leftover in checkpoints.folder.parent.glob(".trash-*"):
            shutil.rmtree(leftover, ignore_errors=True)  # a finished run of another phase may be removing it just now
        yield PhaseRun(config, making, machine, checkpoints, folder, tokenizer, ranks)


def once(making: Making, ranks: Ranks, make: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What is known of the artifact: made now, or before: a kill can come between publishing and saying so."""
    found = Store(making.store).check(making.name)
    is_due = ranks.tell(bool(found.problem) or found.fingerprint != making.fingerprint)
    about = make() if is_due else dict(found.about)
    emit("result", name=making.name, fingerprint=making.fingerprint, **about)
    return about


def open_input(making: Making, role: str) -> Path:
    """The verified folder of an input. Raises Refused, StoreError."""
    if role not in making.inputs:
        raise Refused(f"{making.name} needs an input {role!r}; given: {', '.join(sorted(making.inputs)) or 'none'}")
    one = making.inputs[role]
    return Store(making.store).path(one.name, one.fingerprint)


def data_digests(making: Making) -> dict[str, str]:
    """What every node has made for itself, by name; models of earlier phases are read by the first process alone."""
    store = Store(making.store)
    inputs = [one.name for role, one in making.inputs.items() if role not in ("base", "mid", "init")]
    files = {name: [(file.path, file.sha256) for file in store.manifest(name).files] for name in inputs}
    return {name: hashlib.sha256(repr(sorted(entries)).encode()).hexdigest()[:12] for name, entries in files.items()}


def run_id() -> str:
    """Stable over every recovery; "" outside a run."""
    return os.environ.get("SLIPWAY_RUN_ID", "")


def work_folder() -> Path:
    return Path(os.environ.get("SLIPWAY_WORK") or "var/work")
