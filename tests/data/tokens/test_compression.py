"""The figures of `tokenizer.eval`, recounted by hand where possible."""

import base64
import hashlib
from dataclasses import replace

import pytest

from data.shards.shards import read, shard_paths
from data.tokens import compression, sample_texts
from data.tokens.compression import PEERS, CompressionSpec, measure
from tests.hub import FolderRepo, serving

pytestmark = pytest.mark.process

MERGED = {"gpt-2": [b"th", b"the"], "gpt-4": [b"th", b"the", b"12", b"123"]}


@pytest.fixture
def reference_tokenizers(tmp_path, monkeypatch):
    """Write small files that stand in for both reference tokenizers, with their real splitting rules."""
    folder = tmp_path / "peers"
    folder.mkdir()
    for name, merged in MERGED.items():
        words = [*(bytes([number]) for number in range(256)), *merged]
        raw = b"".join(base64.b64encode(word) + b" %d\n" % rank for rank, word in enumerate(words))
        (folder / PEERS[name].file).write_bytes(raw)
        sha256 = hashlib.sha256(raw).hexdigest()
        monkeypatch.setitem(PEERS, name, replace(PEERS[name], sha256=sha256, vocab_size=len(words)))
    return folder


@pytest.fixture
def small_texts(monkeypatch):
    """Return one small kind of text, so that figures can be counted by hand."""
    monkeypatch.setattr(compression, "KINDS", {"few": lambda: iter(["the 123", "the é"])})


def test_figures_follow_from_the_ids(tokenizer, tokenizer_folder, text, tmp_path, small_texts):
    found = measure(CompressionSpec(peers=str(tmp_path)), tokenizer_folder, text)
    val = list(read(shard_paths(text, "val")))
    ids = [tokenizer.encode(one) for one in val]
    num_tokens, num_bytes, num_words = sum(map(len, ids)), len("".join(val).encode()), len(" ".join(val).split())
    row = found["kinds"]["held out"]
    assert (row["bytes"], row["words"]) == (num_bytes, num_words)
    assert row["by"]["ours"] == {
        "tokens": num_tokens,
        "bytes_per_token": round(num_bytes / num_tokens, 3),
        "tokens_per_word": round(num_tokens / num_words, 3),
        "vocabulary_used": round(len(set().union(*ids)) / 1024, 4),
    }
    assert found["tokenizer_sha256"] == tokenizer.sha256
    assert found["kinds"]["few"]["by"]["ours"]["tokens"] == sum(map(len, map(tokenizer.encode, ("the 123", "the é"))))


def test_reference_tokenizers_are_reported_when_their_files_exist(
    tokenizer_folder, text, reference_tokenizers, small_texts
):
    found = measure(CompressionSpec(peers=str(reference_tokenizers)), tokenizer_folder, text)
    assert found["vocabularies"] == {"ours": 1024, "gpt-2": 258, "gpt-4": 260} and found["absent"] == {}
    row = found["kinds"]["few"]["by"]
    # the | space 1 2 3 | the | space é in two bytes; GPT-4: the | space | 123 | the | space é in two bytes
    assert (row["gpt-2"]["tokens"], row["gpt-4"]["tokens"]) == (1 + 4 + 1 + 3, 1 + 2 + 1 + 3)
    assert row["gpt-4"]["vocabulary_used"] == round(5 / 260, 4)
    assert row["gpt-2"]["bytes_per_token"] == round(13 / 9, 3)


def test_file_may_be_in_the_cache_of_tiktoken_under_its_name(
    tokenizer_folder, text, reference_tokenizers, small_texts, tmp_path, monkeypatch
):
    cache = tmp_path / "cache"
    cache.mkdir()
    for peer in PEERS.values():
        address = f"https://openaipublic.blob.core.windows.net/encodings/{peer.file}"
        (cache / hashlib.sha1(address.encode()).hexdigest()).write_bytes(
            (reference_tokenizers / peer.file).read_bytes()
        )
    monkeypatch.delenv("TIKTOKEN_CACHE_DIR", raising=False)
    monkeypatch.setenv("DATA_GYM_CACHE_DIR", str(cache))
    assert measure(CompressionSpec(), tokenizer_folder, text)["absent"] == {}
    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path / "empty"))
    assert set(measure(CompressionSpec(), tokenizer_folder, text)["absent"]) == set(PEERS)


def test_bytes_are_the_measure_without_reference_files(tokenizer_folder, text, tmp_path, small_texts):
    found = measure(CompressionSpec(peers=str(tmp_path)), tokenizer_folder, text)
    assert found["absent"] == {name: f"no {peer.file} in {tmp_path}" for name, peer in PEERS.items()}
    row = found["kinds"]["few"]["by"]["bytes"]
    assert (row["tokens"], row["bytes_per_token"]) == (13, 1.0)


def test_unpublished_file_is_reported_and_left_out(tokenizer_folder, text, reference_tokenizers, small_texts):
    (reference_tokenizers / PEERS["gpt-4"].file).write_bytes(b"AA== 0\n")
    found = measure(CompressionSpec(peers=str(reference_tokenizers)), tokenizer_folder, text)
    assert set(found["vocabularies"]) == {"ours", "gpt-2"}
    assert "as published" in found["absent"]["gpt-4"]


def test_files_are_fetched_only_on_request(
    tokenizer_folder, text, reference_tokenizers, small_texts, tmp_path, monkeypatch
):
    target = tmp_path / "fetched"
    with serving({"open/ai": FolderRepo(reference_tokenizers)}) as hub:
        monkeypatch.setattr(compression, "ADDRESS", f"{hub.url}/datasets/open/ai/resolve/main")
        monkeypatch.setenv("HF_TOKEN", "canary")
        assert len(measure(CompressionSpec(peers=str(target)), tokenizer_folder, text)["absent"]) == 2
        assert hub.asked == [] and not target.exists()
        found = measure(CompressionSpec(peers=str(target), download=True), tokenizer_folder, text)
        assert found["absent"] == {} and found["kinds"]["few"]["by"]["gpt-2"]["tokens"] == 9
        assert {one.authorization for one in hub.asked} == {""}
        before = len(hub.asked)
        measure(CompressionSpec(peers=str(target), download=True), tokenizer_folder, text)
        assert len(hub.asked) == before  # Existing files are not fetched again.


def test_unfetchable_file_is_absent(tokenizer_folder, text, small_texts, tmp_path, monkeypatch):
    with serving({"open/ai": FolderRepo(tmp_path)}) as hub:
        monkeypatch.setattr(compression, "ADDRESS", f"{hub.url}/datasets/open/ai/resolve/main")
        found = measure(CompressionSpec(peers=str(tmp_path / "to"), download=True), tokenizer_folder, text)
    assert set(found["absent"]) == set(PEERS)
    assert list(tmp_path.glob("to/*")) == []


def test_kinds_of_text_match_their_names():
    kinds = {name: list(make()) for name, make in sample_texts.KINDS.items()}
    assert kinds == {name: list(make()) for name, make in sample_texts.KINDS.items()}  # The same every time.
    letters = {name: "".join(texts) for name, texts in kinds.items()}
    assert len(letters["prose"]) > 100_000
    assert "def __init__(self" in letters["code"] and len(letters["code"]) > 300_000
    digits = sum(letter.isdigit() for letter in letters["numbers"]) / len(letters["numbers"])
    assert digits > 0.6
    assert {0x03B1, 0x0438, 0x0627, 0x05D0, 0x0939, 0x4EBA, 0x3059, 0xAC04, 0x0E19} < set(
        map(ord, letters["other scripts"])
    )
