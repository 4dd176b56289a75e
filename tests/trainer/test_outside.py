"""A foreign model folder: read as declared, or refused with a reason before any allocation."""

import json
import os
import shutil
import struct
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from hypothesis import assume, example, given, settings

from flows.models import init_model
from infra.errors import UsageError
from infra.settings import Settings
from tests import hostile, seeds
from tests.programs import source
from tests.trainer.model.test_model import LLAMA, QWEN2, QWEN3
from trainer.checkpoints.checkpoint import find_damage
from trainer.errors import Refused
from trainer.model import export, huggingface
from trainer.model.decoder import Decoder
from trainer.reporting import jsonl_log

ROOT = Path(__file__).parents[2]
TINY = replace(LLAMA, vocab_size=16, hidden_size=8, intermediate_size=8, num_hidden_layers=1, head_dim=4)
CONFIG = huggingface.config_json(TINY, "float32", 0, [1])
MANY = settings(max_examples=seeds.examples(8, 300))
ALONE = settings(MANY, max_examples=seeds.examples(6, 200))


@pytest.fixture
def folder(tmp_path):
    """Write a valid model of the decoder's kind, in two files with an index."""
    folder = tmp_path / "models"
    if not folder.exists():
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps(CONFIG))
        export.write_weights(folder, Decoder(TINY).state_dict(), torch.float32, most=2000)
    return folder


def header_of(file: Path) -> dict:
    raw = file.read_bytes()
    return json.loads(raw[8 : 8 + struct.unpack("<Q", raw[:8])[0]])


def try_all(folder: Path) -> bool:
    """Return whether the trainer and the check before planning both accept the folder as a model."""
    try:
        export.read(folder)
        is_model = True
    except Refused as error:
        assert len(str(error)) < 2000
        is_model = False
    try:
        init_model.resolve_import(str(folder), Settings.load(ROOT))
    except UsageError as error:
        assert not is_model and len(str(error)) < 2000
    return is_model


@MANY
@given(document=hostile.documents(CONFIG))
@example(document=json.dumps({**CONFIG, "rope_theta": float("nan"), "rope_parameters": None}).encode())
def test_config_of_any_content_is_a_model_or_refused_with_a_reason(folder, document):
    (folder / "config.json").write_bytes(document)
    try_all(folder)


@ALONE
@given(
    document=hostile.documents({"metadata": {"total_size": 1}, "weight_map": {"a": "model-00001-of-00002.safetensors"}})
)
def test_index_of_any_content_is_a_model_or_refused_with_a_reason(folder, document):
    (folder / "model.safetensors.index.json").write_bytes(document)
    try_all(folder)


@ALONE
@given(document=hostile.documents({"a": {"dtype": "F32", "shape": [2, 8], "data_offsets": [0, 64]}}))
def test_header_of_any_content_is_a_model_or_refused_with_a_reason(folder, document):
    file = sorted(folder.glob("*.safetensors"))[0]
    assume(len(document) < 1 << 20)
    file.write_bytes(struct.pack("<Q", len(document)) + document + bytes(64))
    assert not try_all(folder)


@pytest.mark.parametrize("length", [0, 7, 9, 1 << 40, (1 << 64) - 1])
def test_header_that_exceeds_the_file_is_refused(folder, length):
    file = sorted(folder.glob("*.safetensors"))[0]
    file.write_bytes(struct.pack("<Q", length) + b"{}")
    assert not try_all(folder)


@pytest.mark.parametrize(
    "config",
    [LLAMA, QWEN2, QWEN3, replace(LLAMA, mlp="relu2", embed_norm=True)],
    ids=["untied", "biases", "tied", "relu2"],
)
def test_compared_shapes_are_the_shapes_of_the_decoder(config):
    assert dict(huggingface.shapes(config)) == {
        name: tuple(one.shape) for name, one in Decoder(config).state_dict().items()
    }
    assert sum(one.numel() for one in Decoder(config).parameters()) == config.num_params
    assert huggingface.model_config(huggingface.config_json(config, "float32", 0, [1])) == config


