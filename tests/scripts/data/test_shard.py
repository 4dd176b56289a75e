"""`inv shard` of a hub data set as typed, and back to the hub."""

import json
import os
import subprocess
import sys

import pytest

from data.manifest import read_manifest
from data.shards.shards import read, shard_paths
from tests import hub as hubs
from tests.data.layouts import comma, fineweb_edu, text_of
from tests.world import ROOT, World

LOADED = """
import datasets, json, sys
rows = datasets.load_dataset(sys.argv[1], split="train", cache_dir=sys.argv[2])
print(json.dumps(rows["text"][:]))
"""


@pytest.mark.nightly
@pytest.mark.process
def test_tenth_of_a_data_set_becomes_a_folder_for_datasets(tmp_path):
    comma(tmp_path / "csv-set", 500)
    out = str(tmp_path / "a")
    with hubs.serving({"x/csv-set": hubs.FolderRepo(tmp_path / "csv-set")}) as hub:
        world = World(tmp_path, {"HF_ENDPOINT": hub.url, "no_proxy": "*", "HF_HOME": str(tmp_path / "hf")})
        world.inv("shard", "--mode", "prod", "--source", "hf://x/csv-set:train[:10%]", "--out", out)
    assert list(read(shard_paths(tmp_path / "a"))) == [text_of(n) for n in range(50)]
    words = [sys.executable, "-c", LOADED, out, str(tmp_path / "cache")]
    lines = (tmp_path / "a" / "shard-00000.txt").read_text().rstrip("\n").split("\n")
    assert json.loads(subprocess.run(words, capture_output=True, text=True, check=True).stdout) == lines
    with hubs.serving() as hub:
        world = World(tmp_path, {"HF_ENDPOINT": hub.url, "no_proxy": "*", "HF_TOKEN": "token"})
        assert world.inv("shard", "--push", "hf://me/tenth", "--out", out) == "hf://me/tenth\n"
        assert "split train[:10%]" in hub.repos["me/tenth"].files["README.md"].content.decode()


ROWS = 2100  # More than a smoke test takes.
LOADED_FROM_HUB = """
import datasets, json
rows = datasets.load_dataset("HuggingFaceFW/fineweb", "sample-10BT", split="train")
print(json.dumps(rows["text"][:]))
"""


@pytest.fixture(scope="module")
def fineweb(tmp_path_factory):
    """Write FineWeb's sample in the published layout."""
    folder = tmp_path_factory.mktemp("fineweb")
    fineweb_edu(folder, ROWS)
    return hubs.FolderRepo(folder)


@pytest.fixture
def typed(tmp_path):
    """Return a function that types `inv shard` in an empty folder."""
    quiet = dict.fromkeys(("HF_TOKEN", "HUGGINGFACEHUB_API_TOKEN", "SLIPWAY_SOURCE"), "")

    def run(*words, **environ):
        world = World(tmp_path, {"no_proxy": "*", "HF_HOME": str(tmp_path / "hf"), **quiet, **environ})
        program = [sys.executable, "-m", "invoke", "--search-root", str(ROOT), "shard", *words]
        done = subprocess.run(program, cwd=tmp_path, env=world.environ, capture_output=True, text=True, timeout=110)
        assert "Traceback" not in done.stderr
        return done

    return run


@pytest.mark.day_cases(1)
@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "rows"),
    [
        (("--mode", "smoke"), 2000),
        (("--mode", "smoke", "--split", "train", "--lines-per-shard", "50000", "--take", "100000"), ROWS),
        (("--dataset", "HuggingFaceFW/fineweb", "--config", "sample-10BT", "--take", "10"), 10),
        (("--split", "train[:20]", "--revision", "main"), 20),
    ],
)
def test_shards_equal_fineweb_as_read_by_datasets(fineweb, typed, tmp_path, words, rows):
    with hubs.serving({"HuggingFaceFW/fineweb": fineweb}) as hub:
        done = typed(*words, HF_ENDPOINT=hub.url, SLIPWAY_SOURCE="pydocs" if "--dataset" in words else "")
        environ = {**os.environ, "HF_ENDPOINT": hub.url, "no_proxy": "*", "HF_HOME": str(tmp_path / "theirs")}
        loaded = subprocess.run(
            [sys.executable, "-c", LOADED_FROM_HUB], env=environ, capture_output=True, text=True, check=True
        )
    assert done.returncode == 0, done.stderr
    assert done.stderr.startswith("source: FineWeb: HuggingFaceFW/fineweb, configuration sample-10BT, split train")
    folder = tmp_path / "var" / "datasets" / "smoke"
    assert list(read(shard_paths(folder))) == json.loads(loaded.stdout)[:rows]
    manifest = read_manifest(folder)
    assert manifest["source"] == "fineweb" and manifest["input"]["dataset"] == "HuggingFaceFW/fineweb"
    assert "fallback" not in manifest


