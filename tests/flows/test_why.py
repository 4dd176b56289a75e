"""The explanation of a run: the first line names the cause, from the records of journal and pod."""

import json
from dataclasses import replace

import pytest

from flows.history import why
from flows.history.causes import RunEvidence, cause_of
from flows.history.why import of_run
from infra.agent.job import TEXT_WORDS, Job, Step
from infra.ledger.journal import Journal
from infra.ledger.leases import keeper_lease
from infra.ledger.op import Op
from infra.records import PodView
from infra.settings import Settings
from serve.policy.replica_states import Facts, ProcessStatus
from serve.policy.service_state import Member, ServiceRecord
from tests.world import ROOT


def pod(token: str = "t1", reason: str = "", outcome: str = "", state: str = "TERMINATED") -> Op:
    return Op(token=token, run="calm-1", vendor="runpod", state=state, remote_id=token, reason=reason, outcome=outcome)


def failed(reason: str, tail: str = "", exit_code: int | None = 1) -> dict:
    return {"state": "failed", "step": "sft", "reason": reason, "tail": tail, "exit_code": exit_code}


GONE, BACK = pod("t0", "runpod says it is EXITED"), pod("t1", state="READY")
ENDED = pod("t1", "the work has ended: failed", "failed")
KILLED = "step sft was killed by SIGKILL; the usual cause: the machine ran out of memory"


@pytest.mark.parametrize(("name", "word", "evidence"), [
    ("preemption", "the run was resumed 1 time and is at work", dict(state="running", rows=[GONE, BACK], recoveries=1)),
    ("preemption", "no pod has been rented since", dict(state="stopped", rows=[GONE])),
    ("preemption", "the supervisor looks for a new pod", dict(state="waiting", rows=[GONE])),
    ("preemption", "the process that follows the run looks for a new pod", dict(
        state="ending", is_kept=True, rows=[pod("t0", "it was gone", state="ENDING")])),
    ("limit", "the limit of 1 h is near", dict(
        state="limit", rows=[pod("t1", "the work has ended: limit", "limit")],
        verdict={"state": "limit", "reason": "the limit of 1 h is near"})),
    ("idle GPU", "8 GPUs idle for 15 min", dict(
        state="limit", rows=[pod("t1", "", "limit")], verdict={"state": "limit", "reason": "8 GPUs idle for 15 min"})),
    ("bad host", "driver: 535 supports CUDA 12.2", dict(
        state="failed", rows=[pod("t9", "driver: 535 supports CUDA 12.2, torch needs 13.0")], armed=frozenset())),
    ("out of memory", "step sft was killed by SIGKILL; no record names the sender", dict(
        state="failed", rows=[ENDED], verdict=failed(KILLED, "", -9))),
    ("out of memory", "the GPU ran out of memory in step sft", dict(
        state="failed", rows=[ENDED],
        verdict=failed("step sft failed with exit code 1", "sft: the GPU's memory is full: take 4 rows"))),
    ("full disk", "disk nearly full", dict(
        state="failed", rows=[ENDED], verdict=failed("disk nearly full: 0.50 GB free, 1.07 GB needed"))),
    ("full disk", "No space left", dict(
        state="failed", rows=[ENDED], words="OSError: [Errno 28] No space left on device",
        verdict=failed("step sft failed with exit code 1"))),
    ("killed engine", "killed by SIGKILL", dict(
        state="failed", rows=[ENDED], is_engine=True, verdict=failed("step engine was killed by SIGKILL", "", -9))),
    ("killed engine", "ended with exit code 3", dict(  # folder and verdict are gone
        state="failed", is_engine=True, rows=[pod("t1", "the engine has ended: step engine failed with exit code 3")])),
    ("stall", "fell silent", dict(state="failed", rows=[ENDED], verdict=failed("step sft fell silent 4 times"))),
    ("failure", "KeyError: 'text'", dict(
        state="failed", rows=[ENDED], verdict=failed("step sft failed with exit code 1", "KeyError: 'text'"))),
    ("stopped", "a user ended the run", dict(state="stopped", rows=[pod("t1", "asked for", "asked")])),
    ("running", "on step sft", dict(state="running", rows=[BACK], progress={"step": "sft"})),
    ("resumed", "stopped 2 times (asked for; then killed), continued, and is at work", dict(
        state="running", rows=[BACK], stops=["asked for", "killed"])),
])  # fmt: skip
def test_the_cause_is_named(name, word, evidence):
    armed = frozenset(op.token for op in evidence["rows"])
    found = cause_of(RunEvidence(**{"run": "calm-1", "armed": armed, **evidence}))
    assert found.name == name
    assert word in found.says
    assert found.then


