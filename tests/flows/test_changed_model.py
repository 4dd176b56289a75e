"""A model stored as a change of another model is found together with the other model, and exported."""

import json
from dataclasses import replace

import pytest

from flows.models.changed_model import copy_change, is_change, joined_folder
from infra.errors import UsageError
from scripts.models.export import ExportFlags, check_export
from store.artifacts.artifacts import Store


@pytest.fixture
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    store, said = Store(tmp_path / "store"), {"name": "base_checkpoints/x", "fingerprint": "1-v1-1"}
    for name, file in (("base", "model.safetensors"), ("change", "changed_model.json")):
        (tmp_path / name / "hf").mkdir(parents=True)
        (tmp_path / name / "hf" / file).write_text(json.dumps(said))
    store.publish(tmp_path / "base", "base_checkpoints/x", "1-v1-1", {})
    store.publish(tmp_path / "change", "chatsft_checkpoints/x", "2-v1-2", {"changes": said})
    return store


def test_change_is_joined_with_the_changed_model_in_one_folder(store):
    found = joined_folder(store, store.check("chatsft_checkpoints/x"))
    assert is_change(found / "hf") and (found / "base" / "hf" / "model.safetensors").is_file()
    assert joined_folder(store, store.check("chatsft_checkpoints/x")) == found
    whole = store.check("base_checkpoints/x")
    assert joined_folder(store, whole) == store.path(whole.name, whole.fingerprint)
    assert not is_change(joined_folder(store, whole) / "hf")


def test_change_without_the_changed_model_is_refused(store):
    found = store.check("chatsft_checkpoints/x")
    lost = replace(found, about={"changes": {"name": "base_checkpoints/x", "fingerprint": "3-v1-3"}})
    with pytest.raises(UsageError, match="changes the model base_checkpoints/x .* inv ckpt.push base_checkpoints/x"):
        joined_folder(store, lost)


def test_change_is_copied_to_a_new_folder_only(store, tmp_path):
    found = joined_folder(store, store.check("chatsft_checkpoints/x"))
    copy_change(found / "hf", tmp_path / "out")
    assert [one.name for one in (tmp_path / "out").iterdir()] == ["changed_model.json"]
    with pytest.raises(UsageError, match="out exists already"):
        copy_change(found / "hf", tmp_path / "out")
    with pytest.raises(UsageError, match="write the whole model first"):
        check_export(ExportFlags(merge=True, bits="gguf", out="model"))
