"""The timeline of a pod: states of the agent and of steps, and parts as reported by the step."""

import json

import pytest

from infra.agent.execution import timeline
from infra.agent.execution.progress import Progress
from infra.agent.job import Job, PodFolder
from infra.agent.limits import read_clocks


def said_by(pod):
    """Return the lines of the timeline without clocks."""
    lines = [json.loads(line) for line in pod.log(timeline.NAME).read_text().splitlines()]
    assert all(line.pop("token") == "t1" for line in lines)
    return [{name: one for name, one in line.items() if name not in ("at", "clock_s")} for line in lines], lines


def test_timeline_has_each_state_and_the_parts_stay_out_of_the_progress(tmp_path):
    pod, clocks = PodFolder(tmp_path), read_clocks()
    progress = Progress(pod, Job(run="otter", token="t1", steps=()), ["sft"], lambda value: value)
    progress.begin("sft")
    shown = {"kind": "progress", "at": clocks.wall_s, "done": 1, "total": 2}
    part = {"kind": "part", "at": 7.0, "clock_s": 3.0, "part": "saves", "took_s": 0.5, "more": "not copied"}
    progress.add_records("sft", [shown, part])
    assert progress.steps["sft"]["record"] == shown
    progress.end("sft", "done")
    progress.close("succeeded")
    facts, lines = said_by(pod)
    assert facts == [
        {"agent": "starting"},
        {"step": "sft", "state": "running"},
        {"step": "sft", "part": "saves", "took_s": 0.5},
        {"step": "sft", "state": "done"},
        {"agent": "succeeded"},
    ]
    assert (lines[2]["at"], lines[2]["clock_s"]) == (7.0, 3.0)  # of the step, not of the agent
    assert all(abs(line["at"] - clocks.wall_s) < 60 and line["clock_s"] >= clocks.boot_s - 1 for line in lines[:2])


def test_progress_has_the_time_of_a_step_without_sleep_and_without_jumps_of_the_clock(tmp_path, monkeypatch):
    clock = [40.0]
    monkeypatch.setattr("infra.agent.execution.progress.awake_s", lambda: clock[0])
    one = Progress(PodFolder(tmp_path), Job(run="otter", token="t1", steps=()), ["sft", "fetch"], lambda value: value)
    clock[0] = 100.0
    one.begin("sft")
    clock[0] = 160.0
    one.end("sft", "done")
    one.end("fetch", "reused")
    assert (one.steps["sft"]["awake_s"], one.steps["fetch"]["awake_s"]) == (60.0, None)
    said = json.loads(one.path.read_text())
    assert said["awake_s"] == 120.0 and said["started_at"] <= one.steps["sft"]["started_at"]


def test_timeline_shows_an_agent_at_work_by_a_line_every_ten_seconds(tmp_path):
    one = timeline.Timeline(tmp_path / "logs" / "timeline.log", "t1")
    one.add_sign_of_life()
    one.add_sign_of_life()  # too early
    one.written_at -= timeline.ALIVE_EVERY_S
    one.add_sign_of_life()
    assert len(one.path.read_text().splitlines()) == 2


def test_timeline_on_a_full_disk_leaves_a_gap(tmp_path, capsys):
    (tmp_path / "logs").touch()  # no folder can be made here
    timeline.Timeline(tmp_path / "logs" / "timeline.log", "t1").add(agent="starting")
    assert "could not write the timeline" in capsys.readouterr().out


def test_marks_are_shares_of_the_newest_total(tmp_path):
    progress = Progress(PodFolder(tmp_path), Job(run="otter", token="t1", steps=()), ["sft"], lambda value: value)
    progress.begin("sft")
    at = progress.steps["sft"]["started_at"]
    counts = [(1, 1000), (100, 1000), (101, 200), (200, 200)]
    progress.add_records(
        "sft", [{"kind": "progress", "at": at + done, "done": done, "total": total} for done, total in counts]
    )
    assert progress.steps["sft"]["marks"] == [[1.0, 0.005], [100.0, 0.5], [200.0, 1.0]]
    progress.begin("sft")
    assert progress.steps["sft"]["marks"] == [] and progress.steps["sft"]["total"] is None


PAIRS = [{"done": done, "total": 50, "unit": "pairs"} for done in (10, 50)]
TRAINING = [{"done": done, "total": 100, "unit": "steps", "step": done} for done in (1, 100)]
SHARES = [0.01, 1.0]


@pytest.mark.parametrize(
    ("records", "shares", "steps"),
    [
        (PAIRS, [0.2, 1.0], None),
        (PAIRS + TRAINING, SHARES, 100),
        ([{**one, "unit": "steps"} for one in PAIRS] + TRAINING, SHARES, 100),
        (TRAINING + PAIRS, SHARES, 100),
        ([*TRAINING, {"done": 9, "unit": "held-out bytes"}], SHARES, 100),
        ([*PAIRS, {"done": 3, "total": 4, "unit": "rows"}], [0.75], None),
        ([*PAIRS, {"done": 3, "total": 4, "unit": "rows", "step": "last"}], [0.75], None),
    ],
)
def test_marks_and_steps_of_a_training_ignore_amounts_of_other_units(tmp_path, records, shares, steps):
    progress = Progress(PodFolder(tmp_path), Job(run="otter", token="t1", steps=()), ["dpo"], lambda value: value)
    progress.begin("dpo")
    at = progress.steps["dpo"]["started_at"]
    progress.add_records("dpo", [{"kind": "progress", "at": at + 1, **one} for one in records])
    step = progress.steps["dpo"]
    assert [share for _, share in step["marks"]] == shares and (step["training"] or {}).get("step") == steps
    assert step["record"]["unit"] == records[-1]["unit"]
    progress.begin("dpo")
    assert progress.steps["dpo"]["training"] is None
