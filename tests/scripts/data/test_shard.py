"""`inv shard` of a data set of the hub as it is typed, and back to the hub."""

import json
import subprocess
import sys

import pytest

from data.shards.shards import read, shard_paths
from tests.data import hub as published
from tests.data.layouts import comma, text_of
from tests.store import hub as stores
from tests.world import World

LOADED = """
import datasets, json, sys
rows = datasets.load_dataset(sys.argv[1], split="train", cache_dir=sys.argv[2])
print(json.dumps(rows["text"][:]))
"""


@pytest.mark.nightly
@pytest.mark.process
def test_a_tenth_of_a_data_set_becomes_a_folder_that_datasets_reads(tmp_path):
    comma(tmp_path / "csv-set", 500)
    out = str(tmp_path / "a")
    with published.serving({"x/csv-set": published.Repo(tmp_path / "csv-set")}) as hub:
        world = World(tmp_path, {"HF_ENDPOINT": hub.url, "no_proxy": "*", "HF_HOME": str(tmp_path / "hf")})
        world.inv("shard", "--mode", "prod", "--source", "hf://x/csv-set:train[:10%]", "--out", out)
    assert list(read(shard_paths(tmp_path / "a"))) == [text_of(n) for n in range(50)]
    words = [sys.executable, "-c", LOADED, out, str(tmp_path / "cache")]
    lines = (tmp_path / "a" / "shard-00000.txt").read_text().rstrip("\n").split("\n")
    assert json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout) == lines
    with stores.serving() as hub:
        world = World(tmp_path, {"HF_ENDPOINT": hub.url, "no_proxy": "*", "HF_TOKEN": "token"})
        assert world.inv("shard", "--push", "hf://me/tenth", "--out", out) == "hf://me/tenth\n"
        assert "split train[:10%]" in hub.repos["me/tenth"].files["README.md"].content.decode()


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (("--push", "s3://me/mine"), "expected hf://user/name"),
        (("--push", "hf://me/mine"), "set HF_TOKEN"),
        (("--license", "mit"), "--license goes with --push"),
    ],
)
def test_a_push_that_cannot_be_is_refused_before_anything_is_made(tmp_path, words, seen):
    said = World(tmp_path, {"HF_TOKEN": "", "HUGGINGFACEHUB_API_TOKEN": ""}).begin("shard", *words).communicate()[1]
    assert seen in said and not (tmp_path / "var").exists()