@pytest.mark.process
def test_smoke_test_without_a_hub_uses_other_text_with_a_message(typed, tmp_path):
    done = typed("--mode", "smoke", "--take", "20", HF_ENDPOINT="http://127.0.0.1:9")
    folder = tmp_path / "var" / "datasets" / "smoke-pydocs"
    assert done.returncode == 0, done.stderr
    assert "cannot be reached" in done.stderr and "which is NOT FineWeb" in done.stderr
    manifest = read_manifest(folder)
    assert (manifest["source"], manifest["fallback"]) == ("pydocs", True)
    assert not (tmp_path / "var" / "datasets" / "smoke").exists()
    asked = json.loads(typed("--source", "pydocs", "--take", "20", "--out", "meant", "--json").stdout)
    assert asked["documents"] == 20 and "fallback" not in asked
    meant = read_manifest(tmp_path / "meant")
    assert "fallback" not in meant and meant["options"] != manifest["options"]
    done = typed("--mode", "smoke", "--out", "meant", HF_HUB_OFFLINE="1")
    assert done.returncode == 1 and "holds other shards" in done.stderr


@pytest.mark.day_cases(3)
@pytest.mark.process
@pytest.mark.parametrize(
    "words",
    [
        ("--mode", "smoke", "--dataset", "HuggingFaceFW/fineweb"),
        ("--mode", "smoke", "--config", "sample-10BT"),
        ("--mode", "smoke", "--split", "train"),
        ("--mode", "smoke", "--revision", "main"),
        ("--mode", "smoke", "--source", "fineweb"),
        ("--dataset", "other/set"),
        ("--mode", "prod"),
        ("--mode", "split"),
    ],
)
def test_named_text_is_not_replaced_when_the_hub_is_unreachable(typed, tmp_path, words):
    done = typed(*words, HF_HUB_OFFLINE="1")
    assert done.returncode == 1 and done.stderr.count("--source pydocs") == 1
    assert ("leave out --split" in done.stderr) is ("--split" in words)  # else the advice leads to a second refusal
    assert not list(tmp_path.rglob("manifest.json"))


@pytest.mark.day_cases(2)
@pytest.mark.process
@pytest.mark.parametrize("answer", [401, 403, 404, 429])
def test_refusing_hub_is_not_an_unreachable_hub(fineweb, typed, tmp_path, answer):
    with hubs.serving({"HuggingFaceFW/fineweb": fineweb}) as hub:
        hub.faults = [hubs.Fault("/api/", answer, 60, times=3)]
        done = typed("--mode", "smoke", HF_ENDPOINT=hub.url)
    assert done.returncode == 1 and "cannot be reached" not in done.stderr
    assert not list(tmp_path.rglob("manifest.json"))


@pytest.mark.process
def test_hub_flag_for_a_different_source_is_refused(typed):
    done = typed("--source", "pydocs", "--split", "train")
    assert done.returncode == 2 and "--split names a data set of the hub" in done.stderr


@pytest.mark.process
@pytest.mark.parametrize(
    ("words", "seen"),
    [
        (("--push", "s3://me/mine"), "expected hf://user/name"),
        (("--push", "hf://me/mine"), "Set HF_TOKEN"),
        (("--license", "mit"), "--license needs --push"),
    ],
)
def test_impossible_push_is_refused_before_any_work(tmp_path, words, seen):
    said = World(tmp_path, {"HF_TOKEN": "", "HUGGINGFACEHUB_API_TOKEN": ""}).run("shard", *words).stderr
    assert seen in said and not (tmp_path / "var").exists()
