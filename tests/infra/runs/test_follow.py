"""Following a run whose reports stop: the pod is asked, and a lost connection is no end of the run."""

import json
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from infra.errors import SlipwayError
from infra.ledger.journal import Journal
from infra.ledger.op import Op
from infra.runs import observation
from infra.transport.protocol import Result, Unreachable

TOKEN = "sw1-aaaaaaaa-bbbbbbbbb"
OLD = {"token": TOKEN, "updated_at": 1.0}


@dataclass
class Machine:
    """A transport whose pod stopped to report long ago, with the answers to the questions about guard and agent."""

    answers: list[bool | None]
    """True if guard and agent live, None for a lost connection. The verdict exists after the last answer."""
    asked: list[bool | None] = field(default_factory=list)
    python: str = "python3"
    agent: str = "infra.agent"
    has_verdict: bool = True

    def get(self, path: Path, limit_bytes: int = 0) -> bytes:
        if Path(path).stem == "progress":
            return json.dumps(OLD).encode()
        if self.answers or not self.has_verdict:
            raise FileNotFoundError(path)
        return json.dumps({"token": TOKEN, "state": "succeeded"}).encode()

    def run(self, words: list[str], **how: object) -> Result:
        self.asked.append(self.answers.pop(0))
        if self.asked[-1] is None:
            raise Unreachable("no server answers")
        said = {"token": TOKEN, "alive": self.asked[-1]}
        return Result(0, json.dumps({"guard": said, "agent": said, "progress": OLD, "verdict": None}), "")


@pytest.fixture
def journal(tmp_path, monkeypatch):
    for name in ("POLL_S", "RETRY_S", "DOUBT_AFTER_S"):
        monkeypatch.setattr(observation, name, 0.001)
    with Journal.open(tmp_path / "journal.db") as journal:
        yield journal


@pytest.fixture
def op(journal, tmp_path) -> Op:
    op = journal.plan(token=TOKEN, run="calm-ox-1", vendor="ssh")
    for event in ("sending", "created"):
        op = journal.advance(op, event)
    return journal.advance(journal.note(op, address=str(tmp_path)), "armed")


def test_connection_lost_during_the_question_is_silence(journal, op):
    machine = Machine([True, None, True])
    said = list(observation.follow(op, journal, machine))
    assert machine.asked == [True, None, True]
    silent = [progress["unreachable"] for progress, _ in said if "unreachable" in progress]
    assert len(silent) == 1 and silent[0].endswith(": no server answers")
    assert said[-1][1]["state"] == "succeeded"


def test_pod_without_guard_and_agent_has_ended(journal, op):
    with pytest.raises(SlipwayError, match="calm-ox-1: neither guard nor agent is running; .* inv resume calm-ox-1"):
        list(observation.follow(op, journal, Machine([True, False], has_verdict=False)))


def test_verdict_written_before_the_question_counts(journal, op):
    assert list(observation.follow(op, journal, Machine([False])))[-1][1]["state"] == "succeeded"
