"""Token shards: written by any number of processes, killed, resumed, verified, refused."""

import json
import os
import random
import shutil
import signal
import struct
import subprocess
import sys
import time
from dataclasses import asdict
from itertools import islice
from types import SimpleNamespace

import numpy as np
import pyarrow
import pytest

from data import process_pool
from data.card import CARD
from data.config import Input, StepContext
from data.errors import DataError
from data.shards.shards import Writer as TextWriter
from data.shards.shards import read, shard_paths
from data.tokens import tokenize
from data.tokens.stream import Stream, open_shard
from data.tokens.token_file import BODY, FIELDS_AT, VERSION, read_header, token_files
from data.tokens.tokenize import TokenWriter, make, write
from data.verify import verify
from store.artifacts.artifacts import Store
from tests import golden
from tests.data.conftest import ROOT, run_step

SHA = "ab" * 32
ROLES = {"text": "x/text", "tokenizer": "tokenizer"}


def bins(folder, part="train"):
    return sorted(folder.glob(f"{part}-*.arrow"))


def contents(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.name != CARD}


def tokenizer_of(vocab_size):
    return SimpleNamespace(vocab_size=vocab_size, sha256=SHA, separator=vocab_size - 9)


@pytest.fixture(scope="module")
def shards(text, tmp_path_factory):
    """Write four text shards for training, one held out: 800 documents of pydocs, one of them empty."""
    folder = tmp_path_factory.mktemp("shards")
    documents = [*islice(read(shard_paths(text)), 780), *[""] * 20]
    for part, some, lines in (("train", documents[:700], 200), ("val", documents[700:], 200)):
        writer = TextWriter(folder / part, lines)
        for one in some:
            writer.add(one)
        writer.finish("test", {})
    return folder


@pytest.fixture(scope="module")
def made_tokens(shards, tokenizer_folder, tmp_path_factory):
    folder = tmp_path_factory.mktemp("made")
    make(shards, tokenizer_folder, folder, workers=1)
    return folder


@pytest.fixture
def numbers(tmp_path):
    """Write documents of 0, 1, 2, ... ids in three files."""
    paths, at = [], 0
    for name, count in zip("abc", (20, 1, 30), strict=True):
        writer = TokenWriter(tmp_path / f"{name}.bin", tokenizer_of(4096))
        writer.add([range(one) for one in range(at, at + count)])
        writer.finish()
        paths.append(writer.target)
        at += count
    return paths


@pytest.mark.process
def test_ids_of_each_document_follow_a_bos(text, tokenizer, token_folder):
    bos = tokenizer.special("<|bos|>")
    shard = open_shard(bins(token_folder, "val")[0], tokenizer.sha256)
    documents = list(read(shard_paths(text, "val")))
    assert (shard.header.num_documents, shard.header.vocab_size, shard.header.bos) == (len(documents), 1024, bos)
    assert shard.ids.dtype == np.uint16 and not shard.ids.flags.owndata
    assert (np.flatnonzero(shard.ids == bos) == shard.starts[:-1]).all()
    pieces = [tokenizer.decode(piece[1:].tolist()) for piece in np.split(shard.ids, shard.starts[1:-1])]
    assert pieces == documents


def test_large_vocabulary_takes_four_bytes(tmp_path):
    writer = TokenWriter(tmp_path / "wide.bin", tokenizer_of(100_000))
    writer.add([[7, 99_999], np.array([65_536])])
    writer.finish()
    assert open_shard(writer.target).ids.tolist() == [99_991, 7, 99_999, 99_991, 65_536]
    assert not writer.draft.exists()


@pytest.mark.process
def test_empty_text_gives_a_file_without_tokens(tokenizer, tmp_path):
    assert write([], tokenizer, tmp_path / "none.bin") == (0, 0)
    stream = Stream([tmp_path / "none.bin"])
    assert (stream.num_tokens, stream.num_documents) == (0, 0)


