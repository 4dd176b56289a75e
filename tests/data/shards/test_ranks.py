"""Several machines read one source: together their shares equal the shards of one machine."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from data.config import TextSpec
from data.errors import DataError, InputError
from data.manifest import MANIFEST, read_manifest
from data.merge import merge, merged
from data.shards.pipeline import RunOptions, shard
from data.shards.shards import read, shard_paths
from data.text.inputs import Share
from data.verify import verify

TEXTS = [[f"file {file} says {n}\\ \n" for n in range(100 + file)] for file in range(7)]


@pytest.fixture
def corpus(tmp_path):
    """Write seven files, one of them empty."""
    (tmp_path / "corpus").mkdir()
    for number, texts in enumerate(TEXTS):
        table = pyarrow.table({"text": texts if number != 5 else [""] * 3})
        pyarrow.parquet.write_table(table, tmp_path / "corpus" / f"{number}.parquet", row_group_size=40)
    return tmp_path / "corpus"


def make(corpus, out, share, **spec):
    made = TextSpec(**{"source": str(corpus), "val_ratio": 0.2, "seed": 3, "lines_per_shard": 30, **spec})
    return shard(made, out, bool(made.val_ratio), RunOptions(workers=1), share)


def ranks(corpus, out, world, **spec):
    for rank in reversed(range(world)):
        make(corpus, out, Share(rank=rank, world=world), **spec)


@pytest.mark.parametrize("world", [2, 3, 7])
def test_shares_together_equal_the_shards_of_one_machine(corpus, tmp_path, world):
    make(corpus, tmp_path / "one", Share())
    ranks(corpus, tmp_path / "all", world)
    with pytest.raises(DataError, match="inv shard --merge"):
        shard_paths(tmp_path / "all")
    result = merge(tmp_path / "all")
    assert result["documents"] == sum(map(len, TEXTS)) - len(TEXTS[5])
    for part in ("train", "val"):
        ours, theirs = (read(shard_paths(tmp_path / name, part)) for name in ("all", "one"))
        assert list(ours) == list(theirs)
        assert verify(tmp_path / "all" / part) == []
        ours, theirs = (read_manifest(tmp_path / name / part) for name in ("all", "one"))
        assert all(ours[key] == theirs[key] for key in ("total_lines", "counts", "options", "input"))
    assert not (tmp_path / "all" / ".draft").exists()


def test_damaged_share_is_found_in_its_folder(corpus, tmp_path):
    ranks(corpus, tmp_path / "all", 2, val_ratio=0.0)
    merge(tmp_path / "all")
    path = shard_paths(tmp_path / "all")[-1]
    path.write_bytes(path.read_bytes()[:-1])
    name = "rank-00001-of-00002/" + path.name
    assert [problem.split(":")[0] for problem in verify(tmp_path / "all")] == [name]


def test_later_run_of_one_machine_removes_all_shares(corpus, tmp_path):
    ranks(corpus, tmp_path / "all", 2, val_ratio=0.0)
    merge(tmp_path / "all")
    make(corpus, tmp_path / "all", Share(), val_ratio=0.0)
    assert len(list(read(shard_paths(tmp_path / "all")))) == sum(map(len, TEXTS)) - len(TEXTS[5])
    assert not [path for path in (tmp_path / "all").glob("rank-*/*")]


def manifest(rank, world=3, **other):
    shards = [{"name": "shard-00000.txt", "lines": 1, "bytes": 2, "raw_bytes": 2, "sha256": f"{rank}"}]
    same = {"schema": 2, "tool": "t", "finished": True, "source": "s", "options": {"seed": 1}, "input": {"files": 9}}
    return {**same, "rank": rank, "world": world, "counts": {"read": rank}, "shards": shards, **other}


def test_shares_are_merged_in_the_order_of_their_ranks():
    one = merged({f"r{rank}": manifest(rank) for rank in (2, 0, 1)})
    assert [shard["name"] for shard in one["shards"]] == [f"r{rank}/shard-00000.txt" for rank in range(3)]
    assert one["counts"] == {"read": 3} and one["source"] == "s" and "rank" not in one


@pytest.mark.parametrize(
    ("shares", "seen"),
    [
        ([], "no share"),
        ([manifest(0), manifest(2)], "rank 1 is missing"),
        ([manifest(0), manifest(1), manifest(1), manifest(2)], "rank 1 is there twice"),
        ([manifest(0), manifest(1), manifest(2), manifest(3)], "more ranks exist"),
        ([manifest(0), manifest(1, world=2), manifest(2)], "differ in world"),
        ([manifest(0), manifest(1, options={"seed": 2}), manifest(2)], "differ in options"),
        ([manifest(0), manifest(1, input={"files": 8}), manifest(2)], "differ in input"),
        ([manifest(0), manifest(1, finished=False), manifest(2)], "r1: not finished"),
        ([{key: value for key, value in manifest(0).items() if key != "rank"}], "not a share of a rank"),
    ],
)
def test_gaps_overlaps_and_foreign_shares_are_refused(shares, seen):
    with pytest.raises(InputError, match=seen):
        merged({f"r{number}": one for number, one in enumerate(shares)})


def test_renamed_folder_is_refused(corpus, tmp_path):
    ranks(corpus, tmp_path, 2, val_ratio=0.0)
    (tmp_path / "rank-00001-of-00002").rename(tmp_path / "rank-00004-of-00005")
    with pytest.raises(DataError, match="the manifest belongs to rank 1 of 2"):
        merge(tmp_path)
    assert not (tmp_path / MANIFEST).exists()


@pytest.mark.parametrize(
    ("share", "spec", "seen"),
    [
        ((0, 8), {}, "7 files for a world of 8"),
        ((0, 2), {"take": 9}, "take looks at all documents"),
        ((0, 2), {"dedup": "exact"}, "dedup looks at all documents"),
    ],
)
def test_options_that_need_all_ranks_are_refused(corpus, tmp_path, share, spec, seen):
    with pytest.raises(InputError, match=seen):
        make(corpus, tmp_path / "out", Share(rank=share[0], world=share[1]), **spec)
    assert json.dumps(sorted(map(str, tmp_path.glob("out/**/*")))) == "[]"


@pytest.mark.parametrize(("rank", "world"), [(2, 2), (-1, 2), (0, 0)])
def test_rank_must_be_within_its_world(rank, world):
    with pytest.raises(ValueError, match="a rank must be at least 0"):
        Share(rank=rank, world=world)
