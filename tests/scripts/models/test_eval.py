"""Two models compared by their recorded measurements, and an external harness on request."""

import math
import os

import pytest

from infra.errors import SlipwayError, UsageError
from scripts.models import eval, lm_eval, scores_text
from trainer.evaluation import intervals


def text(nats, sizes, rows_of="words, 256 tokens", material="m"):
    found = intervals.ratio(nats, sizes, 1 / math.log(2))
    return {
        **found.to_dict(),
        "unit": "bits per byte",
        "method": "r",
        "material": material,
        "rows_of": rows_of,
        "rows": {"nats": nats, "bytes": sizes},
    }


def share(rows, material="m", **more):
    found = intervals.share(sum(rows), len(rows))
    return {**found.to_dict(), "unit": "share", "method": "w", "material": material, "rows": rows, **more}


SIZES = [float(100 + at % 7) for at in range(50)]
COSTS = [size * (1 + at % 5 / 5) for at, size in enumerate(SIZES)]


def test_equal_rows_are_compared_pairwise_and_others_separately():
    better = [cost * 0.99 for cost in COSTS]
    paired = eval.compare({"text": text(COSTS, SIZES)}, {"text": text(better, SIZES)})["text"]
    assert paired["difference"]["value"] == pytest.approx(-0.01 * sum(COSTS) / sum(SIZES) / math.log(2))
    assert paired["difference"]["high"] < 0 and "each row" in paired["method"]
    other = eval.compare({"text": text(COSTS, SIZES)}, {"text": text(better, SIZES, rows_of="other words")})["text"]
    assert other["difference"]["value"] == pytest.approx(paired["difference"]["value"])
    assert other["difference"]["low"] < 0 < other["difference"]["high"]  # The difference is no longer significant.
    assert other["is_same_material"]


def test_equal_questions_are_compared_pairwise_unless_asked_differently():
    ours, theirs = [0] * 10 + [1] * 30, [1] * 40
    found = eval.compare({"task t": share(ours)}, {"task t": share(theirs)})["task t"]
    assert found["p"] == pytest.approx(2 / 2**10) and found["difference"]["low"] > 0
    for other in (share(theirs, "n"), share(theirs, as_text=True)):
        apart = eval.compare({"task t": share(ours, as_text=False)}, {"task t": other})["task t"]
        assert "Newcombe" in apart["method"] and "p" not in apart
    assert not eval.compare({"task t": share(ours)}, {"task t": share(theirs, "n")})["task t"]["is_same_material"]
    assert eval.compare({"a": share(ours)}, {"b": share(ours)}) == {}


def test_comparison_marks_differences_that_may_be_chance(capsys):
    found = {"task t": share([0, 1, 1, 0]), "text": text(COSTS, SIZES), "leaks": share([1, 0])}
    others = {
        "task t": share([1, 1, 1, 0]),
        "text": text([cost * 1.5 for cost in COSTS], SIZES),
        "leaks": share([1], "n"),
    }
    scores_text.show_comparison(["x/a", "x/b"], eval.compare(found, others))
    out, err = capsys.readouterr()
    lines = {line.split()[0]: " ".join(line.split()) for line in out.splitlines()}
    assert "50.0 % 75.0 % +25.0 %" in " ".join(out.split()) and "may be chance; p 1.000" in " ".join(out.split())
    assert lines["A:"] == "A: x/a" and "text, bits per" in out
    assert "not the same questions" in " ".join(out.split())
    assert "McNemar" in err and "ratio estimator" in err


