"""What records look like as text, whatever a pod has put into them."""

from dataclasses import replace

from rich.console import Console

from infra.records import Plan, PlannedArtifact, PodView, Request
from scripts.cli import render

HOSTILE = "[/red] \x1b[31m\u202eevil [bold]"
STEP = {"name": "base", "state": "running", "started_at": 1.0, "record": {"kind": "note", "text": HOSTILE}}
VIEW = PodView("brave-otter-3", "local", "failed", step="base", progress={"steps": [STEP]}, note=HOSTILE)


def shown(what, width: int = 80) -> str:
    console = Console(width=width, force_terminal=False)
    with console.capture() as captured:
        console.print(what)
    return captured.get()


def test_what_a_pod_says_neither_steers_the_terminal_nor_is_taken_for_markup():
    running = replace(VIEW, state="running")
    for text in (shown(render.watch_screen([running, VIEW], 2.0)), shown(render.steps_table({"steps": [STEP]}, 2.0))):
        assert "[/red] [31mevil [bold]" in text and "\x1b" not in text and "\u202e" not in text


def test_a_reused_step_took_no_time_of_this_run():
    reused = {**STEP, "state": "reused", "started_at": None, "ended_at": 9.0, "record": None, "result": None}
    assert render.step_line(reused, 9.0).endswith("= base 0.0 s")


def test_a_reason_in_a_plan_is_no_markup(capsys):
    artifact = PlannedArtifact("tokenizer", "damaged", "tokenizer", HOSTILE)
    render.show_plan(Plan("t", "store", (artifact,), None, Request(run="r")), stderr=False)
    assert "[/red] [31mevil" in capsys.readouterr().out


def test_why_a_run_ended_has_a_line_of_its_own():
    view = replace(VIEW, note="step tokenizer failed with exit code 2")
    assert "brave-otter-3: step tokenizer failed with exit code 2\n" in shown(render.status_table([view]))


def test_the_step_of_training_is_a_number_or_unknown():
    said = {"kind": "result", "step": "text"}, {"kind": "progress", "step": 7}
    views = [replace(VIEW, progress={"steps": [{**STEP, "record": one}]}) for one in said]
    assert [render.view_json(view)["train_step"] for view in views] == [None, 7]


def test_figures_stand_in_columns_and_each_group_says_how_old_it_is():
    machine = {
        "gpus": [{"name": "H100", "percent": 93, "used_bytes": 31_200_000_000, "memory_bytes": None}],
        "gpus_at": 990.0, "disk_free_bytes": 512_000_000_000, "disk_at": 980.0,
    }  # fmt: skip
    record = {"kind": "progress", "step": 1200, "loss": 4.9561, "tokens_per_s": 4496.2, "eta_s": 75, "at": 970.0}
    step = {"name": "base", "state": "running", "record": record, "started_at": 900.0, "ended_at": None}
    progress = {"steps": [step], "machine": machine}
    view = PodView(run="a-1", provider="ssh", state="running", step="base", progress=progress, age_s=1.0)
    seen = render.figures(view, 1000.0)
    assert (seen["train_step"], seen["train_age_s"], seen["gpus_age_s"], seen["disk_age_s"]) == (1200, 30, 10, 20)
    words = " ".join(shown(render.status_table([view], 1000.0), 120).split())
    assert "at work at loss tok/s left age a-1" in words and "machine GPU memory age disk free age a-1" in words
    assert "a-1 1,200 4.956 4,496 1 min 15 s 30 s" in words and "a-1 93 % 31.2 GB of ? 10 s 512.0 GB 20 s" in words
    assert "GPU" not in shown(render.figures_tables([replace(view, progress={**progress, "machine": {}})], 1000.0))
    assert {"gpus", "gpus_age_s", "disk_free_bytes", "disk_age_s", "train_age_s"} <= render.view_json(view).keys()


def test_a_step_that_makes_shards_says_how_fast_it_is_and_what_it_left_out():
    record = {"kind": "progress", "done": 1, "total": None, "share": 0.256, "shards": 1, "documents_per_s": 12345,
              "mb_per_s": 67.89, "eta_s": 75}  # fmt: skip
    step = {"name": "shard", "state": "running", "record": record, "started_at": 1.0, "ended_at": None}
    words = "about 26 %, 1 document, 1 whole shard, 12,345 documents/s, 67.9 MB/s, 1 min 15 s left"
    assert render.record_words(step) == words and render.record_words(step, brief=True) == "about 26 %, 1 min 15 s left"
    some = {**record, "done": 500, "total": 2000, "unit": "documents"}
    assert render.record_words({**step, "record": some}).startswith("25 % of 2,000 documents, 1 whole shard, 12,345")
    counts = {"read": 9, "empty": 0, "invalid_utf8": 3, "duplicate": 2}
    result = {"documents": 7, "shards": 2, "held_out": 1, "counts": counts}
    assert render.record_words({**step, "record": {"kind": "result", **result}}) == ""  # before it has left
    assert render.record_words({**step, "state": "done", "result": result}) == (
        "7 documents in 2 shards, 1 held out, 2 duplicates left out, 3 with bytes that are not UTF-8, replaced"
    )


def test_a_loss_is_drawn_from_where_it_began_to_where_it_is():
    assert render.sparkline([8.0, 4.0, float("nan"), 1.0]) == "█▄ ▁"
    assert render.sparkline([3.0, 3.0]) == "▁▁" and render.sparkline([]) == ""
    record = {
        "kind": "progress",
        "step": 9,
        "loss": 2.0,
        "curve": [8.0, 4.0, 2.0],
        "mfu": 0.4321,
        "tracking": "offline",
    }
    step = {"name": "base", "state": "running", "record": record, "started_at": 900.0, "ended_at": None}
    view = replace(VIEW, state="running", step="base", note="", progress={"steps": [step]})
    words = " ".join(shown(render.status_table([view], 1000.0), 120).split())
    assert "brave-otter-3: loss of base 8.00 █▃▁ 2.00 brave-otter-3: W&B: offline" in words
    assert "tok/s MFU left" in words and "43.2 %" in words
    assert render.view_json(view)["curve"] == [8.0, 4.0, 2.0]
    assert "loss of" not in shown(render.status_table([replace(view, state="succeeded")], 1000.0), 120)


def test_a_checkpoint_that_is_safe_is_named_with_its_age():
    view = replace(VIEW, state="running", in_store={"base-f00d/step-000000500": 940.0})
    words = " ".join(shown(render.status_table([view], 1000.0), 120).split())
    assert "brave-otter-3: checkpoint base-f00d/step-000000500 is in the store, 1 min 00 s ago" in words
    ended = " ".join(shown(render.status_table([replace(view, state="failed")], 1000.0), 120).split())
    assert "step-000000500 or a newer one is in the store" in ended
    assert render.view_json(view)["in_store"] == {"base-f00d/step-000000500": "1970-01-01T00:15:40Z"}
    assert "in the store" not in shown(render.status_table([VIEW], 1000.0))


def test_a_run_whose_money_was_not_enough_is_told_how_it_goes_on():
    limit = replace(VIEW, state="limit", note="", limit_micro_usd=100_000_000)
    assert "inv resume brave-otter-3 --spend-limit 200.00" in shown(render.status_table([limit], 2.0), 120)
    assert "inv resume" not in shown(render.status_table([replace(limit, state="stopped")], 2.0), 120)
