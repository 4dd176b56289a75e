"""The path from a service file to a folder that an engine loads: every kind of source, and every kind of error."""

import hashlib
import json
import math
import os
import struct
import threading
from pathlib import Path

import pytest
from hypothesis import example, given, settings

from infra.errors import UsageError
from serve.engine import memory_fit, models
from serve.engine.options import Tuning
from store.artifacts import references
from store.artifacts.artifacts import Store
from store.backends.backend import open_place
from store.manifest import StoreError
from tests import hostile, seeds
from tests.store import conftest as stores

# Fixtures of the stores' own tests: a folder, buckets of two servers, a repository of the test hub.
s3_server, s3, google, hub, no_keys = stores.s3_server, stores.s3, stores.google, stores.hub, stores.no_keys
uri, away_uri = stores.uri, stores.away_uri

CONTENT = bytes(range(256)) * 20_000  # Of several ranges.
HEADER = json.dumps({"x": {"dtype": "U8", "shape": [len(CONTENT)], "data_offsets": [0, len(CONTENT)]}}).encode()
NAME = "chatsft_checkpoints/tiny"
FILES = {
    "config.json": b'{"model_type": "llama"}',
    "generation_config.json": b"{}",
    "tokenizer.json": b"{}",
    "tokenizer_config.json": b"{}",
    "model.safetensors": struct.pack("<Q", len(HEADER)) + HEADER + CONTENT,
}


def artifact(folder: Path, run: str = "", files: dict[str, bytes] = FILES) -> Path:
    """Write an artifact like the trainer: training state, and the files for engines."""
    step = {"step": 12, "phase": "sft", "run": run, "timestamp": "2026-11-01T10:00:00+00:00"}
    step["files"] = [{"path": "model.safetensors", "size": 5, "sha256": hashlib.sha256(b"state").hexdigest()}]
    there = {f"hf/{name}": content for name, content in files.items()}
    there |= {"step-000000012/MANIFEST.json": json.dumps(step).encode(), "step-000000012/model.safetensors": b"state"}
    for name, content in there.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return folder


class Caller:
    """Resolves models like a replica, and records the messages."""

    def __init__(self, store: str, cache: Path) -> None:
        self.store, self.cache, self.said = store, cache, list[str]()

    def ask(self, source: str) -> Path:
        found = models.resolve(source, "demo", store=self.store, cache=self.cache, say=self.said.append)
        assert found.name == "demo"
        return found.folder


@pytest.fixture
def caller(tmp_path: Path, request: pytest.FixtureRequest) -> Caller:
    kind = "uri" if "uri" in request.fixturenames else "away_uri" if "away_uri" in request.fixturenames else ""
    return Caller(request.getfixturevalue(kind) if kind else str(tmp_path / "none"), tmp_path / "models")


def whole(folder: Path) -> bool:
    return {path.name: path.read_bytes() for path in folder.iterdir()} == FILES


@pytest.mark.day_cases(1)
@pytest.mark.process
def test_artifact_and_the_run_that_made_it_are_found_in_every_kind_of_store(tmp_path, uri, caller):
    Store(uri).publish(artifact(tmp_path / "made", run="brave-otter-3"), NAME, "f" * 64, {})
    folder = caller.ask(NAME)
    assert whole(folder) and caller.ask("brave-otter-3") == folder
    assert len(caller.said) == (0 if "://" not in uri else 1)  # Downloaded once.
    assert whole(caller.ask(f"{uri}/{NAME}"))  # By address, at any place.
    Store(uri).publish(artifact(tmp_path / "other", run="calm-elk-4"), NAME, "e" * 64, {})
    assert whole(folder) and references.kept_at(str(folder)) in (None, (NAME.split("/")[0], "f" * 64))


