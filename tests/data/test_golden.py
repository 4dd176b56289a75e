"""The recorded bytes of shards: they change only on purpose."""

import hashlib
import json
import random
import threading

import pyarrow
import pyarrow.parquet
import pytest

from data.config import TextSpec
from data.manifest import read_manifest, shard_folders
from data.shards.pipeline import RunOptions, shard

WORDS = ["one", "größer", "\U0001f600", "back\\slash", "a\nb", "\r\n", "\t", "\u2028", " ", "\\n", "\x00", "日本"]
COUNTED = ("read", "empty", "filtered", "invalid_utf8", "duplicate")
BLANK = ["", " ", "\n \n", "\u3000", "\x85\u2028", "\x1c"]


@pytest.fixture(scope="module")
def corpus(tmp_path_factory):
    """Write parquet of two string types in uneven row groups, with nulls, blanks and invalid UTF-8; objects; lines."""
    folder, chance = tmp_path_factory.mktemp("golden"), random.Random(11)

    def text(number):
        if chance.random() < 0.1:
            return chance.choice(BLANK)
        return f"{number % 700} " * chance.randint(0, 1) + " ".join(chance.choices(WORDS, k=chance.randint(1, 60)))

    def table(size, kind):
        texts = [text(n) if chance.random() < 0.95 else None for n in range(size)]
        columns = {
            "url": pyarrow.array([f"u{n}" if n % 3 else None for n in range(size)]),
            "text": pyarrow.array(texts, kind),
            "language": pyarrow.array([("en", "de", None)[n % 3] for n in range(size)]),
            "language_score": pyarrow.array([n / size if n % 7 else None for n in range(size)]),
            "token_count": pyarrow.array(range(size)),
        }
        return pyarrow.table(columns)

    pyarrow.parquet.write_table(table(2000, pyarrow.string()), folder / "a.parquet", row_group_size=301)
    pyarrow.parquet.write_table(table(900, pyarrow.large_string()), folder / "b.parquet", row_group_size=900)
    broken = table(300, pyarrow.string())
    raw = [b"good \\ \n", b"b\xffd\n", b"\xe2\x82", b"\xff"] * 75
    broken = broken.set_column(1, "text", pyarrow.array(raw, pyarrow.binary()).cast(pyarrow.string(), safe=False))
    pyarrow.parquet.write_table(broken, folder / "c.parquet", row_group_size=100)
    rows = [{"text": text(n), "id": n, "language": "en", "score": n % 6, "more": [n]} for n in range(700)]
    (folder / "d.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), newline="\n")
    lines = [text(n).replace("\n", "\r") for n in range(1500)]
    (folder / "e.txt").write_bytes("\n".join(lines).encode() + b"\r\nb\xffd\n\n  \nlast")
    return folder


CASES = {
    "plain": ({}, "3b9efee7cc66ce71"),
    "split": ({"val_ratio": 0.2, "seed": 7}, "8be767f5947b9895"),
    "first": ({"val_ratio": 0.2, "seed": 7, "take": 3001}, "c53f3d082257a76d"),
    "once": ({"dedup": "exact"}, "b7b6ee9c9193a7b1"),
    "once, split": ({"dedup": "exact", "val_ratio": 0.3, "take": 2500}, "3a76b9e2e37eaa40"),
    "objects": ({"format": "jsonl"}, "b2414ee26fdfd295"),
    "objects, split": ({"format": "jsonl", "val_ratio": 0.5, "dedup": "exact"}, "5b13b8fe1b2abe2d"),
    "chosen": ({"source": "[abd].*", "language": "en", "min_score": 0.25, "val_ratio": 0.1}, "8dd058589aa9e1bb"),
    "chosen objects": ({"source": "[abd].*", "language": "en", "format": "jsonl"}, "e402e4c880f78960"),
}


def run(corpus, folder, case, workers):
    spec = CASES[case][0]
    source = str(corpus / spec.get("source", "*"))
    made = TextSpec(**{"val_ratio": 0.0, "lines_per_shard": 450, **spec, "source": source})
    shard(made, folder, True, RunOptions(workers=workers))


@pytest.mark.day_cases(len(CASES))
@pytest.mark.process
@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("workers", [2, 1, 3])
def test_bytes_of_shards_equal_the_recorded_bytes(corpus, tmp_path, case, workers):
    run(corpus, tmp_path, case, workers)
    assert shards_digest(tmp_path) == CASES[case][1]


@pytest.mark.process
def test_spawned_processes_make_the_same_bytes(corpus, tmp_path):
    done = threading.Event()
    other = threading.Thread(target=done.wait)
    other.start()  # Prevents a fork.
    try:
        run(corpus, tmp_path, "once, split", 2)
    finally:
        done.set()
        other.join()
    assert shards_digest(tmp_path) == CASES["once, split"][1]


def shards_digest(folder):
    """Return a hash over all shards, in order, and over the counts of their manifests."""
    digest = hashlib.sha256()
    for part in shard_folders(folder):
        manifest = read_manifest(part)
        for one in manifest["shards"]:
            digest.update((part / one["name"]).read_bytes())
            assert hashlib.sha256((part / one["name"]).read_bytes()).hexdigest() == one["sha256"]
        counts = {name: manifest["counts"][name] for name in COUNTED if name in manifest["counts"]}
        digest.update(json.dumps([manifest["shards"], counts], sort_keys=True).encode())
    return digest.hexdigest()[:16]
