"""Inputs of all formats, compressed or damaged, give the same documents."""

import gzip
import hashlib
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from dataclasses import replace

import pyarrow
import pyarrow.compute
import pyarrow.parquet
import pytest

from data.__main__ import main
from data.config import ConfigError, TextSpec, text_unit
from data.manifest import read_manifest
from data.shards import encode, pipeline
from data.shards.shards import read, shard_paths
from data.text import batches
from data.text.documents import COLUMNS
from data.text.lines import SCORES
from data.verify import verify
from scripts.cli.steps_text import step_line
from tests.data.conftest import ROOT

TEXTS = ["one", "two\nlines\r\n", "back\\slash", "größer \u2028 \U0001f600", " spaces "] * 3


@pytest.fixture
def shard(tmp_path, capsys):
    """Shard into tmp_path/out in this process; return (exit code, messages)."""

    def shard(source, **spec):
        config = {"out": str(tmp_path / "out"), "spec": {"source": str(source), "workers": 1, **spec}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        return main(["text", "--config", str(tmp_path / "config.json")]), capsys.readouterr().err

    return shard


@pytest.mark.parametrize("format", ["jsonl", "parquet"])
def test_half_a_character_in_any_column_is_replaced(shard, tmp_path, format):
    (tmp_path / "a.jsonl").write_text('{"text": "one \\ud800", "url": "\\udc00 two"}\n')
    assert shard(tmp_path / "a.jsonl", format=format) == (0, "")
    (row,) = (
        pyarrow.parquet.read_table(tmp_path / "out" / "shard-00000.parquet").to_pylist()
        if format == "parquet"
        else map(json.loads, (tmp_path / "out" / "shard-00000.jsonl").read_text().splitlines())
    )
    assert (row["text"], row["url"]) == ("one ?", "? two")


def test_marks_and_line_ends_of_text_files_are_no_text_or_are_reported(shard, tmp_path):
    (tmp_path / "a.txt").write_bytes("\ufeffone\r\ntwo\rtoo\n\u2028three\x85\n".encode())
    (tmp_path / "b.jsonl").write_bytes(b'\xef\xbb\xbf{"text": "four"}\r\n{"text": "five\\rsix"}\n')
    assert shard(tmp_path / "*.*[tl]") == (0, "")
    assert list(read(shard_paths(tmp_path / "out"))) == ["one", "two\rtoo", "\u2028three\x85", "four", "five\rsix"]
    assert read_manifest(tmp_path / "out")["counts"]["carriage_returns"] == 1


def test_null_texts_are_counted_also_in_a_file_of_nulls_alone(shard, tmp_path):
    pyarrow.parquet.write_table(pyarrow.table({"text": ["one", None, "", "two"]}), tmp_path / "a.parquet")
    pyarrow.parquet.write_table(pyarrow.table({"text": pyarrow.array([None, None])}), tmp_path / "b.parquet")
    (tmp_path / "c.csv").write_text("text,n\nsodium,1\nNA,2\nnull,3\nchlorine,4\n")
    (tmp_path / "d.jsonl").write_text('{"text": "one"}\n{"text": null}\n{"text": ""}\n\n{"text": "two"}\n')
    found = []
    for source in ("*.parquet", "c.csv", "d.jsonl"):
        assert shard(tmp_path / source)[0] == 0
        counts = read_manifest(tmp_path / "out")["counts"]
        found.append((list(read(shard_paths(tmp_path / "out"))), counts["empty"], counts["null"]))
        shutil.rmtree(tmp_path / "out")
    assert found == [(["one", "two"], 4, 3), (["sodium", "chlorine"], 2, 2), (["one", "two"], 2, 1)]


def test_progress_shows_the_read_and_the_remaining_part_of_a_source(shard, tmp_path, monkeypatch):
    (tmp_path / "in").mkdir()
    for number in range(2):  # Four row groups of a batch each.
        table = pyarrow.table({"text": [f"row {number} {n}" for n in range(100)]})
        pyarrow.parquet.write_table(table, tmp_path / "in" / f"{number}.parquet", row_group_size=50)
    clock = itertools.count(0.0, 2.0)
    monkeypatch.setattr(pipeline.time, "monotonic", lambda: next(clock))
    monkeypatch.setenv("SLIPWAY_RECORDS", str(tmp_path / "records"))
    assert shard(tmp_path / "in", lines_per_shard=30) == (0, "")
    told = [json.loads(line) for line in (tmp_path / "records").read_text().splitlines()]
    progress, result = [one for one in told if one["kind"] == "progress"], told[-1]
    assert [(one["done"], one["share"], one["shards"]) for one in progress] == [
        (50, None, 1),
        (100, 0.25, 3),
        (150, 0.5, 5),
        (200, 0.75, 6),
    ]
    assert [one["eta_s"] is None for one in progress] == [True, False, False, False]
    last = progress[-1]
    assert abs(last["eta_s"] / (last["done"] / last["documents_per_s"] / 3) - 1) < 0.1  # As fast as until now.
    assert (result["documents"], result["shards"], result["counts"]["read"]) == (200, 7, 200)


@pytest.fixture
def source(tmp_path):
    """Return TEXTS with columns, as JSON lines."""
    rows = [
        {"text": text, "id": f"<{n}>", "language": "en" if n % 3 else "de", "language_score": n / 15, "url": "u"}
        for n, text in enumerate(TEXTS)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "a.jsonl"


FORMS = [("txt", ""), ("txt", "gzip"), ("txt", "zstd"), ("jsonl", ""), ("jsonl", "gzip"), ("parquet", "")]


@pytest.mark.parametrize(("format", "compression"), FORMS)
def test_documents_are_restored_from_every_format(shard, source, tmp_path, format, compression):
    assert shard(source, format=format, compression=compression, lines_per_shard=4) == (0, "")
    assert list(read(shard_paths(tmp_path / "out"))) == TEXTS
    assert verify(tmp_path / "out") == []
    manifest = read_manifest(tmp_path / "out")
    assert [one["lines"] for one in manifest["shards"]] == [4, 4, 4, 3]
    assert manifest["total_bytes"] == sum(path.stat().st_size for path in shard_paths(tmp_path / "out"))
    (tmp_path / "again").mkdir()
    config = {"out": str(tmp_path / "again"), "spec": {"source": str(tmp_path / "out"), "workers": 1}}
    (tmp_path / "again.json").write_text(json.dumps(config))
    assert main(["text", "--config", str(tmp_path / "again.json")]) == 0
    assert list(read(shard_paths(tmp_path / "again"))) == TEXTS


def test_gzip_source_equals_the_plain_shard(shard, source, tmp_path):
    assert shard(source, compression="gzip") == (0, "")
    packed = (tmp_path / "out" / "shard-00000.txt.gz").read_bytes()
    assert shard(source) == (0, "")
    assert gzip.decompress(packed) == (tmp_path / "out" / "shard-00000.txt").read_bytes()


def test_columns_are_kept_in_formats_with_columns(shard, source, tmp_path):
    assert shard(source, format="parquet", language="de", min_score=0.3) == (0, "")
    rows = pyarrow.parquet.read_table(tmp_path / "out" / "shard-00000.parquet").to_pylist()
    assert [(row["id"], row["language"]) for row in rows] == [("<6>", "de"), ("<9>", "de"), ("<12>", "de")]
    counts = read_manifest(tmp_path / "out")["counts"]
    assert (counts["read"], counts["filtered"]) == (15, 12)


@pytest.mark.parametrize("form", ["jsonl", "parquet", "txt", "pydocs"])
def test_filter_on_a_missing_column_names_the_existing_columns(shard, tmp_path, form):
    rows, path = [{"text": "one", "url": "a", "stars": 1}, {"text": "two", "stars": 2}], tmp_path / f"rows.{form}"
    if form == "parquet":
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
    elif form != "pydocs":
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    code, said = shard("pydocs" if form == "pydocs" else path, filter="starz > 1")
    available = {"txt": "text", "pydocs": ", ".join(["text", *COLUMNS])}.get(form, "text, url, stars")
    assert code == 2 and f"the choice by starz needs such a column; available: {available}\n" in said


def test_duplicates_are_left_out_across_all_files(shard, source, tmp_path):
    assert shard(source, dedup="exact", val_ratio=0.5) == (0, "")
    parts = [list(read(shard_paths(tmp_path / "out", part))) for part in ("train", "val")]
    assert sorted(parts[0] + parts[1]) == sorted(set(TEXTS)) and all(parts)
    assert read_manifest(tmp_path / "out" / "val")["counts"]["duplicate"] == 10


def test_separate_corpus_is_held_out(shard, source, tmp_path):
    (tmp_path / "eval.txt").write_text("held out\n")
    assert shard(source, validation=str(tmp_path / "eval.txt"), take=2) == (0, "")
    assert list(read(shard_paths(tmp_path / "out", "val"))) == ["held out"]
    assert list(read(shard_paths(tmp_path / "out"))) == TEXTS[:2]


@pytest.mark.process
@pytest.mark.parametrize("workers", [1, 3])
def test_take_ends_at_the_same_document_for_any_number_of_readers(shard, tmp_path, workers):
    texts = [f"text {n}" for n in range(1000)]
    for name in ("a", "b"):
        table = pyarrow.table({"text": [f"{name} {text}" for text in texts]})
        pyarrow.parquet.write_table(table, tmp_path / f"{name}.parquet", row_group_size=90)
    assert shard(tmp_path / "*.parquet", take=1700, workers=workers, val_ratio=0.1, lines_per_shard=100) == (0, "")
    found = {text for part in ("train", "val") for text in read(shard_paths(tmp_path / "out", part))}
    assert found == {f"a {text}" for text in texts} | {f"b {text}" for text in texts[:700]}


def test_invalid_utf_8_is_replaced_and_counted(shard, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"good\nb\xffd\n")
    strings = pyarrow.array([b"w\xffrse", b"fine"]).cast(pyarrow.string(), safe=False)
    pyarrow.parquet.write_table(pyarrow.table({"text": strings}), tmp_path / "b.parquet")
    assert shard(tmp_path / "[ab].*") == (0, "")
    assert list(read(shard_paths(tmp_path / "out"))) == ["good", "b\ufffdd", "w\ufffdrse", "fine"]
    assert read_manifest(tmp_path / "out")["counts"]["invalid_utf8"] == 2


@pytest.mark.process
def test_lines_are_found_at_any_start_of_a_range(shard, tmp_path):
    line = "x" * 999_999
    (tmp_path / "a.txt").write_text(f"{line}\n" * 40 + "last")  # Ranges of 16 MiB begin in the middle of a line.
    assert shard(tmp_path / "a.txt", workers=2) == (0, "")
    assert [len(text) for text in read(shard_paths(tmp_path / "out"))] == [999_999] * 40 + [4]


@pytest.mark.parametrize(
    ("name", "content", "seen"),
    [
        ("a.txt", b"", "no document in the source"),
        ("a.txt", b" \n\n", "no document in the source"),
        ("a.jsonl.gz", gzip.compress(b'{"text": "one"}\n' * 9000)[:-20], "damaged or cut short"),
        ("a.txt.gz", b"no gzip", "damaged or cut short"),
        ("a.txt.zst", b"no zstd", "damaged or cut short"),
        ("a.parquet", b"", "not a whole parquet file"),
        ("a.parquet", b"CUT", "not a whole parquet file"),
    ],
)
def test_damaged_file_is_one_line_and_leaves_no_partial_shard(shard, tmp_path, name, content, seen):
    if content == b"CUT":
        pyarrow.parquet.write_table(pyarrow.table({"text": ["one"] * 100}), tmp_path / name)
        content = (tmp_path / name).read_bytes()[:-9]
    (tmp_path / name).write_bytes(content)
    code, said = shard(tmp_path / name)
    assert (code, said.count("\n")) == (2, 1) and seen in said
    assert list(tmp_path.glob("out/shard-*")) == []


@pytest.mark.parametrize("name", ["a.parquet", "a.jsonl"])
def test_missing_or_textual_score_is_parsed(shard, tmp_path, name):
    rows = [("low", "0.1", 2.0), ("high", "0.9", 0.0), ("no number", "much", 1.0), ("second", None, 0.7), ("none",)]
    rows = [
        {"text": text, "score": None, "language_score": None, **dict(zip(SCORES, more, strict=False))}
        for text, *more in rows
    ]
    nothing = [{"text": "x", "score": None, "language_score": None}] * 5000  # More than one batch.
    if name == "a.parquet":
        schema = pyarrow.schema(
            {"text": pyarrow.string(), "score": pyarrow.string(), "language_score": pyarrow.float64()}
        )
        pyarrow.parquet.write_table(pyarrow.Table.from_pylist(nothing + rows, schema), tmp_path / name)
    else:
        (tmp_path / name).write_text("".join(f"{json.dumps(row)}\n" for row in nothing + rows) + "\n" * (1 << 20))
    assert shard(tmp_path / name, min_score=0.5) == (0, "")
    assert list(read(shard_paths(tmp_path / "out"))) == ["high", "second"]


def test_dictionary_column_is_text_and_a_number_column_is_not(shard, tmp_path):
    words = pyarrow.array(["one", "two", None, "one"])
    pyarrow.parquet.write_table(pyarrow.table({"text": words.dictionary_encode()}), tmp_path / "a.parquet")
    assert shard(tmp_path / "a.parquet") == (0, "")
    assert list(read(shard_paths(tmp_path / "out"))) == ["one", "two", "one"]
    pyarrow.parquet.write_table(pyarrow.table({"text": [1], "id": ["a"]}), tmp_path / "b.parquet")
    code, said = shard(tmp_path / "b.parquet")
    assert code == 2 and "column 'text' is int64, not text; available: text, id" in said
    pyarrow.parquet.write_table(pyarrow.table([words, words], names=["text", "text"]), tmp_path / "c.parquet")
    code, said = shard(tmp_path / "c.parquet")
    assert code == 2 and "2 columns are named 'text'" in said


def test_value_that_parquet_cannot_hold_is_reported_in_one_line(shard, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "one", "score": "much"}\n')
    code, said = shard(tmp_path / "a.jsonl", format="parquet")
    assert (code, said.count("\n")) == (2, 1) and "column score is double in parquet" in said
    assert list(tmp_path.glob("out/shard-*")) == []
    assert shard(tmp_path / "a.jsonl", format="jsonl") == (0, "")


def test_folder_holds_either_plain_shards_or_train_and_val(shard, tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"{n}\n" for n in range(100)))
    assert shard(tmp_path / "a.txt") == (0, "")
    code, said = shard(tmp_path / "a.txt", val_ratio=0.1)
    assert code == 2 and "out holds manifest.json" in said
    os.rename(tmp_path / "out", tmp_path / "plain")
    assert shard(tmp_path / "a.txt", val_ratio=0.1) == (0, "")
    code, said = shard(tmp_path / "a.txt")
    assert code == 2 and "out holds train and val" in said
    assert verify(tmp_path / "plain") == verify(tmp_path / "out" / "train") == verify(tmp_path / "out" / "val") == []


@pytest.mark.parametrize("name", ["what?.jsonl", "a#1.jsonl", "a%20b.jsonl.gz", "[a]*.jsonl"])
def test_file_name_may_be_unusual(shard, tmp_path, name):
    data = b'\xef\xbb\xbf{"text": "one"}\r\n'
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    assert shard(tmp_path / name) == (0, "")
    assert list(read(shard_paths(tmp_path / "out"))) == ["one"]


def test_empty_held_out_corpus_is_refused(shard, tmp_path):
    (tmp_path / "a.txt").write_text("one\n")
    (tmp_path / "b.txt").write_text("\n")
    code, said = shard(tmp_path / "a.txt", validation=str(tmp_path / "b.txt"))
    assert code == 2 and "b.txt: none of its documents can be held out" in said
    assert list(tmp_path.glob("out/*/manifest.json")) == []


def test_source_does_not_grow_by_its_own_shards(shard, tmp_path):
    (tmp_path / "a.txt").write_text("one\n")
    code, said = shard(tmp_path)
    assert code == 2 and f"out is inside the source {tmp_path}" in said


@pytest.mark.parametrize(
    ("source", "spec", "seen"),
    [
        ("pipe.txt", {}, "cannot read a pipe or a device"),
        (
            "a.txt",
            {"dataset": "HuggingFaceFW/fineweb-edu"},
            "dataset HuggingFaceFW/fineweb-edu: read with the source fineweb",
        ),
    ],
)
def test_unreadable_combination_is_refused(shard, tmp_path, source, spec, seen):
    (tmp_path / "a.txt").write_text("one\n")
    os.mkfifo(tmp_path / "pipe.txt")
    code, said = shard(tmp_path / source, **spec)
    assert (code, said.count("\n")) == (2, 1) and seen in said


@pytest.mark.process
def test_lines_from_standard_input_are_documents(tmp_path):
    config = {"out": str(tmp_path / "out"), "spec": {"source": "stdin"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    words = [sys.executable, "-m", "data", "text", "--config", str(tmp_path / "config.json")]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    assert subprocess.run(words, input=b"one\n\ntwo", cwd=ROOT, env=environ, timeout=30).returncode == 0
    assert list(read(shard_paths(tmp_path / "out"))) == ["one", "two"]


OBJECT = b'{"text": "'


@pytest.mark.day_cases(1)
@pytest.mark.process
@pytest.mark.parametrize(
    ("name", "begin", "giant", "end", "spec", "most_mb"),
    [
        ("a.txt", b"", b"giant\\" * 174_763, b"", {"lines_per_shard": 1}, 300),
        ("a.jsonl", OBJECT, b"giant\\n" * 149_797, b'", "id": "<g>"}', {"dedup": "exact", "format": "jsonl"}, 300),
    ],
)
def test_giant_document_is_held_in_memory_once(tmp_path, name, begin, giant, end, spec, most_mb):
    small = begin + b"small" + end + b"\n"
    with open(tmp_path / name, "wb") as file:
        file.write(small + begin)
        for _ in range(150):
            file.write(giant)
        file.write(end + b"\n" + small)
    assert peak_bytes(tmp_path, source=str(tmp_path / name), **spec) < most_mb * 1_000_000
    assert read_manifest(tmp_path / "out")["total_lines"] == 3 - bool(spec.get("dedup"))
    assert sum(one["raw_bytes"] for one in read_manifest(tmp_path / "out")["shards"]) > 150 << 20


@pytest.mark.nightly
@pytest.mark.process
def test_giant_compressible_document_needs_one_and_a_half_of_its_size_in_parquet(tmp_path):
    chance, whole = random.Random(7), hashlib.sha256()
    with open(tmp_path / "a.jsonl", "wb") as file:
        file.write(OBJECT + b'small"}\n' + OBJECT)
        for _ in range(150):
            some = chance.randbytes(1 << 20).translate(b"ehilnost" * 32)  # Three bits of eight, like English text.
            whole.update(some)
            file.write(some)
        file.write(b'", "id": "<g>"}\n')
    assert peak_bytes(tmp_path, source=str(tmp_path / "a.jsonl"), format="parquet") < 400_000_000
    texts = pyarrow.parquet.read_table(tmp_path / "out" / "shard-00000.parquet", columns=["text"]).column(0)
    assert pyarrow.compute.binary_length(texts).to_pylist() == [5, 150 << 20]
    assert hashlib.sha256(texts[1].as_buffer()).hexdigest() == whole.hexdigest()


def peak_bytes(tmp_path, **spec):
    """Return the peak memory of any process of a run into tmp_path/out."""
    (tmp_path / "config.json").write_text(json.dumps({"out": str(tmp_path / "out"), "spec": {"workers": 2, **spec}}))
    done = subprocess.run(
        [sys.executable, "-c", TELLING_PEAKS, "text", "--config", str(tmp_path / "config.json")],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.stderr == ""
    return max(map(int, done.stdout.split())) * 1024


def test_parquet_row_groups_end_by_rows_and_by_bytes(tmp_path, monkeypatch):
    monkeypatch.setattr(encode, "ROWS", 4)
    monkeypatch.setattr(encode, "ROW_BYTES", 150)
    texts = ["x" * size for size in (1, 2, 3, 4, 5, 60, 60, 300, 1, 1)]
    draft = tmp_path / "draft"
    draft.write_text("".join(json.dumps({"text": text, "id": f"<{text[:2]}>"}) + "\n" for text in texts))
    encode.pack(draft, tmp_path / "a.parquet", "parquet", "", 1)
    file = pyarrow.parquet.ParquetFile(tmp_path / "a.parquet")
    assert [file.metadata.row_group(at).num_rows for at in range(file.num_row_groups)] == [4, 2, 1, 1, 2]
    assert file.read(columns=["text", "id"]).to_pylist() == [{"text": one, "id": f"<{one[:2]}>"} for one in texts]


# Of this program alone, then of its children: getrusage of a process continues from the peak of its parent.
TELLING_PEAKS = """
import resource
from data.__main__ import main, spare_numpy
spare_numpy()  # as the command does; else Arrow imports pandas for a list
assert main() == 0
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmHWM:")))
print(resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)
"""


def test_files_of_a_folder_or_lines_of_a_file_are_documents_unless_typed(shard, tmp_path):
    folder = tmp_path / "texts"
    folder.mkdir()
    (folder / "1.txt").write_bytes("\ufeffTitle\r\n\r\nfirst\n\n".encode())
    (folder / "2.txt.gz").write_bytes(gzip.compress(b"second\nend"))
    (folder / "3.txt").write_bytes(b"\n")
    (folder / "4.jsonl").write_text('{"text": "third"}\n{"text": "fourth"}\n')
    both = ["Title\n\nfirst", "second\nend", "third", "fourth"]
    lines = ["Title", "first", "second", "end", "third", "fourth"]

    def written(source, typed=""):
        unit, said = text_unit(str(source), typed)
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        assert shard(source, text_unit=unit) == (0, "")
        return list(read(shard_paths(tmp_path / "out"))), said

    assert written(folder) == (both, "each .txt file in a folder is a document; --text-unit line: each line")
    (folder / "5.md").write_text("# Not read\n")
    of_folder = "each .txt file in a folder is a document; --text-unit line: each line; not read: .md files"
    assert written(folder) == (both, of_folder)
    assert read_manifest(tmp_path / "out")["counts"]["empty"] == 1
    assert written(folder, "line") == (lines, "each line of a .txt file is a document; not read: .md files")
    per_line = "each line of a .txt file is a document; --text-unit file: each .txt file"
    assert written(folder / "1.txt") == (["Title", "first"], per_line)
    assert written(folder / "1.txt", "file") == (["Title\n\nfirst"], "each .txt file is a document")
    assert written(f"{folder}=0.5,{folder / '1.txt'}=0.5")[1].startswith("each .txt file in a folder")
    assert text_unit("fineweb", "") == ("line", "") == text_unit(str(folder / "4.jsonl"), "")
    with pytest.raises(ConfigError, match="--text-unit word: known: line, file"):
        text_unit(str(folder), "word")


def test_own_shards_have_a_document_per_line_in_any_folder(shard, source, tmp_path):
    assert shard(source) == (0, "")
    os.rename(tmp_path / "out", tmp_path / "first")
    assert text_unit(str(tmp_path / "first"), "") == ("line", "")
    assert shard(tmp_path / "first", text_unit="file") == (0, "")
    assert list(read(shard_paths(tmp_path / "out"))) == TEXTS


def test_a_text_file_too_long_for_a_document_is_refused_with_the_flag(shard, tmp_path, monkeypatch):
    monkeypatch.setattr(batches, "MOST_DOCUMENT_BYTES", 1 << 20)
    (tmp_path / "a.txt").write_bytes(b"a line\n" * (1 << 18))
    code, said = shard(tmp_path / "a.txt", text_unit="file")
    assert code == 2 and "a.txt: more than 1 MiB" in said and "--text-unit line" in said


def test_a_small_source_here_is_counted_beyond_the_taken_documents(shard, tmp_path):
    (tmp_path / "a.txt").write_text("".join(f"{n}\n" for n in range(3000)))
    spec = TextSpec(source=str(tmp_path / "a.txt"), take=20, val_ratio=0.0)
    made = pipeline.shard(spec, tmp_path / "out", split=False)
    assert (made["documents"], made["available"]) == (20, 3000)
    step = {"name": "shard", "state": "done", "result": made, "started_at": 1.0, "ended_at": 2.0}
    assert step_line(step, 2.0).endswith(": 20 of 3,000 documents in 1 shard")
    whole = pipeline.shard(replace(spec, take=3000), tmp_path / "all", split=False)
    assert step_line({**step, "result": whole}, 2.0).endswith(": 3,000 documents in 1 shard")
