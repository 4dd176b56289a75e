"""Bits per byte of held-out text: a large text is evaluated in part, a smaller one whole."""

from dataclasses import replace

import pytest

from data.tokens import tokenize
from data.tokens import tokenizer as tokenizers
from tests.trainer.conftest import TINY
from trainer.config import EvalSpec
from trainer.evaluation import scores
from trainer.model import export
from trainer.model.decoder import Decoder, initialize

LENGTH = 16


@pytest.fixture
def spec(inputs, tmp_path) -> EvalSpec:
    config = replace(TINY, max_position_embeddings=LENGTH)
    model = Decoder(config)
    initialize(model, 3)
    export.write(tmp_path / "model", config, model.state_dict(), inputs[0] / "tokenizer")
    return EvalSpec(model=str(tmp_path / "model"), text=str(inputs[0] / "datasets/x/text"))


def test_only_the_first_part_of_a_large_text_is_evaluated_and_compressed(spec, monkeypatch):
    whole = scores.scores(spec)
    text = whole["measures"]["text"]
    assert "evaluated_tokens" not in text and "compressed_bytes" not in text and sum(text["rows"]["bytes"]) > 1000
    monkeypatch.setattr(scores, "HELDOUT_TOKENS", 40)
    monkeypatch.setattr(scores, "HELDOUT_BYTES", 100)
    found = scores.scores(spec)
    cut = found["measures"]["text"]
    assert cut["evaluated_tokens"] == 40 and 100 <= cut["compressed_bytes"] < 1000
    assert len(cut["rows"]["nats"]) == 3
    for name in ("nats", "bytes"):
        assert cut["rows"][name][:2] == text["rows"][name][:2] and cut["rows"][name][2] < text["rows"][name][2]
    assert cut["rows_of"] != text["rows_of"] and cut["material"] == text["material"]  # not compared row by row
    assert found["gzip"] > whole["gzip"] and found["bits_per_byte"] == cut["value"] and "compressed_bytes" not in found


def test_tokenizer_stops_behind_the_last_document_that_is_evaluated(spec, inputs, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenize, "BATCH", 1)
    words, paths = tokenizers.load(inputs[0] / "tokenizer"), sorted((inputs[0] / "datasets/x/text/val").glob("*.txt"))
    whole, documents = tokenize.write(paths, words, tmp_path / "whole.arrow")
    found, fewer = tokenize.write(paths, words, tmp_path / "cut.arrow", 40)
    assert 40 < found < 40 + whole / documents * 3 and fewer < documents
    assert tokenize.write(paths, words, tmp_path / "again.arrow", whole) == (whole, documents)
