"""`inv shard --report`: the figures of the report, and little memory for many documents."""

import json

import pytest

from data.report.quality import DuplicateCounter, FrequencyCounter, measure
from store import untrusted_input
from tests.data.conftest import run_step

HOSTILE = '<script>alert(1)</script>"><img src=x onerror=alert(2)></pre></style><svg onload=alert(3)>'


@pytest.fixture
def shards(tmp_path):
    """Return a function that makes shards of these rows, and returns the report on the shards."""

    def shards(rows, **spec):
        (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        config = {"out": str(tmp_path / "out"), "spec": {"source": str(tmp_path / "a.jsonl"), **spec}}
        done = run_step("text", config, tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        out = str(tmp_path / "out")
        done = run_step("report", {"out": out, "inputs": {"text": out}}, tmp_path)
        assert (done.returncode, done.stderr) == (0, "")
        return untrusted_input.load(tmp_path / "out" / "report.json")

    return shards


@pytest.mark.process
def test_text_of_the_shards_is_told_as_it_is(shards):
    rows = [{"text": f"{HOSTILE}\n{HOSTILE}", "url": f"https://{HOSTILE}/", "language": HOSTILE}] * 3
    report = shards(rows, format="jsonl", language=HOSTILE)
    assert report["lines"] == [[HOSTILE, 6]] and report["languages"] == [[HOSTILE, 3]]
    assert report["samples"][0]["text"] == f"{HOSTILE}\n{HOSTILE}"


@pytest.mark.process
def test_report_equals_the_content_of_the_shards(shards, tmp_path):
    rows = [{"text": f"document {n}\na line of all", "language_score": 0.9, "language": "en"} for n in range(90)]
    rows += [{"text": "the same again", "language_score": 0.1, "language": "de"}] * 10
    report = shards(rows, format="jsonl", val_ratio=0.2, seed=3)
    found = measure(tmp_path / "out")
    assert (found.documents, found.lengths.total()) == (100, 100)
    assert found.repeated.share == pytest.approx(0.09) == report["duplicates"]["share"]
    assert found.repeated.most_common() == [("the same again", 10)]
    assert found.lines.most_common()[:2] == [("a line of all", 90), ("the same again", 10)]
    assert found.languages == {"en": 90, "de": 10}
    assert found.scores["language_score"] == {45: 90, 5: 10}
    assert found.length_at(0.5) == pytest.approx(len("document 10\na line of all"), rel=0.03)
    assert {part["total_lines"] for part in found.manifests.values()} != {0}
    assert (report["documents"], report["shards_read"]) == (100, report["shards"])
    assert sum(count for _, _, count in report["lengths"]) == 100
    score = report["scores"]["language_score"]
    assert (score["known"], score["counts"][45], len(score["counts"])) == (100, 90, 50)
    parts = {one["name"]: one for one in report["parts"]}
    assert parts.keys() == {"train", "val"} and parts["val"]["shards"][0]["name"] == "shard-00000.jsonl"


@pytest.mark.process
def test_shards_without_columns_have_no_scores(shards):
    assert shards([{"text": "one\ntwo"}, {"text": "three"}])["scores"] == {}


@pytest.mark.process
def test_folder_without_shards_is_one_line(tmp_path):
    done = run_step("report", {"out": str(tmp_path), "inputs": {"text": str(tmp_path)}}, tmp_path)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1) and "no manifest.json" in done.stderr


def test_frequent_items_are_found_in_little_memory():
    frequent = FrequencyCounter(100)
    for n in range(5000):
        frequent.add([f"rare {n}", "often"] + ["now and then"] * (n % 5 == 0))
    (first, count), (second, _) = frequent.most_common()[:2]
    assert (first, second) == ("often", "now and then")
    assert 5000 <= count <= 5000 + frequent.lost
    assert len(frequent.counts) <= 100


def test_share_of_duplicates_is_estimated_from_a_part_of_the_hashes():
    repeated, step = DuplicateCounter(1000), 0x9E3779B97F4A7C15
    for n in range(40_000):
        repeated.add((n % 30_000) * step % 2**64, f"document {n % 30_000}")
    assert repeated.shift >= 4 and len(repeated.counts) <= 1000
    assert repeated.share == pytest.approx(0.25, abs=0.05)
    assert all(count == 2 for _, count in repeated.most_common())
