"""The next version of a service."""

import json
from dataclasses import replace

import pytest

from infra.errors import UsageError
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


@pytest.mark.parametrize(
    ("config", "engine"),
    [
        ({"model_type": "llama"}, "vllm"),
        ({"model_type": "slipway"}, "torch"),
        pytest.param(
            {"model_type": "slipway", "nanochat": {"scales": True}}, "torch", marks=pytest.mark.pack("speedrun")
        ),
    ],
)
@pytest.mark.parametrize("is_remote", [True, False])
def test_shape_without_a_class_in_transformers_is_served_by_our_engine(tmp_path, config, engine, is_remote):
    shape = {"num_attention_heads": 4, "hidden_size": 64, "num_hidden_layers": 1, "vocab_size": 64}
    for name, content in (("config.json", json.dumps({**shape, **config})), ("tokenizer.json", "{}")):
        (tmp_path / name).write_text(content)
    (tmp_path / "model.safetensors").write_bytes(b"")
    source = f"file://{tmp_path}" if is_remote else str(tmp_path)

    def version(asked):
        return revision.first_version({}, source, "runpod", asked, str(tmp_path / "store"), None, "demo")

    assert version("").engine == engine and version("torch").engine == "torch"
    if engine == "torch":
        with pytest.raises(UsageError, match="which only --engine torch supports"):
            version("vllm")
