"""Records rendered as text, with any content from a pod."""

import io
import re
from dataclasses import replace

from rich.console import Console

from infra.records import Plan, PlannedArtifact, PodView, Request
from scripts.cli import plan_text, render, steps_text
from scripts.runs import status_table

HOSTILE = "[/red] \x1b[31m\u202eevil [bold]"
STEP = {"name": "base", "state": "running", "started_at": 1.0, "record": {"kind": "note", "text": HOSTILE}}
VIEW = PodView("brave-otter-3", "local", "failed", step="base", progress={"steps": [STEP]}, note=HOSTILE)


def shown(what, width: int = 80) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


def test_pod_text_neither_controls_the_terminal_nor_becomes_markup():
    running = replace(VIEW, state="running")
    for text in (
        shown(status_table.watch_screen([running, VIEW], 2.0)),
        shown(steps_text.steps_table({"steps": [STEP]}, 2.0)),
    ):
        assert "[/red] [31mevil [bold]" in text and "\x1b" not in text and "\u202e" not in text


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_text_table_drops_columns_on_a_narrow_terminal_and_wraps_the_rest_at_spaces(monkeypatch):
    rows = [("#", "provider", "type", "price"), ("1", "runpod/SECURE", "NVIDIA A100-SXM4-80GB", "1.39 with the disk")]
    program = render.columns(rows, (2, 1), io.StringIO())
    assert program.splitlines()[1] == "1  runpod/SECURE  NVIDIA A100-SXM4-80GB  1.39 with the disk"
    for width, heads in ((59, rows[0]), (58, ("#", "provider", "price")), (30, ("#", "price"))):
        monkeypatch.setenv("COLUMNS", str(width))
        first, *others = render.columns(rows, (2, 1), Terminal()).splitlines()
        assert (tuple(first.split()), len(others)) == (heads, 1) and len(others[0]) <= width
    monkeypatch.setenv("COLUMNS", "16")
    assert render.columns(rows, (2, 1), Terminal()).splitlines()[1:] == ["1  1.39 with the", "   disk"]


def test_report_of_a_step_is_whole_on_a_narrow_terminal_which_shows_no_bar(monkeypatch):
    record = {"done": 245_760, "total": 491_520, "unit": "tokens", "loss": 8.3, "tokens_per_s": 310.0, "eta_s": 1561.0}
    running = {"name": "environment", "state": "running", "started_at": 900.0, "record": record}
    for width, bar in ((60, 0), (80, 6), (120, 12)):
        monkeypatch.setenv("COLUMNS", str(width))
        text = shown(steps_text.steps_table({"steps": [running]}, 1000.0), width)
        assert text.count("━") == bar and text.count("\n") <= 3, text
        assert " ".join(text.replace("━", "").split()).endswith(
            "50 % of 491,520 tokens, loss 8.300, 310 tok/s, 26 min 01 s left"
        ), text


def test_notes_of_a_run_wrap_between_words_on_a_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    monkeypatch.setattr("sys.stdout", screen := Terminal())
    view = replace(VIEW, note="the vendor has taken the machine away, and the run waits for another one")
    render.console(stderr=False).print(status_table.status_table([view]), soft_wrap=True)
    lines = [re.sub("\x1b\\[[0-9;]*m", "", line) for line in screen.getvalue().splitlines()]
    assert lines[-3:] == [
        "brave-otter-3: the vendor has taken the",
        "machine away, and the run waits for",
        "another one",
    ]


def test_names_and_states_are_complete_on_any_terminal_and_rows_are_lines_for_a_program(capsys):
    view = replace(VIEW, run="somebody-s-longest-name-of-a-run-12", state="succeeded", spent_micro_usd=10**9)
    at_work = replace(view, state="running", progress={"steps": [STEP]})
    for width in (60, 80, 120):
        text = shown(status_table.status_table([view, at_work]), width)
        assert text.count(f"\n{view.run}  ") >= 2 and " succeeded" in text and "…" not in text, width
    assert "provider" in text  # The terminal is wide enough for every column.
    render.console(stderr=False).print(status_table.status_table([view]), soft_wrap=True)
    assert len(capsys.readouterr().out.splitlines()[1].split()) >= 5


