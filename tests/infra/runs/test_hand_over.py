"""The hand-over of a job: the count of a rented pod's guard."""

from dataclasses import dataclass, field, replace
from typing import Any

import pytest

from infra.agent import limits
from infra.agent.job import Job, Limits, Step
from infra.ledger.journal import Journal
from infra.providers.local import Local
from infra.records import Request
from infra.runs import hand_over, pods
from infra.transport.protocol import ConnectionLost, ThisMachine

pytestmark = pytest.mark.process

JOB = Job(run="", token="", steps=(Step(name="work", words=("-m", "work")),), limits=Limits(time_s=600.0))
SLOW_S = 40.0


@dataclass
class Cut:
    """The transport of this machine with a delayed loss of the first commands; starts no guard."""

    far: ThisMachine
    token: str
    clock: dict[str, float]
    losses: int = 1
    jobs: list[Job] = field(default_factory=list)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.far, name)

    def put(self, content: bytes, path: Any, mode: int) -> None:
        self.far.put(content, path, mode)
        if path.name == "job.json":
            self.jobs.append(Job.from_json(content.decode()))

    def run(self, words: Any, **more: Any) -> Any:
        self.clock["s"] += SLOW_S
        if self.losses:
            self.losses -= 1
            raise ConnectionLost("the connection broke")
        return self.far.run(["echo", f'{{"token": "{self.token}"}}'], timeout_s=20)


@pytest.fixture
def clock(monkeypatch):
    now = {"s": 0.0}

    def later() -> limits.Clocks:
        seen = limits.read_clocks()
        return replace(seen, boot_s=seen.boot_s + now["s"], wall_s=seen.wall_s + now["s"])

    monkeypatch.setattr(hand_over, "read_clocks", later)
    return now


def test_each_attempt_gives_the_guard_the_billed_time_so_far(tmp_path, monkeypatch, clock):
    vendor = Local(tmp_path / "pods")
    request = Request(run="a-1")
    with Journal.open(tmp_path / "journal.db", {"XDG_CONFIG_HOME": str(tmp_path)}) as journal:
        op = pods.rent(vendor, request, vendor.offers(request)[0], JOB, journal, pods.RowDraft())
        op = journal.note(op, rate=3_600_000)
        clock["s"] = 100.0
        far = Cut(ThisMachine(), op.token, clock)
        monkeypatch.setattr(Local, "reach", lambda self, pod: far)
        op = hand_over.hand_over(op, vendor, journal, {})
        first, second = (one.limits.billed_s for one in far.jobs)
        assert 100.0 <= first < 130.0 and second - first >= SLOW_S
        # A machine with a lost disk has no report of the earlier guard.
        clock["s"] = 500.0
        op = hand_over.hand_over(journal.advance(op, "unreachable"), vendor, journal, {})
        assert op.state == "READY" and 500.0 <= far.jobs[-1].limits.billed_s < 530.0
        assert op.read_job() == far.jobs[-1]
