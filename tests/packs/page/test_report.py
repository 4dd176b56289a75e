"""`inv report`: what the page of runs, artifacts and folders holds, and that no text of theirs becomes markup."""

import json
import math
import os
import re

import pytest

from data.__main__ import main
from infra.agent.job import Job
from infra.errors import UsageError
from infra.ledger.journal import Journal
from infra.settings import Settings
from packs.page.commands import report
from packs.page.views import export, run_sources
from packs.page.views.figures import FigureTable
from packs.page.views.page_context import PageContext
from packs.page.views.phase_facts import facts_of
from packs.page.views.run_sources import MOST_MOMENTS, MOST_POINTS, _curve, folders, name_of, spread
from packs.page.views.sections import artifacts
from packs.page.views.sections.ask import View
from tests.packs.page.shard_reports import changed

HOSTILE = "</script><script>alert(1)</script><b>"
COUNTS = {"conversations": 4, "without_targets": 1, "answers": 12, "cut_answers": 3}
LINES = [
    {"step": step, "loss": 1 + 7 / step, "grad_norm": 1.0, "tokens": step * 1_000_003, "learnt_tokens": step * 500_001,
     "tokens_per_s": 100.0, "mfu": 0.4, "data_wait_s": 0.63, "step_s": 63.0 / 100}
    for step in range(1, 101)
]  # fmt: skip
SAMPLES = [{"step": step, "prompt": "Who?", "text": f"{HOSTILE} {step}"} for step in range(4, 101, 4)]


@pytest.fixture
def context(tmp_path):
    """A context of an installation without runs."""
    environ = {
        "SLIPWAY_STATE_FILE": str(tmp_path / "state" / "journal.db"),
        "SLIPWAY_STORE": str(tmp_path / "artifacts"),
        "SLIPWAY_PODS": str(tmp_path / "pods"),
        "HOME": str(tmp_path),
    }
    return PageContext(Settings.load(tmp_path, environ=environ), say=lambda words: None)


def trained(folder, lines=LINES, config=None):
    """Write what a training of a phase leaves; return the folder as a typed word."""
    at = folder / "step-00000100"
    at.mkdir(parents=True)
    (at / "MANIFEST.json").write_text(
        json.dumps({"phase": "sft", "config": {"steps": 200, "seed": 1, **(config or {})}})
    )
    (folder / "metrics.jsonl").write_text("".join(json.dumps(one) + "\n" for one in lines))
    (folder / "samples.jsonl").write_text("".join(json.dumps(one) + "\n" for one in SAMPLES))
    (folder / "ARTIFACT.json").write_text(json.dumps({"about": {"bits_per_byte": 1.5, "gzip": 2.5, "params": HOSTILE}}))
    return str(folder)


def named(context, *words):
    with Journal.open(context.settings.state_file) as journal:
        return [name_of(context, one, journal) for one in words]


def test_a_page_of_a_folder_has_curves_facts_and_samples_and_no_markup_of_theirs(context, tmp_path):
    (run,) = named(context, trained(tmp_path / "some, folder", [{**LINES[0], "conversations": COUNTS}, *LINES[1:]]))
    assert run == str(tmp_path / "some  folder")
    assert export.about_runs(context, [run]) == {"run": run, "phases": [{"name": "sft", "state": None, "steps": 100}]}
    page = export.write(tmp_path / "page" / "report.html", export.of_runs(context, [run])).read_text()
    assert HOSTILE not in page and page.count("<script") == 3
    kept = json.loads(page.partition('id="kept">')[2].partition("</script>")[0])
    assert kept["about"]["start"].startswith("curves?runs=") and not [one for one in kept if one.startswith("logs")]
    shown = kept[f"curves {run} sft step"]
    figures = shown[f"run {run}"]["figures"]
    assert figures["loss"]["x"][-1] == 100 and figures["loss"]["mean"][-1] == pytest.approx(1.07)
    assert kept[f"curves {run} sft tokens"]["x"]["loss"][-1] == 100_000_300
    assert dict(shown[f"run {run}"]["facts"]) == {
        "steps": "100 of 200",
        "last loss": "1.0700 nats per token",
        "tokens": "100,000,300, without padding",
        "tokens in the loss": "50,000,100 (50.00 %)",
        "conversations refused by the chat template, left out": "0 of 4 (0.0 %)",
        "conversations without any answer to train, left out": "1 of 4 (25.0 %)",
        "answers cut at the end of the row": "3 of 12 (25.0 %)",
        "time in steps": "1 min 03 s",
        "waited for data": "100.00 % of the time in steps",
        "held-out text": "1.5000 bits per byte (gzip 2.500)",
    }
    assert shown["samples"][-1] == SAMPLES[-1] and shown["about"]["config"] == [["steps", "200"], ["seed", "1"]]