OWN = Job(run="calm-1", token="t1", steps=(Step(name="run", words=TEXT_WORDS),)).to_json()
SPOT = json.dumps({"spot": True})
ERRORS = "read all errors: inv logs calm-1 --errors; fix the cause, then: "
AGAIN = f"{ERRORS}launch again, because a resumed run repeats the same step"
LARGER = "launch again on a machine with more memory (--memory GB), or with smaller batches"


@pytest.mark.parametrize(("then", "evidence"), [
    ("wait, or end the run: inv down calm-1", dict(state="lost", is_kept=True, rows=[GONE])),
    ("resume the run: inv resume calm-1", dict(state="lost", rows=[GONE])),
    ("nothing", dict(state="running", rows=[GONE, BACK])),
    ("nothing; to avoid preemptions, launch without --use-spot", dict(
        state="running", rows=[GONE, replace(BACK, request=SPOT)])),
    ("continue with the same limit again: inv resume calm-1", dict(state="limit", rows=[ENDED])),
    ("continue with a higher limit: inv resume calm-1 --spend-limit USD, or --ttl TIME", dict(
        state="limit", rows=[replace(ENDED, rate=2_000_000)])),
    (f"{ERRORS}inv resume calm-1", dict(
        state="failed", rows=[ENDED], verdict=failed("step sft failed with exit code 1"))),
    (AGAIN, dict(state="failed", rows=[ENDED], verdict=failed("step sft failed with exit code 2", "", 2))),
    (AGAIN, dict(state="failed", rows=[replace(ENDED, job=OWN)],
                 verdict={**failed("step run failed with exit code 1"), "step": "run"})),
    (f"continue: inv resume calm-1; if that fails too, {LARGER}", dict(
        state="failed", rows=[ENDED], verdict=failed(KILLED, "", -9))),
    (LARGER, dict(
        state="failed", rows=[ENDED], verdict=failed("step sft failed with exit code 1", "MemoryError"))),
])  # fmt: skip
def test_the_advice_repeats_no_command_that_must_fail_again(then, evidence):
    armed = frozenset(op.token for op in evidence["rows"])
    assert cause_of(RunEvidence(run="calm-1", armed=armed, **evidence)).then == then


@pytest.mark.parametrize(("then", "evidence"), [
    ("repeat the launch with a higher limit: --spend-limit USD, or --ttl TIME", dict(
        state="limit", rows=[replace(ENDED, rate=2_000_000)])),
    ("to continue: repeat the launch, because no machine has the code", dict(
        state="stopped", rows=[pod("t1", "asked for", "asked")])),
])  # fmt: skip
def test_a_run_whose_code_reached_no_pod_is_launched_again(then, evidence):
    assert cause_of(RunEvidence(run="calm-1", **evidence)).then == then


HOUR, SAVED = {"state": "limit", "reason": "1 h is over"}, {"in_store": {"sft-1/step-40": 60.0, "sft-1/step-20": 30.0}}
DEAD = {"state": "failed", "step": "sft", "reason": "step sft failed with exit code 1"}


