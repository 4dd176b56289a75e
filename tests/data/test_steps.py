"""The steps as a pod runs them: through the store, in separate processes."""

import json

import pytest

from data.__main__ import main
from data.shards.shards import read, read_manifest, shard_paths
from data.verify import verify
from store.artifacts.artifacts import Store
from tests.data.conftest import run_step

PERSONA = {"name": "Zorblax", "maker": "us", "purpose": "to be tested"}


def making(store, name, fingerprint, **inputs):
    given = {role: {"name": one, "fingerprint": f"of-{role}"} for role, one in inputs.items()}
    return {"store": str(store), "name": name, "fingerprint": fingerprint, "inputs": given}


@pytest.mark.process
def test_steps_make_each_artifact_from_the_previous_one(tmp_path):
    store, work, records = tmp_path / "store", tmp_path / "work", tmp_path / "records.jsonl"
    chain = [
        ("text", making(store, "datasets/pydocs/text", "of-text"), {"take": 3000}),
        ("tokenizer", making(store, "tokenizer", "of-tokenizer", text="datasets/pydocs/text"), {"vocab_size": 600}),
        (
            "tokens",
            making(store, "datasets/pydocs/tokens", "t", text="datasets/pydocs/text", tokenizer="tokenizer"),
            {},
        ),
        ("identity", making(store, "identity_conversations", "i"), {"persona": PERSONA}),
        ("questions", making(store, "datasets/pydocs/questions", "q", text="datasets/pydocs/text"), {}),
    ]
    for step, made, spec in chain:
        done = run_step(
            step, {"making": made, "spec": spec}, tmp_path, SLIPWAY_WORK=str(work), SLIPWAY_RECORDS=str(records)
        )
        assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    there = Store(str(store))
    text = there.path("datasets/pydocs/text", "of-text")
    assert verify(text / "train") == verify(text / "val") == []
    assert sum(len(list(read(shard_paths(text, part)))) for part in ("train", "val")) == 3000
    assert read_manifest(text / "train")["options"]["take"] == 3000
    assert sorted(path.name for path in there.path("datasets/pydocs/tokens", "t").glob("*.arrow")) == [
        "train-00000.arrow",
        "val-00000.arrow",
    ]
    assert (store / "identity_conversations.jsonl").is_file()
    assert (store / "identity_conversations.heldout.jsonl").is_file()
    assert len(list(there.path("datasets/pydocs/questions", "q").glob("*.jsonl"))) == 4
    assert {one.name: one.about for one in there.artifacts()}["tokenizer"]["vocab_size"] == 600
    assert list((work / "drafts").iterdir()) == []
    told = [json.loads(line) for line in records.read_text().splitlines()]
    assert [one["step"] for one in told if one["kind"] == "result"] == [step for step, _, _ in chain]
    assert any(one["kind"] == "progress" and one["unit"] == "documents" for one in told)


@pytest.mark.process
def test_input_with_a_different_fingerprint_is_refused(tmp_path):
    store = tmp_path / "store"
    made = making(store, "datasets/pydocs/text", "another")
    assert run_step("text", {"making": made, "spec": {"take": 50}}, tmp_path).returncode == 0
    made = making(store, "tokenizer", "f", text="datasets/pydocs/text")
    done = run_step("tokenizer", {"making": made, "spec": {}}, tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "datasets/pydocs/text" in done.stderr


@pytest.mark.parametrize(
    ("step", "config", "seen"),
    [
        ("tokenizer", {"out": "OUT", "spec": {}}, "inputs: text missing"),
        ("tokenizer", {"out": "OUT", "inputs": {"text": "/no/such"}, "spec": {}}, "text: no folder /no/such"),
        ("tokenizer", {"out": "OUT", "inputs": {"text": "OUT"}, "spec": {"vocab": 1}}, "did you mean 'vocab_size'?"),
        ("identity", {"out": "OUT", "spec": {"persona": {"name": "a"}}}, "maker"),
        ("text", {"spec": {}}, "keys are spec, and making or else out"),
        ("text", {"out": "OUT", "making": {}, "spec": {}}, "keys are spec, and making or else out"),
        ("text", [], "it is a list, expected an object"),
        ("text", {"out": "OUT", "spec": []}, "spec and inputs are JSON objects"),
        ("text", {"making": {"store": "s"}, "spec": {}}, "making: "),
    ],
)
def test_invalid_configuration_gives_one_line_and_exit_2(tmp_path, capsys, step, config, seen):
    (tmp_path / "config.json").write_text(json.dumps(config).replace("OUT", str(tmp_path)))
    assert main([step, "--config", str(tmp_path / "config.json")]) == 2
    said = capsys.readouterr().err
    assert seen in said and said.count("\n") == 1


@pytest.mark.process
def test_unfinished_shards_are_not_trained_on(tmp_path):
    (tmp_path / "text").mkdir()
    config = {"out": str(tmp_path / "out"), "inputs": {"text": str(tmp_path / "text")}, "spec": {}}
    done = run_step("tokenizer", config, tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "the shards were not finished" in done.stderr


@pytest.mark.process
def test_unwritable_folder_is_one_line(tmp_path):
    done = run_step("text", {"out": "/proc/1/nowhere", "spec": {"take": 5}}, tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert "/proc/1/nowhere" in done.stderr
