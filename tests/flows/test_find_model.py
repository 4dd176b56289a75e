"""The default model without a named model."""

import pytest

from flows.models.find_model import find_model
from flows.services.serve import folder_of
from infra.errors import UsageError
from infra.settings import Settings
from store.artifacts.artifacts import Store


@pytest.mark.pack("bits")
@pytest.mark.parametrize(("tag", "typed"), [("", ""), ("tiny", " --profile tiny"), ("ours", " --tag ours")])
def test_a_substitute_model_is_reported_with_the_command_for_the_usual_model(tmp_path, tag, typed):
    settings = Settings.load(tmp_path, {"store": str(tmp_path / "store")}, environ={})
    store, made, name = Store(settings.store), tmp_path / "made", tag or "smoke"
    made.mkdir()
    told = []
    (made / "weights").write_text("w")
    said = f"chatsft_checkpoints/{name} is not made yet; using {{}}_checkpoints/{name} instead, "
    store.publish(made, f"base_checkpoints/{name}", "f" * 64, {})
    assert find_model(settings, "", tag, told.append)[0].name == f"base_checkpoints/{name}"
    line = told.pop()
    assert line.startswith(said.format("base")) and line.endswith(
        f". To make chatsft_checkpoints/{name}: ./inv launch --phase sft{typed}"
    )
    store.publish(made, f"mid_checkpoints/{name}", "f" * 64, {})
    assert find_model(settings, "", tag, told.append)[0].name == f"mid_checkpoints/{name}"
    assert said.format("mid") in told.pop()
    store.publish(made, f"chatsft_checkpoints/{name}", "f" * 64, {})
    for model, phase in (("", "chatsft"), ("base", "base")):
        assert find_model(settings, model, tag, told.append)[0].name == f"{phase}_checkpoints/{name}"
    assert told == []
    assert find_model(settings, "", tag, told.append, ("bits3",))[0].name == f"chatsft_checkpoints/{name}"
    (tmp_path / "store" / "chatsft_checkpoints" / name / "weights").unlink()
    find_model(settings, "", tag, told.append)
    assert f"chatsft_checkpoints/{name} is damaged (" in told.pop()


@pytest.mark.pack("bits")
def test_the_newest_model_is_the_default_if_the_usual_profile_has_no_model(tmp_path):
    settings = Settings.load(tmp_path, {"store": str(tmp_path / "store")}, environ={})
    store, made, told = Store(settings.store), tmp_path / "made", []
    made.mkdir()
    (made / "weights").write_text("w")
    for name in ("base_checkpoints/old", "base_checkpoints/new", "chatsft_checkpoints/new", "bits3_checkpoints/new"):
        store.publish(made, name, name.encode().hex(), {})
    assert find_model(settings, "", "", told.append)[0].name == "chatsft_checkpoints/new"
    assert "no model of smoke" in told[0] and "newest model of the store, new" in told[0]
    assert find_model(settings, "", "", told.append, ("bits3", "bits2"))[0].name == "bits3_checkpoints/new"
    assert find_model(settings, "bits3", "", told.append)[0].name == "bits3_checkpoints/new"
    assert find_model(settings, "base", "old", told.append)[0].name == "base_checkpoints/old"
    chosen = Settings.load(tmp_path, {"store": settings.store, "profile": "tiny"}, environ={})
    with pytest.raises(UsageError, match="no model 'tiny'"):  # a chosen profile is meant
        find_model(chosen, "", "", told.append)
    store.publish(made, "base_checkpoints/smoke", "a" * 64, {})
    assert find_model(settings, "", "", told.append, ("bits3",))[0].name == "base_checkpoints/smoke"


def test_advice_for_the_newest_model_names_the_profile_of_the_model(tmp_path):
    settings = Settings.load(tmp_path, {"store": str(tmp_path / "store")}, environ={})
    made, told = tmp_path / "made", []
    made.mkdir()
    (made / "weights").write_text("w")
    Store(settings.store).publish(made, "mid_checkpoints/tiny", "f" * 64, {})
    assert find_model(settings, "", "", told.append)[0].name == "mid_checkpoints/tiny"
    assert told[-1].endswith("To make chatsft_checkpoints/tiny: ./inv launch --phase sft --profile tiny")


def test_the_model_of_an_extension_phase_is_found_by_name(tmp_path):
    settings = Settings.load(tmp_path, {"store": str(tmp_path / "store")}, environ={})
    made = tmp_path / "made"
    made.mkdir()
    (made / "weights").write_text("w")
    Store(settings.store).publish(made, "smooth_checkpoints/tiny", "f" * 64, {})
    assert find_model(settings, "smooth_checkpoints/tiny", "", print)[0].name == "smooth_checkpoints/tiny"


def test_a_tag_names_the_last_phase_of_a_model_and_a_folder_or_phase_comes_first(tmp_path, monkeypatch):
    settings = Settings.load(tmp_path, {"store": str(tmp_path / "store")}, environ={})
    store, made, told = Store(settings.store), tmp_path / "made", []
    made.mkdir()
    (made / "weights").write_text("w")
    for name in ("base_checkpoints/mine", "chatsft_checkpoints/mine", "base_checkpoints/raw"):
        store.publish(made, name, name.encode().hex(), {})
    assert find_model(settings, "mine", "", told.append)[0].name == "chatsft_checkpoints/mine" and told == []
    assert find_model(settings, "raw", "", told.append)[0].name == "base_checkpoints/raw"
    assert "To make chatsft_checkpoints/raw: ./inv launch --phase sft --tag raw" in told.pop()
    with pytest.raises(UsageError, match="no model 'mien' in .*; available: mine$"):
        find_model(settings, "mien", "", told.append)
    with pytest.raises(UsageError, match="no model 'mine'"):  # --tag raw: the word names a phase or a model
        find_model(settings, "mine", "raw", told.append)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine").mkdir()
    assert find_model(settings, "mine", "", told.append) == (None, tmp_path / "mine")


def test_a_service_takes_a_tag_as_the_name_of_a_model(tmp_path):
    settings = Settings.load(tmp_path, {"store": str(tmp_path / "store")}, environ={})
    made = tmp_path / "made"
    made.mkdir()
    (made / "fake.json").write_text("{}")
    Store(settings.store).publish(made, "chatsft_checkpoints/mine", "a-1", {})
    assert folder_of("mine", "", settings, "demo", print) == folder_of(
        "chatsft_checkpoints/mine", "", settings, "demo", print
    )
    with pytest.raises(UsageError, match="no model 'mien' in .*; available: mine$"):
        folder_of("mien", "", settings, "demo", print)
