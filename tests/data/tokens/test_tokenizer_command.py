"""`inv tokenizer` and `inv tokenizer.eval` as typed."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from data.tokens.tokenizer import load
from infra.errors import UsageError
from scripts.data import tokenizer_train
from scripts.data.tokenizer_train import TokenizerFlags
from store.artifacts.artifacts import Store
from tests.world import World


@pytest.mark.process
def test_tokenizer_is_made_from_a_source_then_reused_then_measured(tmp_path):
    world, corpus, out = World(tmp_path), tmp_path / "corpus.txt", str(tmp_path / "out")
    corpus.write_text("".join(f"line {n} says the same as the line before it, almost\n" for n in range(400)))
    words = ("tokenizer", "--source", str(corpus), "--vocab-size", "300", "--out", out)
    done = world.run(*words)
    assert (done.returncode, done.stdout) == (0, f"{out}\n"), done.stderr
    assert "tokenizer: made, 300 ids" in done.stderr and "400 documents" in done.stderr
    done = world.run(*words, "--json")
    again = json.loads(done.stdout)
    assert (again["reused"], again["vocab_size"], again["tokenizer_sha256"]) == (
        True,
        300,
        load(tmp_path / "out").sha256,
    )
    words = ("tokenizer.eval", "--tokenizer", out, "--source", str(corpus), "--peers", str(tmp_path))
    done = world.run(*words)
    assert done.returncode == 0, done.stderr
    assert [line.split("  ")[0] for line in done.stdout.splitlines()] == [
        "text",
        "prose",
        "code",
        "numbers",
        "other scripts",
        "held out",
    ]
    assert (
        "vocabulary sizes: ours 300, bytes 256" in done.stderr
        and f"GPT-4: no cl100k_base.tiktoken in {tmp_path}" in done.stderr
    )


def test_store_is_searched_for_the_same_tokenizer(tmp_path):
    settings = SimpleNamespace(store=str(tmp_path / "store"))
    assert tokenizer_train.of_the_store(settings) == []
    (tmp_path / "made").mkdir()
    (tmp_path / "made" / "tokenizer.json").write_text("{}")
    Store(settings.store).publish(tmp_path / "made", "tokenizer", "a-b-c", {})
    (folder,) = tokenizer_train.of_the_store(settings)
    assert Path(folder, "tokenizer.json").read_text() == "{}"
    assert tokenizer_train.of_the_store(SimpleNamespace(store="s3://nobody/asked")) == []


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ({"vocab_size": 264}, "--vocab-size is 264; the 256 bytes and nine special tokens need 265"),
        ({"vocab_size": 1 << 25}, "the maximum is 16777216"),
        ({"text": "a", "source": "pydocs"}, "choose one"),
        ({"text": "a", "tokenizer_json": "b"}, "choose one"),
        ({"vocab_size": 300, "tokenizer_json": "b"}, "--vocab-size, --retrain train a tokenizer; choose one"),
    ],
)
def test_conflicting_words_are_refused(words, told):
    with pytest.raises(UsageError, match=told):
        tokenizer_train.train.work(TokenizerFlags(**{"vocab_size": 300, **words}))
