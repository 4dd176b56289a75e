"""`inv shard` as typed."""

import json
import subprocess
import sys

import pytest

from data.shards.shards import read, shard_paths
from tests.world import ROOT, World

pytestmark = pytest.mark.process


@pytest.fixture
def world(tmp_path):
    return World(tmp_path)


def pipe(world, lines, *words):
    """Run `inv words` with `lines` at its standard input."""
    program = [sys.executable, "-m", "invoke", *words]
    return subprocess.run(
        program, cwd=ROOT, env=world.environ, input=lines, capture_output=True, text=True, timeout=110
    )


def test_piped_lines_are_split_and_verified(world, tmp_path):
    out = str(tmp_path / "out")
    lines = "".join(f"line {n}\n" for n in range(3000))
    words = ("--mode", "split", "--val-ratio", "0.1", "--seed", "7", "--lines-per-shard", "1000", "--gzip", "--json")
    done = pipe(world, lines, "shard", "--source", "stdin", "--out", out, *words)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["documents"] == 3000 and 200 < result["held_out"] < 400
    assert len(list(read(shard_paths(tmp_path / "out")))) == 3000 - result["held_out"]
    assert world.run("shard", "--verify", out).returncode == 0
    done = world.run("shard", "--report", out)
    assert (done.returncode, done.stdout) == (0, f"{out}/report.json\n"), done.stderr
    assert json.loads((tmp_path / "out" / "report.json").read_text())["documents"] == 3000
    assert f"see it as a page: inv report {out}" in done.stderr
    assert world.run("shard", "--verify", out).returncode == 0
    shard = shard_paths(tmp_path / "out")[1]
    raw = bytearray(shard.read_bytes())
    raw[len(raw) // 2] ^= 1
    shard.write_bytes(raw)
    done = world.run("shard", "--verify", out)
    assert (done.returncode, done.stderr.count("\n")) == (5, 1)
    assert "shard-00001.txt.gz: the bytes differ from the written file" in done.stderr


@pytest.mark.day_cases(2)
@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--gzip", "--compression", "zstd"), "choose one"),
        (("--format", "xml"), "format is 'xml'; known: txt, jsonl, parquet"),
        (("--dedup", "fuzzy"), "known: exact"),
        (("--rank", "2", "--world", "2"), "rank 2 of world 2"),
        (("--merge", "no-such-folder"), "the folder holds no share of a rank"),
        (("--verify", "a", "--report", "a"), "--verify and --report exclude each other"),
    ],
)
def test_conflicting_options_are_refused(world, tmp_path, words, told):
    done = world.run("shard", "--out", str(tmp_path / "out"), *words)
    assert done.returncode == 2 and told in done.stderr