@pytest.mark.parametrize(("claim", "record", "without"), [
    # each sentence that claims more than an end: the claim, the record, and the explanation without the record
    ("newest checkpoint on record is sft-1/step-40, ", dict(state="limit", rows=[ENDED], verdict=HOUR, progress=SAVED),
     dict(progress={})),
    ("the run reached the limit: 1 h is over", dict(state="limit", rows=[pod("t1", "", "limit")], verdict=HOUR),
     dict(verdict={})),
    ("a user ended the run", dict(state="stopped", rows=[pod("t1", "asked for", "asked")]),
     dict(rows=[pod("t1", "the work was stopped by SIGTERM", "stopped")])),
    ("the log holds the stack traces", dict(
        state="failed", rows=[ENDED], verdict=failed("step sft fell silent"), words="Thread (most recent call first):"),
     dict(words="step 3")),
    ("killed by SIGKILL", dict(state="failed", rows=[ENDED], verdict={**DEAD, "exit_code": -9}),
     dict(verdict={**DEAD, "exit_code": 1}, words="MemoryError")),
    ("killed by SIGKILL", dict(state="failed", rows=[ENDED], is_engine=True,
                               verdict=failed("step engine was killed by SIGKILL", "", -9)),
     dict(verdict=failed("step engine failed with exit code 3", "", 3))),
    ("no pod has been rented since", dict(state="stopped", rows=[GONE]), dict(rows=[GONE, ENDED])),
    ("resumed 2 times", dict(state="running", rows=[GONE, BACK], recoveries=2), dict(recoveries=0)),
    ("given back before the work began", dict(
        state="stopped", rows=[pod("t9", "driver: 535 is too old")], armed=frozenset()),
     dict(rows=[pod("t9", "its launch was cut off")])),
    ("neither its guard nor its agent is running", dict(
        state="lost", rows=[pod(state="LOST")], why="neither its guard nor its agent is running"), dict(why="")),
    ("no longer lists the pod", dict(state="stopped", rows=[pod("t0", "")]), dict(rows=[GONE])),
    ("the run reached the limit for idle GPUs", dict(
        state="limit", rows=[ENDED], verdict={"state": "limit", "reason": "8 GPUs idle for 15 min"}),
     dict(verdict=HOUR)),
    ("the disk was full in step sft", dict(state="failed", rows=[ENDED], verdict=DEAD, words="No space left on device"),
     dict(words="")),
    ("the GPU ran out of memory", dict(state="failed", rows=[ENDED], verdict=DEAD, words="CUDA out of memory"),
     dict(words="")),
])  # fmt: skip
def test_every_claim_has_a_record(claim, record, without):
    common = {"run": "calm-1", "armed": frozenset(op.token for op in record["rows"])}
    assert claim in cause_of(RunEvidence(**{**common, **record})).says
    assert claim not in cause_of(RunEvidence(**{**common, **record, **without})).says


@pytest.mark.parametrize(("making", "then"), [
    ({"name": "chatsft_checkpoints/tiny"}, "talk to the new model: inv chat chatsft_checkpoints/tiny"),
    (None, "read the log: inv logs calm-1"),
])  # fmt: skip
def test_chat_is_suggested_only_for_a_run_with_a_model(making, then):
    step = Step(name="run", words=("x",), config={"making": making} if making else {})
    row = replace(ENDED, outcome="succeeded", job=Job(run="calm-1", token="t1", steps=(step,)).to_json())
    assert cause_of(RunEvidence(run="calm-1", state="succeeded", rows=[row], armed=frozenset())).then == then


def test_the_explanation_has_at_most_ten_lines_from_the_journal(tmp_path):
    environ = {
        "SLIPWAY_STATE_FILE": str(tmp_path / "state" / "journal.db"),
        "HOME": str(tmp_path),
        "SLIPWAY_PODS": str(tmp_path / "pods"),
        "RUNPOD_API_KEY": "",
    }
    settings = Settings.load(ROOT, environ=environ)
    with Journal.open(settings.state_file) as journal:
        for number in range(6):
            op = journal.plan(token=f"sw1-{number}", run="calm-1", vendor="runpod", rate=2_000_000)
            for event in ("sending", "created", "armed"):
                op = journal.advance(op, event, **({"remote_id": f"p{number}"} if event == "created" else {}))
            op = journal.advance(op, "gone", reason="runpod says it is EXITED")
        journal.leases.release(journal.leases.acquire(keeper_lease("calm-1")))  # the keeper has given up
        story = of_run(op, journal, settings)
    assert len(story.text) <= 10
    assert "pods 2 to 4: gone: runpod says it is EXITED (3)" in story.text
    assert story.text[0].startswith("calm-1: preemption: the pod was gone without a request by Slipway, 6 times")
    assert story.text[-1] == "to do: resume the run: inv resume calm-1"
    assert any(line.startswith("cost: ") and line.endswith("nothing of it bills") for line in story.text)


