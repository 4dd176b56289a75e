"""Any data set of `datasets`: a hub on loopback, and the real library on both sides."""

import json
import os
import shutil
import subprocess
import sys

import pytest

from data.manifest import read_manifest
from tests.data.conftest import ROOT, run_step
from tests.data.layouts import write_all
from tests.hub import FolderRepo, serving

# An environment with `datasets`; test_shard uses the environment in daily runs.
pytestmark = [pytest.mark.nightly, pytest.mark.process]

ROWS = 530
SAVE = """
import datasets, sys
rows = datasets.Dataset.from_dict({"text": [f"kept {n}" for n in range(530)]})
rows.save_to_disk(sys.argv[1] + "/alone")
datasets.DatasetDict({"train": rows.select(range(100)), "test": rows}).save_to_disk(sys.argv[1] + "/both")
"""
CASES = {
    "hf://x/csv-set:train[:10%]": (["x/csv-set", None, "train[:10%]"], "text"),
    "hf://x/csv-set:train[5:20]+train[-10:]": (["x/csv-set", None, "train[5:20]+train[-10:]"], "text"),
    "hf://x/csv-set": (["x/csv-set", None, "train"], "text"),
    "hf://x/fineweb-edu/sample-10BT": (["x/fineweb-edu", "sample-10BT", "train"], "text"),
    "hf://x/fineweb-edu:train[33%:71%]": (["x/fineweb-edu", None, "train[33%:71%]"], "text"),
    "hf://x/dclm": (["x/dclm", None, "train"], "text"),
    "hf://x/dclm:train[200:300]": (["x/dclm", None, "train[200:300]"], "text"),
    "hf://x/gsm8k/main:test+train[:5]?text=question": (["x/gsm8k", "main", "test+train[:5]"], "question"),
    "hf://x/objects?text=content": (["x/objects", None, "train"], "content"),
    "hf://x/webdataset?text=txt": (["x/webdataset", None, "train"], "txt"),
    "hf://x/webdataset:train[:7]?text=json.caption": (["x/webdataset", None, "train[:7]"], "json.caption"),
    "hf://x/pictures?text=texts": (["x/pictures", None, "train"], "texts"),
    "hf://x/pictures:train[-3:]?text=caption": (["x/pictures", None, "train[-3:]"], "caption"),
    "hf://x/arrow": (["x/arrow", None, "train"], "text"),
    "hf://x/plain": (["x/plain", None, "train"], "text"),
    "hf://x/plain:train[10%:]": (["x/plain", None, "train[10%:]"], "text"),
    "hf://x/featured": (["x/featured", None, "train"], "text"),
    "hf://x/odd-names/größer set:train[7:]": (["x/odd-names", "größer set", "train[7:]"], "text"),
    "FOLDER/my [set]/a: [1] #x.csv:train[:50%]": (["FOLDER/csv-set", None, "train[176:264]"], "text"),
    "FOLDER/my [set]": (["FOLDER/csv-set", None, "train[176:353]"], "text"),
    "FOLDER/alone": (["disk", "FOLDER/alone"], "text"),
    "FOLDER/both:test": (["disk", "FOLDER/both", "test"], "text"),
    "FOLDER/csv-set/train-1.csv": (["FOLDER/csv-set", None, "train[176:353]"], "text"),
    "FOLDER/csv-set/*.csv:train[:50%]": (["FOLDER/csv-set", None, "train[:50%]"], "text"),
}
OTHERS = {
    "talk": {"talk": "hf://x/smoltalk/all:train[10%:20%]+test"},
    "asked": {"talk": "hf://x/gsm8k:train[:7]?user=question&assistant=answer"},
    "no config": {"talk": "hf://x/smoltalk"},
    "no config of text": {"text": {"source": "hf://x/smoltalk?text=messages"}},
    "no split": {"talk": "hf://x/smoltalk/all:validation[:5]"},
    "gated": {"talk": "hf://x/gated:train[:5]"},
    "problems": {"problems": {"task": "file", "source": "hf://x/gsm8k/main:train[:40]"}},
    "mirrored": {"problems": {"task": "gsm8k", "source": "hf://x/gsm8k"}},
    "columns": {"problems": {"task": "file", "source": "FOLDER/csv-set/train-1.csv?question=text&answer=id"}},
}


