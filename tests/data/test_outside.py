"""Foreign shards, tokens, tokenizers and conversations; and the whole shards of an interrupted run."""

import json
import os
import struct

import pytest
from hypothesis import assume, example, given, settings

from data.chat.imported import make as talk
from data.config import TalkSpec, TokenizerSpec, filled_files, source_files
from data.errors import ConfigError, DataError, InputError
from data.manifest import MANIFEST, read_manifest, write_manifest
from data.shards.shards import Writer, shard_paths
from data.text.batches import open_pieces
from data.text.documents import InputFile
from data.tokens import bpe, tokenize
from data.tokens.stream import Stream
from data.tokens.token_file import BODY, FIELDS_AT, VERSION, is_token_folder, read_header, read_token_manifest
from data.tokens.tokenizer import load
from data.verify import verify
from tests import hostile, seeds

MANY = settings(max_examples=seeds.examples(8, 300))
LINES = [f"document {number} of those that words were taken from" for number in range(40)]


def shards(folder, finished=True):
    """Write three whole shards of ten, and a fourth."""
    writer = Writer(folder, 10)
    for line in LINES[:35]:
        writer.add(line)
    if finished:
        writer.finish("here", {})
    else:
        writer.publish(writer.take_completed(), {"source": "here", "options": {}})
    return folder


@pytest.fixture(scope="module")
def artifacts(tmp_path_factory):
    """Make text, a tokenizer and tokens."""
    root = tmp_path_factory.mktemp("made")
    text = shards(root / "text")
    bpe.make(TokenizerSpec(vocab_size=300), text, root / "tokenizer")
    tokenize.make(text, root / "tokenizer", root / "tokens", 1)
    return root


@pytest.fixture
def text(tmp_path):
    return tmp_path / "text" if (tmp_path / "text").exists() else shards(tmp_path / "text")


TOKENIZER = {"version": "1.0", "added_tokens": [], "model": {"type": "BPE", "vocab": {"a": 0}, "merges": []}}
TALK = {"messages": [{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}]}
GOOD = {
    "schema": 2, "tool": "x", "finished": True, "source": "here", "options": {}, "total_lines": 1, "total_bytes": 1,
    "total_raw_bytes": 1,
    "shards": [{"name": "shard-00000.txt", "lines": 1, "bytes": 1, "raw_bytes": 1, "sha256": "0" * 64}],
}  # fmt: skip


@pytest.mark.slow
@MANY
@given(document=hostile.documents(GOOD))
def test_shard_manifest_of_any_content_is_read_or_refused_with_a_reason(text, document):
    (text / MANIFEST).write_bytes(document)
    for read in (lambda: read_manifest(text, finished=False), lambda: shard_paths(text)):
        try:
            read()
        except DataError as error:
            assert len(str(error)) < 1000
    assert all(type(one) is str for one in verify(text))
    assert all(one.parent == text for one in source_files(str(text)))


@MANY
@given(
    document=hostile.documents(
        {"kind": "token shards", "schema": 1, "tokenizer_sha256": "0" * 64,
         "shards": [{"name": "train-00000.arrow", "sha256": "0" * 64}]}
    )
)  # fmt: skip
def test_token_manifest_of_any_content_is_read_or_refused_with_a_reason(tmp_path, document):
    (tmp_path / MANIFEST).write_bytes(document)
    try:
        read_token_manifest(tmp_path)
    except DataError as error:
        assert len(str(error)) < 1000
    if is_token_folder(tmp_path):
        assert all(type(one) is str for one in verify(tmp_path))


@pytest.mark.parametrize(
    ("at", "value"), [(16, 1), (16, 1 << 31), (20, 5000), (24, 1 << 63), (32, 1 << 63), (12, 3), (8, 9)]
)
def test_impossible_header_of_tokens_is_refused(artifacts, tmp_path, at, value):
    raw = bytearray((artifacts / "tokens/train-00000.arrow").read_bytes())
    struct.pack_into("<Q" if at >= 24 else "<I", raw, FIELDS_AT[VERSION] + at, value)
    (tmp_path / "x.bin").write_bytes(raw)
    with pytest.raises(DataError):
        read_header(tmp_path / "x.bin")


def test_id_outside_of_the_vocabulary_is_refused_at_the_read(artifacts, tmp_path):
    raw = bytearray((artifacts / "tokens/train-00000.arrow").read_bytes())
    struct.pack_into("<H", raw, BODY + 6, 60_000)
    (tmp_path / "x.bin").write_bytes(raw)
    stream = Stream([tmp_path / "x.bin"])
    with pytest.raises(DataError, match="id 60000 of 300"):
        stream.read(0, 10)