@pytest.mark.process
def test_bytes_are_independent_of_the_number_of_processes(shards, made_tokens, tokenizer_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenize, "WORTH_A_PROCESS", 1)
    about = make(shards, tokenizer_folder, tmp_path / "two", workers=2)
    assert contents(tmp_path / "two") == contents(made_tokens)
    assert sorted(contents(made_tokens)) == [
        "manifest.json",
        *(f"train-0000{n}.arrow" for n in range(4)),
        "val-00000.arrow",
    ]
    assert about["train_documents"] == 700 and about["val_documents"] == 100
    assert about["train_tokens"] == sum(read_header(path).num_tokens for path in bins(made_tokens))


@pytest.mark.process
def test_valid_shards_are_kept_and_foreign_or_damaged_shards_are_made_again(
    shards, made_tokens, tokenizer, tokenizer_folder, tmp_path
):
    folder = tmp_path / "again"
    make(shards, tokenizer_folder, folder)
    # Whole, and of different text.
    (folder / "train-00000.arrow").write_bytes((folder / "train-00001.arrow").read_bytes())
    os.truncate(folder / "train-00002.arrow", 1000)
    (folder / "train-00007.arrow").write_bytes((folder / "train-00001.arrow").read_bytes())  # Of a run over more text.
    (folder / ".train-00007.arrow.12.draft").touch()
    (folder / "manifest.json").unlink()
    before = {path.name: path.stat().st_ino for path in bins(folder)}
    make(shards, tokenizer_folder, folder)
    assert contents(folder) == contents(made_tokens)
    kept = [
        name for name, inode in before.items() if (folder / name).exists() and inode == os.stat(folder / name).st_ino
    ]
    assert kept == ["train-00001.arrow", "train-00003.arrow"]


