"""Which model is meant where none is named."""

import pytest

from flows.find_model import find_model
from infra.settings import Settings
from store import Store


@pytest.mark.parametrize(("tag", "typed"), [("", ""), ("tiny", " --profile tiny"), ("ours", " --tag ours")])
def test_a_model_that_stands_in_for_the_one_that_is_meant_is_told_with_what_to_type(tmp_path, capsys, tag, typed):
    settings = Settings.load(tmp_path, {"store": str(tmp_path / "store")}, environ={})
    store, made, name = Store(settings.store), tmp_path / "made", tag or "smoke"
    made.mkdir()
    (made / "weights").write_text("w")
    said = f"chatsft_checkpoints/{name} is not made yet; this is {{}}_checkpoints/{name}, "
    store.publish(made, f"base_checkpoints/{name}", "f" * 64, {})
    assert find_model(settings, "", tag, print)[0].name == f"base_checkpoints/{name}"
    err = capsys.readouterr().out
    assert said.format("base") in err and err.endswith(f"; to make it: ./inv launch --phase sft{typed}\n")
    store.publish(made, f"mid_checkpoints/{name}", "f" * 64, {})
    assert find_model(settings, "", tag, print)[0].name == f"mid_checkpoints/{name}"
    assert said.format("mid") in capsys.readouterr().err
    store.publish(made, f"chatsft_checkpoints/{name}", "f" * 64, {})
    for model, phase in (("", "chatsft"), ("base", "base")):
        assert find_model(settings, model, tag, print)[0].name == f"{phase}_checkpoints/{name}"
    assert capsys.readouterr().err == ""
    (tmp_path / "store" / "chatsft_checkpoints" / name / "weights").unlink()
    find_model(settings, "", tag, print)
    assert f"chatsft_checkpoints/{name} is damaged (" in capsys.readouterr().err