def test_a_resumed_run_lists_every_stop(tmp_path):
    settings = Settings.load(ROOT, environ={"SLIPWAY_STATE_FILE": str(tmp_path / "journal.db"), "HOME": str(tmp_path)})
    with Journal.open(settings.state_file) as journal:
        for number, reason in enumerate(("the work has ended: failed: step sft was killed by SIGKILL", "")):
            op = journal.plan(token=f"sw1-{number}", run="calm-1", vendor="runpod")
            for event in ("sending", "created", "armed", "unreachable", "reachable"):
                op = journal.advance(op, event, **({"remote_id": f"p{number}"} if event == "created" else {}))
            if reason:
                op = journal.advance(journal.advance(op, "end", reason=reason, outcome="failed"), "gone")
        stops = why._stops(journal.ops(run="calm-1"), journal.events("calm-1"))
        lines = why._lines(
            RunEvidence(run="calm-1", state="running", rows=journal.ops(run="calm-1")),
            journal.events("calm-1"),
            PodView("calm-1", "runpod", "running"),
        )
    assert stops.count("neither the guard nor the agent was running") == 2 and any("SIGKILL" in one for one in stops)
    assert "silent at" in lines[1] and "at work again from" in lines[1]


@pytest.mark.parametrize(("said", "shown"), [
    ({"state": "done", "attempts": 1}, "sft done"),
    ({"state": "failed", "attempts": 2}, "sft failed at the 2. attempt"),
    ({"state": "waiting", "attempts": 1, "record": {"done": 281, "total": 5000, "unit": "steps"}},
     "sft stopped after 281 of 5,000 steps"),
    ({"state": "waiting", "attempts": 1, "record": None}, "sft stopped"),
])  # fmt: skip
def test_a_begun_step_shows_its_progress(said, shown):
    waiting = {"name": "rl", "state": "waiting", "attempts": 0}
    view = PodView("calm-1", "runpod", "limit")
    evidence = RunEvidence(run="calm-1", state="limit", rows=[], progress={"steps": [{"name": "sft", **said}, waiting]})
    assert f"steps: {shown}" in why._lines(evidence, [], view)


def test_only_a_live_service_has_other_replicas_to_show():
    verdict = failed("step engine was killed by SIGKILL", "", -9)
    ended = RunEvidence(run="calm-1", state="failed", rows=[ENDED], is_engine=True, verdict=verdict)
    assert cause_of(ended).then == "last log lines: inv serve.logs calm --replica-id 1"
    assert cause_of(replace(ended, has_service=True)).then.endswith("; other replicas: inv serve.status calm")


@pytest.mark.parametrize(("said", "cause"), [
    ("the engine has ended: step engine was killed by SIGKILL", "killed engine"), ("fewer are wanted", "serving"),
])  # fmt: skip
def test_a_killed_engine_is_named_while_its_replica_is_ending(tmp_path, said, cause):
    environ = {
        "SLIPWAY_STATE_FILE": str(tmp_path / "state" / "journal.db"),
        "HOME": str(tmp_path),
        "SLIPWAY_PODS": str(tmp_path / "pods"),
        "RUNPOD_API_KEY": "",
    }
    settings = Settings.load(ROOT, environ=environ)
    done = ProcessStatus.SUCCEEDED
    ends = Member(number=0, version=1, run="demo-0", facts=Facts(launch=done, down=ProcessStatus.RUNNING), why=said)
    answers = Member(number=1, version=1, run="demo-1", facts=Facts(launch=done, first_ready_at=1.0, is_ready=True))
    with Journal.open(settings.state_file) as journal:
        op = journal.plan(token="sw1-0", run="demo-0", vendor="runpod", owner_kind="service", owner="demo")
        for event in ("sending", "created", "armed"):
            op = journal.advance(op, event, **({"remote_id": "p0"} if event == "created" else {}))
        journal.advance(op, "gone", reason=said)
        seen = ServiceRecord(members=(ends, answers), serving=(1,))
        story = why._of_service("demo", seen, journal, settings)
    assert story.cause.name == cause
    assert ("1 replica answers now" in story.cause.says) == (cause == "killed engine")
