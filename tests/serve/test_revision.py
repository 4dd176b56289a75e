"""The next version of a service."""

from dataclasses import replace

from serve import revision
from store.artifacts.artifacts import Store


def test_model_of_the_store_is_named_by_its_artifact_and_other_models_by_location(tmp_path):
    made, store = tmp_path / "made", Store(str(tmp_path / "store"))
    (made / "hf").mkdir(parents=True)
    (made / "hf" / "config.json").write_text("{}")
    store.publish(made, "chatsft_checkpoints/tiny", "f" * 64, {})
    folder = str(tmp_path / "store" / "by-fingerprint" / "chatsft_checkpoints" / ("f" * 64) / "hf")
    for model, name in ((folder, "chatsft_checkpoints/tiny"), ("hf://Qwen/Qwen3-0.6B", "hf://Qwen/Qwen3-0.6B")):
        version = revision.first_version({}, model, "local", "fake", store.uri, None, "demo")
        assert (version.model, version.model_name) == (model, name)
    # A version without changes equals the old version after the name has gone to a newer artifact.
    old = replace(version, model=folder, model_name="chatsft_checkpoints/earlier")
    assert revision.first_version({}, folder, "local", "fake", store.uri, old, "demo").model_name == old.model_name
