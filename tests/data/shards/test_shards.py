import json
import os
import signal
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from data.card import CARD
from data.errors import DataError, InputError
from data.manifest import MANIFEST, is_shard, read_manifest
from data.shards.shards import Writer, read, shard_paths
from data.text.document_batch import TextList
from data.text.escapes import escape, escape_all, held_out, unescape
from data.verify import verify
from tests.data.conftest import ROOT, run_step


def write(folder, texts, lines_per_shard=2):
    writer = Writer(folder, lines_per_shard)
    for text in texts:
        writer.add(text)
    return writer.finish("test", {})


@given(st.text(alphabet=st.one_of(st.characters(codec="utf-8"), st.sampled_from("\\nr\r\n"))))
def test_every_text_becomes_one_line_and_is_restored(text):
    line = escape(text)
    assert "\n" not in line and "\r" not in line
    assert unescape(line) == text
    assert b"".join(escape_all(TextList([text.encode()] * 2))) == 2 * (line.encode() + b"\n")


@pytest.mark.parametrize("line", ["\\", "\\t", "a\\\\\\"])
def test_foreign_escape_is_refused(line):
    with pytest.raises(ValueError, match="escape"):
        unescape(line)


def chosen(texts, ratio, seed):
    fates = held_out([text.encode() for text in texts], ratio, seed)
    return {text for text, fate in zip(texts, fates, strict=True) if fate}


@given(st.lists(st.text(st.characters(codec="utf-8")), unique=True), st.integers(0, 2**40), st.randoms())
def test_held_out_documents_are_independent_of_the_order(texts, seed, chance):
    before = chosen(texts, 0.5, seed)
    chance.shuffle(texts)
    assert chosen(texts, 0.5, seed) == before


def test_larger_share_holds_out_more_and_keeps_the_previously_held_out():
    texts = [f"text {n}" for n in range(4000)]
    small, large = (chosen(texts, ratio, 1) for ratio in (0.05, 0.2))
    assert small < large
    assert 120 < len(small) < 280 and 680 < len(large) < 920
    assert chosen(texts, 0.05, 2) != small


def test_documents_are_restored_from_shards_unchanged(tmp_path):
    texts = ["one", "two\nlines\r\n", "back\\slash \\n", "\u2028 is no newline here", " "]
    manifest = write(tmp_path, texts)
    assert [shard["lines"] for shard in manifest["shards"]] == [2, 2, 1]
    assert list(read(shard_paths(tmp_path))) == texts
    assert verify(tmp_path) == []


@pytest.mark.process
def test_the_manifest_agrees_with_wc_and_sha256sum(tmp_path):
    config = {"out": str(tmp_path / "out"), "spec": {"take": 1000, "lines_per_shard": 200}}
    assert run_step("text", config, tmp_path).returncode == 0
    manifest = json.loads((tmp_path / "out" / MANIFEST).read_text())
    names = [shard["name"] for shard in manifest["shards"]]
    assert names == [f"shard-{n:05d}.txt" for n in range(5)]
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [CARD, MANIFEST, *names]

    def tool(*words):
        return subprocess.check_output([*words, *names], cwd=tmp_path / "out", text=True).split()

    assert tool("wc", "-l")[:10:2] == [str(shard["lines"]) for shard in manifest["shards"]] == ["200"] * 5
    assert tool("wc", "-c")[:10:2] == [str(shard["bytes"]) for shard in manifest["shards"]]
    assert tool("sha256sum")[::2] == [shard["sha256"] for shard in manifest["shards"]]
    assert (manifest["total_lines"], manifest["finished"], manifest["source"]) == (1000, True, "pydocs")


@pytest.mark.process
def test_killed_writer_leaves_no_shard_that_looks_finished(tmp_path):
    program = (
        "import os, signal, sys\nfrom pathlib import Path\nfrom data.shards.shards import Writer\n"
        "writer = Writer(Path(sys.argv[1]), 10)\n"
        "for n in range(35): writer.add(str(n))\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, "-c", program, tmp_path], env=environment, timeout=30)
    assert done.returncode == -signal.SIGKILL
    assert list(tmp_path.glob("*.txt")) == []
    assert verify(tmp_path) == [f"{tmp_path}: no {MANIFEST}; the shards were not finished"]
    write(tmp_path, ["again"])
    assert list(read(shard_paths(tmp_path))) == ["again"]


def test_a_second_run_replaces_the_first_and_all_its_shards(tmp_path):
    write(tmp_path, ["a", "b", "c", "d", "e"])
    write(tmp_path, ["x"])
    assert list(read(shard_paths(tmp_path))) == ["x"]
    assert verify(tmp_path) == []


def test_foreign_shards_are_left_alone(tmp_path):
    (tmp_path / "shard-00000.txt").write_text("not ours\n")
    with pytest.raises(InputError, match="no manifest lists"):
        write(tmp_path, ["a"])
    assert (tmp_path / "shard-00000.txt").read_text() == "not ours\n"


@pytest.mark.parametrize("damage", ["flip", "cut", "remove", "add"])
def test_damage_is_found_and_named(tmp_path, damage):
    write(tmp_path, ["one", "two", "three"])
    shard = tmp_path / "shard-00001.txt"
    raw = shard.read_bytes()
    if damage == "flip":
        shard.write_bytes(bytes([raw[0] ^ 1]) + raw[1:])
    elif damage == "cut":
        shard.write_bytes(raw[:-1])
    elif damage == "remove":
        shard.unlink()
    else:
        shard = tmp_path / "shard-00002.txt"
        shard.write_bytes(raw)
    assert [problem.split(":")[0] for problem in verify(tmp_path)] == [shard.name]


@pytest.mark.parametrize(
    "manifest", ["", "[]", '{"schema": 1}', '{"schema": 1, "finished": true, "shards": [{"name": "../x"}]}']
)
def test_foreign_manifest_is_refused(tmp_path, manifest):
    (tmp_path / MANIFEST).write_text(manifest)
    with pytest.raises(DataError):
        read_manifest(tmp_path)
    assert not is_shard(tmp_path / "shard-00000.txt")


@pytest.mark.process
def test_memory_does_not_grow_with_the_source(tmp_path):
    def peak_kib(lines):
        source = tmp_path / "source.txt"
        source.write_text(("word " * 200 + "\n") * lines)
        program = (
            "import resource, sys\nfrom pathlib import Path\nfrom data.config import TextSpec\n"
            "from data.shards.pipeline import shard\n"
            "shard(TextSpec(source=sys.argv[1], lines_per_shard=5000), Path(sys.argv[2]))\n"
            "print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)\n"
        )
        words = [sys.executable, "-c", program, str(source), str(tmp_path / f"out-{lines}")]
        return int(subprocess.check_output(words, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=60))

    assert peak_kib(30_000) - peak_kib(100) < 8 << 10  # The source is 30 MB.


@pytest.mark.process
def test_parts_of_a_text_neither_overlap_nor_lose_bytes(text):
    train, val = (list(read(shard_paths(text, part))) for part in ("train", "val"))
    assert 0.03 < len(val) / (len(train) + len(val)) < 0.07
    assert set(train).isdisjoint(val)
    assert verify(text / "train") == verify(text / "val") == []