@pytest.mark.process
@pytest.mark.parametrize("workers", [1, 2])
def test_killed_run_resumes_and_ends_with_the_same_bytes(shards, made_tokens, tokenizer_folder, tmp_path, workers):
    """Killed when the second file exists, and so somewhere inside the third."""
    work, config = tmp_path / "work", tmp_path / "config.json"
    out = tmp_path / "out"
    inputs = {"text": str(shards), "tokenizer": str(tokenizer_folder)}
    config.write_text(json.dumps({"out": str(out), "inputs": inputs, "spec": {"workers": workers}}))
    slowly = "import data.tokens.tokenize as t; from data.__main__ import main; "
    slowly += "t.WORTH_A_PROCESS = t.BATCH = 1; exit(main())"
    words = [sys.executable, "-c", slowly, "tokens", "--config", str(config)]
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "SLIPWAY_WORK": str(work)}
    one = subprocess.Popen(words, cwd=ROOT, env=environ)
    deadline = time.monotonic() + 60
    while len(bins(out)) < 2 and one.poll() is None:
        assert time.monotonic() < deadline
        time.sleep(0.002)
    one.kill()  # The child processes notice the missing parent themselves.
    one.wait()
    before = {path.name: path.stat().st_ino for path in bins(out)}
    assert len(before) >= 2
    if one.returncode == -signal.SIGKILL and len(before) < 5:
        assert not (out / "manifest.json").exists() and "not finished" in verify(out)[0]
    done = subprocess.run(words, cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (0, "")
    assert contents(out) == contents(made_tokens)
    assert before.items() <= {path.name: path.stat().st_ino for path in bins(out, "*")}.items()


@pytest.mark.process
def test_step_resumes_the_draft_of_a_killed_step_and_publishes_the_same(
    shards, made_tokens, tokenizer_folder, tmp_path
):
    store, work, records = tmp_path / "store", tmp_path / "work", tmp_path / "records.jsonl"
    for name, folder in (("x/text", shards), ("tokenizer", tokenizer_folder)):
        Store(str(store)).publish(folder, name, f"of-{name}", {})
    making = StepContext(
        store=str(store),
        name="x/tokens",
        fingerprint="a-b-c",
        inputs={role: Input(name=name, fingerprint=f"of-{name}") for role, name in ROLES.items()},
    )
    draft = work / "drafts" / "x-tokens-a-b-c"
    draft.mkdir(parents=True)
    for name in ("train-00000.arrow", "train-00002.arrow", "val-00000.arrow"):
        (draft / name).write_bytes((made_tokens / name).read_bytes())
    (draft / ".train-00001.arrow.77.draft").write_bytes(b"half")
    config = {"making": asdict(making), "spec": {}}
    done = run_step("tokens", config, tmp_path, SLIPWAY_WORK=str(work), SLIPWAY_RECORDS=str(records))
    assert (done.returncode, done.stderr) == (0, "")
    found = Store(str(store)).path("x/tokens", "a-b-c")
    assert {name: raw for name, raw in contents(found).items() if name in contents(made_tokens)} == contents(
        made_tokens
    )
    told = [json.loads(line) for line in records.read_text().splitlines()]
    assert [one["done"] for one in told if one["kind"] == "progress"][-1] == 300  # Documents of the second and fourth.
    assert told[-1].items() >= {"kind": "result", "train_documents": 700, "val_documents": 100}.items()
    assert not draft.exists()


class Endless:
    """A worker of the next test, which reports a pid repeatedly."""

    def __call__(self):
        return lambda task: iter(lambda: time.sleep(0.02) or os.getpid(), None)


@pytest.mark.process
def test_killed_process_is_reported_and_the_others_end():
    killed = []

    def hear(task, pid):
        if not killed:
            killed.append(pid)
            os.kill(pid, signal.SIGKILL)

    with pytest.raises(DataError, match="a process left with -9.*run the same command again to continue"):
        process_pool.run_tasks(["a", "b"], Endless(), 2, hear)


@pytest.mark.process
def test_exception_of_a_process_is_raised_in_the_parent(shards, tokenizer_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(tokenize, "WORTH_A_PROCESS", 1)
    broken = tmp_path / "text"
    for part in ("train", "val"):
        writer = TextWriter(broken / part, 10)
        for n in range(20):
            writer.add(f"document {n}")
        writer.finish("test", {})
    (broken / "train" / "shard-00001.txt").unlink()
    with pytest.raises((DataError, OSError), match=r"shard-00001\.txt"):
        make(broken, tokenizer_folder, tmp_path / "out", workers=2)
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.process
def test_verify_finds_any_flipped_byte_missing_file_and_extra_file(made_tokens, tmp_path):
    folder, chance = tmp_path / "copy", random.Random(5)
    folder.mkdir()
    for name, raw in contents(made_tokens).items():
        (folder / name).write_bytes(raw)
    assert verify(folder) == []
    path = folder / "train-00001.arrow"
    raw = path.read_bytes()
    places = [*range(0, BODY, 5), *chance.sample(range(BODY, len(raw)), 20), len(raw) - 1]
    for at in places:
        path.write_bytes(raw[:at] + bytes([raw[at] ^ 1 << at % 8]) + raw[at + 1 :])
        found = verify(folder)
        assert len(found) == 1 and found[0].startswith("train-00001.arrow: "), at
    path.write_bytes(raw)
    path.rename(folder / "train-00009.arrow")
    assert verify(folder) == ["train-00009.arrow: not in the manifest", "train-00001.arrow: missing"]


@pytest.mark.process
def test_shards_are_verified_without_numpy(made_tokens):
    """Run the check of `inv shard --verify`."""
    program = (
        "import sys; sys.modules['numpy'] = None; from pathlib import Path; from scripts.data.shard import check;"
        "check(Path(sys.argv[1]), False)"
    )
    done = subprocess.run([sys.executable, "-c", program, str(made_tokens)], cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"{made_tokens}: every shard matches the manifest\n"), done.stderr


@pytest.mark.process
def test_different_tokenizer_is_refused(numbers, tokenizer):
    with pytest.raises(DataError, match=f"made by tokenizer abababababab, not by {tokenizer.sha256[:12]}"):
        open_shard(numbers[0], tokenizer.sha256)
    writer = TokenWriter(numbers[0].with_name("d.bin"), tokenizer)
    writer.finish()
    with pytest.raises(DataError, match=r"d\.bin: made by a different tokenizer than .*a\.bin"):
        Stream([*numbers, writer.target])


@pytest.mark.parametrize(
    ("damage", "told"),
    [
        ("cut", "wrong size: "), ("longer", "wrong size: "),
        ("magic", "not a token shard"), ("short", "not a token shard"),
        ("missing", "no such token shard"), ("version", "version 1, but this Slipway reads 2 and 3"),
        ("index", "document offsets are damaged"), ("batch", "the header is damaged"),
    ],
)  # fmt: skip
def test_a_damaged_token_shard_is_refused_in_one_line(numbers, damage, told):
    raw, at = numbers[0].read_bytes(), FIELDS_AT[VERSION]
    changed = {
        "cut": raw[:-8],
        "longer": raw + bytes(8),
        "magic": raw[:at] + b"?" + raw[at + 1 :],
        "short": raw[:10],
        "version": raw[: at + 8] + (1).to_bytes(4, "little") + raw[at + 12 :],
        "index": raw[:-8] + bytes(8),
        "missing": b"",
        "batch": raw[: BODY - 100] + b"?" + raw[BODY - 99 :],
    }
    numbers[0].write_bytes(changed[damage])
    if damage == "missing":
        numbers[0].unlink()
    with pytest.raises(DataError) as error:
        open_shard(numbers[0])
    assert str(error.value).startswith(f"{numbers[0]}: ") and told in str(error.value)
    assert "\n" not in str(error.value)


def test_a_shard_of_the_first_version_is_refused(tmp_path):
    """The first version had a shorter header, and no index."""
    path = tmp_path / "old.bin"
    path.write_bytes(struct.pack("<8sIIIIQQ32s", b"SLIPWAYT", 1, 2, 4096, 0, 50, 1, bytes(32)) + bytes(100))
    with pytest.raises(
        DataError, match=r"old\.bin: a token shard of version 1, but this Slipway reads 2 and 3; make the tokens again"
    ):
        open_shard(path)


@pytest.mark.process
def test_shards_of_the_second_version_are_read_and_verified(made_tokens, tmp_path):
    folder = golden.second_version_tokens(shutil.copytree(made_tokens, tmp_path / "copy"))
    old, new = Stream(token_files(folder, "train")), Stream(token_files(made_tokens, "train"))
    assert (old.num_documents, old.num_tokens) == (new.num_documents, new.num_tokens)
    assert (old.read(0, old.num_tokens) == new.read(0, new.num_tokens)).all()
    manifest = json.loads((made_tokens / "manifest.json").read_text())
    for one in manifest["shards"]:
        one["name"] = one["name"].replace(".arrow", ".bin")
        one["sha256"] = read_header(folder / one["name"]).sha256
    (folder / "manifest.json").write_text(json.dumps(manifest))
    assert verify(folder) == []


@pytest.mark.parametrize("vocab_size", [4096, 100_000])
def test_shard_is_an_arrow_stream(tmp_path, vocab_size):
    documents = [[1, 2, 3], [], [5], list(range(999))]
    for name, some in (("some", documents), ("none", [])):
        writer = TokenWriter(tmp_path / f"{name}.arrow", tokenizer_of(vocab_size))
        writer.add(some)
        writer.finish()
        table = pyarrow.ipc.open_stream(pyarrow.memory_map(str(writer.target))).read_all()
        table.validate(full=True)
        assert table["input_ids"].to_pylist() == [[vocab_size - 9, *one] for one in some]
        assert table.schema.field("input_ids").type.value_type.bit_width == 8 * writer.header.width


def test_a_stream_reads_across_its_files(numbers):
    stream = Stream(numbers, SHA)
    ids = [id for one in range(51) for id in (4087, *range(one))]
    assert (stream.num_tokens, stream.num_documents, stream.bos) == (len(ids), 51, 4087)
    for start, count in [(0, 5), (208, 6), (209, 700), (len(ids) - 2, 10), (len(ids), 5)]:
        assert stream.read(start, count).tolist() == ids[start : start + count]
    starts = np.array([0, 200, 205, 209, 210, 240, len(ids) - 40])
    assert stream.windows(starts, 40).tolist() == [ids[start : start + 40] for start in starts]
    begins, lengths = stream.document_ranges(np.array([50, 0, 20, 19, 21]))
    assert lengths.tolist() == [51, 1, 21, 20, 22]
    assert [ids[start : start + size] for start, size in zip(begins, lengths, strict=True)] == [
        [4087, *range(one)] for one in (50, 0, 20, 19, 21)
    ]