@pytest.mark.day_cases(1)
@pytest.mark.process
def test_new_release_is_a_new_folder(tmp_path, away_uri, caller):
    Store(away_uri).publish(artifact(tmp_path / "a"), NAME, "a" * 64, {})
    first = caller.ask(NAME)
    newer = {**FILES, "model.safetensors": FILES["model.safetensors"][: -len(CONTENT)] + CONTENT[::-1]}
    Store(away_uri).publish(artifact(tmp_path / "b", files=newer), NAME, "b" * 64, {})
    second = caller.ask(NAME)
    assert second != first and whole(first)  # Replicas of the older release may still read its folder.
    assert (second / "model.safetensors").read_bytes() == newer["model.safetensors"]


@pytest.mark.process
def test_plain_folder_of_a_bucket_or_a_hub_is_a_model(away_uri, caller):
    place = open_place(f"{away_uri}/Tiny")
    extra = {"README.md": b"# Tiny", "pytorch_model.bin": b"pickled", "onnx/model.safetensors": b"elsewhere"}
    place.put({**FILES, **extra})
    assert models.size_there(f"{away_uri}/Tiny") == sum(map(len, FILES.values()))
    assert whole(caller.ask(f"{away_uri}/Tiny"))


@pytest.mark.process
@pytest.mark.parametrize("is_ours", [True, False], ids=["its beginning", "of another file"])
def test_interrupted_download_is_resumed(away_uri, caller, hub, is_ours):
    place = open_place(f"{away_uri}/Tiny")
    place.put(FILES)
    folder = caller.ask(f"{away_uri}/Tiny")
    draft = folder.with_name(f".{folder.name}.draft")
    folder.rename(draft)
    content = FILES["model.safetensors"]
    half = content[: len(content) // 2] if is_ours else b"\0" * (len(content) // 2)
    (draft / "model.safetensors").unlink()
    (draft / "model.safetensors.part").write_bytes(half)
    hub.asked.clear()
    assert whole(caller.ask(f"{away_uri}/Tiny"))
    read = [one.path for one in hub.asked if one.verb == "GET" and "/resolve/" in one.path]
    assert all("model.safetensors" in path for path in read)  # The small files were whole.


@pytest.mark.process
def test_two_simultaneous_replicas_download_a_model_once(away_uri, caller):
    open_place(f"{away_uri}/Tiny").put(FILES)
    found: list[Path] = []
    threads = [threading.Thread(target=lambda: found.append(caller.ask(f"{away_uri}/Tiny"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == 1 and len(found) == 4 and whole(found[0]) and len(caller.said) == 1
    assert not [path for path in caller.cache.iterdir() if path.name.endswith(".draft")]


@pytest.mark.process
def test_bytes_that_differ_from_the_manifest_are_refused(tmp_path, s3, caller):
    bucket = s3.bucket()
    place = open_place(bucket)
    place.create()
    Store(bucket).publish(artifact(tmp_path / "made"), NAME, "f" * 64, {})
    place.put({f"{NAME}/hf/model.safetensors": b"x" * len(FILES["model.safetensors"])})
    caller.store = bucket
    with pytest.raises(StoreError, match="has changed since the publication"):
        caller.ask(NAME)
    with pytest.raises(StoreError, match="model.safetensors: the download does not match its listing"):
        caller.ask(f"{bucket}/{NAME}")  # The manifest is read, without a request to the store.
    assert not [path for path in caller.cache.iterdir() if not path.name.startswith(".")]


def test_local_folder_is_used_in_place(tmp_path, caller):
    made = artifact(tmp_path / "made")
    assert caller.ask(str(made)) == made / "hf" and caller.ask(f"file://{made}/hf") == made / "hf"


def test_missing_model_is_refused_with_the_existing_ones(tmp_path, caller):
    caller.store = str(tmp_path / "store")
    with pytest.raises(UsageError, match="no model 'nope': .* has none yet; or give a folder, hf://"):
        caller.ask("nope")
    Store(caller.store).publish(artifact(tmp_path / "made"), NAME, "f" * 64, {})
    with pytest.raises(UsageError, match=f"no model 'elsewhere/medium': .* has {NAME}; "):
        caller.ask("elsewhere/medium")
    for near in (NAME.replace("s", "z", 1), NAME.rpartition("/")[2] + "e"):
        with pytest.raises(UsageError, match=f"no model '{near}': did you mean {NAME}; or give a folder"):
            caller.ask(near)
    damaged = Path(caller.store) / NAME / "hf" / "model.safetensors"
    damaged.write_bytes(b"short")
    with pytest.raises(StoreError, match=NAME):
        caller.ask(NAME)


@pytest.mark.parametrize(
    ("missing", "why"),
    [
        ("config.json", "the model has no config.json"),
        ("model.safetensors", "weights are read from .safetensors files only"),
        ("tokenizer.json", "it has no tokenizer.json"),
    ],
)
def test_folder_without_a_model_is_refused_before_an_engine_starts(tmp_path, caller, missing, why):
    for name, content in FILES.items():
        (tmp_path / name).write_bytes(content)
    for name in (missing, "tokenizer_config.json") if missing == "tokenizer.json" else (missing,):
        (tmp_path / name).unlink()
    with pytest.raises(UsageError, match=why):
        caller.ask(str(tmp_path))


@pytest.mark.process
def test_unreachable_address_is_reported_in_one_line(away_uri, caller):
    with pytest.raises(UsageError, match="not found, or access denied"):
        caller.ask(f"{away_uri}/nowhere")
    open_place(f"{away_uri}/Old").put({"config.json": b"{}", "tokenizer.json": b"{}", "pytorch_model.bin": b"pickled"})
    with pytest.raises(UsageError, match="the model has no .safetensors file"):
        caller.ask(f"{away_uri}/Old")


CONFIG = {
    "model_type": "llama", "vocab_size": 16, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2,
    "rope_theta": 1e4, "rope_parameters": {"rope_theta": 1e4}, "dtype": "float32",
}  # fmt: skip
TABLE = json.dumps({"model.embed_tokens.weight": {"dtype": "F32", "shape": [16, 8], "data_offsets": [0, 512]}}).encode()


@pytest.fixture
def small(tmp_path):
    folder = tmp_path / "small"
    folder.mkdir(exist_ok=True)
    for name, content in (("config.json", json.dumps(CONFIG).encode()), ("tokenizer.json", b"{}")):
        (folder / name).write_bytes(content)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(TABLE)) + TABLE + bytes(512))
    return folder


@settings(max_examples=seeds.examples(40, 80))
@given(document=hostile.documents(CONFIG))
@example(document=json.dumps({**CONFIG, "rope_theta": float("nan")}).encode())
@example(document=json.dumps({**CONFIG, "hidden_size": 10**9}).encode())
@example(document=json.dumps({**CONFIG, "vocab_size": 10**9}).encode())
def test_config_of_any_content_reaches_an_engine_or_is_refused_with_a_reason(small, tmp_path, document):
    (small / "config.json").write_bytes(document)
    caller = Caller(str(tmp_path / "none"), tmp_path / "models")
    try:
        caller.ask(str(small))
    except UsageError as error:
        assert len(str(error)) < 1000
    else:
        said = json.loads(document)
        assert said.get("hidden_size") in (8, None) and math.isfinite(said.get("rope_theta") or 0.0)
    try:
        memory_fit.needed(small, "vllm-cpu", Tuning())
    except UsageError as error:
        assert len(str(error)) < 1000


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json", "model.safetensors"])
def test_file_that_links_out_of_the_model_folder_reaches_no_engine(small, tmp_path, name):
    elsewhere = tmp_path / "elsewhere"
    (small / name).touch()
    os.rename(small / name, elsewhere)
    (small / name).symlink_to(elsewhere)
    with pytest.raises(UsageError, match="leads out"):
        Caller(str(tmp_path / "none"), tmp_path / "models").ask(str(small))


@pytest.mark.parametrize(
    "header", [b"", b"{}" * 9, b"[" * 9999, b'{"x": {"dtype": "U8", "shape": [9], "data_offsets": [0, 9]}}']
)
def test_weights_with_an_invalid_header_reach_no_engine(small, tmp_path, header):
    (small / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    with pytest.raises(UsageError, match="safetensors"):
        Caller(str(tmp_path / "none"), tmp_path / "models").ask(str(small))
