"""`inv ckpt.push FOLDER`: a nanochat checkpoint and tokenizer in a store, before a first run on rented machines."""

import pytest

from data.tokens import tokenizer as tokenizers
from store.artifacts.artifacts import Store
from tests.packs.imports.test_nanochat import saved
from tests.trainer.conftest import inputs as inputs
from tests.world import World

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.mark.nightly
def test_nanochat_checkpoint_in_a_store_is_trained_on_without_the_folder(inputs, tmp_path):
    folder, _ = saved(tmp_path / "nanochat", inputs[0] / "tokenizer")
    words, store = folder.parents[1] / "tokenizer", str(tmp_path / "hub")
    world = World(tmp_path / "user", {})
    assert world.json("ckpt.push", str(folder), str(words), "--to", store)["pushed"] == ["imported/d2", "tokenizer"]
    text, ids = "reads the paths", tokenizers.load(inputs[0] / "tokenizer").encode("reads the paths")
    held = {one.name: one for one in Store(store).artifacts()}
    assert held.keys() == {"imported/d2", "tokenizer"}
    for name, one in held.items():
        assert tokenizers.load(Store(store).path(name, one.fingerprint)).encode(text) == ids

    assert world.json("ckpt.push", str(folder), "--to", store)["pushed"] == ["imported/d2"]
    typed = ("launch", "--phase", "mid", "--steps", "2", "--store", store, "--provider", "local", "--yes", "--init")
    assert world.json(*typed, "imported/d2")["state"] == "succeeded"
    made = {one.name: one for one in Store(store).artifacts()}
    assert made["imported/d2"].fingerprint == held["imported/d2"].fingerprint
    assert "mid_checkpoints/d2" in made
    assert world.json(*typed, str(folder))["ran"] == []


@pytest.mark.day_cases(1)
@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("notes/readme.txt", "is neither a checkpoint of nanochat"),
        ("words/tokenizer.pkl", "is not a tokenizer of nanochat"),
    ],
)
def test_foreign_folder_is_refused_with_a_reason(tmp_path, name, words):
    path = tmp_path / name
    path.parent.mkdir()
    path.write_text("no pickle")
    world = World(tmp_path / "user", {})
    said = world.json("ckpt.push", str(path.parent), "--to", str(tmp_path / "hub"), code=2)["error"]
    assert words in said
    assert not (tmp_path / "hub").exists()
