import json
import socket
import subprocess
import sys

import pyarrow
import pyarrow.parquet
import pytest

from data.__main__ import main
from data.config import ConfigError
from data.errors import InputError
from data.shards.shards import Writer
from data.text.batches import documents
from tests.data.conftest import ROOT, run_step


def texts(source):
    return [document.text for document in documents(str(source))]


def parquet(path, **columns):
    pyarrow.parquet.write_table(pyarrow.table(columns), path, row_group_size=2)


def test_each_line_of_a_text_file_is_an_unchanged_document(tmp_path):
    (tmp_path / "a.txt").write_bytes(b"one\r\n\n  \nC:\\new two\nlast without newline")
    assert texts(tmp_path / "a.txt") == ["one", "C:\\new two", "last without newline"]


def test_own_shards_are_restored_as_documents(tmp_path):
    written = ["C:\\new", "two\nlines", "three"]
    writer = Writer(tmp_path, 2)
    for text in written:
        writer.add(text)
    writer.finish("test", {})
    assert texts(tmp_path) == written


@pytest.mark.process
def test_json_lines_are_read_by_their_text(tmp_path):
    rows = [{"text": "one\ntwo", "id": 7}, {"text": ""}, {"text": "\ud83d half a pair"}]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    assert texts(tmp_path / "a.jsonl") == ["one\ntwo", "? half a pair"]
    done = run_step("text", {"out": str(tmp_path / "out"), "spec": {"source": str(tmp_path / "a.jsonl")}}, tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "out" / "shard-00000.txt").read_text() == "one\\ntwo\n? half a pair\n"


def test_parquet_is_read_by_its_text_column(tmp_path):
    parquet(tmp_path / "a.parquet", url=["u"] * 5, text=["one", None, "three", "", "five"])
    assert texts(tmp_path / "a.parquet") == ["one", "three", "five"]


def test_a_folder_and_a_glob_are_read_in_the_order_of_names(tmp_path):
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "2.txt").write_text("second\n")
    (tmp_path / "a.txt").write_text("first\n")
    (tmp_path / "notes.md").write_text("not text for us\n")
    assert texts(tmp_path) == ["first", "second"]
    assert texts(tmp_path / "**" / "*.txt") == ["first", "second"]


@pytest.mark.parametrize(
    ("name", "content", "seen"),
    [
        (
            "a.jsonl",
            b'{"text": "one"}\n{"body": 1}\n',
            "a.jsonl:2: no string under 'text'; available: body; to name the text column: --text-column",
        ),
        ("a.jsonl", b"{oops\n", "a.jsonl:1: not JSON"),
        ("a.parquet", b"PAR1 but not really", "not a whole parquet file"),
        ("a.docx", b"text\n", "cannot read .docx"),
    ],
)
def test_unreadable_file_is_named_with_its_detected_content(tmp_path, name, content, seen):
    (tmp_path / name).write_bytes(content)
    with pytest.raises((ConfigError, InputError), match=seen.replace(".", r"\.")):
        texts(tmp_path / name)


def test_a_parquet_file_without_text_lists_its_columns(tmp_path):
    parquet(tmp_path / "a.parquet", url=["u"], text=[1])
    with pytest.raises(InputError, match="available: url, text"):
        texts(tmp_path / "a.parquet")


@pytest.mark.parametrize(
    ("spec", "seen"),
    [
        ({"source": "pydoc"}, "did you mean 'pydocs'?"),
        ({"source": "/no/such/file.txt"}, "no such file"),
        ({"source": "."}, ""),
        ({"packages": ["no_such_package"]}, "'no_such_package' cannot be imported"),
        ({"source": "fineweb", "packages": ["json"]}, "packages are read with the source pydocs"),
        ({"val_ratio": 1.5}, "val_ratio is 1.5"),
        ({"lines_per_shards": 5}, "did you mean 'lines_per_shard'?"),
        ({"take": "ten"}, "spec.take: Expected"),
    ],
)
def test_invalid_input_gives_one_line_and_exit_2(tmp_path, capsys, spec, seen):
    if spec.get("source") == ".":
        (tmp_path / "empty").mkdir()
        spec, seen = {"source": str(tmp_path / "empty")}, "no .txt, .jsonl, .parquet, .csv, .tsv"
    (tmp_path / "config.json").write_text(json.dumps({"out": str(tmp_path / "out"), "spec": spec}))
    assert main(["text", "--config", str(tmp_path / "config.json")]) == 2
    said = capsys.readouterr().err
    assert seen in said and said.startswith("data text: ") and said.count("\n") == 1


@pytest.mark.process
def test_fineweb_without_a_network_names_the_command_to_use(tmp_path):
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # Bound but not listening: connections are refused.
        hub = f"http://127.0.0.1:{closed.getsockname()[1]}"
        config = {"out": str(tmp_path / "out"), "spec": {"source": "fineweb"}}
        done = run_step("text", config, tmp_path, HF_ENDPOINT=hub, no_proxy="*")
    assert (done.returncode, done.stderr.count("\n")) == (69, 1)
    assert "cannot be reached" in done.stderr and "--source pydocs" in done.stderr
    assert not (tmp_path / "out" / "manifest.json").exists()


@pytest.mark.process
def test_plain_text_column_is_read_without_the_slow_import_of_arrow_functions(tmp_path):
    parquet(tmp_path / "a.parquet", text=["a"])
    code = (
        "import sys; from data.text.batches import documents; "
        "print([one.text for one in documents(sys.argv[1])], 'pyarrow.compute' in sys.modules)"
    )
    words = [sys.executable, "-c", code, str(tmp_path / "a.parquet")]
    assert subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=True).stdout == "['a'] False\n"