HUGE = [
    {"hidden_size": 10**9}, {"vocab_size": 10**9}, {"num_hidden_layers": 10**9}, {"head_dim": 10**9},
    {"hidden_size": 1 << 18}, {"num_hidden_layers": 1 << 12}, {"vocab_size": 1 << 24},
    {"intermediate_size": 1 << 20, "hidden_size": 1 << 18, "num_hidden_layers": 1 << 12},
]  # fmt: skip


@pytest.mark.process
def test_config_that_exceeds_the_files_is_refused_before_any_allocation(folder):
    script = source("look_at_hostile_configs")
    words = [sys.executable, "-c", script, str(folder), json.dumps(HUGE)]
    done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    for change in HUGE:
        (folder / "config.json").write_text(json.dumps({**CONFIG, **change}))
        with pytest.raises(Refused):
            export.read_config(folder)


@pytest.mark.parametrize(
    "name", ["/tmp/x.safetensors", "../x.safetensors", "sub/x.safetensors", "..", "", "a\0b", 7, None]
)
def test_index_that_names_an_outside_file_is_refused(folder, name):
    sub = folder / "sub"
    sub.mkdir()
    for place in (sub, folder.parent):
        shutil.copy(next(iter(folder.glob("*.safetensors"))), place / "x.safetensors")
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    index["weight_map"] = {key: name for key in index["weight_map"]}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    with pytest.raises(Refused, match="not a valid index of weights"):
        export.read(folder)
    with pytest.raises(UsageError, match="not a valid index of weights"):
        init_model.resolve_import(str(folder), Settings.load(ROOT))


@pytest.mark.parametrize("which", ["config.json", "model.safetensors.index.json", "model-00001-of-00002.safetensors"])
def test_link_out_of_a_model_folder_is_refused_and_the_hub_cache_is_read(folder, which):
    which = which if (folder / which).exists() else sorted(one.name for one in folder.glob("*.safetensors"))[0]
    hub = folder.parent / "models--a--b"
    (hub / "blobs").mkdir(parents=True)
    snapshot = hub / "snapshots" / "0123abc"
    snapshot.mkdir(parents=True)
    for number, file in enumerate(sorted(folder.iterdir())):
        shutil.copy(file, hub / "blobs" / str(number))
        os.symlink(f"../../blobs/{number}", snapshot / file.name)
    assert try_all(snapshot)
    os.rename(folder / which, folder.parent / which)
    (folder / which).symlink_to(folder.parent / which)
    assert not try_all(folder)


def test_tokenizer_files_that_are_outside_links_are_not_published(folder, inputs, tmp_path):
    secret = tmp_path / "credentials"
    secret.write_text("key")
    tokenizer = tmp_path / "tokenizer"
    shutil.copytree(inputs[0] / "tokenizer", tokenizer)
    (tokenizer / "tokenizer_config.json").unlink()
    (tokenizer / "tokenizer_config.json").symlink_to(secret)
    with pytest.raises(Refused, match="leads out"):
        export.write(tmp_path / "out", TINY, Decoder(TINY).state_dict(), tokenizer)


@MANY
@given(document=hostile.documents({"step": 3, "tokens": 96, "loss": 2.5, "lr": 0.1, "at": 1.5, "mfu_of": "a table"}))
def test_invalid_lines_of_metrics_are_skipped(document):
    good = b'{"step": 4, "tokens": 96, "loss": 2.5}\n'
    assume(b"\n" not in document)
    found = jsonl_log.parse((document + b"\n" + good).decode("utf-8", "replace"))
    assert found[-1] == json.loads(good) and len(found) <= 2
    for one in found:
        assert type(one["step"]) is int and abs(one["loss"]) < 1e30 and type(one.get("mfu_of", "")) is str


@ALONE
@given(
    document=hostile.documents(
        {
            "schema": 1,
            "step": 5,
            "phase": "base",
            "files": [{"path": "x", "size": 0, "sha256": "0" * 64}],
            "metrics": {},
        }
    )
)
def test_checkpoint_with_any_manifest_has_a_problem_in_words(tmp_path, document):
    folder = tmp_path / "step-000000005"
    folder.mkdir(exist_ok=True)
    (folder / "MANIFEST.json").write_bytes(document)
    assert find_damage(folder)