def test_leaks_and_right_answers_are_shown_by_turn(capsys):
    turns = {
        f"{what} turn {turn}": share([turn > 2, 1, 1, 1]) | {"of": 4}
        for turn in (1, 2, 3)
        for what in ("right", "leaks")
    }
    scores_text.show_scores("x/a", {"measures": {"leaks": share([0, 1]) | {"of": 2}, **turns}})
    lines = [" ".join(line.split()) for line in capsys.readouterr().out.splitlines()]
    assert [line.split()[:2] for line in lines if line[:1].isdigit()] == [["1", "75.0"], ["2", "75.0"], ["3", "100.0"]]
    (third,) = (line for line in lines if line.startswith("3 "))
    assert third.count("100.0 %") == 4 and third.endswith("100.0 %]")
    assert not any(line.startswith("leaks turn") for line in lines) and "at most 5 %" in " ".join(lines)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ({"lm_eval": "arc_easy", "core": "d"}, "--core has no effect with --lm-eval"),
        ({"lm_eval": "arc_easy", "task": ("a.jsonl",)}, "--task has no effect with --lm-eval"),
        ({"lm_eval": "arc_easy", "shots": 5}, "--shots has no effect with --lm-eval"),
        ({"lm_eval": "arc_easy", "models": ("base", "sft")}, "--lm-eval takes one model, not 2"),
        ({"compare": True, "core": "d"}, "--core has no effect with --compare"),
        ({"compare": True, "lm_eval": "arc_easy"}, "--lm-eval has no effect with --compare"),
        ({"compare": True, "as_text": True}, "--as-text has no effect with --compare"),
        ({"core_most": 50}, "--core-most has no effect without --core FOLDER"),
        ({"shots": 5, "core": "d"}, "--shots has no effect without --task FILE"),
        ({"shots": 5, "task": ("gsm8k",)}, "--shots has no effect without --task FILE"),
        ({"as_text": True}, "--as-text has no effect without --task FILE"),
        ({"lm_eval": "arc_easy", "endpoint": "u", "as_text": True, "models": ("base",)}, ""),
        ({"compare": True, "models": ("a", "b"), "tag": "x", "json": True}, ""),
        ({"core": "d", "core_most": 50, "task": ("a.jsonl", "gsm8k"), "shots": 5, "as_text": True}, ""),
    ],
)
def test_flags_without_effect_are_refused(flags, said):
    spec = eval.EvalFlags(**flags)
    if not said:
        eval.check_flags(spec)
        return
    with pytest.raises(UsageError, match=f"^{said}"):
        eval.check_flags(spec)


HARNESS = """#!/usr/bin/env python3
import json, pathlib, sys
words = dict(zip(sys.argv[1::2], sys.argv[2::2]))
print(json.dumps(words), file=sys.stderr)
if "broken" in words["--tasks"]:
    sys.exit(3)
folder = pathlib.Path(words["--output_path"], "model")
folder.mkdir()
(folder / "results_2026-01-01T00-00-00.json").write_text(json.dumps({
    "results": {"arc_easy": {"alias": "arc_easy", "acc,none": 0.25, "acc_stderr,none": 0.02,
                             "acc_norm,none": 0.5, "acc_norm_stderr,none": 0.1},
                "gsm8k": {"exact_match,strict-match": 0.0, "exact_match_stderr,strict-match": "N/A"}},
    "versions": {"arc_easy": 1.0}, "n-samples": {"arc_easy": {"original": 2376, "effective": 100}}}))
"""  # The words and the file of lm-eval 0.4.


@pytest.mark.process
def test_harness_gets_its_known_arguments_and_its_results_become_measures(tmp_path, monkeypatch, capfd):
    program = tmp_path / "lm_eval"
    program.write_text(HARNESS)
    program.chmod(0o755)
    monkeypatch.setenv("LM_EVAL", str(program))
    (tmp_path / "model" / "hf").mkdir(parents=True)
    asked = {"endpoint": "http://127.0.0.1:8000/v1/", "served_name": ""}
    found = lm_eval.measure(tmp_path / "model", "chatsft_checkpoints/x", lm_eval="arc_easy,gsm8k", **asked)
    arc = found["lm-eval arc_easy"]
    assert (arc["value"], round(arc["low"], 3), arc["of"]) == (0.5, 0.304, 100)
    assert found["lm-eval gsm8k"]["low"] is None
    assert found["lm-eval arc_easy acc"]["value"] == 0.25
    said = capfd.readouterr().err
    assert "base_url=http://127.0.0.1:8000/v1/completions" in said and f"tokenizer={tmp_path / 'model' / 'hf'}" in said
    with pytest.raises(SlipwayError, match="failed with exit code 3"):
        lm_eval.measure(tmp_path / "model", "x", lm_eval="broken", **asked)


def test_missing_requirements_of_the_harness_are_named(tmp_path, monkeypatch):
    monkeypatch.delenv("LM_EVAL", raising=False)
    monkeypatch.setenv("PATH", os.defpath)
    with pytest.raises(UsageError, match="--lm-eval TASKS needs --endpoint URL"):
        lm_eval.measure(tmp_path, "x", lm_eval="", endpoint="http://127.0.0.1:8000", served_name="")
    with pytest.raises(UsageError, match="lm_eval was not found; install the harness"):
        lm_eval.measure(tmp_path, "x", lm_eval="arc_easy", endpoint="http://127.0.0.1:8000", served_name="")
