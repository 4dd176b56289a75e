"""A checkpoint of nanochat as of 2026, recorded by nanochat's own code: converted, compared, trained, used in a chat.

`record_nanochat` makes the recording. NANOCHAT=DIR, a git checkout of karpathy/nanochat, compares further models.
"""

import json
import os
import subprocess
import sys
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from data.config import ConfigError, Input, Persona
from data.tokens import tokenizer as tokenizers
from flows.models import init_model
from infra.settings import Settings
from packs.imports.records import nanochat
from packs.imports.trainer import child
from store.artifacts.artifacts import Store
from tests.packs.imports.record_nanochat import EVERY, FOLDER, LONG, PROMPT, SIZES
from tests.trainer.conftest import inputs as inputs
from tests.trainer.conftest import one_thread as one_thread
from tests.trainer.conftest import world as world
from tests.trainer.model.test_init import configured
from tests.trainer.test_plan import ROOT
from trainer import recipes, tensor_file
from trainer.__main__ import main
from trainer.config import CheckpointOptions
from trainer.model import export
from trainer.model.decoder import Decoder
from trainer.model.generate import generate
from trainer.plan import TrainingRequest, recipe
from trainer.profiles import derived_phases

pytestmark = pytest.mark.pack("speedrun")

NEAR = 1e-4


def recorded_in(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "recorded.json").read_text(encoding="utf-8"))


def assert_equals_recording(model: Decoder, folder: Path) -> None:
    """Compare logits, also of a row beyond the context, the loss and the answer with a KV cache with nanochat's."""
    recorded, logits = recorded_in(folder), tensor_file.read(folder / "logits.safetensors")
    ids, long_ids = torch.tensor([recorded["ids"]]), torch.tensor([recorded["long_ids"]])
    with torch.inference_mode():
        assert (model(ids[:, :-1])[0, ::EVERY] - logits["logits"]).abs().max() < NEAR
        assert long_ids.shape[1] == LONG > SIZES["sequence_len"] == model.config.max_position_embeddings
        assert (model(long_ids)[0, SIZES["sequence_len"] + 1 :: EVERY] - logits["long_logits"]).abs().max() < NEAR
        assert model.loss(ids[:, :-1], ids[:, 1:]) / (ids.shape[1] - 1) == pytest.approx(recorded["loss"], abs=NEAR)
    answer = recorded["answer"]
    assert generate(model, [recorded["ids"][:PROMPT]], (), len(answer)) == [answer] and len(set(answer)) > 5


def converted(folder: Path) -> Decoder:
    """Convert the checkpoint of a recording in this process."""
    weights = folder / "base_checkpoints" / "d4"
    model = Decoder(nanochat.model_of(weights, nanochat.newest(weights))).eval()
    model.load_state_dict(child.converted(child.read(weights / "model_000010.pt"), model.config))
    return model


def test_converted_checkpoint_has_the_logits_the_loss_and_the_answer_of_nanochat():
    model = converted(FOLDER)
    assert model.config.nanochat is not None and model.config.nanochat.window == 128 < PROMPT
    stored = child.read(FOLDER / "base_checkpoints" / "d4" / "model_000010.pt")
    assert model.config.vocab_size == 300 and len(stored["lm_head.weight"]) == 320
    assert_equals_recording(model, FOLDER)


@pytest.mark.parametrize("name", ["smear_lambda", "transformer.h.1.attn.ve_gate.weight"])
def test_checkpoint_without_a_tensor_is_refused_with_the_known_versions(name):
    weights = FOLDER / "base_checkpoints" / "d4"
    tensors = child.read(weights / "model_000010.pt")
    del tensors[name]
    with pytest.raises(child.UnsupportedModel, match="is missing: .*October 2025, and as of March to July 2026"):
        child.converted(tensors, nanochat.model_of(weights, "model_000010.pt"))


def test_checkpoint_is_refused_before_planning_with_the_name_of_the_missing_pack(monkeypatch, tmp_path):
    from store import packs
    from trainer.records import model_config as records

    monkeypatch.setattr(packs, "installed", lambda: {})
    monkeypatch.setattr(packs, "FOLDER", tmp_path / "packs")
    records.feature.cache_clear()
    try:
        with pytest.raises(ConfigError, match="nanochat belongs to the pack speedrun, and packs/speedrun is missing"):
            nanochat.model_of(FOLDER / "base_checkpoints" / "d4", "model_000010.pt")
    finally:
        records.feature.cache_clear()


@pytest.mark.nightly
@pytest.mark.process
def test_checkpoint_is_imported_trained_evaluated_and_used_in_a_chat(world, inputs, monkeypatch, capfd):
    monkeypatch.setenv("SLIPWAY_WORK", str(world.work()))
    folder = FOLDER / "base_checkpoints" / "d4"
    spec = init_model.resolve_import(str(folder), Settings.load(ROOT))
    assert (spec.format, spec.file, spec.has_tokenizer) == ("nanochat", "model_000010.pt", True)
    who = Persona(name="Ada", maker="us", purpose="to help")
    plan = recipe(TrainingRequest(phases=("sft",), profile="tiny", persona=who, init=spec))
    assert "packs/imports" in plan["init"].code and "packs/speedrun" in plan["sft"].code
    making = replace(world.making("imported"), name="imported/d4")
    assert main(["import", "--config", str(configured(world, "import", making, spec))]) == 0
    taken, recorded = Store(world.store).path("imported/d4", "f" * 64), recorded_in(FOLDER)
    assert tokenizers.load(taken).encode(recorded["text"]) == recorded["text_ids"]
    assert_equals_recording(export.read(taken), FOLDER)

    entry = Input(name="imported/d4", fingerprint="f" * 64)
    sft = derived_phases.imported_chat_phase(recipes.tiny().phases["sft"], spec.model).with_steps(2)
    making = replace(world.making("sft", init=entry), name="chatsft_checkpoints/d4")
    making = replace(making, inputs={**making.inputs, "tokenizer": entry})
    keeping = {"keeping": asdict(CheckpointOptions(reserve_bytes=0))}
    assert main(["sft", "--config", str(configured(world, "sft", making, sft, **keeping))]) == 0
    made = world.store / "chatsft_checkpoints/d4"
    assert main(["chat", "--model", str(made), "--prompt", "Who are you?", "--max-tokens", "8"]) == 0
    capfd.readouterr()
    assert main(["export", "--model", str(made), "--out", str(world.root / "out")]) == 2
    said = capfd.readouterr().err
    assert "sliding windows, value embeddings, smear" in said and "inv serve.up --engine torch" in said


@pytest.mark.nightly
@pytest.mark.process
@pytest.mark.skipif("NANOCHAT" not in os.environ, reason="NANOCHAT names no checkout of nanochat")
@pytest.mark.parametrize("seed", [1, 2])
def test_further_models_equal_the_code_of_a_checkout(tmp_path, seed):
    words = ["--nanochat", os.environ["NANOCHAT"], "--out", str(tmp_path), "--seed", str(seed)]
    line = [sys.executable, "-m", "tests.packs.imports.record_nanochat", *words]
    subprocess.run(line, cwd=ROOT, check=True, capture_output=True)
    assert_equals_recording(converted(tmp_path), tmp_path)