def test_reused_step_took_no_time_of_this_run():
    reused = {**STEP, "state": "reused", "started_at": None, "ended_at": 9.0, "record": None, "result": None}
    assert steps_text.step_line(reused, 9.0).endswith("= base 0.0 s")


def test_reason_in_a_plan_is_no_markup(capsys):
    artifact = PlannedArtifact("tokenizer", "damaged", "tokenizer", HOSTILE)
    plan_text.show_plan(Plan("t", "store", (artifact,), None, Request(run="r")), stderr=False)
    assert "[/red] [31mevil" in capsys.readouterr().out


def test_reason_for_the_end_of_a_run_has_a_separate_line():
    view = replace(VIEW, note="step tokenizer failed with exit code 2")
    assert "brave-otter-3: step tokenizer failed with exit code 2\n" in shown(status_table.status_table([view]))


def test_training_step_is_a_number_or_unknown():
    said = {"kind": "result", "step": "text"}, {"kind": "progress", "step": 7}
    views = [replace(VIEW, progress={"steps": [{**STEP, "record": one}]}) for one in said]
    assert [status_table.view_json(view)["train_step"] for view in views] == [None, 7]


def test_values_are_aligned_and_each_group_shows_its_age():
    machine = {
        "gpus": [{"name": "H100", "percent": 93, "used_bytes": 31_200_000_000, "memory_bytes": None}],
        "gpus_at": 990.0,
        "disk_free_bytes": 512_000_000_000,
        "disk_at": 980.0,
    }
    record = {"kind": "progress", "step": 1200, "loss": 4.9561, "tokens_per_s": 4496.2, "eta_s": 75, "at": 970.0}
    step = {"name": "base", "state": "running", "record": record, "started_at": 900.0, "ended_at": None}
    progress = {"steps": [step], "machine": machine}
    view = PodView(run="a-1", provider="ssh", state="running", step="base", progress=progress, age_s=1.0)
    seen = status_table.figures(view, 1000.0)
    assert (seen["train_step"], seen["train_age_s"], seen["gpus_age_s"], seen["disk_age_s"]) == (1200, 30, 10, 20)
    words = " ".join(shown(status_table.status_table([view], 1000.0), 120).split())
    assert "at work at loss tok/s phase left age a-1" in words and "machine GPU memory age disk free age a-1" in words
    assert "a-1 1,200 4.956 4,496 1 min 15 s 30 s" in words and "a-1 93 % 31.2 GB of ? 10 s 512.0 GB 20 s" in words
    assert "GPU" not in shown(
        status_table.figures_tables([replace(view, progress={**progress, "machine": {}})], 1000.0)
    )
    assert {"gpus", "gpus_age_s", "disk_free_bytes", "disk_age_s", "train_age_s"} <= status_table.view_json(view).keys()


def test_shard_step_shows_its_speed_and_left_out_lines():
    record = {
        "kind": "progress",
        "done": 1,
        "total": None,
        "share": 0.256,
        "shards": 1,
        "documents_per_s": 12345,
        "mb_per_s": 67.89,
        "eta_s": 75,
    }
    step = {"name": "shard", "state": "running", "record": record, "started_at": 1.0, "ended_at": None}
    words = "about 26 %, 1 document, 1 whole shard, 12,345 documents/s, 67.9 MB/s, 1 min 15 s left"
    assert (
        steps_text.record_words(step) == words
        and steps_text.record_words(step, brief=True) == "about 26 %, 1 min 15 s left"
    )
    some = {**record, "done": 500, "total": 2000, "unit": "documents"}
    assert steps_text.record_words({**step, "record": some}).startswith(
        "25 % of 2,000 documents, 1 whole shard, 12,345"
    )
    counts = {"read": 9, "empty": 0, "invalid_utf8": 3, "duplicate": 2}
    result = {"documents": 7, "shards": 2, "held_out": 1, "counts": counts}
    assert steps_text.record_words({**step, "record": {"kind": "result", **result}}) == ""  # Before the exit.
    assert steps_text.record_words({**step, "state": "done", "result": result}) == (
        "7 documents in 2 shards, 1 held out, 2 duplicates left out, "
        "3 documents with bytes that are not UTF-8, replaced"
    )


