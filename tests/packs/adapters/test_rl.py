"""The phase rl with adapters: the reward rises, answers come from the merged model, and vLLM gets the adapter alone."""

import json
import math
import signal
from dataclasses import replace

import pytest
import torch

from data.config import ConfigError, Input
from packs.adapters.control.flags import AdapterFlags
from packs.adapters.records.lora_config import AdapterConfig, AdapterPhaseConfig, sides, with_adapter
from packs.adapters.trainer.imported_adapter import StoredLora
from tests.packs.adapters.test_lora import attached
from tests.trainer import conftest as trained
from tests.trainer.conftest import tiny
from tests.trainer.rollouts.test_vllm_engine import DRAWN, GREEDY, PROMPTS, model_of
from tests.trainer.test_phases import run
from tests.trainer.test_rl import config_of, hashes, published_model
from tests.trainer.test_rl import run_phase as run_phase
from trainer import memory
from trainer.checkpoints.checkpoint import open_final
from trainer.model.changes import ChangedModel
from trainer.rollouts.policy import Embedded
from trainer.rollouts.problem_sampler import uniform
from trainer.rollouts.vllm_engine import ChangeFiles, EngineSettings, Vllm

one_thread, inputs = trained.one_thread, trained.inputs
BASE = Input(name="base_checkpoints/tiny", fingerprint="f" * 64)


def adapted(**rl) -> AdapterPhaseConfig:
    config = with_adapter(AdapterFlags(adapter="lora"), config_of("rl", **rl))
    assert isinstance(config, AdapterPhaseConfig)
    return replace(config, adapter=AdapterConfig(rank=4, alpha=8.0), optimizer=replace(config.optimizer, lr=0.02))


@pytest.mark.nightly
@pytest.mark.slow
def test_rl_trains_an_adapter(world, monkeypatch):
    # A short base run leaves a small output matrix. The matrix is frozen, so no adapter could change the answers.
    assert run(world, monkeypatch, "base", tiny(steps=100, dtype="float32")) == 0
    for name, config in (("plain", adapted()), ("late", adapted(lag=1, beta=0.05))):
        config = replace(config, steps=12)
        making = replace(world.making("rl", name[0] * 64, base=BASE), name=f"rl_checkpoints/{name}")
        assert run(world, monkeypatch, "rl", config, making) == 0
        folder = world.store / "rl_checkpoints" / name
        learnt = open_final(folder).tensors("model")
        assert sum(one.numel() for one in learnt.values()) == config.num_learning
        assert (folder / "hf/adapter_model.safetensors").is_file() and not (folder / "hf/model.safetensors").exists()
        lines = [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]
        assert len(lines) == 12 and all(math.isfinite(one["mismatch"]) for one in lines)
        # With answers one update old, the mismatch is the change by an update, and the reward depends on the discovery
        # of the shortest answer, which such answers delay by chance: neither has a bound.
        if name == "plain":
            # The merged copy answers with the weights of the trainer: an unmerged adapter would show here.
            assert all(one["mismatch"] < 1e-4 for one in lines)
            assert sum(one["reward"] for one in lines[-2:]) > sum(one["reward"] for one in lines[:2]) + 0.4


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.parametrize("kind", ["lora", "qlora"])
def test_killed_training_of_an_adapter_resumes_to_the_same_bits(world, run_phase, kind):
    config = adapted(num_iterations=2)
    config = replace(config, adapter=replace(config.adapter, kind=kind))
    assert run_phase(config_of("base"), "tiny") == 0
    assert run_phase(config, "whole") == 0
    assert run_phase(config, "parted", kill_at=5) == -signal.SIGKILL
    assert run_phase(config, "parted") == 0
    whole, parted = (published_model(world, name) for name in ("whole", "parted"))
    assert hashes(whole) == hashes(parted)


def test_memory_of_rl_counts_the_merged_matrices_of_the_embedded_engine_and_the_reference():
    config = adapted()
    alone, beside = (memory.estimate(one, "cpu") for one in (config, adapted(engine="vllm")))
    matrices = sum(inputs * outputs for inputs, outputs in sides(config.model).values())
    assert alone.frozen - beside.frozen == 4 * config.model.num_hidden_layers * matrices
    assert memory.estimate(adapted(beta=0.1), "cpu").frozen - alone.frozen == 4 * config.model.num_params


def test_rank_above_the_highest_rank_of_vllm_is_refused_for_vllm_only():
    wide = replace(adapted().model, hidden_size=1024, intermediate_size=1024)
    high = {"adapter": AdapterConfig(rank=600, targets=("up_proj",)), "model": wide}
    assert replace(adapted(), **high).num_learning
    with pytest.raises(ConfigError, match="vLLM serves ranks of at most 512"):
        replace(adapted(engine="vllm"), **high)


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.timeout(1800)
def test_vllm_gets_the_adapter_alone_and_answers_like_the_merged_model(inputs, tmp_path):
    model = model_of(trained.TINY.vocab_size, 1)
    config = replace(adapted(), adapter=AdapterConfig(rank=4, alpha=8.0))
    model = attached(model, config, std=0.2)
    config = replace(config, model=model.config)
    kind, of = StoredLora(), ChangedModel(name="x", fingerprint="y", weights_sha256="z")
    files = ChangeFiles(4, lambda folder, learning: kind.write(folder, learning, config, of))
    opening = EngineSettings(tmp_path / "engine", inputs[0] / "tokenizer", 64, 16, 1.0, change=files)
    engine, embedded, seen = Vllm([0], opening, tmp_path / "vllm.log"), Embedded([0], 16, kind), []
    try:
        for step in range(3):
            for name, one in model.named_parameters():
                if "lora_B" in name:
                    one.data += 0.1 * step
            engine.load_weights(model)
            embedded.load_weights(model)
            numbers = uniform(len(PROMPTS), DRAWN.max_new, 1)
            ours, theirs = (one.generate(PROMPTS, 1, GREEDY, numbers) for one in (embedded, engine))
            assert torch.equal(ours.ids, theirs.ids) and (ours.logprobs - theirs.logprobs).abs().max() < 1e-3
            seen.append(ours.logprobs)
            assert {one.name for one in (tmp_path / "engine").iterdir()} == {"model", f"weights-{step + 1}"}
            assert 0 < engine.transfer["weights_mb"] < 4e-6 * sum(one.numel() for one in model.parameters()) / 2
            if step == 1:  # The next process starts with the newest adapter.
                engine.processes[0].worker.close()
        assert not torch.equal(seen[0], seen[1])
    finally:
        engine.close()
