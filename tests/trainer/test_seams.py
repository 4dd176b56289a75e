"""A user-defined phase: a custom objective, a source that sees the model, a frozen second model.

The phase is registered only here, and trains with the same program as any other.
"""

import json
import os
import signal
from collections.abc import Mapping
from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from data.config import Input, Persona
from tests.faults.lives import Tell, fork
from tests.trainer.conftest import tiny
from trainer import loop
from trainer.__main__ import main
from trainer.checkpoints.checkpoint import Checkpoint, open_final
from trainer.config import CheckpointOptions, ImportSpec
from trainer.device import prepare
from trainer.fingerprints import VERSIONS
from trainer.memory import estimate
from trainer.model import export
from trainer.model.decoder import IGNORED, Decoder, initialize
from trainer.objectives import Batch
from trainer.objectives.source import Source
from trainer.parallel.models import ModelPlacement
from trainer.parallel.process_group import Ranks
from trainer.plan import TrainingRequest, recipe
from trainer.recipes import PROFILES
from trainer.records.phase_registry import PHASES, TEACHER, Phase
from trainer.rollouts.policy import Embedded
from trainer.run import phase_run

STEPS = 12
ECHO = Phase(
    name="echo", folder="echo_checkpoints", module=__name__, follows=("sft", "base"), reads="talk", teacher=("base",)
)


