"""Reports of a pod about itself, and jobs: any content is either read or reported as an error of ours."""

import json

import pytest
from hypothesis import example, given, settings

from infra.agent import untrusted_json as agents
from infra.agent.execution.progress import RecordTail
from infra.agent.job import Job, Limits, Step
from infra.errors import SlipwayError
from infra.ledger.op import Op
from infra.records import PodView
from infra.runs import pod_reports
from infra.runs.observation import Observation
from infra.runs.pod_views import read_clocks, view
from scripts.cli import render, steps_text
from scripts.runs import status_table
from tests import hostile, seeds

MANY = settings(max_examples=seeds.examples(40, 600))
RECORD = {
    "kind": "progress", "at": 1e9, "done": 5, "total": 10, "unit": "tokens", "step": 3, "loss": 1.5,
    "tokens_per_s": 7.5, "mfu": 0.1, "eta_s": 9.0, "curve": [1.5, 2.0], "text": "",
    "shards": 3, "documents": 7, "held_out": 2, "counts": {"read": 3}, "documents_per_s": 7, "mb_per_s": 0.5,
    "bits_per_byte": 1.5,
}  # fmt: skip
STEP = {
    "name": "base", "state": "running", "attempts": 1, "started_at": 1e9, "ended_at": None, "elapsed_s": 7.5,
    "record": RECORD, "result": None, "marks": [[1.5, 0.1], [7.0, 0.5]], "others_share": 0.25,
    "awake_s": 7.5,
}  # fmt: skip
PROGRESS = {
    "token": "sw1-x", "run": "calm-ox-1", "state": "running", "step": "base", "updated_at": 1e9, "steps": [STEP],
    "agents": 1, "started_at": 1e9, "awake_s": 7.5,
    "machine": {"gpus": [{"name": "H100", "percent": 93, "used_bytes": 1, "memory_bytes": 2, "peak_bytes": 1}],
                "gpus_at": 1e9, "disk_free_bytes": 7, "disk_at": 1e9},
    "in_store": {"base-x/step-000000005": 1e9},
}  # fmt: skip
VERDICT = {"token": "sw1-x", "state": "failed", "step": "base", "exit_code": 1, "lost": None, "reason": "x", "at": 1e9}
GUARD = {
    "token": "sw1-x", "alive": False, "limit_s": 60.0, "elapsed_s": 5.0, "spent_micro_usd": 3,
    "clocks": {"boot_id": "x", "boot_s": 1.0, "wall_s": 1e9},
}  # fmt: skip
JOB = Job("calm-ox-1", "sw1-x", (Step("base", ("-m", "trainer"), config={"spec": {"a": 1}}),), Limits(time_s=60.0))


def shown(progress: dict, verdict: dict, guard: dict) -> PodView:
    op = Op(run="calm-ox-1", token="sw1-x", vendor="local", state="ready")
    row = view(
        op,
        Observation(exists=True, is_alive=True, progress=progress, verdict=verdict, guard=guard),
        read_clocks(),
        [op],
        {},
    )
    with render.console(stderr=False).capture():
        render.console(stderr=False).print(status_table.watch_screen([row], 1.0))
        render.console(stderr=False).print(steps_text.steps_table(row.progress, 1e9))
    json.dumps(status_table.view_json(row)).encode()
    return row


def heard(document: bytes) -> dict:
    try:
        return pod_reports.parse(document, "what it says")
    except SlipwayError as error:
        assert "what it says cannot be read" in str(error) and len(str(error)) < 500
        return {}


@MANY
@given(document=hostile.documents(PROGRESS))
@example(document=json.dumps({**PROGRESS, "updated_at": float("nan")}).encode())
def test_progress_of_any_content_makes_a_row_of_the_table(document):
    shown(heard(document), {}, {})


@MANY
@given(verdict=hostile.documents(VERDICT), guard=hostile.documents(GUARD))
def test_a_verdict_and_a_guard_of_any_content_make_a_row_of_the_table(verdict, guard):
    shown(PROGRESS, heard(verdict), heard(guard))


def test_valid_content_is_passed_unchanged():
    for whole in (PROGRESS, VERDICT, GUARD):
        assert pod_reports.parse(json.dumps(whole), "x") == whole


@MANY
@given(document=hostile.documents(json.loads(JOB.to_json())))
def test_a_job_of_any_content_is_a_job_or_a_value_error(document):
    try:
        job = Job.from_json(document.decode("utf-8", "replace"))
    except ValueError:
        return
    assert Job.from_json(job.to_json()) == job


def test_our_own_jobs_are_read_unchanged():
    assert Job.from_json(JOB.to_json()) == JOB


@MANY
@given(document=hostile.documents(RECORD))
def test_a_step_record_of_any_content_hides_no_other_record(tmp_path, document):
    tail = RecordTail(tmp_path / "records.jsonl")
    with open(tmp_path / "records.jsonl", "ab") as file:
        file.write(document[: 1 << 18].replace(b"\n", b" ") + b"\n" + b'{"kind": "result"}\n')
    found = tail.read()
    assert found[-1] == {"kind": "result"}
    json.dumps(found, allow_nan=False)


@MANY
@given(document=hostile.documents(PROGRESS))
def test_documents_read_by_the_pods_reader_can_be_written_again(document):
    try:
        value = agents.parse(document)
    except ValueError:
        return
    assert agents.parse(json.dumps(value, allow_nan=False)) == value


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 900 + "1" + "}" * 900, "1e999", "9" * 6000])
def test_the_pods_reader_refuses_deep_documents_and_invalid_numbers(text):
    with pytest.raises(ValueError):
        agents.parse(text)
