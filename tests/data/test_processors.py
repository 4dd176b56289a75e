"""Text and tokens are made without calls that only Linux has, as on macOS."""

import os

import pytest

from data import processors
from data.config import TextSpec
from data.shards.pipeline import RunOptions, shard
from data.shards.shards import read, shard_paths
from data.tokens import tokenize

OF_LINUX = ("sched_getaffinity", "memfd_create")


@pytest.fixture
def without_linux(monkeypatch):
    for name in OF_LINUX:
        monkeypatch.delattr(os, name)


def test_count_of_processors_without_affinity_is_the_number_of_cpus(without_linux):
    assert processors.count_usable() == os.cpu_count()


@pytest.mark.process
def test_text_and_tokens_are_equal_without_calls_of_linux(tmp_path, tokenizer_folder, monkeypatch):
    source = tmp_path / "texts.txt"
    source.write_text("".join(f"text {number} of a file\n" for number in range(2000)))
    spec = TextSpec(source=str(source), val_ratio=0.1, seed=3)
    for name in ("linux", "macos"):
        if name == "macos":
            for call in OF_LINUX:
                monkeypatch.delattr(os, call)
        shard(spec, tmp_path / name, True, RunOptions(workers=2))
        tokenize.make(tmp_path / name, tokenizer_folder, tmp_path / f"{name}-tokens")
    texts = [list(read(shard_paths(tmp_path / name, "train"))) for name in ("linux", "macos")]
    tokens = [sorted((tmp_path / f"{name}-tokens").rglob("*train*")) for name in ("linux", "macos")]
    assert texts[0] == texts[1] and len(texts[0]) > 1700
    assert tokens[0] and [one.read_bytes() for one in tokens[0]] == [one.read_bytes() for one in tokens[1]]