def test_rl_step_shows_reward_engine_mismatch_and_accuracy():
    record = {
        "kind": "progress",
        "done": 32,
        "total": 128,
        "unit": "steps",
        "loss": 0.01,
        "reward": 0.5,
        "mismatch": 0.0047,
        "greedy": 0.7,
        "tokens_per_s": 4000,
        "eta_s": 75,
    }
    step = {"name": "rl", "state": "running", "record": record, "result": {"greedy": 0.96875, "problems": 1024}}
    assert steps_text.record_words(step) == (
        "25 % of 128 steps, reward 0.500, mismatch 4.7e-03, 4,000 tok/s, 1 min 15 s left"
    )
    assert steps_text.record_words({**step, "state": "done"}) == "96.9 % of 1,024 problems solved"


def test_step_of_preferences_shows_margin_and_accuracy():
    record = {"kind": "progress", "done": 1, "total": 4, "unit": "steps", "loss": 0.5, "margin": 0.25, "accuracy": 0.75}
    step = {"name": "dpo", "state": "running", "record": record}
    assert steps_text.record_words(step) == "25 % of 4 steps, loss 0.500, margin 0.250, accuracy 0.75"


def test_loss_is_drawn_from_its_start_to_its_current_value():
    assert status_table.sparkline([8.0, 4.0, float("nan"), 1.0]) == "█▄ ▁"
    assert status_table.sparkline([3.0, 3.0]) == "▁▁" and status_table.sparkline([]) == ""
    record = {
        "kind": "progress",
        "step": 9,
        "loss": 2.0,
        "curve": [8.0, 4.0, 2.0],
        "mfu": 0.4321,
    }
    step = {"name": "base", "state": "running", "record": record, "started_at": 900.0, "ended_at": None}
    view = replace(
        VIEW, state="running", step="base", note="", progress={"steps": [step], "tracking": {"wandb": "offline"}}
    )
    words = " ".join(shown(status_table.status_table([view], 1000.0), 120).split())
    assert "brave-otter-3: loss of base 8.00 █▃▁ 2.00 brave-otter-3: wandb: offline" in words
    assert status_table.view_json(view)["tracking"] == {"wandb": "offline"}
    assert "MFU" not in words, "the share of the peak of a CPU depends on the other programs"
    gpu = {"name": "H100", "percent": 93, "used_bytes": 31_200_000_000, "memory_bytes": None}
    of_gpu = replace(view, progress={**view.progress, "machine": {"gpus": [gpu], "gpus_at": 990.0}})
    words = " ".join(shown(status_table.status_table([of_gpu], 1000.0), 120).split())
    assert "tok/s MFU phase left" in words and "43.2 %" in words
    assert status_table.view_json(view)["curve"] == [8.0, 4.0, 2.0]
    assert "loss of" not in shown(status_table.status_table([replace(view, state="succeeded")], 1000.0), 120)
    of_rl = replace(view, progress={"steps": [{**step, "record": {**record, "curve": [0.1, 0.9], "reward": 0.9}}]})
    assert "reward of base 0.10 ▁█ 0.90" in shown(status_table.status_table([of_rl], 1000.0), 120)


def test_uploaded_checkpoint_is_shown_with_its_age():
    view = replace(VIEW, state="running", in_store={"base-f00d/step-000000500": 940.0})
    words = " ".join(shown(status_table.status_table([view], 1000.0), 120).split())
    assert "brave-otter-3: checkpoint base-f00d/step-000000500 is in the store, 1 min 00 s ago" in words
    ended = " ".join(shown(status_table.status_table([replace(view, state="failed")], 1000.0), 120).split())
    assert "step-000000500 or a newer checkpoint is in the store" in ended
    assert status_table.view_json(view)["in_store"] == {"base-f00d/step-000000500": "1970-01-01T00:15:40Z"}
    assert "in the store" not in shown(status_table.status_table([VIEW], 1000.0))


def test_run_ended_by_its_limit_shows_how_to_continue():
    limit = replace(VIEW, state="limit", note="", run_limit_micro_usd=100_000_000)
    assert "inv resume brave-otter-3 --spend-limit 200.00" in shown(status_table.status_table([limit], 2.0), 120)
    assert "inv resume" not in shown(status_table.status_table([replace(limit, state="stopped")], 2.0), 120)


