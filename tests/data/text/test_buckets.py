"""Sources in an S3 bucket on moto's server, and in a bucket of a test server for Google's API."""

import gzip
import json

import pyarrow
import pyarrow.parquet
import pytest

from data.__main__ import main
from data.shards.shards import read, shard_paths
from store.backends.backend import open_place
from tests.store.conftest import google, no_keys, s3, s3_server  # noqa: F401 fixtures


@pytest.fixture(params=["s3", "gs"])
def bucket(request, tmp_path):
    uri = request.getfixturevalue("s3" if request.param == "s3" else "google").bucket()
    place = open_place(uri)
    place.create()
    for number in range(2):
        texts = [f"row {row}" for row in range(number * 300, number * 300 + 300)]
        pyarrow.parquet.write_table(
            pyarrow.table({"text": texts, "noise": texts}), tmp_path / f"{number}.parquet", row_group_size=100
        )
    files = {f"part/{number}.parquet": tmp_path / f"{number}.parquet" for number in range(2)}
    lines = gzip.compress(b"".join(b"line %d\n" % n for n in range(2000)))
    place.put({**files, "part/deep/more.txt.gz": lines, "other/notes.txt": b"not asked for\n"})
    return uri


def shard(tmp_path, capsys, source, **spec):
    config = {"out": str(tmp_path / "out"), "spec": {"source": source, **spec}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return main(["text", "--config", str(tmp_path / "config.json")]), capsys.readouterr().err


@pytest.mark.day_cases(1)
@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "workers", "expected"),
    [
        ("part/*.parquet", 2, [f"row {n}" for n in range(600)]),
        ("part/1.parquet", 1, [f"row {n}" for n in range(300, 600)]),
        ("part/", 1, [f"row {n}" for n in range(600)] + [f"line {n}" for n in range(2000)]),
    ],
)
def test_files_a_folder_and_a_pattern_are_read_in_the_order_of_their_names(
    bucket, tmp_path, capsys, name, workers, expected
):
    assert shard(tmp_path, capsys, f"{bucket}/{name}", workers=workers) == (0, "")
    assert list(read(shard_paths(tmp_path / "out"))) == expected


@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "told"),
    [("part/9.parquet", "no such file"), ("nothing/*.parquet", "no readable file"), ("", "no readable file")],
)
def test_missing_object_is_reported_in_one_line(bucket, tmp_path, capsys, name, told):
    source = f"{bucket}/{name}" if name else f"{bucket[:2]}://no-such-bucket-91/folder/"
    code, said = shard(tmp_path, capsys, source)
    assert (code, said.count("\n")) == (2, 1)
    assert told in said if name else "no such bucket; to make the bucket" in said
