"""inv ckpt.push FOLDER: somebody else's checkpoint and tokenizer in a store, before a first run on rented machines."""

import pytest

from data.tokens import tokenizer as tokenizers
from store.artifacts.artifacts import Store
from tests.packs.imports.test_nanochat import saved
from tests.trainer.conftest import inputs as inputs
from tests.world import World

pytestmark = [pytest.mark.process, pytest.mark.slow]


def test_a_checkpoint_and_a_tokenizer_of_nanochat_are_put_into_a_store_and_trained_on_without_the_folder(
    inputs, tmp_path
):
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


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("identity_conversations.jsonl", "{}", "inv launch --identity"),
        ("notes/readme.txt", "", "is neither a checkpoint of nanochat"),
        ("words/tokenizer.json", "{}", "not a tokenizer"),
        ("words/tokenizer.pkl", "no pickle", "is no tokenizer of nanochat"),
    ],
)
def test_what_is_neither_is_refused_in_words(tmp_path, name, content, words):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    world = World(tmp_path / "user", {})
    said = world.json("ckpt.push", str(path if path.suffix == ".jsonl" else path.parent), "--to",
                      str(tmp_path / "hub"), code=2)["error"]  # fmt: skip
    assert words in said
    assert not (tmp_path / "hub").exists()
