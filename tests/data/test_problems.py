"""Problem files of users: every format and every mark of other programs is read as `datasets` reads it, or reported."""

import csv
import io
import json

import pyarrow
import pyarrow.parquet
import pytest

from data.config import ProblemsSpec
from data.errors import InputError
from data.problems.make import make
from data.problems.problem import read
from data.problems.published import of_file, problems

ROW = {"question": "one\u2028two\x85three", "answer": "3"}
NULLS = {**ROW, "system": None, "setup": None, "tests": None}


def lines(*rows, end="\n"):
    return "".join(json.dumps(row, ensure_ascii=False) + end for row in rows).encode()


def csv_table(*rows, end="\n"):
    out = io.StringIO()
    writer = csv.DictWriter(out, ["question", "answer"], lineterminator=end)
    writer.writeheader()
    writer.writerows(rows)
    return out.getvalue().encode()


def found(path):
    """Return the different problems of a user's file."""
    return {(one.question, one.answer) for part in of_file(ProblemsSpec(task="file", source=str(path))) for one in part}


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("a.jsonl", b"\xef\xbb\xbf" + lines(*[ROW] * 20)),
        ("a.jsonl", lines(*[ROW] * 20, end="\r\n")),
        ("a.jsonl", lines(*[NULLS] * 10) + b"\n \r\n" + b"\xef\xbb\xbf" + lines(*[{**ROW, "answer": 3}] * 10)),
        ("a.csv", b"\xef\xbb\xbf" + csv_table(*[ROW] * 20)),
        ("a.csv", csv_table(*[ROW] * 20, end="\r")),
    ],
)
def test_marks_and_line_ends_of_a_problem_file_are_no_text(tmp_path, name, raw):
    (tmp_path / name).write_bytes(raw)
    assert found(tmp_path / name) == {(ROW["question"], "3")}


def test_null_columns_of_a_parquet_file_are_absent(tmp_path):
    columns = {"question": ["q"] * 20, "answer": [7] * 20, "system": [None] * 20, "tests": pyarrow.array([None] * 20)}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "a.parquet")
    assert found(tmp_path / "a.parquet") == {("q", "7")}


@pytest.mark.parametrize(
    ("name", "raw", "why"),
    [
        (
            "a.csv",
            csv_table(*[ROW] * 20, {"question": "sodium?", "answer": "NA"}),
            "row 21: answer is missing or null .*NA",
        ),
        ("a.jsonl", lines(*[ROW] * 20, {"question": None, "answer": "a"}), "row 21: question is missing or null"),
        ("a.jsonl", lines(*[ROW] * 20, {"question": "q", "answer": float("nan")}), "row 21: answer is missing or null"),
        ("a.jsonl", lines(*[ROW] * 20, {"answer": "a"}), "row 21: question is missing .*there is: answer"),
        ("a.jsonl", lines(*[ROW] * 20, {"question": "q", "answer": True}), "row 21: answer is True, expected text"),
        ("a.jsonl", lines(*[ROW] * 20, {"question": "q", "answer": " "}), "row 21: answer is blank"),
        ("a.jsonl", lines(*[ROW] * 20, ["q", "a"]), "row 21: a problem must be an object .*got list"),
        ("a.jsonl", lines(*[ROW] * 20, end="\r"), "jsonl:1: not JSON.*carriage return"),
        ("a.jsonl", b"", "0 problems; at least 20"),
    ],
)
def test_unusable_problem_is_refused_with_its_number_and_the_reason(tmp_path, name, raw, why):
    (tmp_path / name).write_bytes(raw)
    with pytest.raises(InputError, match=why):
        found(tmp_path / name)


def test_null_answers_of_published_files_are_refused_by_name(tmp_path):
    for part in ("train", "test"):
        (tmp_path / f"{part}.jsonl").write_bytes(lines({"question": "q", "answer": None}))
    with pytest.raises(InputError, match="answer is missing or null.*there is: question, answer"):
        problems(ProblemsSpec(task="gsm8k", source=str(tmp_path)))


def test_removed_marks_of_a_calculator_are_counted_and_told(tmp_path, monkeypatch):
    answer = "48/2 = <<48/2=24>>24, so <<24+1=25>>25.\n#### 25"
    for part, count in (("train", 8), ("test", 2)):
        (tmp_path / f"{part}.jsonl").write_bytes(lines(*[{"question": "q", "answer": answer}] * count))
    monkeypatch.setenv("SLIPWAY_RECORDS", str(tmp_path / "records"))
    (tmp_path / "out").mkdir()
    about = make(ProblemsSpec(task="gsm8k", source=str(tmp_path)), tmp_path / "out")
    assert (about["train"], about["demonstrations"], about["removed_marks"]) == (6, 6, 12)
    assert "<<" not in (tmp_path / "out" / "demonstrations.jsonl").read_text()
    assert "gsm8k: 12 marks of a calculator" in (tmp_path / "records").read_text()


def test_solutions_without_a_box_are_counted_and_told(tmp_path, monkeypatch):
    answers = [r"so $\boxed{5}$", r"so \fbox{5}", r"so $\boxed 5$", r"so $\boxed {5}$", "so 5", r"a \boxedtext"]
    for part in ("train", "test"):
        (tmp_path / f"{part}.jsonl").write_bytes(lines(*({"problem": "q", "solution": one} for one in answers)))
    monkeypatch.setenv("SLIPWAY_RECORDS", str(tmp_path / "records"))
    (tmp_path / "out").mkdir()
    assert make(ProblemsSpec(task="math", source=str(tmp_path)), tmp_path / "out")["without_box"] == 4
    assert "math: 4 solutions have no" in (tmp_path / "records").read_text()


def test_problems_of_a_step_with_marks_equal_the_rows(tmp_path):
    (tmp_path / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + lines(ROW, NULLS, end="\r\n"))
    assert [(one.question, one.answer) for one in read(tmp_path / "a.jsonl")] == [(ROW["question"], "3")] * 2
