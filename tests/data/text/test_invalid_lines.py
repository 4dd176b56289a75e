"""Invalid lines: they end the work and are named once, or are left out, counted and listed."""

import gzip
import json
import random

import pyarrow
import pyarrow.parquet
import pytest

from data.__main__ import main
from data.manifest import read_manifest
from data.shards.shards import read, shard_paths
from data.text.invalid_lines import MOST_LISTED


@pytest.fixture
def shard(tmp_path, capsys):
    """Shard into a folder of tmp_path in this process; return (exit code, messages)."""

    def shard(source, out="out", **spec):
        config = {"out": str(tmp_path / out), "spec": {"source": str(source), "workers": 1, **spec}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        return main(["text", "--config", str(tmp_path / "config.json")]), capsys.readouterr().err

    return shard


def noise(size, seed=7):
    return random.Random(seed).randbytes(size)


@pytest.mark.parametrize(
    ("size", "suffix"), [(60, ".txt"), (40_000, ".txt"), (1_500_000, ".txt"), (40_000, ".txt.gz"), (40_000, ".jsonl")]
)
def test_random_bytes_are_no_documents(shard, tmp_path, size, suffix):
    content = noise(size)
    (tmp_path / f"a{suffix}").write_bytes(gzip.compress(content) if suffix.endswith(".gz") else content)
    code, said = shard(tmp_path / f"a{suffix}")
    assert code == 2 and said.count("a" + suffix) == 1 and f"a{suffix}:1: not " in said
    code, said = shard(tmp_path / f"a{suffix}", skip_invalid=True)
    assert code == 2 and "no document in the source" in said


def test_invalid_lines_are_left_out_counted_and_listed(shard, tmp_path):
    rows = [f'{{"text": "row {n}", "n": {n}}}' for n in range(60)]
    for at in range(0, 60, 2):
        rows[at] = ('{"text": "open', "[1]", '{"body": "x"}', '{"text": 7}')[at // 2 % 4]
    (tmp_path / "a.jsonl").write_text("\n".join(rows) + "\n")
    code, said = shard(tmp_path / "a.jsonl")
    assert code == 2 and said.count("a.jsonl") == 1 and "a.jsonl:1: not JSON" in said
    assert shard(tmp_path / "a.jsonl", skip_invalid=True) == (0, "")
    assert list(read(shard_paths(tmp_path / "out"))) == [f"row {n}" for n in range(1, 60, 2)]
    manifest = read_manifest(tmp_path / "out")
    assert (manifest["counts"]["invalid"], manifest["counts"]["read"]) == (30, 30)
    assert len(manifest["skipped"]) == MOST_LISTED
    assert manifest["skipped"][1] == f"{tmp_path}/a.jsonl:3: no string under 'text'; available: list"


def test_line_number_counts_from_the_start_of_the_file_for_any_range(shard, tmp_path):
    line = json.dumps({"text": "x" * 99_980}) + "\n"
    (tmp_path / "a.jsonl").write_text(line * 399 + "oops\n" + line)  # Three ranges of 16 MiB.
    assert shard(tmp_path / "a.jsonl", skip_invalid=True)[0] == 0
    assert read_manifest(tmp_path / "out")["skipped"][0].startswith(f"{tmp_path}/a.jsonl:400: not JSON")
    assert main(["text", "--config", str(tmp_path / "config.json")]) == 0


def test_binary_line_is_left_out_and_a_legacy_encoding_is_not(shard, tmp_path):
    latin = "Größere Übungen für Anfänger\n".encode("latin-1")
    (tmp_path / "a.txt").write_bytes(b"good\n" * 500 + noise(300).replace(b"\n", b"\r") + b"\n" + latin)
    assert shard(tmp_path / "a.txt") == (0, "")
    assert read_manifest(tmp_path / "out")["counts"]["invalid_utf8"] == 2
    assert shard(tmp_path / "a.txt", out="without", skip_invalid=True) == (0, "")
    manifest = read_manifest(tmp_path / "without")
    assert (manifest["total_lines"], manifest["counts"]["invalid"], manifest["counts"]["invalid_utf8"]) == (501, 1, 1)
    assert "a.txt:501: not text" in manifest["skipped"][0]


@pytest.mark.slow
def test_damaged_files_lose_only_their_damaged_part(shard, tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a.jsonl.gz").write_bytes(gzip.compress(b'{"text": "one"}\n' * 200_000)[:-20])
    pyarrow.parquet.write_table(pyarrow.table({"text": ["two"] * 100}), tmp_path / "in" / "b.parquet")
    (tmp_path / "in" / "c.parquet").write_bytes((tmp_path / "in" / "b.parquet").read_bytes()[:-9])
    (tmp_path / "in" / "d.txt").write_text("three\n")
    assert shard(tmp_path / "in")[0] == 2
    assert shard(tmp_path / "in", skip_invalid=True) == (0, "")
    manifest = read_manifest(tmp_path / "out")
    found = list(read(shard_paths(tmp_path / "out")))
    assert found.count("two") == 100 and found[-1] == "three" and "one" in found
    assert manifest["counts"]["invalid"] == 2
    assert ["damaged or cut short" in manifest["skipped"][0], "not a whole parquet" in manifest["skipped"][1]] == [
        True
    ] * 2


@pytest.mark.process
def test_several_processes_leave_out_and_list_the_same_lines(shard, tmp_path):
    (tmp_path / "in").mkdir()
    for name in "abc":
        rows = [json.dumps({"text": f"{name} {n}"}) if n % 7 else f"bad {n}" for n in range(500)]
        (tmp_path / "in" / f"{name}.jsonl").write_text("\n".join(rows))
    for out, workers in (("one", 1), ("three", 3)):
        assert shard(tmp_path / "in", out=out, workers=workers, skip_invalid=True, lines_per_shard=100) == (0, "")
    one, three = ((tmp_path / name / "manifest.json").read_bytes() for name in ("one", "three"))
    assert one == three