def flat(view: PodView, now: float = 1000.0) -> str:
    return " ".join(shown(status_table.status_table([view], now), 160).split())


def test_time_and_money_of_a_run_share_one_clock_and_one_format():
    step = {
        "name": "base",
        "state": "running",
        "started_at": 900.0,
        "ended_at": None,
        "record": {"kind": "progress", "loss": 2.0, "eta_s": 10.0, "at": 999.0},
    }
    view = PodView(
        run="a-1",
        provider="runpod",
        state="running",
        step="base",
        progress={"steps": [step]},
        age_s=1.0,
        micro_usd_per_hour=19_120_000,
        spent_micro_usd=34_201_000,
        limit_micro_usd=150_000_000,
        limit_in_s=19_650.0,
        elapsed_s=6_440.0,
        clock_scale=60.0,
        started_at=892.0,
    )
    words = flat(view)
    assert "running base 34.21 USD 1 h 47 min 1 min 00 s" in words
    assert "34.21 of 150.00 USD spent at 19.12 USD/h; the limit is reached in 5 h 27 min" in words
    assert "2.000 10 min 00 s 1 min 00 s" in words  # The remaining time, and the age of the report.
    assert "1 h 40 min" in shown(steps_text.steps_table({"steps": [step]}, 1000.0, 60.0))
    assert "base 1 h 40 min: loss 2.000, 10 min 00 s left" in steps_text.step_line(step, 1000.0, 60.0)


def test_ended_run_shows_its_end_and_the_time_of_each_phase():
    steps = [
        {"name": "text", "state": "reused", "elapsed_s": 0.0},
        {"name": "base", "state": "done", "elapsed_s": 255.0},
        {"name": "sft", "state": "failed", "elapsed_s": 61.0},
    ]
    view = PodView(
        "a-1", "local", "failed", progress={"steps": steps}, elapsed_s=641.0, ended_at=940.0, started_at=300.0
    )
    words = flat(view)
    assert "a-1 local failed 0.00 USD 10 min 41 s" in words
    assert (
        "a-1: ended 1970-01-01 00:15 UTC (1 min 00 s ago) after 10 min 41 s: base 4 min 15 s, sft 1 min 01 s" in words
    )
    assert status_table.view_json(view)["ended_at"] == "1970-01-01T00:15:40Z"


def test_pending_and_failed_uploads_are_shown():
    pending = ("work/checkpoints/base-f00d/step-000000500", "logs/base.log")
    view = replace(VIEW, state="running", note="", pending=pending, upload_problem="ConnectionError: \x1b[31mreset")
    words = flat(view)
    assert "2 uploads are pending: base-f00d/step-000000500, logs/base.log" in words
    assert "the last write to the store failed and is retried: ConnectionError: [31mreset" in words
    assert "upload" not in flat(VIEW)


def test_tracker_link_of_a_run_is_shown_below_the_run():
    view = replace(
        VIEW, state="running", note="", progress={"steps": [STEP], "tracking": {"wandb": "offline, for: wandb sync x"}}
    )
    assert "brave-otter-3: wandb: offline, for: wandb sync x" in flat(view)
    assert status_table.view_json(view)["tracking"] == {"wandb": "offline, for: wandb sync x"}


def test_plan_for_a_program_is_the_plan_of_a_wide_terminal(capsys, monkeypatch):
    artifacts = (
        PlannedArtifact("tokenizer", "damaged", "tokenizer", "a file is missing", estimate_s=4.0),
        PlannedArtifact("base_checkpoints/smoke", "missing", "base", estimate_s=165.0),
        PlannedArtifact("datasets/pydocs/text", "here", ""),
    )
    plans = (artifacts, tuple(replace(one, reason="") for one in artifacts), ())
    for notes in ((), ("a note [bold]",)):
        for of in plans:
            plan = Plan("t", "store", of, None, Request(run="r"), notes=notes)
            texts = []
            for width in (None, "10000"):
                monkeypatch.delenv("COLUMNS", raising=False)
                if width:
                    monkeypatch.setenv("COLUMNS", width)
                plan_text.show_plan(plan, stderr=False)
                texts.append([line.rstrip() for line in capsys.readouterr().out.split("\n")])
            assert texts[0] == texts[1]
