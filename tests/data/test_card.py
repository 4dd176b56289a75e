"""`datasets` reads Slipway's artifacts without Slipway's code: from a folder, and from the hub after a push."""

import io
import json
import shutil

import pyarrow.parquet
import pytest
import yaml

from data import card
from data.__main__ import main
from data.errors import InputError
from data.manifest import MANIFEST, read_manifest
from data.push import PushSpec, push
from data.tokens.stream import open_shard
from data.tokens.token_file import token_files
from store.backends.hub import Repository
from tests import hub as hubs

ROWS = [{"text": f"row {n}\nsecond", "language_score": n % 10 / 10} for n in range(300)]


@pytest.fixture
def run(tmp_path, capsys):
    def run(step, out, inputs=None, **spec):
        config = {"out": str(tmp_path / out), "inputs": inputs or {}, "spec": spec}
        (tmp_path / "config.json").write_text(json.dumps(config))
        code = main([step, "--config", str(tmp_path / "config.json")])
        said = capsys.readouterr().err
        assert code == 0, said
        assert said == ""
        return tmp_path / out

    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    return run


def load_data_set(folder, *words, **more):
    import datasets

    datasets.disable_progress_bars()
    return datasets.load_dataset(str(folder), *words, cache_dir=str(folder.parent / "cache"), **more)


@pytest.mark.slow
@pytest.mark.parametrize("format", ["txt", "jsonl", "parquet"])
def test_shards_are_a_data_set_with_its_splits(run, tmp_path, format):
    out = run("text", "out", source=str(tmp_path / "rows.jsonl"), val_ratio=0.2, lines_per_shard=50, format=format)
    found = load_data_set(out)
    texts = [row["text"] for split in ("train", "validation") for row in found[split]]
    assert [found[part].num_rows for part in ("train", "validation")] == [
        read_manifest(out / part)["total_lines"] for part in ("train", "val")
    ]
    written = [row["text"].replace("\n", "\\n") if format == "txt" else row["text"] for row in ROWS]
    assert sorted(texts) == sorted(written)


@pytest.mark.slow
def test_conversations_and_problems_are_data_sets(run, tmp_path):
    talk = [{"role": "user", "content": "Who?"}, {"role": "assistant", "content": "Me."}]
    (tmp_path / "talk.jsonl").write_text(json.dumps({"messages": talk}) + "\n")
    assert load_data_set(run("talk", "talk", source=str(tmp_path / "talk.jsonl")))["train"][0]["messages"] == talk
    problems = run("problems", "problems", task="sort")
    found = load_data_set(problems)
    assert set(found) == {"train", "validation", "test"} and "question" in found["test"].column_names
    assert load_data_set(problems, "demonstrations")["train"][0]["messages"]


def test_foreign_card_is_left_alone(run, tmp_path):
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / card.CARD).write_text("mine")
    run("text", "out", source=str(tmp_path / "rows.jsonl"))
    assert (tmp_path / "out" / card.CARD).read_text() == "mine"


@pytest.mark.process
def test_push_is_one_commit_with_a_card_and_removes_old_shards(run, tmp_path, monkeypatch):
    with hubs.serving() as hub:
        for name, value in {"HF_ENDPOINT": hub.url, "HF_TOKEN": "token", "no_proxy": "*"}.items():
            monkeypatch.setenv(name, value)
        source = str(tmp_path / "rows.jsonl")
        run("text", "many", source=source, lines_per_shard=50)
        run("push", "many", to="hf://me/mine", license="cc0-1.0")
        kept = hub.repos["me/mine"]
        assert len(kept.commits) == 2 and len([name for name in kept.files if name.startswith("shard-")]) == 6
        few = run("text", "few", source=source, lines_per_shard=200, filter="language_score > 0.4")
        run("push", "few", to="hf://me/mine")
        names = sorted(set(kept.files) - {".gitattributes"})
        assert names == [card.CARD, MANIFEST, "shard-00000.txt"]
        assert json.loads(kept.files[MANIFEST].content)["shards"] == read_manifest(few)["shards"]
        assert str(tmp_path).encode() not in kept.files[MANIFEST].content
        assert kept.files["shard-00000.txt"].content == (few / "shard-00000.txt").read_bytes()
        head, told = kept.files[card.CARD].content.decode().split("---\n")[1:]
        assert "license" not in yaml.safe_load(head) and "| train | 150 | 1 |" in told
        assert "Source: rows.jsonl" in told and str(tmp_path) not in told and "language_score > 0.4" in told