def test_runs_side_by_side_tell_what_differs_and_who_has_no_figures(context, tmp_path):
    folders = [trained(tmp_path / "a"), trained(tmp_path / "b", [], {"seed": 2})]
    said = []
    context.say = said.append
    runs = named(context, *folders)
    about = export.about_runs(context, runs)
    assert about["differences"] == {"sft": [{"name": "seed", "values": dict(zip(runs, (1, 2), strict=True))}]}
    assert said == [f"{runs[1]} has written no metrics yet, so the page has no curves"]
    assert {f"curves {one} sft step" for one in runs} <= export.of_runs(context, runs).keys()


def test_words_that_name_nothing_are_told(context, tmp_path):
    (tmp_path / "empty").mkdir()
    for word, told in ((f"{tmp_path}/empty", "holds no metrics.jsonl"), ("nobody/here", "nobody/here")):
        with pytest.raises(UsageError, match=told):
            named(context, word)


def test_a_report_on_shards_is_a_page_of_its_own(tmp_path):
    (tmp_path / "report.json").write_text(json.dumps(changed(HOSTILE, "source")))
    assert export.shards_of([str(tmp_path)]) == tmp_path and export.shards_of([str(tmp_path)] * 2) is None
    page = export.write(tmp_path / "page.html", export.of_shards(tmp_path)).read_text()
    assert HOSTILE not in page and f'"data_report {tmp_path.name}":' in page
    (tmp_path / "metrics.jsonl").touch()
    assert export.shards_of([str(tmp_path)]) is None, "a folder with metrics is a training"


def test_report_of_the_data_steps_is_read(tmp_path, monkeypatch):
    rows = [
        {"text": f"line of all\n{n}", "language": "en", "language_score": 0.5, "url": "http://a/b"} for n in range(9)
    ]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    out = str(tmp_path / "out")
    spec = {"source": str(tmp_path / "a.jsonl"), "format": "jsonl", "val_ratio": 0.3, "workers": 1}
    for step, config in (("text", {"out": out, "spec": spec}), ("report", {"out": out, "inputs": {"text": out}})):
        (tmp_path / "config.json").write_text(json.dumps(config))
        assert main([step, "--config", str(tmp_path / "config.json")]) == 0
    found = artifacts.read_report(tmp_path / "out" / "report.json")
    assert (found["documents"], found["lines"][0], len(found["parts"])) == (9, ("line of all", 9), 2)


def test_folder_of_a_page_has_a_short_name_inside_of_the_reports(tmp_path, monkeypatch):
    assert report.page_name(["calm-1", "base_checkpoints/smoke"]) == "calm-1-and-base_checkpoints-smoke"
    assert re.fullmatch("a{150}-and-2-more-[0-9a-f]{8}", report.page_name(["a" * 250, "b", "c"]))
    assert re.fullmatch("é{75}-[0-9a-f]{8}", report.page_name(["é" * 200]))
    long = "a" * 200
    many = (
        [f"{long}{'b' * 60}"],
        [f"{long}{'c' * 60}"],
        [long, "b" * 60],
        [long, "c" * 60],
        [long, "b" * 30, "b" * 29],
    )
    assert len({report.page_name(names) for names in many}) == len(many)
    assert all(len(os.fsencode(report.page_name(names))) <= 255 for names in many)
    assert report.page_name(["/"]) == "root"
    (tmp_path / "some" / "deep").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "some" / "deep")
    words = (".", "..", "../..", "./split", "split/")
    assert [run_sources.folder_name(one) for one in words] == [
        *(str(one) for one in (tmp_path / "some" / "deep", tmp_path / "some", tmp_path)),
        "split",
        "split",
    ]


def test_folder_of_the_shell_is_shown_by_its_name(context, tmp_path, monkeypatch):
    trained(tmp_path / "few")
    (tmp_path / "few" / "step-00000100" / "MANIFEST.json").unlink()
    monkeypatch.chdir(tmp_path / "few")
    (run,) = named(context, ".")
    assert run == str(tmp_path / "few") and list(context.sources[run].phases) == ["few"]


