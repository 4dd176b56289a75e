"""The phase rl as a program: the model learns the rewarded behavior, and a killed run ends with the same bits."""

import json
import os
import random
import signal
import time
from dataclasses import asdict, replace
from typing import Any

import pytest

from data.config import Input
from tests.faults.lives import Tell, fork
from tests.trainer.conftest import tiny
from trainer import loop
from trainer.__main__ import main
from trainer.checkpoints.checkpoint import Checkpoint, open_final
from trainer.config import CheckpointOptions, PhaseConfig
from trainer.records.rl_config import RlConfig

pytestmark = pytest.mark.nightly

STEPS = 9
SHORT = "def reward(question, answer, completion):\n    return {'short': 1.0 - len(completion) / 40}\n"


def config_of(phase: str, **rl: Any) -> PhaseConfig:
    """Return the configuration of a tiny phase; for rl, shorter answers have a higher reward."""
    if phase != "rl":
        return tiny(phase=phase, steps=8, dtype="float32")
    how = RlConfig(group=4, max_new=10, reward=SHORT, eval_every=4, eval_problems=2, test_problems=2, **rl)
    slow = replace(tiny().optimizer, lr=0.003, muon_lr=0.0)
    return tiny(
        phase=phase,
        steps=STEPS,
        dtype="float32",
        optimizer=slow,
        rows=16,
        micro_rows=8,
        sequence_len=64,
        mixture={"sort": 1.0},
        rl=how,
    )


@pytest.fixture
def run_phase(world):
    """Return a function that runs a phase as a program: run_phase(config, name) -> exit code."""

    def go(config: PhaseConfig, name: str, kill_at: int = 0, kill_after_s: float = 0.0) -> int:
        def work(tell: Tell) -> None:
            advance = loop.Training._advance

            def stop(self: loop.Training, *words: Any) -> bool:
                if kill_at and self.step == kill_at:
                    self._collect(wait=True)
                    os.kill(os.getpid(), signal.SIGKILL)
                return advance(self, *words)

            loop.Training._advance = stop  # type: ignore[method-assign]
            os.environ |= {"SLIPWAY_WORK": str(world.work(name)), "OMP_NUM_THREADS": "1"}
            os._exit(main([config.phase, "--config", str(file)]))

        before = Input(name="base_checkpoints/tiny", fingerprint="f" * 64)
        making = world.making(config.phase, **({"base": before} if config.phase == "rl" else {}))
        own = {} if config.phase == "base" else {"fingerprint": name}
        making = replace(making, name=f"{config.phase}_checkpoints/{name}", **own)
        file = world.root / f"{config.phase}-{name}.json"
        keeping = CheckpointOptions(save_every=1, keep=2, reserve_bytes=0, samples=1)
        file.write_text(json.dumps({"making": asdict(making), "spec": asdict(config), "keeping": asdict(keeping)}))
        child = fork(work)
        return child.leave(kill_after_s or 120.0)[1]

    return go


def published_model(world, name: str) -> Checkpoint:
    return open_final(world.store / "rl_checkpoints" / name)


@pytest.mark.process
def test_killed_run_resumes_to_the_same_bits_also_between_two_updates_on_the_same_answers(world, run_phase):
    twice = config_of("rl", num_iterations=2, beta=0.05, dynamic_sampling=1)
    assert run_phase(config_of("base"), "tiny") == 0
    assert run_phase(twice, "whole") == 0
    assert run_phase(twice, "parted", kill_at=5) == -signal.SIGKILL
    assert run_phase(twice, "parted") == 0
    assert hashes(published_model(world, "whole")) == hashes(published_model(world, "parted"))
    folder = published_model(world, "parted").folder.parent
    lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
    assert [one["step"] for one in lines] == list(range(1, STEPS + 1))
    assert lines[0]["mismatch"] < 1e-4 and lines[0]["kl"] < 1e-6 < lines[-1]["kl"] and lines[0]["entropy"] > 1
    assert {"greedy", "pass_at_1", "pass_at_8"} <= lines[4].keys() and "greedy" not in lines[5]
    for one, again in zip(lines[::2], lines[1::2], strict=False):  # Also at the point of a kill, in between.
        assert again["reward"] == one["reward"] and again["length"] == one["length"] and "rollout_s" not in again
    said = [json.loads(line) for line in (folder / "samples.jsonl").read_text().splitlines()]
    assert {one["prompt"] for one in said} == {"Hello!", "What does join do?"} and "(reward " in said[0]["text"]

    late = config_of("rl", lag=1)
    assert run_phase(late, "late") == 0
    assert run_phase(late, "parted-late", kill_at=5) == -signal.SIGKILL
    assert run_phase(late, "parted-late") == 0
    assert hashes(published_model(world, "late")) == hashes(published_model(world, "parted-late"))
    kept = (published_model(world, "late").folder.parent / "metrics.jsonl").read_text()
    lines = [json.loads(line) for line in kept.splitlines()]
    assert lines[0]["mismatch"] < 1e-4 < lines[1]["mismatch"]

    assert run_phase(config_of("rl"), "plain") == 0
    lines = [
        json.loads(line)
        for line in (world.store / "rl_checkpoints" / "plain" / "metrics.jsonl").read_text().splitlines()
    ]
    assert sum(one["reward"] for one in lines[-2:]) > sum(one["reward"] for one in lines[:2])


@pytest.mark.process
@pytest.mark.timeout(3600)
def test_two_hundred_kills_change_no_bit(world, run_phase):
    config, chance = config_of("rl", num_iterations=2, lag=1), random.Random(20)
    assert run_phase(config_of("base"), "tiny") == 0
    began = time.monotonic()
    assert run_phase(config, "whole") == 0
    whole_s = time.monotonic() - began
    kills, trials = 0, 0
    while kills < 200:
        trials += 1
        name, before, began = f"parted-{trials}", kills, time.monotonic()
        while code := run_phase(config, name, kill_after_s=chance.uniform(0.05, 1.2) * whole_s):
            assert code == -signal.SIGKILL
            kills += 1
        # The first run is slow on a busy machine; later runs would then end before most kills.
        if kills == before:
            whole_s = min(whole_s, time.monotonic() - began)
        assert hashes(published_model(world, name)) == hashes(published_model(world, "whole"))
    assert trials > 10


def hashes(one: Checkpoint) -> dict[str, str]:
    return {file["path"]: file["sha256"] for file in one.manifest["files"]}