@pytest.mark.process
def test_foreign_files_in_the_repository_stay(run, tmp_path, monkeypatch):
    with hubs.serving() as hub:
        for name, value in {"HF_ENDPOINT": hub.url, "HF_TOKEN": "token", "no_proxy": "*"}.items():
            monkeypatch.setenv(name, value)
        place = Repository("hf://datasets/me/mine")
        place.create()
        theirs = {
            card.CARD: b"---\nlicense: mit\ntags: [sea]\nconfigs: [{config_name: old}]\n---\n# Mine\n\nAll about it.\n",
            "train-7.parquet": b"theirs",
            "notes.txt": b"theirs",
        }
        place.put(theirs)
        source = str(tmp_path / "rows.jsonl")
        for number in (1, 2):  # A second push finds Slipway's part, and the foreign part.
            run("text", "out", source=source, lines_per_shard=300 // number)
            run("push", "out", to="hf://me/mine")
            files = hub.repos["me/mine"].files
            head, _, text = files[card.CARD].content.decode().removeprefix("---\n").partition("---\n")
            assert yaml.safe_load(head).keys() == {"license", "tags", "configs"}
            assert yaml.safe_load(head)["configs"][0]["config_name"] == "default"
            assert text.startswith("# Mine\n\nAll about it.\n") and text.count("All about it.") == 1
            assert text.count(card.MARK) == 1 and f"| train | 300 | {number} |" in text
            assert {files[name].content for name in ("train-7.parquet", "notes.txt")} == {b"theirs"}
        other = Repository("hf://datasets/me/other")
        other.create()
        other.put({"shard-00000.txt": b"theirs"})
        with pytest.raises(
            InputError, match="shard-00000.txt exists and was not written by Slipway; choose a different name"
        ):
            push(PushSpec(to="hf://me/other"), tmp_path / "out")
        assert hub.repos["me/other"].files["shard-00000.txt"].content == b"theirs"


@pytest.mark.slow
@pytest.mark.process
def test_token_shards_are_a_data_set(token_folder, tmp_path):
    folder = tmp_path / "tokens"
    shutil.copytree(token_folder, folder)
    card.write(folder)
    found = load_data_set(folder)
    for part, split in (("train", "train"), ("val", "validation")):
        (shard,) = [open_shard(path) for path in token_files(folder, part)]
        ids, starts = shard.ids.tolist(), shard.starts.tolist()
        assert found[split]["input_ids"][:] == [ids[a:b] for a, b in zip(starts, starts[1:], strict=False)]


@pytest.mark.process
def test_token_shards_are_pushed_as_rows_of_ids(token_folder, tmp_path, monkeypatch):
    with hubs.serving() as hub:
        for name, value in {"HF_ENDPOINT": hub.url, "HF_TOKEN": "token", "no_proxy": "*"}.items():
            monkeypatch.setenv(name, value)
        push(PushSpec(to="hf://me/tokens"), token_folder)
        files = hub.repos["me/tokens"].files
    shards = [open_shard(path) for path in token_files(token_folder)]
    assert [name for name in sorted(files) if name.endswith(".parquet")] == ["train-00000.parquet", "val-00000.parquet"]
    for shard in shards:
        table = pyarrow.parquet.read_table(io.BytesIO(files[f"{shard.path.stem}.parquet"].content))
        ids, starts = shard.ids.tolist(), shard.starts.tolist()
        assert table["input_ids"].to_pylist() == [ids[a:b] for a, b in zip(starts, starts[1:], strict=False)]
    assert "path:\n    - val-*.parquet" in files[card.CARD].content.decode()