def test_document_offsets_outside_of_the_file_are_refused(artifacts, tmp_path):
    import numpy as np

    path = artifacts / "tokens/train-00000.arrow"
    header, raw = read_header(path), bytearray(path.read_bytes())
    struct.pack_into("<Q", raw, header.index + 16, (1 << 63) + 5)
    (tmp_path / "x.bin").write_bytes(raw)
    with pytest.raises(DataError, match="document offsets"):
        Stream([tmp_path / "x.bin"]).document_ranges(np.array([1, 2]))


@pytest.mark.process
@settings(MANY, max_examples=seeds.examples(6, 200))
@given(document=hostile.documents(TOKENIZER))
def test_tokenizer_of_any_content_is_refused_with_a_reason(tmp_path, document):
    (tmp_path / "tokenizer.json").write_bytes(document)
    with pytest.raises(DataError):
        load(tmp_path)
    with pytest.raises(InputError):
        bpe.adopt(bpe.Published(path=str(tmp_path)), tmp_path / "out")


@settings(MANY, max_examples=seeds.examples(6, 200))
@given(document=hostile.documents(TALK))
@example(document=b'{"messages": [{"role": "user", "content": "\\ud800"}, {"role": "assistant", "content": "y"}]}')
def test_conversations_of_any_content_are_accepted_left_out_or_refused(tmp_path, document):
    assume(b"\n" not in document and b"\r" not in document)
    (tmp_path / "talk.jsonl").write_bytes(document + b"\n")
    try:
        talk(TalkSpec(source=str(tmp_path / "talk.jsonl")), tmp_path)
    except InputError as error:
        assert len(str(error)) < 1000
    else:
        (tmp_path / "conversations.jsonl").read_text(encoding="utf-8")


@settings(MANY, max_examples=seeds.examples(6, 200))
@given(document=hostile.documents({"text": "x", "url": "y", "language_score": 0.5}))
def test_documents_of_any_content_are_read_or_refused(tmp_path, document):
    assume(b"\n" not in document)
    path = tmp_path / "some.jsonl"
    path.write_bytes(document + b"\n")
    pieces = open_pieces(InputFile(str(path)), ("url", "language_score"))
    try:
        for piece in range(pieces.count):
            for batch in pieces.read(piece):
                assert all(one.decode() or True for one in batch.texts)
    except InputError as error:
        assert len(str(error)) < 1000


def test_shard_that_links_out_of_its_folder_is_not_read(text, tmp_path):
    os.rename(text / "shard-00001.txt", tmp_path / "elsewhere.txt")
    (text / "shard-00001.txt").symlink_to(tmp_path / "elsewhere.txt")
    with pytest.raises(DataError, match="leads out"):
        shard_paths(text)


def test_whole_shards_of_an_interrupted_run_are_used_on_request(artifacts, tmp_path):
    text = shards(tmp_path / "text", finished=False)
    assert read_manifest(text, finished=False)["finished"] is False
    for refused in (
        lambda: bpe.make(TokenizerSpec(vocab_size=300), text, tmp_path / "tokenizer"),
        lambda: tokenize.make(text, artifacts / "tokenizer", tmp_path / "tokens", 1),
    ):
        with pytest.raises(DataError, match="--partial"):
            refused()
    assert "--partial" in verify(text)[0] and not verify(text, partial=True)
    assert bpe.make(TokenizerSpec(vocab_size=290), text, tmp_path / "tokenizer", partial=True)["vocab_size"] == 290
    found = tokenize.make(text, artifacts / "tokenizer", tmp_path / "tokens", 1, partial=True)
    assert found["train_documents"] == 30  # The fourth shard was not whole.
    (text / "shard-00001.txt").write_text("other\n")
    assert verify(text, partial=True) == ["shard-00001.txt: the bytes differ from the written file"]


def test_folder_of_shards_as_a_source_means_its_whole_shards(tmp_path):
    text = shards(tmp_path / "text", finished=False)
    (text / "shard-00003.txt").write_text("half a")  # Created after the listing.
    (text / ".draft/shard-00003.txt.gz").write_bytes(b"half")
    assert [path.name for path in source_files(str(text))] == [f"shard-0000{n}.txt" for n in range(3)]
    (text / MANIFEST).unlink()
    assert len(source_files(str(text))) == 4  # A foreign file.
    write_manifest(tmp_path, [], True, {"source": "", "options": {}})
    assert json.loads((tmp_path / MANIFEST).read_text())["shards"] == []


def test_empty_shard_is_refused_in_the_plan(tmp_path):
    (tmp_path / "shard-00000.txt").write_text("a line\n")
    assert len(filled_files(str(tmp_path))) == 1
    (tmp_path / "shard-00001.txt").touch()
    with pytest.raises(ConfigError, match="shard-00001.txt is empty; remove the file, or make the file again"):
        filled_files(str(tmp_path))