@pytest.fixture(scope="module")
def results_by_source(tmp_path_factory):
    """Return the results of CASES by source, each read by one process."""
    folder = tmp_path_factory.mktemp("sets")
    write_all(folder, ROWS)
    names = [one.name for one in folder.iterdir()]
    (folder / "my [set]").mkdir()
    shutil.copy(folder / "csv-set" / "train-1.csv", folder / "my [set]" / "a: [1] #x.csv")
    repos = {f"x/{name}": FolderRepo(folder / name) for name in names}
    repos["x/gated"] = FolderRepo(folder / "gsm8k", token="a token", gated=True)
    with serving(repos) as hub:
        environ = {**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(folder / "home"), "no_proxy": "*"}
        environ |= {"PYTHONPATH": str(ROOT), "HF_DATASETS_CACHE": str(folder / "cache")}
        subprocess.run([sys.executable, "-c", SAVE, str(folder)], env=environ, check=True, timeout=120)
        cases = [
            {
                "spec": {"source": source.replace("FOLDER", str(folder))},
                "column": column,
                "how": {"workers": 1},
                "load": [one and one.replace("FOLDER", str(folder)) for one in load],
            }
            for source, (load, column) in CASES.items()
        ]
        cases += [json.loads(json.dumps(case).replace("FOLDER", str(folder))) for case in OTHERS.values()]
        cases.append({**cases[2], "how": {"workers": 3}})
        words = [sys.executable, "-m", "tests.programs.compare_with_datasets", str(folder)]
        done = subprocess.run(
            words, input=json.dumps(cases), env=environ, capture_output=True, text=True, timeout=280, cwd=ROOT
        )
    assert done.returncode == 0, done.stderr[-3000:]
    kept = {"out": str(folder / "offline"), "spec": {"source": "hf://x/csv-set:train[:10%]"}}
    again = run_step("text", kept, folder, **{**environ, "HF_HUB_OFFLINE": "1"})  # The server has stopped.
    assert again.returncode == 0, again.stderr
    assert read_manifest(folder / "offline")["shards"][0]["sha256"] == json.loads(done.stdout)[0]["hashes"][0]
    return dict(zip([*CASES, *OTHERS, "by three"], json.loads(done.stdout), strict=True)), done.stderr


@pytest.mark.parametrize("source", CASES)
def test_rows_equal_the_rows_of_datasets(results_by_source, source):
    found, said = results_by_source
    assert found[source]["code"] == 0, said
    ours, theirs = found[source]["counts"]
    assert (ours, found[source]["differ"]) == (theirs, []) and ours > 0
    assert found[source]["resumed"]


def test_three_processes_write_the_files_of_one(results_by_source):
    assert results_by_source[0]["by three"]["hashes"] == results_by_source[0]["hf://x/csv-set"]["hashes"]


def rows(made, name):
    return [json.loads(line) for line in made["files"][name]]


def test_conversations_and_problems_use_the_same_references(results_by_source):
    found = results_by_source[0]
    talks = [one["messages"][0]["content"] for one in rows(found["talk"], "conversations.jsonl")]
    assert talks == [
        *(f"Question {n} of train?" for n in range(53, 106)),
        *(f"Question {n} of test?" for n in range(53)),
    ]
    asked = rows(found["asked"], "conversations.jsonl")
    assert [one["role"] for one in asked[6]["messages"]] == ["user", "assistant"] and len(asked) == 7
    assert sum(len(found["problems"]["files"][f"{part}.jsonl"]) for part in ("train", "val", "test")) == 40
    mirrored = found["mirrored"]["files"]
    assert [len(mirrored[f"{part}.jsonl"]) for part in ("train", "val", "test")] == [398, 132, 106]
    assert {one["answer"] for one in rows(found["columns"], "train.jsonl")} <= {str(n) for n in range(ROWS)}


@pytest.mark.parametrize(
    ("case", "seen"),
    [
        ("no config", ["hf://x/smoltalk", "all", "everyday-conversations"]),
        ("no config of text", ["hf://x/smoltalk", "all", "everyday-conversations"]),
        ("no split", ["no split 'validation'", "known: train, test"]),
    ],
)
def test_unreadable_data_set_is_refused_in_one_line(results_by_source, case, seen):
    found = results_by_source[0][case]
    assert found["code"] == 2 and found["said"].count("\n") == 1
    assert [words for words in seen if words not in found["said"]] == []


def test_refusal_of_the_hub_is_reported_in_one_line(results_by_source):
    found = results_by_source[0]["gated"]
    assert found["code"] == 1 and found["said"].count("\n") == 1
    for words in ("it asks for a token", "/datasets/x/gated", "set HF_TOKEN"):
        assert words in found["said"]
