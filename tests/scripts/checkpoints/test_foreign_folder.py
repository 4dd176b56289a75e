"""`inv ckpt.push FOLDER`: a foreign checkpoint and tokenizer in a store, before a first run on rented machines."""

import pytest

from tests.world import World

pytestmark = [pytest.mark.process, pytest.mark.slow]


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("identity_conversations.jsonl", "{}", "inv launch --identity"),
        ("notes/readme.txt", "", "nor a tokenizer (tokenizer.json"),
        ("words/tokenizer.json", "{}", "not a tokenizer"),
    ],
)
def test_folder_without_either_is_refused_with_a_reason(tmp_path, name, content, words):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(content)
    world = World(tmp_path / "user", {})
    said = world.json(
        "ckpt.push", str(path if path.suffix == ".jsonl" else path.parent), "--to", str(tmp_path / "hub"), code=2
    )["error"]
    assert words in said
    assert not (tmp_path / "hub").exists()
