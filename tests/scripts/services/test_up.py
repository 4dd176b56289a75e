"""The plan of a service, in words."""

from scripts.services.up import model_of
from serve.policy.service_state import Version
from store.artifacts.artifacts import Store


def test_model_of_the_store_is_shown_by_name_and_other_models_by_location(tmp_path):
    made, store = tmp_path / "made", Store(str(tmp_path / "store"))
    made.mkdir()
    (made / "config.json").write_text("{}")
    store.publish(made, "chatsft_checkpoints/tiny", "f" * 64, {})
    folder = str(tmp_path / "store" / "by-fingerprint" / "chatsft_checkpoints" / ("f" * 64) / "hf")
    for model, shown in ((folder, "chatsft_checkpoints/tiny"), ("hf://Qwen/Qwen3-0.6B", "hf://Qwen/Qwen3-0.6B")):
        assert model_of(Version(number=1, document={}, model=model, store=store.uri)) == shown