class NearTeacher:
    """Half of the squared distance to the teacher's hidden states, weighted per token, with a decreasing factor."""

    def __init__(self, teacher: Decoder) -> None:
        self.teacher, self.strength = teacher, torch.zeros(())

    def loss_divisor(self, batch: Batch) -> float:
        return float((batch["weights"] * (batch["targets"] != IGNORED)).sum())

    def loss(self, model: Decoder, batch: Mapping[str, Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        weights = batch["weights"] * (batch["targets"] != IGNORED)
        mine, (first,) = model.hidden(batch["ids"], capture=[1])
        with torch.no_grad():
            theirs, (wanted,) = self.teacher.hidden(batch["ids"], capture=[1])
        far = (weights * (mine - theirs).float().square().sum(dim=-1)).sum()
        within = (weights * (first - wanted).float().square().sum(dim=-1)).sum()
        return self.strength * (far + within), {"far": far.detach(), "within": within.detach()}

    def set_step(self, step: int, steps: int) -> None:
        self.strength.fill_(1 / (1 + step))


class LikeliestTokens(Source):
    """A source of the model's likeliest tokens after its earlier tokens, which only a checkpoint stores."""

    sees_model = True

    def __init__(self, rows: int) -> None:
        self.ids = torch.arange(rows * 16).reshape(rows, 16)

    def batch(self, step: int, *model: Decoder) -> Batch:
        with torch.no_grad():
            self.ids = (model[0](self.ids).argmax(dim=-1) + self.ids + step) % 300
        weights = np.random.default_rng([3, step]).random(self.ids.shape, np.float32)
        return {"ids": self.ids.numpy(), "targets": self.ids.numpy(), "weights": weights}

    def state(self) -> dict[str, Tensor]:
        return {"ids": self.ids}

    def load(self, state: Mapping[str, Tensor]) -> None:
        self.ids = state["ids"].clone()


def run(config, making, keeping, ranks):
    """The phase, as in a file of trainer/phases/."""
    with phase_run(config, making, keeping, ranks) as phase:
        teacher = phase.load_frozen_model(TEACHER)
        assert not any(one.requires_grad for one in teacher.parameters()) and not teacher.training
        trained = phase.train(phase.initial_model(), LikeliestTokens(config.rows), NearTeacher(teacher))
        return phase.publish(*trained, {}) if trained else {}


@pytest.fixture
def registered(monkeypatch):
    monkeypatch.setitem(PHASES, "echo", ECHO)
    monkeypatch.setitem(VERSIONS, "echo", 1)


@pytest.mark.nightly
@pytest.mark.process
def test_phase_with_a_custom_objective_is_killed_and_resumes_with_the_same_bits(world, registered):
    def go(phase: str, name: str, kill_at: int = 0) -> int:
        """Return the exit code of the program."""

        def work(tell: Tell) -> None:
            advance = loop.Training._advance

            def stop(self: loop.Training, *words: Any) -> bool:
                if kill_at and self.step == kill_at:
                    self._collect(wait=True)
                    os.kill(os.getpid(), signal.SIGKILL)
                return advance(self, *words)

            loop.Training._advance = stop  # type: ignore[method-assign]
            os.environ |= {"SLIPWAY_WORK": str(world.work(name)), "OMP_NUM_THREADS": "1"}
            os._exit(main([phase, "--config", str(file)]))

        before = Input(name="base_checkpoints/tiny", fingerprint="f" * 64)
        making = world.making(phase, **({"base": before, TEACHER: before} if phase == "echo" else {}))
        own = {} if phase == "base" else {"fingerprint": name}
        making = replace(making, name=f"{phase}_checkpoints/{name}", **own)
        file = world.root / f"{phase}-{name}.json"
        config = tiny(phase=phase, steps=STEPS, dtype="float32", rows=5, micro_rows=1)
        keeping = CheckpointOptions(save_every=3, keep=2, reserve_bytes=0, samples=0)
        file.write_text(json.dumps({"making": asdict(making), "spec": asdict(config), "keeping": asdict(keeping)}))
        return fork(work).leave(120.0)[1]

    assert go("base", "tiny") == 0
    assert go("echo", "whole") == 0
    assert go("echo", "parted", kill_at=7) == -signal.SIGKILL
    assert go("echo", "parted") == 0
    made = [open_final(world.store / "echo_checkpoints" / name) for name in ("whole", "parted")]
    assert hashes(made[0]) == hashes(made[1]) and "source-rank00000.safetensors" in hashes(made[0])
    assert made[0].tensors("source")["ids"].shape == (5, 16)
    lines = [json.loads(line) for line in (made[1].folder.parent / "metrics.jsonl").read_text().splitlines()]
    assert [one["step"] for one in lines] == list(range(1, STEPS + 1)) and lines[-1]["far"] > 0
    assert lines[4]["loss"] == pytest.approx((lines[4]["far"] + lines[4]["within"]) / 5, rel=1e-5)


def test_registered_phase_is_planned_with_its_inputs_and_costs(registered, monkeypatch):
    plain = PROFILES["tiny"]()
    echo = replace(plain.phases["sft"], phase="echo", mixture={"identity": 1.0})
    whole = replace(plain, phases={**plain.phases, "echo": echo})
    monkeypatch.setitem(PROFILES, "tiny", lambda phases=None: whole)
    who = Persona(name="Ada", maker="us", purpose="to help")
    nodes = recipe(TrainingRequest(phases=("echo",), profile="tiny", persona=who))
    assert nodes["echo"].inputs == {"tokenizer": "tokenizer", "identity": "identity", "sft": "sft", TEACHER: "base"}
    assert nodes["echo"].artifact == "echo_checkpoints/tiny" and nodes["echo"].words == ("-m", "trainer", "echo")
    alone = estimate(plain.phases["sft"])
    assert estimate(echo).total == alone.total + 2 * echo.model.num_params == alone.total + estimate(echo).frozen
    ratio = echo.flops_per_token(64) / echo.model.flops_per_token(64)
    assert ratio == pytest.approx(4 / 3)
    init = ImportSpec(source="/models/theirs", model=echo.model, has_tokenizer=True)
    theirs = recipe(TrainingRequest(phases=("echo",), profile="tiny", persona=who, init=init))
    assert theirs["echo"].inputs == {"tokenizer": "init", "identity": "identity", "init": "init", TEACHER: "init"}
    assert "sft" not in theirs


@pytest.mark.pack("bits")
def test_no_random_numbers_are_drawn_for_loaded_parameters(inputs, tmp_path):
    """Random numbers for billions of parameters would take a minute: in the first process, and in each answering
    process.
    """
    from packs.bits.trainer.conversion import converted

    config = tiny(dtype="float32")
    wanted = Decoder(config.model)
    initialize(wanted, 3)
    before = torch.get_rng_state()
    placement = ModelPlacement(config, prepare(), Ranks(), "ddp")
    made, _ = placement.trained(config.model, lambda model: initialize(model, 3))
    frozen = placement.frozen(config.model, lambda model: initialize(model, 3))
    export.write(tmp_path / "hf", config.model, made.state_dict(), inputs[0] / "tokenizer")
    for one in (made, frozen, export.read(tmp_path / "hf"), converted(made, config.model, torch.float32)):
        assert all(torch.equal(one.state_dict()[name], value) for name, value in wanted.state_dict().items())
    engine = Embedded((), 1)
    engine.load_weights(converted(made, config.model, torch.bfloat16))
    assert engine.copy.head.dtype == torch.bfloat16 and torch.equal(engine.copy.head, wanted.head.bfloat16())
    assert torch.equal(torch.get_rng_state(), before)


def hashes(one: Checkpoint) -> dict[str, str]:
    return {file["path"]: file["sha256"] for file in one.manifest["files"]}