def test_command_writes_one_page_for_two_words_of_one_run(context, tmp_path, monkeypatch):
    with context.journal() as journal:
        journal.plan(token="token", run="calm-1", vendor="local", job=Job("calm-1", "token", ()).to_json())
    written = []
    monkeypatch.setattr(report.context, "settings", lambda: context.settings)
    monkeypatch.setattr(report.export, "of_runs", lambda seen, names: written.append(names) or {})
    monkeypatch.setenv("HOME", str(tmp_path))
    report.report.work(report.ReportFlags(run=("calm", "calm-1"), out="~/page"))
    assert written == [["calm-1"]] and (tmp_path / "page" / "report.html").is_file()


def test_page_that_cannot_be_written_is_told(tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "page" / "report.html").mkdir(parents=True)
    for folder in ("file", "file/below", "page", "a" * 300):
        with pytest.raises(UsageError, match="give a different folder: inv report --out FOLDER"):
            export.write(tmp_path / folder / "report.html", {})


def test_pipes_and_folders_in_place_of_metrics_are_not_read(context, tmp_path):
    trained(tmp_path / "runs" / "base")
    for name in ("pipe", "folder"):
        (tmp_path / "runs" / name).mkdir()
    os.mkfifo(tmp_path / "runs" / "pipe" / "metrics.jsonl")
    (tmp_path / "runs" / "folder" / "metrics.jsonl").mkdir()
    assert list(folders(tmp_path)) == ["base"]
    for file in (tmp_path / "runs" / "pipe" / "metrics.jsonl", tmp_path / "runs", tmp_path / "none"):
        assert run_sources._of_file(file, 0) == b""


@pytest.mark.parametrize("manifest", ['{"config": 1}', '{"config": null}', "{", "[]"])
def test_unusable_recipe_leaves_the_curves(context, tmp_path, manifest):
    folder = trained(tmp_path / "a")
    (tmp_path / "a" / "step-00000100" / "MANIFEST.json").write_text(manifest)
    (run,) = named(context, folder)
    assert context.sources[run].phases == {"a": {}}
    assert export.about_runs(context, [run])["phases"] == [{"name": "a", "state": None, "steps": 100}]


def test_error_of_curves_is_on_the_page_and_told(context, tmp_path, monkeypatch):
    (run,) = named(context, trained(tmp_path / "a"))
    said, curves = [], export.VIEWS["curves"].render
    context.say = said.append

    def broken(context, asked):
        if asked.word("by") in broken_by:
            raise UsageError("the store is away")
        return curves(context, asked)

    monkeypatch.setitem(export.VIEWS, "curves", View(broken))
    broken_by = ("time",)
    shown = export.of_runs(context, [run])
    assert shown[f"curves {run} sft time"] == {"error": "the store is away"}
    assert shown[f"curves {run} sft tokens"]["x"]["loss"] and said == [f"{run}, sft: the store is away"]
    broken_by = ("", "time")
    assert export.of_runs(context, [run])[f"curves {run}"] == {"phases": (), "error": "the store is away"}
    assert said[1:] == [f"{run}: the store is away"]


def test_facts_of_rl_name_the_reward_and_damaged_counts_are_left_out():
    table = FigureTable()
    line = {"step": 1, "loss": 0.1, "reward": 0.6, "tokens": 9, "step_s": 2.0, "data_wait_s": 1.0}
    table.add(json.dumps({**line, "conversations": {"answers": "many"}}).encode() + b"\n")
    assert facts_of(table, {"steps": "all"}, {"bits_per_byte": "few"}) == [
        ("steps", "1"),
        ("last reward", "0.6000"),
        ("tokens", "9, without padding"),
        ("time in steps", "2.0 s"),
        ("waited for answers", "50.00 % of the time in steps"),
    ]
    assert facts_of(FigureTable(), {}, {}) == []


def test_facts_of_preferences_name_margin_and_accuracy():
    table = FigureTable()
    table.add(json.dumps({"step": 1, "loss": 0.5, "margin": 0.25, "accuracy": 0.75, "tokens": 9}).encode() + b"\n")
    assert facts_of(table, {}, {})[1] == ("last loss", "0.5000, margin 0.2500, accuracy 0.75")


def test_moments_and_points_are_spread_and_the_last_is_among_them():
    for count in (0, 1, 12, 13, 25, 1000):
        steps = [one["step"] for one in spread([{"step": step} for step in range(count)])]
        assert len(steps) <= MOST_MOMENTS and steps[-1:] == [count - 1][: bool(count)]
    curve = _curve([(float(at), float(at)) for at in range(100_000)])
    assert len(curve["x"]) <= MOST_POINTS and curve["x"][-1] == 99_999
    assert math.isclose(sum(curve["mean"]) / len(curve["mean"]), 49_999.5, rel_tol=1e-3)
