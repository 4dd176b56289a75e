"""Sources mixed by weight: the order of `datasets`, for any number of readers and kills."""

import json

import pytest

from data.config import TextSpec
from data.errors import ConfigError, InputError
from data.manifest import read_manifest
from data.shards import pipeline
from data.shards.pipeline import RunOptions, shard
from data.shards.shards import read, shard_paths


@pytest.fixture(scope="module")
def sources(tmp_path_factory):
    """Write lines of JSON, of 900, 2500 and 60 documents; every tenth is empty, and every second has a low score."""
    folder = tmp_path_factory.mktemp("sources")
    for name, count in (("a", 900), ("b", 2500), ("c", 60)):
        rows = ({"body": "" if n % 10 == 4 else f"{name} {n}", "score": n % 2} for n in range(count))
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


def spec(sources, weights="b=0.5,a=2,c=0.1", **more):
    words = [one.split("=") for one in weights.split(",")]
    source = ",".join(f"{sources}/{name}.jsonl={weight}" for name, weight in words)
    return TextSpec(source=source, text_column="body", val_ratio=0, seed=5, **more)


def texts(folder):
    return list(read(shard_paths(folder)))


@pytest.mark.day_cases(1)
@pytest.mark.slow
@pytest.mark.parametrize("exhausted", ["first", "all"])
def test_documents_have_the_interleaved_order_of_datasets(sources, tmp_path, exhausted):
    import datasets

    found = shard(spec(sources, filter="score == 1", exhausted=exhausted), tmp_path, False)
    streams = []
    for name, count in (("b", 2500), ("a", 900), ("c", 60)):
        kept = [f"{name} {n}" for n in range(count) if n % 10 != 4 and n % 2]
        streams.append(datasets.Dataset.from_dict({"text": kept}).to_iterable_dataset())
    weights = [part / 2.6 for part in (0.5, 2, 0.1)]
    theirs = datasets.interleave_datasets(streams, weights, seed=5, stopping_strategy=f"{exhausted}_exhausted")
    assert texts(tmp_path) == [row["text"] for row in theirs]
    counts = found["counts"]
    assert [counts[f"of source {n}"] for n in range(3)] == [
        sum(text.startswith(name) for text in texts(tmp_path)) for name in "bac"
    ]


class SimulatedKill(Exception):
    pass


@pytest.mark.slow
def test_kill_after_any_batch_changes_no_byte(sources, tmp_path, monkeypatch):
    asked = spec(sources, filter="score == 1", dedup="exact", exhausted="all", lines_per_shard=700)
    whole = shard(asked, tmp_path / "whole", False)
    take, left = pipeline.Run._write_batch, [0]

    def take_some(run, made, is_val):
        if left[0] == 0:
            raise SimulatedKill
        left[0] -= 1
        take(run, made, is_val)

    monkeypatch.setattr(pipeline.Run, "_write_batch", take_some)
    for _ in range(100):
        left[0] = 1
        try:
            found = shard(asked, tmp_path / "killed", False, RunOptions(keep_every_s=-1))
            break
        except SimulatedKill:
            pass
    assert found == whole and whole["documents"] > 1500
    assert read_manifest(tmp_path / "killed") == read_manifest(tmp_path / "whole")


@pytest.mark.process
def test_number_of_processes_changes_no_byte(sources, tmp_path):
    asked = spec(sources, weights="b=1,a=1", take=700)
    shard(asked, tmp_path / "1", False, RunOptions(workers=1))
    shard(asked, tmp_path / "5", False, RunOptions(workers=5))
    assert read_manifest(tmp_path / "1") == read_manifest(tmp_path / "5")
    assert len(texts(tmp_path / "1")) == 700


@pytest.mark.parametrize(
    ("weights", "seen"),
    [("a=1,b", "'b.jsonl' has no weight"), ("a=1,b=0", "a weight must be above 0")],
)
def test_a_mixture_without_weights_is_refused(sources, tmp_path, weights, seen):
    source = ",".join(f"{one.split('=')[0]}.jsonl" + one[1:] for one in weights.split(","))
    with pytest.raises(ConfigError, match=seen):
        shard(TextSpec(source=source), tmp_path)


def test_source_without_a_kept_document_is_named(sources, tmp_path):
    with pytest.raises(InputError, match=r"c\.jsonl: none of its documents was chosen"):
        shard(spec(sources, filter="score == 1 and text < 'c'"), tmp_path, False)
