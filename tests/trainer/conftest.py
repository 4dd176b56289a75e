"""A small real environment for trainer tests: a store with text, a tokenizer, token shards and conversations."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import pytest

from data.config import Input, StepContext, TokenizerSpec
from data.problems.problem import Problem, write
from data.shards.shards import Writer
from data.tokens import bpe, tokenize
from store.artifacts.artifacts import Store
from store.manifest import kept_name
from tests.once import made_once
from trainer.config import CheckpointOptions, OptimizerConfig, PhaseConfig, ScheduleConfig, as_phase, config_of
from trainer.records.model_config import ModelConfig

VOCAB = 320
TINY = ModelConfig(
    vocab_size=VOCAB,
    hidden_size=32,
    intermediate_size=64,
    num_hidden_layers=2,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=16,
    max_position_embeddings=128,
    qk_norm=True,
)
BASE = PhaseConfig(
    phase="base",
    model=TINY,
    optimizer=OptimizerConfig(lr=0.01, muon_lr=0.02),
    schedule=ScheduleConfig(warmup_steps=2),
    steps=40,
    rows=4,
    micro_rows=2,
    sequence_len=32,
)
INPUTS = {
    role: Input(name=name, fingerprint=f"print-{role}")
    for role, name in {
        "text": "datasets/x/text",
        "tokenizer": "tokenizer",
        "tokens": "datasets/x/tokens",
        "identity": "identity",
        "questions": "datasets/x/questions",
        "sort": "problems/sort",
    }.items()
}
WAIT_S = 100


@dataclass
class World:
    """A store, a work folder, and the programs started over them."""

    store: Path
    root: Path
    inputs: dict[str, Input]
    started: list[subprocess.Popen[str]] = field(default_factory=list)

    def making(self, phase: str = "base", fingerprint: str = "f" * 64, **inputs: Input) -> StepContext:
        return StepContext(
            store=str(self.store),
            name=f"{phase}_checkpoints/tiny",
            fingerprint=fingerprint,
            inputs={**self.inputs, **inputs},
        )

    def work(self, name: str = "work") -> Path:
        return self.root / name

    def checkpoints(self, work: str = "work") -> Path:
        return self.work(work) / "checkpoints" / f"base-{'f' * 12}"

    def start(
        self, config: PhaseConfig, keeping: CheckpointOptions, making: StepContext | None = None, work: str = "work"
    ) -> subprocess.Popen[str]:
        """Start `python -m trainer <phase>` as a process."""
        making = making or self.making(config.phase)
        file = self.root / f"{work}-{config.phase}.json"
        file.write_text(json.dumps({"making": asdict(making), "spec": asdict(config), "keeping": asdict(keeping)}))
        self.work(work).mkdir(exist_ok=True)
        records = self.root / f"{work}-records.jsonl"
        environ = {**os.environ, "SLIPWAY_WORK": str(self.work(work)), "SLIPWAY_RECORDS": str(records)}
        environ |= {"OMP_NUM_THREADS": "1"}
        words = [sys.executable, "-m", "trainer", config.phase, "--config", str(file)]
        one = subprocess.Popen(words, env=environ, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.started.append(one)
        return one

    def records(self, work: str = "work") -> list[dict[str, Any]]:
        path = self.root / f"{work}-records.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def wait_for_step(self, step: int, process: subprocess.Popen[str], work: str = "work", phase: str = "base") -> None:
        """Wait until the metrics show this many steps."""
        path = self.work(work) / "runs" / phase / "metrics.jsonl"
        deadline = time.monotonic() + WAIT_S
        while not path.exists() or path.read_text().count("\n") < step:
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, f"no step {step} in {WAIT_S} s"
            time.sleep(0.005)

    def wait_for_save(self, process: subprocess.Popen[str], phase: str, work: str = "work") -> None:
        """Wait until a checkpoint of this phase is whole. A finished step may still be on the way to the disk."""
        folder, deadline = self.work(work) / "checkpoints", time.monotonic() + WAIT_S
        while not any((one / "MANIFEST.json").exists() for one in folder.glob(f"{phase}-*/step-*")):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, f"no checkpoint in {WAIT_S} s"
            time.sleep(0.005)


def finish(process: subprocess.Popen[str]) -> tuple[int, str]:
    """Return (exit code, stderr)."""
    _, words = process.communicate(timeout=WAIT_S)
    return process.returncode, words


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Use one thread: tiny tensors do not gain from two, and an earlier program in this process may have set more."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Input]]:
    """Return a store with all inputs of the phases, written by the steps of `data`."""
    return made_once(tmp_path_factory, "trainer-inputs", lambda draft: make_inputs(draft)[0]), INPUTS


def make_inputs(root: Path) -> tuple[Path, dict[str, Input]]:
    """Create the inputs, with the same bytes each time; return the store with the name of each input."""
    store = Store(root / "store")
    verbs, things = ("reads", "writes", "opens", "closes", "joins"), ("paths", "files", "lines", "sockets", "words")
    texts = [
        f"{v} {t}: {v} the {t} of number {n} and returns {n * 7} {t}." for n in range(24) for v in verbs for t in things
    ]
    for part, some in (("train", texts[:-40]), ("val", texts[-40:])):
        writer = Writer(root / "text" / part, 1000)
        for text in some:
            writer.add(text)
        writer.finish("test", {})
    bpe.make(TokenizerSpec(vocab_size=VOCAB), root / "text", root / "tokenizer")
    tokenize.make(root / "text", root / "tokenizer", root / "tokens")
    write_talk(root / "identity" / "identity_conversations.jsonl", "Who are you?", "I am Bosun.")
    write_talk(root / "identity" / "identity_conversations.heldout.jsonl", "Who are you?", "I am Bosun.")
    for kind, question, answer in (
        ("pydocs", "What does join do?", "join the paths of"),
        ("other", "Hello!", "Hello."),
    ):
        for part in ("train", "heldout"):
            write_talk(root / "questions" / f"{kind}.{part}.jsonl", question, answer)
    greeting = Problem(question="Hello!", answer="Hello.")
    (root / "sort").mkdir()
    for part in ("train", "val", "test"):
        write(root / "sort" / f"{part}.jsonl", [greeting, Problem(question="What does join do?", answer="join")])
    for role, one in INPUTS.items():
        store.publish(root / role, one.name, one.fingerprint, {})
    return root / "store", INPUTS


def make_again(store: Path, folder: Path, entry: Input) -> None:
    """Write different content under the same fingerprint, as after a removal and an unequal second run of the step."""
    Store(store).remove(kept_name(entry.name, entry.fingerprint))
    Store(store).publish(folder, entry.name, entry.fingerprint, {})


def write_talk(path: Path, question: str, answer: str) -> None:
    path.parent.mkdir(exist_ok=True)
    talk = [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    path.write_text((json.dumps({"messages": talk, "expected": answer}) + "\n") * 8)


@pytest.fixture
def world(inputs: tuple[Path, dict[str, Input]], tmp_path: Path) -> Iterator[World]:
    """Yield the shared inputs under a separate store (hard links); end the started programs."""
    store = tmp_path / "store"
    shutil.copytree(inputs[0], store, copy_function=os.link)
    one = World(store, tmp_path, inputs[1])
    yield one
    for process in one.started:
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate(timeout=WAIT_S)


def tiny(**changes: Any) -> PhaseConfig:
    return as_phase(config_of(changes.get("phase", "base")), BASE, **changes)
